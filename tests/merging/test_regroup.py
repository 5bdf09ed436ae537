"""Algorithms 2 and 3 as properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pamerge import PamergeError, TaskSet
from pamerge.information import Gaussian, trace_collected
from pamerge.merging import regroup
from pamerge.merging.regroup import regroup_share

TASKS = "ABC"


class Layer:
    """A made-up layer: neurons of K networks, each a noisy mixture of the labels."""

    def __init__(self, tasks: int, neurons: int, seed: int, samples: int = 200) -> None:
        generator = torch.Generator().manual_seed(seed)
        labels = {task: torch.randn(samples, 2, generator=generator) for task in TASKS[:tasks]}
        mixing = torch.randn(2 * tasks, neurons, generator=generator) * (
            torch.rand(2 * tasks, neurons, generator=generator) < 0.4
        )
        x = torch.cat(list(labels.values()), 1) @ mixing + torch.randn(samples, neurons, generator=generator)
        self.origins = [TaskSet(TASKS[i % tasks]) for i in range(neurons)]
        self.collector = Gaussian().collector()
        self.collector.add(x, labels)

    def trace(self, tasks, neurons):
        return trace_collected(self.collector, sorted(tasks), neurons)


layers = st.builds(Layer, st.integers(2, 3), st.integers(3, 10), st.integers(0, 1000))
alphas = st.floats(-0.2, 1.2)
overlaps = st.sampled_from(["drop", "share", "origin"])
QUICK = settings(max_examples=40, deadline=None)


@QUICK
@given(layers, alphas, overlaps)
def test_every_neuron_is_in_one_group_or_dropped(layer: Layer, alpha: float, overlap) -> None:
    found = regroup(layer.origins, layer.trace, alpha, overlap=overlap)
    assert len(found.task_sets) == len(layer.origins)
    assert set(found.dropped) == {i for i, tasks in enumerate(found.task_sets) if not tasks}
    if overlap != "drop":
        assert not found.dropped


@QUICK
@given(layers, alphas, overlaps)
def test_an_exclusive_set_says_no_more_than_alpha_allows(layer: Layer, alpha: float, overlap) -> None:
    found = regroup(layer.origins, layer.trace, alpha, overlap=overlap)
    for tasks, bits in found.bits.items():
        if found.claimed[tasks] and alpha < 1:
            assert bits <= alpha * found.totals[tasks] + 1e-9


@QUICK
@given(layers, alphas, alphas, overlaps)
def test_raw_sets_grow_and_the_shared_set_shrinks_with_alpha(layer: Layer, one: float, other: float, overlap) -> None:
    low, high = sorted((one, other))
    few, many = (regroup(layer.origins, layer.trace, a, overlap=overlap, levels=1) for a in (low, high))
    for tasks, count in few.claimed.items():
        assert count <= many.claimed[tasks]
    everyone = TaskSet(task for origin in layer.origins for task in origin)
    if overlap != "share" and len(everyone) == 2:
        shared = [{i for i, tasks in enumerate(found.task_sets) if tasks == everyone} for found in (few, many)]
        assert shared[1] <= shared[0]


@QUICK
@given(layers, overlaps)
def test_below_zero_everything_is_shared(layer: Layer, overlap) -> None:
    found = regroup(layer.origins, layer.trace, -0.1, overlap=overlap)
    assert set(found.task_sets) == {TaskSet(task for origin in layer.origins for task in origin)}


@QUICK
@given(layers)
def test_at_one_with_origin_every_neuron_stays_with_its_own_task(layer: Layer) -> None:
    assert list(regroup(layer.origins, layer.trace, 1.0, overlap="origin").task_sets) == layer.origins


def algorithm_2(layer: Layer, alpha: float) -> list[set[str]]:
    """The paper's Algorithm 2 for two tasks, written out, with overlapping neurons removed from both sets."""
    neurons, sets = len(layer.origins), {}
    for own, other in (("A", "B"), ("B", "A")):
        trace = layer.trace(TaskSet(other), None)
        bound, kept = alpha * trace.total, set()
        for neuron, bits in zip(trace.order, trace.bits, strict=True):
            if alpha < 1 and (bits > bound or alpha < 0):
                break
            kept.add(neuron)
        sets[own] = kept
    result = []
    for neuron in range(neurons):
        member = {own for own, kept in sets.items() if neuron in kept}
        result.append({"A", "B"} if not member else set() if len(member) == 2 else member)
    return result


