"""What must hold for every architecture, every choice of task sets and every subset of tasks."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.architectures import CASES, SMALL_CASES, inputs, material
from support.flops import counted_flops
from torch import Tensor

import pamerge
from pamerge import Assigned, MultitaskNetwork, Separate, TaskSet
from pamerge.network.network import Junction
from pamerge.tasks import all_subsets

EXACT = {"rtol": 1e-4, "atol": 1e-5}
QUICK = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


def merged(name: str, count: int, style: str, seed: int = 0) -> MultitaskNetwork:
    source = material(name, count)
    if style == "separate":
        return Separate().merge(source)
    rng = np.random.default_rng(seed)
    subsets = list(all_subsets(source.alignment.tasks))
    odds = {
        "shared": [float(len(s) == count) for s in subsets],
        "uniform": [1.0] * len(subsets),
        "mostly exclusive": [1.0 if len(s) == 1 else 0.1 for s in subsets],
        "mostly shared": [4.0 if len(s) == count else 0.5 for s in subsets],
    }[style]

    def choose(junction: Junction) -> dict[int, TaskSet]:
        neurons = list(junction.task_sets())
        picks = rng.choice(len(subsets), size=len(neurons), p=np.array(odds) / np.sum(odds))
        dropped = rng.random(len(neurons)) < (0.0 if style == "shared" else 0.1)
        return {n: subsets[pick] for n, pick, drop in zip(neurons, picks, dropped, strict=True) if not drop}

    return Assigned(choose).merge(source)


styles = st.sampled_from(["uniform", "mostly exclusive", "mostly shared"])
seeds = st.integers(0, 2**16)


def features_of(junction: Junction, group: TaskSet, chosen: set[int], tensor: Tensor) -> Tensor:
    """Positions of dimension 1 that belong to the chosen neurons of a group."""
    neurons = junction.groups[group]
    width = tensor.shape[1] // len(neurons)
    mask = torch.tensor([neuron in chosen for neuron in neurons]).repeat_interleave(width)
    return mask.nonzero().flatten()


@pytest.mark.parametrize(("name", "count"), CASES)
@pytest.mark.parametrize("style", ["separate", "shared"])
def test_separate_and_all_shared_networks_compute_what_the_originals_compute(name: str, count: int, style: str) -> None:
    network, x = merged(name, count, style), inputs(name)
    outputs = network(x)
    for task, original in material(name, count).networks.items():
        torch.testing.assert_close(outputs[task], original(x), **EXACT)


@torch.no_grad()
@pytest.mark.parametrize(("name", "count"), CASES)
@pytest.mark.parametrize("style", ["separate", "shared", "uniform"])
def test_every_subset_gives_the_outputs_of_the_full_network(name: str, count: int, style: str) -> None:
    network, x = merged(name, count, style), inputs(name)
    network.check()
    outputs = network(x)
    for tasks in all_subsets(network.tasks):
        for result in (network(x, tasks=tasks), network.subnet(tasks)(x)):
            assert set(result) == tasks
            for task in tasks:
                torch.testing.assert_close(result[task], outputs[task], **EXACT)


@pytest.mark.parametrize(("name", "count"), CASES)
@pytest.mark.parametrize("style", ["separate", "shared", "uniform"])
def test_flops_equal_those_that_torch_counts(name: str, count: int, style: str) -> None:
    network, x = merged(name, count, style), inputs(name, batch=1)
    for tasks in all_subsets(network.tasks):
        assert network.flops(tasks, convention="2mac") == counted_flops(network.subnet(tasks), x)


@pytest.mark.parametrize(("name", "count"), SMALL_CASES)
@QUICK
@given(style=styles, seed=seeds)
@torch.no_grad()
def test_any_task_sets_make_a_network_whose_subsets_agree(name: str, count: int, style: str, seed: int) -> None:
    network, x = merged(name, count, style, seed), inputs(name, batch=2)
    network.check()
    outputs = network(x)
    for tasks in all_subsets(network.tasks):
        for task, output in network(x, tasks=tasks).items():
            torch.testing.assert_close(output, outputs[task], **EXACT)


@pytest.mark.parametrize(("name", "count"), [*SMALL_CASES, ("vgg11 and vgg16", 2), ("resnet18 and resnet34", 2)])
@settings(QUICK, max_examples=3)
@given(style=styles, seed=seeds)
@torch.no_grad()
def test_a_neuron_changes_exactly_the_tasks_of_its_task_set(name: str, count: int, style: str, seed: int) -> None:
    network, x = merged(name, count, style, seed), inputs(name, batch=2)
    rng = np.random.default_rng(seed)
    for junction in network.junctions.values():
        for group, neurons in junction.groups.items():
            neuron = int(rng.choice(neurons))

            def poison(where: str, here: TaskSet, z: Tensor, junction=junction, group=group, neuron=neuron) -> Tensor:
                if where != junction.name or here != group:
                    return z
                z = z.clone()
                z[0, features_of(junction, group, {neuron}, z)] = float("nan")
                return z

            outputs = network(x, at_junction=poison)
            changed = {task for task, output in outputs.items() if output[0].isnan().any()}
            assert changed == group, f"neuron {neuron} of {junction.name}"
            assert not any(output[1].isnan().any() for output in outputs.values())


@pytest.mark.parametrize(("name", "count"), SMALL_CASES)
@QUICK
@given(style=styles, seed=seeds, share=st.floats(0.05, 0.9))
def test_removing_neurons_equals_multiplying_them_by_zero(
    name: str, count: int, style: str, seed: int, share: float
) -> None:
    network, x = merged(name, count, style, seed), inputs(name, batch=2)
    before = copy.deepcopy(network)
    junctions = network.junctions
    rng = np.random.default_rng(seed)
    doomed = {
        junction.name: [n for n in junction.task_sets() if rng.random() < share]
        for junction in junctions.values()
        if not junction.fixed
    }
    change = network.remove(doomed)
    network.check()
    gone = {where: set(neurons) - set(change.refused.get(where, ())) for where, neurons in doomed.items()}

    def silence(where: str, group: TaskSet, z: Tensor) -> Tensor:
        keep = torch.ones(z.shape[1])
        keep[features_of(junctions[where], group, gone.get(where, set()), z)] = 0
        return z * keep.view(1, -1, *[1] * (z.dim() - 2))

    expected, outputs = before(x, at_junction=silence), network(x)
    for task in network.tasks:
        torch.testing.assert_close(outputs[task], expected[task], **EXACT)
    assert network.flops() < before.flops() or not any(gone.values())
    assert network.parameter_count() < before.parameter_count() or not any(gone.values())


@pytest.mark.parametrize(("name", "count"), SMALL_CASES)
@QUICK
@given(data=st.data(), style=styles, seed=seeds)
def test_the_invariants_survive_any_sequence_of_removals(name: str, count: int, data, style: str, seed: int) -> None:
    network, x = merged(name, count, style, seed), inputs(name, batch=1)
    rng = np.random.default_rng(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        junctions = [junction for junction in network.junctions.values() if not junction.fixed]
        chosen = data.draw(st.sampled_from(junctions))
        sets = chosen.task_sets()
        neurons = rng.permutation(list(sets))[: rng.integers(1, len(sets) + 1)].tolist()
        if data.draw(st.booleans()):
            network.remove({chosen.name: neurons})
        else:  # a neuron leaves one task's subgraph only
            network.restrict({chosen.name: {n: sets[n] - {sorted(sets[n])[0]} for n in neurons}})
        network.check()
        assert set(network(x)) == set(network.tasks)
        for tasks in all_subsets(network.tasks):
            assert network.flops(tasks) <= network.flops()


@pytest.mark.parametrize(("name", "count"), CASES)
def test_a_saved_network_loads_with_the_same_outputs_and_costs(name: str, count: int, tmp_path) -> None:
    network, x = merged(name, count, "uniform"), inputs(name)
    pamerge.save(network, tmp_path / "network.pam")
    loaded = pamerge.load(tmp_path / "network.pam")
    state = loaded.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in network.state_dict().items())
    for task, output in network(x).items():
        torch.testing.assert_close(loaded(x)[task], output, rtol=1e-5, atol=1e-6)
    for tasks in all_subsets(network.tasks):
        assert loaded.flops(tasks) == network.flops(tasks)
    assert str(loaded) == str(network)


@pytest.mark.parametrize(("name", "count"), CASES)
def test_gradients_reach_every_block(name: str, count: int) -> None:
    network, x = merged(name, count, "uniform"), inputs(name)
    sum(output.square().sum() for output in network(x).values()).backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
