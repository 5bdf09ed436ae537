"""Statistics of batch norms that are measured anew."""

from __future__ import annotations

import itertools

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from training.small import OBJECTIVES, batches, inputs, merged

import pamerge
from pamerge.pruning import Magnitude
from pamerge.training.data import Batch
from pamerge.training.statistics import ENOUGH, refresh_statistics

FABRIC = Fabric(accelerator="cpu", devices=1)


TASKS = ("shape", "parts")


def feed(size: int = 8, labels: tuple[str, ...] = TASKS):
    targets = dict.fromkeys(labels, torch.zeros(size))
    return itertools.cycle([Batch(x, targets, dict.fromkeys(labels), {}) for x in inputs(5 * size).split(size)])


def feed_of(pairs):
    return itertools.cycle([Batch(x, y, dict.fromkeys(y), {}) for x, y in pairs])


def norms(network, tasks):
    return {
        key: module
        for key, layout in network.layouts.items()
        if layout.group & tasks
        for module in network.blocks[key].modules()
        if isinstance(module, nn.BatchNorm2d)
    }


def test_statistics_are_those_of_the_weights_as_they_are():
    network = merged("shape", "parts", batch_norm=True, shared=0.5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    network.train()
    refresh_statistics(network, feed(), ["shape", "parts"], FABRIC)
    found = norms(network, {"shape", "parts"})
    refreshed = {key: norm.running_mean.clone() for key, norm in found.items()}
    assert refreshed
    means = {}
    for key, norm in found.items():
        norm.register_forward_pre_hook(lambda _, x, key=key: means.setdefault(key, []).append(x[0].mean((0, 2, 3))))
    for batch in itertools.islice(feed(), 5):
        network(batch.inputs)
    for key, norm in found.items():
        torch.testing.assert_close(refreshed[key], torch.stack(means[key]).mean(0).detach())
        assert norm.momentum == 0.1


def test_tasks_that_are_not_asked_for_and_frozen_norms_keep_theirs():
    network = merged("shape", "parts", seed=None, batch_norm=True)
    for norm in norms(network, set(TASKS)).values():
        norm.running_mean.fill_(3.0)
    network.train()
    refresh_statistics(network, feed(), ["shape"], FABRIC)
    assert all((norm.running_mean == 3.0).all() for norm in norms(network, {"parts"}).values())
    assert all((norm.running_mean != 3.0).all() for norm in norms(network, {"shape"}).values())
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.eval()
    refresh_statistics(network, iter(()), ["shape", "parts"], FABRIC)
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())


def test_a_task_sees_the_batches_that_it_is_trained_on():
    network = merged("shape", "parts", seed=None, batch_norm=True)
    for norm in norms(network, set(TASKS)).values():
        norm.running_mean.fill_(3.0)
    network.train()
    refresh_statistics(network, feed(labels=("shape",)), TASKS, FABRIC)
    assert all((norm.running_mean == 3.0).all() for norm in norms(network, {"parts"}).values())
    assert all((norm.running_mean != 3.0).all() for norm in norms(network, {"shape"}).values())
    refresh_statistics(network, feed(labels=("shape",)), TASKS, FABRIC, taught=["parts"])
    assert all((norm.running_mean != 3.0).all() for norm in norms(network, {"parts"}).values())


def test_norms_are_as_before_when_the_data_fails():
    network = merged("shape", "parts", seed=None, batch_norm=True).train()
    with pytest.raises(ZeroDivisionError):
        refresh_statistics(network, (1 / 0 for _ in range(3)), TASKS, FABRIC)
    assert {norm.momentum for norm in norms(network, set(TASKS)).values()} == {0.1}


@pytest.mark.parametrize("steps", [0, 3])
def test_what_pruning_keeps_has_its_own_statistics_if_it_was_trained(steps):
    network = merged("shape", "parts", batch_norm=True, shared=0.5)
    for norm in norms(network, set(TASKS)).values():
        norm.running_mean.fill_(3.0)
    train = batches(5, tasks=TASKS)  # statistics are measured on all of them, four times
    objectives = {task: OBJECTIVES[task] for task in TASKS}
    pamerge.prune(network, train, train[:1], objectives, pruner=Magnitude(), laps=1, steps=steps, recovery=0, final=0,
                  fraction=0.1, lr=1e-2, seed=0, progress=False)  # fmt: skip
    found = {key: norm.running_mean.clone() for key, norm in norms(network, set(TASKS)).items()}
    refresh_statistics(network.train(), feed_of(train), TASKS, FABRIC)
    for key, norm in norms(network, set(TASKS)).items():
        if steps:
            torch.testing.assert_close(found[key], norm.running_mean)
        else:
            assert (found[key] == 3.0).all()


def test_a_network_without_batch_norms_uses_no_batches():
    network = merged("shape", "parts").train()
    used = itertools.count()
    refresh_statistics(network, (next(used) and None for _ in range(ENOUGH)), ["shape"], FABRIC)
    assert next(used) == 0