@QUICK
@given(st.builds(Layer, st.just(2), st.integers(3, 10), st.integers(0, 1000)), alphas)
def test_for_two_tasks_both_algorithms_give_the_same(layer: Layer, alpha: float) -> None:
    assert [set(t) for t in regroup(layer.origins, layer.trace, alpha, overlap="drop").task_sets] == algorithm_2(
        layer, alpha
    )


@QUICK
@given(layers, alphas, overlaps)
def test_the_result_is_deterministic(layer: Layer, alpha: float, overlap) -> None:
    assert regroup(layer.origins, layer.trace, alpha, overlap=overlap) == regroup(
        layer.origins, layer.trace, alpha, overlap=overlap
    )


def test_one_level_gives_single_tasks_and_one_shared_set_only() -> None:
    layer = Layer(3, 30, seed=1)
    one = regroup(layer.origins, layer.trace, 0.2, levels=1)
    every = regroup(layer.origins, layer.trace, 0.2)
    assert {len(tasks) for tasks in one.task_sets} <= {1, 3}
    assert 2 in {len(tasks) for tasks in every.task_sets}


def test_a_neuron_of_two_tasks_is_found_at_level_two() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = {task: torch.randn(500, 1, generator=generator) for task in TASKS}
    both = labels["A"] + labels["B"]
    x = torch.cat([both, labels["C"], sum(labels.values())], 1) + 0.1 * torch.randn(500, 3, generator=generator)
    collector = Gaussian().collector()
    collector.add(x, labels)
    found = regroup(
        [TaskSet("A"), TaskSet("C"), TaskSet("B")], lambda tasks, n: trace_collected(collector, sorted(tasks), n), 0.05
    )
    assert [str(tasks) for tasks in found.task_sets] == ["A+B", "C", "A+B+C"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": float("nan")}, "alpha=nan; expected a number"),
        ({"alpha": "x"}, "alpha='x'; expected a number"),
        ({"alpha": 0.1, "overlap": "keep"}, "overlap='keep'; expected one of 'drop', 'share', 'origin'"),
        ({"alpha": 0.1, "levels": 0}, "levels=0; expected a whole number from 1"),
    ],
)
def test_bad_settings_are_named(arguments, message: str) -> None:
    layer = Layer(2, 4, seed=0)
    with pytest.raises(PamergeError, match=message):
        regroup(layer.origins, layer.trace, **arguments)


def test_random_layers_have_neurons_of_every_kind() -> None:
    """Guards the properties above against being true of trivial layers only."""
    kinds = set()
    for seed in range(20):
        layer = Layer(2, 10, seed)
        kinds |= {len(tasks) for tasks in regroup(layer.origins, layer.trace, 0.2, overlap="drop").task_sets}
    assert kinds == {0, 1, 2}
    assert np.mean([len(Layer(3, 10, s).origins) for s in range(3)]) == 10


@QUICK
@given(layers, st.floats(0, 1))
def test_a_share_of_each_networks_neurons_becomes_exclusive_to_its_own_task(layer: Layer, share: float) -> None:
    found = regroup_share(layer.origins, layer.trace, share)
    everyone = TaskSet(task for origin in layer.origins for task in origin)
    for tasks in {*layer.origins}:
        own = [sets for origin, sets in zip(layer.origins, found.task_sets, strict=True) if origin == tasks]
        assert own.count(tasks) == round(share * len(own)) == found.claimed[tasks]
        assert own.count(everyone) == len(own) - own.count(tasks)


def test_the_neurons_that_say_most_about_their_own_labels_alone_become_exclusive() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = {task: torch.randn(500, 1, generator=generator) for task in "AB"}
    x = torch.randn(500, 6, generator=generator)  # A's first neuron and all of B's say nothing to anyone
    x[:, 1] += 3 * labels["A"][:, 0]
    x[:, 2] += 3 * labels["B"][:, 0]
    collector = Gaussian().collector()
    collector.add(x, labels)
    a, b, both = TaskSet("A"), TaskSet("B"), TaskSet("AB")
    found = regroup_share([a, a, a, b, b, b], lambda tasks, own: trace_collected(collector, sorted(tasks), own), 1 / 3)
    assert found.task_sets[:3] == (both, a, both)
    assert found.carried < 0.1


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), "half", True])
def test_a_share_that_is_none_is_refused(share) -> None:
    layer = Layer(2, 4, 0)
    with pytest.raises(PamergeError, match=r"exclusive=.*; expected a share of the neurons, from 0 to 1"):
        regroup_share(layer.origins, layer.trace, share)
