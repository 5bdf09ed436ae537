"""The structure of a multitask network: who computes what for whom, without any weights.

Task sets are bit masks here (bit i is the i-th task), in arrays beside the channels of a node;
:class:`~pamerge.TaskSet` is what users see. Everything is derived from one rule: a neuron with task set τ may feed
an output that is needed by σ iff σ ⊆ τ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pamerge.graph.align import Alignment
from pamerge.graph.layer_graph import Node, consumers, junction_values
from pamerge.tasks import TaskSet

Masks = NDArray[np.int64]


@dataclass(frozen=True)
class Structure:
    """Nodes with their channels, and a task set for each neuron of each junction.

    Attributes:
        tasks: the tasks; bit i of a mask stands for the i-th.
        nodes: in an order of computation. A node without channels is not computed.
        outputs: the node that computes each task's output.
        origins: for each channel number, the tasks whose network it came from.
        task_sets: for each junction (by the node that computes it), a mask for each channel of the node; 0 where
            the junction does not use the channel, as may happen in a residual stream.
        needs: for each node, a mask for each channel: the tasks that need it there. Made by :func:`tighten`.
    """

    tasks: tuple[str, ...]
    nodes: Mapping[str, Node]
    outputs: Mapping[str, str]
    origins: Masks
    task_sets: Mapping[str, Masks]
    needs: Mapping[str, Masks] = field(default_factory=dict)

    @property
    def everyone(self) -> int:
        """The mask of all tasks."""
        return (1 << len(self.tasks)) - 1

    @property
    def input(self) -> Node:
        """The node that stands for the network's input."""
        return next(iter(self.nodes.values()))

    def mask(self, tasks: Iterable[str]) -> int:
        """The mask of a set of tasks."""
        return sum(1 << self.tasks.index(task) for task in set(tasks))

    def task_set(self, mask: int) -> TaskSet:
        """The set of tasks of a mask."""
        return TaskSet(task for bit, task in enumerate(self.tasks) if mask >> bit & 1)

    def is_fixed(self, junction: str) -> bool:
        """Whether a junction holds the network's own input, whose task sets nobody chooses."""
        return bool(len(self.nodes[junction].channels)) and bool(
            (self.nodes[junction].channels < self.input.features).all()
        )


def lay_out(alignment: Alignment, task_sets: Mapping[str, Masks] | None = None) -> Structure:
    """The structure of aligned networks; without task sets every neuron belongs to its own network's task."""
    sets = {}
    for name in junction_values(alignment.nodes):
        channels = alignment.nodes[name].channels
        sets[name] = np.asarray(task_sets[name]) if task_sets and name in task_sets else alignment.origins[channels]
    return Structure(alignment.tasks, alignment.nodes, alignment.outputs, alignment.origins, sets)


def mask_order(mask: int) -> tuple[int, int]:
    """Sorts masks: few tasks first."""
    return int(mask).bit_count(), int(mask)


def groups_of(masks: Masks) -> list[int]:
    """The different non-empty task sets, in order."""
    return sorted((int(mask) for mask in np.unique(masks) if mask), key=mask_order)


def suppliers(task_sets: Masks, group: int) -> NDArray[np.bool_]:
    """Which neurons of a junction may feed an output that is needed by ``group``: those with τ ⊇ group."""
    supplies: NDArray[np.bool_] = (group & ~task_sets) == 0
    return supplies


@dataclass(frozen=True)
class Proposal:
    """New task sets for the neurons of some junctions, with a rank for each neuron.

    Where a change would leave a group without any supplier, the affected neuron with the highest rank keeps its
    old task set.
    """

    task_sets: Mapping[str, Masks]
    ranks: Mapping[str, NDArray[np.float64]]


