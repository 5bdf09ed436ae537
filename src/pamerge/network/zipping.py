"""Making one neuron of several: neurons of different networks that say the same are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from pamerge.errors import PamergeError
from pamerge.network.blocks import tensor_of
from pamerge.network.layout import BlockLayout, spread
from pamerge.network.network import MultitaskNetwork
from pamerge.network.repair import repair
from pamerge.network.structure import Structure


@torch.no_grad()
def zip_channels(network: MultitaskNetwork, groups: Sequence[Sequence[int]]) -> None:
    """Replace each group of channels by its first one, wherever they flow.

    What reads the first one gets the sum of the weights that read the group, so outputs stay as they are if the
    channels of a group are equal. What computes the first one is not changed: the caller puts the weights of the whole
    group there first.

    Args:
        network: changed in place.
        groups: disjoint groups of channel numbers.
    """
    members = [channel for group in groups for channel in group]
    if len(set(members)) != len(members):
        raise PamergeError("A neuron is in two groups that are to be zipped; expected disjoint groups.")
    if not members:
        return
    numbers = np.arange(len(network.structure.origins))
    for group in groups:
        numbers[list(group)] = group[0]
    old = {}
    for key, layout in network.layouts.items():
        _add_columns(network, key, layout, numbers)
        old[key] = _renamed_layout(layout, numbers)
    network.rebuild(repair(_renamed_structure(network.structure, numbers)), old=old)


def _first_of_each(channels: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions that stay: the first member of a group itself where it is present, else the first one that is."""
    names = numbers[channels]
    order = np.lexsort((np.arange(len(channels)), channels != names, names))  # the namesake before its fellows
    first = np.ones(len(order), dtype=bool)
    first[1:] = names[order][1:] != names[order][:-1]
    return np.sort(order[first])


def _add_columns(network: MultitaskNetwork, key: str, layout: BlockLayout, numbers: NDArray[np.int64]) -> None:
    """Add the weights that read a group to those that read the channel which stays."""
    if layout.node.kind != "weighted":
        return
    stay = _first_of_each(layout.inputs, numbers)
    if len(stay) == len(layout.inputs):
        return
    place = {int(numbers[layout.inputs[position]]): int(position) for position in stay}
    weight = tensor_of(network.blocks[key], "weight")
    weight = weight if layout.node.op == "conv_transpose" else weight.transpose(0, 1)
    for position, channel in enumerate(layout.inputs.tolist()):
        target = place[int(numbers[channel])]
        if target != position:
            source = spread(np.array([position]), layout.input_width)
            weight[spread(np.array([target]), layout.input_width)] += weight[source]


def _renamed_layout(layout: BlockLayout, numbers: NDArray[np.int64]) -> BlockLayout:
    """The block with the channels that stay under their names, and the others under names that nobody asks for."""

    def renamed(channels: NDArray[np.int64]) -> NDArray[np.int64]:
        result = -1 - channels
        stay = _first_of_each(channels, numbers)
        result[stay] = numbers[channels[stay]]
        return result

    return replace(layout, outputs=renamed(layout.outputs), inputs=renamed(layout.inputs))


def _renamed_structure(structure: Structure, numbers: NDArray[np.int64]) -> Structure:
    origins = structure.origins.copy()
    np.bitwise_or.at(origins, numbers, structure.origins)
    nodes, task_sets = {}, dict(structure.task_sets)
    for name, node in structure.nodes.items():
        stay = _first_of_each(node.channels, numbers)
        nodes[name] = replace(node, channels=numbers[node.channels[stay]])
        if name in task_sets:
            united = np.zeros(len(numbers), dtype=np.int64)
            np.bitwise_or.at(united, numbers[node.channels], structure.task_sets[name])
            task_sets[name] = united[nodes[name].channels]
    return replace(structure, nodes=nodes, task_sets=task_sets, origins=origins, needs={})
