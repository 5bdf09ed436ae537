"""Pruning some tasks of a network in which they share nothing with the others."""

from __future__ import annotations

import pytest
import torch
from pruning.around import neurons, quickly
from training.small import OBJECTIVES, batches, inputs, merged, original

from pamerge import PamergeError
from pamerge.pruning import VIB, Magnitude, Taylor

TRAIN, VALIDATION = batches(6), batches(4, seed=1)
X = inputs(5, seed=2)


@pytest.mark.parametrize("pruner", [Taylor(batches=2), VIB(gamma=1.0, lr=1.0), Magnitude()])
@pytest.mark.parametrize("taught", [{}, {"teachers": {t: original(t) for t in OBJECTIVES}, "distill": 0.5}])
def test_only_they_change(pruner, taught):
    network = merged(seed=None, batch_norm=True)
    with torch.no_grad():
        before = network(X)
    path = quickly(network, TRAIN, VALIDATION, OBJECTIVES, pruner=pruner, tasks="shape", laps=4, steps=8, **taught)
    with torch.no_grad():
        after = network(X)
    assert not torch.allclose(after["shape"], before["shape"])
    for task in ("parts", "size"):
        assert torch.equal(after[task], before[task])
    assert path.gain("shape") > 1
    assert path.gain("parts") == path.gain("size") == 1
    assert set(path.final) == set(path[0].metrics) == {"shape"}


def test_a_task_is_pruned_as_if_there_were_no_others():
    options = {"pruner": Magnitude(), "laps": 3, "mix": {"shape": 1.0}}
    joint, alone = merged(seed=None), merged("shape", seed=None)
    found = quickly(joint, TRAIN, VALIDATION, OBJECTIVES, tasks=["shape"], **options)
    shape = {"shape": OBJECTIVES["shape"]}
    expected = quickly(alone, batches(6, tasks=("shape",)), batches(4, seed=1, tasks=("shape",)), shape, **options)
    assert joint.flops("shape") == alone.flops()
    assert found.task_batches == expected.task_batches
    assert dict(found.final) == pytest.approx(dict(expected.final))
    torch.testing.assert_close(joint(X, "shape")["shape"], alone(X)["shape"])


def test_one_after_the_other_ends_with_all_of_them_pruned():
    network = merged(seed=None)
    for task in network.tasks:
        quickly(network, TRAIN, VALIDATION, OBJECTIVES, pruner=Taylor(batches=2), tasks=task, laps=2)
    assert all(network.flops(task) < merged(seed=None).flops(task) for task in network.tasks)
    network.check()


def test_validation_labels_of_the_others_are_not_needed():
    network = merged(seed=None)
    judging = batches(2, seed=1, tasks=("shape",))
    quickly(network, TRAIN, judging, OBJECTIVES, pruner=Magnitude(), tasks="shape", laps=1)
    with pytest.raises(PamergeError, match="no labels for task"):
        quickly(network, TRAIN, judging, OBJECTIVES, pruner=Magnitude(), tasks=["shape", "size"], laps=1)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [("shape", r"tasks='shape' share neurons with "), ("colour", "Unknown task"), ([], "empty set of tasks")],
)
def test_tasks_that_cannot_be_pruned_alone_are_an_error_and_nothing_changes(tasks, message):
    network = merged(shared=0.5)
    before = neurons(network)
    with pytest.raises(PamergeError, match=message):
        quickly(network, TRAIN, VALIDATION, OBJECTIVES, pruner=Magnitude(), tasks=tasks, laps=1)
    assert neurons(network) == before
