"""One number for each neuron of each junction, applied where the neuron feeds weighted layers.

Neurons keep their numbers for the life of a network, so gates need not be rebuilt when neurons are removed; only the
places where the remaining ones stand are looked up again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pamerge.network.layout import BlockLayout
from pamerge.network.network import MultitaskNetwork
from pamerge.network.program import JunctionHook
from pamerge.network.structure import junction_names
from pamerge.tasks import TaskSet


class Places:
    """Where the neurons of a network stand in arrays that were made for its neurons at the start.

    Attributes:
        neurons: For each junction its neurons at the start; their order is that of the arrays.
        sets: For each junction the task sets of the neurons that it has now.
    """

    def __init__(self, network: MultitaskNetwork, neurons: Mapping[str, Sequence[int]] | None = None) -> None:
        self.device = next(network.parameters()).device
        if neurons is None:
            neurons = {name: list(j.task_sets()) for name, j in network.junctions.items() if not j.fixed}
        self.neurons = {name: tuple(numbers) for name, numbers in neurons.items()}
        self._position = {
            name: {neuron: position for position, neuron in enumerate(numbers)}
            for name, numbers in self.neurons.items()
        }
        self._index: dict[tuple[str, TaskSet], Tensor] = {}
        self._served: dict[str, dict[str, list[int]]] = {}
        self._served_index: dict[str, dict[str, Tensor]] = {}
        self.sets: dict[str, dict[int, TaskSet]] = {}
        self.refresh(network)

    def refresh(self, network: MultitaskNetwork) -> None:
        """Look up the groups of a network that was changed."""
        junctions = {name: junction for name, junction in network.junctions.items() if not junction.fixed}
        self.sets = {name: junction.task_sets() for name, junction in junctions.items()}
        self._index = {
            (name, group): self.positions(name, neurons)
            for name, junction in junctions.items()
            for group, neurons in junction.groups.items()
        }
        self._served, self._served_index = {}, {}

    def index(self, junction: str, group: TaskSet) -> Tensor | None:
        """Positions of a group's neurons; None for the network's input, which has no gates."""
        return self._index.get((junction, group))

    def served(self, task: str) -> dict[str, list[int]]:
        """The neurons of a task's subgraph, by junction."""
        if task not in self._served:
            found = {name: [n for n, tasks in sets.items() if task in tasks] for name, sets in self.sets.items()}
            self._served[task] = {name: neurons for name, neurons in found.items() if neurons}
        return self._served[task]

    def served_index(self, task: str) -> dict[str, Tensor]:
        """Their positions."""
        if task not in self._served_index:
            self._served_index[task] = {name: self.positions(name, found) for name, found in self.served(task).items()}
        return self._served_index[task]

    def by_neuron(self, task: str, arrays: Mapping[str, Tensor]) -> dict[str, dict[int, float]]:
        """What arrays hold for the neurons of a task's subgraph, as plain numbers."""
        return {
            name: dict(zip(neurons, arrays[name][self.served_index(task)[name]].tolist(), strict=True))
            for name, neurons in self.served(task).items()
        }

    def new_arrays(self, fill: Callable[[int], Tensor]) -> dict[str, Tensor]:
        """An array of one number a neuron for each junction, made by ``fill(count)``."""
        return {name: fill(len(neurons)).to(self.device) for name, neurons in self.neurons.items()}

    def readers(self, network: MultitaskNetwork) -> Iterator[Reader]:
        """The blocks that mix the neurons of a junction, and where these stand."""
        names = junction_names(network.structure)
        for key, layout in network.layouts.items():
            junction = names.get(layout.node.inputs[0]) if layout.node.kind == "weighted" else None
            if junction is not None and junction in self.neurons:
                index = self.positions(junction, layout.inputs.tolist())
                yield Reader(junction, layout, network.blocks[key].weight, index)  # type: ignore[arg-type]

    def positions(self, junction: str, neurons: Sequence[int]) -> Tensor:
        """Where neurons stand in the arrays of their junction."""
        position = self._position[junction]
        return torch.tensor([position[neuron] for neuron in neurons], dtype=torch.long, device=self.device)


@dataclass(frozen=True)
class Reader:
    """A block that reads a junction.

    Attributes:
        junction: The junction.
        layout: What the block reads and yields.
        weight: Its weights.
        index: The positions of the neurons that it reads.
    """

    junction: str
    layout: BlockLayout
    weight: nn.Parameter
    index: Tensor

    @property
    def axis(self) -> int:
        """The dimension of the weights that belongs to what is read."""
        return 0 if self.layout.node.op == "conv_transpose" else 1

    def by_neuron(self, values: Tensor) -> Tensor:
        """Values of the shape of the weights, as a row for each neuron that is read."""
        return values.movedim(self.axis, 0).reshape(len(self.layout.inputs), -1)

    def spread(self, values: Tensor) -> Tensor:
        """A number for each neuron that is read, in a shape that can be multiplied with the weights."""
        shape = [1] * self.weight.dim()
        shape[self.axis] = -1
        return values.repeat_interleave(self.layout.input_width).view(shape)


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
