"""Merges small networks in every style and checks what must hold for any of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from pamerge import Assigned, MultitaskNetwork, Separate, TaskSet
from pamerge.graph import align, capture
from pamerge.merging import Material
from pamerge.network.network import Junction
from pamerge.tasks import all_subsets

EXACT = {"rtol": 1e-4, "atol": 1e-5}


def with_lively_weights(networks: Mapping[str, nn.Module], seed: int = 0) -> dict[str, nn.Module]:
    """Random parameters and batch-norm statistics in place of the defaults, many of which are zeros and ones."""
    generator = torch.Generator().manual_seed(seed)
    for network in networks.values():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
            parameter.data = noise * (1.5 / fan_in) ** 0.5 if parameter.dim() > 1 else parameter.data + 0.2 * noise
        for module in network.modules():
            if isinstance(getattr(module, "running_var", None), Tensor):
                module.running_mean = 0.1 * torch.randn(module.running_mean.shape, generator=generator)
                module.running_var = 0.5 + torch.rand(module.running_var.shape, generator=generator)
        network.eval()
    return dict(networks)


def material_of(networks: Mapping[str, nn.Module], x: Tensor) -> Material:
    """The networks captured and aligned."""
    graphs = {task: capture(network, x) for task, network in networks.items()}
    return Material(dict(networks), graphs, align(graphs), [x])


def all_shared(source: Material) -> MultitaskNetwork:
    """Every neuron serves every task."""
    return Assigned(lambda junction: dict.fromkeys(junction.task_sets(), TaskSet(source.alignment.tasks))).merge(source)


def at_random(source: Material, seed: int = 0) -> MultitaskNetwork:
    """Every neuron serves tasks that a die has chosen; some neurons are dropped."""
    rng = np.random.default_rng(seed)
    subsets = list(all_subsets(source.alignment.tasks))

    def choose(junction: Junction) -> dict[int, TaskSet]:
        picks = {neuron: subsets[rng.integers(len(subsets))] for neuron in junction.task_sets()}
        return {neuron: tasks for neuron, tasks in picks.items() if rng.random() > 0.1}

    return Assigned(choose).merge(source)


def expect_originals(network: MultitaskNetwork, networks: Mapping[str, nn.Module], x: Tensor) -> None:
    """The merged network computes what the original networks compute."""
    network.check()
    outputs = network(x)
    for task, original in networks.items():
        torch.testing.assert_close(outputs[task], original(x.clone()), **EXACT)


def expect_subsets_agree(network: MultitaskNetwork, x: Tensor) -> None:
    """Every subset of tasks gives what the full network gives."""
    network.check()
    outputs = network(x)
    for tasks in all_subsets(network.tasks):
        result = network.subnet(tasks)(x)
        assert set(result) == tasks
        for task in tasks:
            torch.testing.assert_close(result[task], outputs[task], **EXACT)


def expect_removal_is_zeroing(network: MultitaskNetwork, x: Tensor, seed: int = 0, share: float = 0.3) -> None:
    """Removing neurons gives what multiplying them by zero gives: no other channel has noticed."""
    before, junctions = copy.deepcopy(network), network.junctions
    rng = np.random.default_rng(seed)
    doomed = {j.name: [n for n in j.task_sets() if rng.random() < share] for j in junctions.values() if not j.fixed}
    change = network.remove(doomed)
    network.check()
    gone = {where: set(neurons) - set(change.refused.get(where, ())) for where, neurons in doomed.items()}

    def silence(where: str, group: TaskSet, z: Tensor) -> Tensor:
        neurons = junctions[where].groups[group]
        keep = torch.tensor([float(neuron not in gone.get(where, ())) for neuron in neurons])
        return z * keep.repeat_interleave(z.shape[1] // len(neurons)).view(1, -1, *[1] * (z.dim() - 2))

    expected, outputs = before(x, at_junction=silence), network(x)
    for task in network.tasks:
        torch.testing.assert_close(outputs[task], expected[task], **EXACT)


def expect_neurons_change_their_tasks_only(network: MultitaskNetwork, x: Tensor) -> None:
    """Poison one neuron of each group for one sample: exactly the tasks of its task set notice."""
    for junction in network.junctions.values():
        for group, neurons in junction.groups.items():

            def poison(
                where: str,
                here: TaskSet,
                z: Tensor,
                junction: Junction = junction,
                group: TaskSet = group,
                count: int = len(neurons),
            ) -> Tensor:
                if (where, here) != (junction.name, group):
                    return z
                z = z.clone()
                z[0, : z.shape[1] // count] = float("nan")
                return z

            outputs = network(x, at_junction=poison)
            changed = {task for task, output in outputs.items() if output[0].isnan().any()}
            assert changed == group, f"{junction.name}, {group}"
            assert not any(output[1].isnan().any() for output in outputs.values())


def expect_conformity(networks: Mapping[str, nn.Module], x: Tensor, poison: bool = True) -> Material:
    """All of the above, for networks merged separately, all shared and at random."""
    source = material_of(networks, x)
    expect_originals(Separate().merge(source), networks, x)
    expect_originals(all_shared(source), networks, x)
    for network in (Separate().merge(source), all_shared(source), at_random(source)):
        expect_subsets_agree(network, x)
        if poison:
            expect_neurons_change_their_tasks_only(network, x)
        expect_removal_is_zeroing(network, x)
    return source