def tighten(structure: Structure, proposal: Proposal | None = None) -> tuple[Structure, dict[str, list[int]]]:
    """Backwards through the network: what each channel is needed for, and which neurons reach no task any more.

    Returns:
        The structure with task sets reduced to the tasks that a neuron really reaches, with ``needs``, and without
        the channels that nobody needs; and for each junction the neurons whose change was refused.
    """
    readers = consumers(structure.nodes)
    scatter = np.zeros(len(structure.origins), dtype=np.int64)
    nodes = dict(structure.nodes)
    needs: dict[str, Masks] = {}
    task_sets: dict[str, Masks] = {}
    refused: dict[str, list[int]] = {}
    for name in reversed(list(structure.nodes)):
        node = structure.nodes[name]
        need = np.zeros(len(node.channels), dtype=np.int64)
        for task, output in structure.outputs.items():
            if output == name:
                need |= structure.mask([task])
        for reader in readers[name]:
            need |= _needed_by(nodes[reader.name], needs[reader.name], node, scatter)
        if name in structure.task_sets:
            groups = groups_of(np.concatenate([needs[r.name] for r in readers[name] if r.kind == "weighted"]))
            given = structure.task_sets[name]
            if proposal and name in proposal.task_sets:
                given, kept = _with_suppliers(given, proposal.task_sets[name], proposal.ranks[name], groups)
                if len(kept):
                    refused[name] = node.channels[kept].tolist()
            tight = np.zeros_like(need)
            for group in groups:
                tight |= np.where(suppliers(given, group), group, 0)
            task_sets[name] = tight
            need |= tight
        if node.kind == "input":
            need[:] = structure.everyone
        alive = need != 0
        nodes[name], needs[name] = replace(node, channels=node.channels[alive]), need[alive]
        if name in task_sets:
            task_sets[name] = task_sets[name][alive]
    in_order = {name: task_sets[name] for name in structure.nodes if name in task_sets}
    return replace(structure, nodes=nodes, needs=needs, task_sets=in_order), refused


def _needed_by(reader: Node, need: Masks, node: Node, scatter: Masks) -> Masks:
    """What a reader that keeps channels apart needs of each channel of ``node`` (weighted readers: see task sets)."""
    if reader.kind == "weighted" or not len(reader.channels):
        return np.zeros(len(node.channels), dtype=np.int64)
    if reader.kind == "whole":
        return np.full(len(node.channels), np.bitwise_or.reduce(need))
    scatter[reader.channels] = need
    found = scatter[node.channels]
    scatter[reader.channels] = 0
    return found


def _with_suppliers(
    old: Masks, new: Masks, ranks: NDArray[np.float64], groups: list[int]
) -> tuple[Masks, NDArray[np.int64]]:
    """The new task sets; where a group would lose its last supplier, the best ranked one keeps its old set."""
    new, kept = new.copy(), []
    for group in groups:
        if not suppliers(new, group).any():
            candidates = np.flatnonzero(suppliers(old, group))
            best = candidates[np.argmax(ranks[candidates])]
            new[best] = old[best]
            kept.append(best)
    return new, np.array(kept, dtype=np.int64)


def unsupplied(structure: Structure) -> dict[str, list[int]]:
    """Weighted layers with output groups that have nothing to read: a violation of the invariants."""
    found = {}
    for node in structure.nodes.values():
        if node.kind == "weighted":
            task_sets = structure.task_sets[node.inputs[0]]
            lacking = [g for g in groups_of(structure.needs[node.name]) if not suppliers(task_sets, g).any()]
            if lacking:
                found[node.name] = lacking
    return found


def junction_names(structure: Structure) -> dict[str, str]:
    """A readable name for each junction: the layer, or the sum or concatenation, that its tensor comes from."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for value in structure.task_sets:
        node = structure.nodes[value]
        while node.kind in ("keeps", "channelwise"):
            node = structure.nodes[node.inputs[0]]
        name, number = node.name, 1
        while name in taken:
            number += 1
            name = f"{node.name}#{number}"
        taken.add(name)
        names[value] = name
    return names
