"""One number for each neuron of each junction, applied where the neuron feeds weighted layers.

Neurons keep their numbers for the life of a network, so gates need not be rebuilt when neurons are removed; only the
places where the remaining ones stand are looked up again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pamerge.network.network import MultitaskNetwork
from pamerge.network.program import JunctionHook
from pamerge.tasks import TaskSet


class Places:
    """Where the neurons of a network stand in arrays that were made for its neurons at the start."""

    def __init__(self, network: MultitaskNetwork) -> None:
        self.device = next(network.parameters()).device
        self.neurons = {
            name: tuple(junction.task_sets()) for name, junction in network.junctions.items() if not junction.fixed
        }
        self._position = {
            name: {neuron: position for position, neuron in enumerate(neurons)}
            for name, neurons in self.neurons.items()
        }
        self._index: dict[tuple[str, TaskSet], Tensor] = {}
        self.sets: dict[str, dict[int, TaskSet]] = {}
        self.refresh(network)

    def refresh(self, network: MultitaskNetwork) -> None:
        """Look up the groups of a network that was changed."""
        self._index.clear()
        self.sets = {}
        for name, junction in network.junctions.items():
            if junction.fixed:
                continue
            self.sets[name] = junction.task_sets()
            for group, neurons in junction.groups.items():
                positions = [self._position[name][neuron] for neuron in neurons]
                self._index[name, group] = torch.tensor(positions, device=self.device)

    def index(self, junction: str, group: TaskSet) -> Tensor | None:
        """Positions of a group's neurons; None for the network's input, which has no gates."""
        return self._index.get((junction, group))

    def served(self, task: str) -> dict[str, list[int]]:
        """The neurons of a task's subgraph, by junction."""
        found = {name: [n for n, tasks in sets.items() if task in tasks] for name, sets in self.sets.items()}
        return {name: neurons for name, neurons in found.items() if neurons}

    def positions(self, junction: str, neurons: list[int]) -> list[int]:
        """Positions of some neurons of a junction."""
        return [self._position[junction][neuron] for neuron in neurons]

    def new_arrays(self, fill: Callable[[int], Tensor]) -> dict[str, Tensor]:
        """An array of one number a neuron for each junction, made by ``fill(count)``."""
        return {name: fill(len(neurons)).to(self.device) for name, neurons in self.neurons.items()}


def multiply(tensor: Tensor, gate: Tensor) -> Tensor:
    """Multiply the channels of ``(N, neurons · width, *space)`` by gates ``(neurons,)`` or ``(N, neurons)``."""
    neurons = gate.shape[-1]
    width = tensor.shape[1] // neurons
    shape = (-1, neurons, width, *tensor.shape[2:])
    spread = gate.view(*gate.shape[:-1], neurons, *[1] * (tensor.dim() - 1))
    return (tensor.reshape(shape) * spread).reshape(tensor.shape)


def gate_hook(places: Places, gates: Mapping[str, Tensor]) -> JunctionHook:
    """A hook that multiplies every neuron by its gate."""

    def hook(junction: str, group: TaskSet, tensor: Tensor) -> Tensor:
        index = places.index(junction, group)
        return tensor if index is None else multiply(tensor, gates[junction][index])

    return hook
