"""Makes any task sets a network that works: every task reaches the input, every group has something to read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pamerge.errors import PamergeError
from pamerge.graph.layer_graph import Node, consumers, is_plain_sum
from pamerge.network.structure import Masks, Structure, groups_of, suppliers, tighten


def repair(structure: Structure) -> Structure:
    """The nearest structure in which the invariants hold, tightened.

    A neuron that would have nothing to read is given back to the tasks whose network it came from. In a residual branch
    the branch is left out for that channel instead: the shortcut carries it alone. A task that has no neuron at
    some junction gets its own network's neurons back.
    """
    structure = _with_every_task(structure)
    given_back: set[tuple[str, int]] = set()
    while True:
        tight, _ = tighten(structure)
        found = _first_unsupplied(tight)
        if found is None:
            return tight
        layer, lacking = found
        optional = np.isin(lacking, _optional_channels(tight, layer))
        if optional.any():
            structure = _leave_out(structure, layer, lacking[optional])
        else:
            repeated = given_back & {(layer, int(channel)) for channel in lacking}
            if repeated:
                raise PamergeError(
                    f"The task sets cannot be repaired: layer {layer!r} has {len(repeated)} neurons that no neuron "
                    "before it may feed."
                )
            given_back |= {(layer, int(channel)) for channel in lacking}
            structure = _with_every_task(_give_back(structure, layer, lacking))


def _with_every_task(structure: Structure) -> Structure:
    """Gives a task its own neurons back at junctions where no neuron serves it."""
    readers = consumers(structure.nodes)
    task_sets = dict(structure.task_sets)
    for name, masks in task_sets.items():
        node = structure.nodes[name]
        if structure.is_fixed(name):
            task_sets[name] = np.full(len(node.channels), structure.everyone)
            continue
        fed = [structure.origins[reader.channels] for reader in readers[name] if reader.kind == "weighted"]
        owners = np.bitwise_or.reduce(np.concatenate(fed))
        missing = int(owners & ~np.bitwise_or.reduce(masks))
        if missing:
            own = structure.origins[node.channels]
            task_sets[name] = np.where(own & missing, own, masks)
    return replace(structure, task_sets=task_sets)


def _first_unsupplied(structure: Structure) -> tuple[str, NDArray[np.int64]] | None:
    """The first layer with outputs that have nothing to read, and these outputs."""
    for node in structure.nodes.values():
        if node.kind == "weighted":
            task_sets, need = structure.task_sets[node.inputs[0]], structure.needs[node.name]
            lacking = [group for group in groups_of(need) if not suppliers(task_sets, group).any()]
            if lacking:
                return node.name, node.channels[np.isin(need, lacking)]
    return None


def _optional_channels(structure: Structure, layer: str) -> NDArray[np.int64]:
    """Channels of a layer's output that only ever reach a sum in which another operand carries them as well."""
    readers = consumers(structure.nodes)

    def is_optional(node: Node) -> NDArray[np.int64]:
        used = structure.task_sets.get(node.name)
        channels = node.channels if used is None else node.channels[used == 0]
        if node.name in structure.outputs.values():
            return channels[:0]
        for reader in readers[node.name]:
            touched = np.isin(channels, reader.channels)
            if reader.kind == "weighted":
                continue  # the task sets say which channels it reads
            if is_plain_sum(reader):
                operands = [structure.nodes[name] for name in reader.inputs if name != node.name]
                others = [operand.channels for operand in operands if operand.space == reader.space]
                carried = np.isin(channels, np.concatenate(others)) if others else np.zeros(len(channels), dtype=bool)
                channels = channels[~touched | carried]
            elif reader.kind in ("keeps", "channelwise", "wire"):
                channels = channels[~touched | np.isin(channels, is_optional(reader))]
            else:
                channels = channels[~touched]
        return channels

    return is_optional(structure.nodes[layer])


def _leave_out(structure: Structure, layer: str, channels: NDArray[np.int64]) -> Structure:
    """Takes channels out of a layer and of all that follows up to the sum."""
    readers = consumers(structure.nodes)
    nodes, task_sets = dict(structure.nodes), dict(structure.task_sets)
    pending = [layer]
    while pending:
        name = pending.pop()
        keep = ~np.isin(nodes[name].channels, channels)
        if name in task_sets:
            task_sets[name] = task_sets[name][keep]
        nodes[name] = replace(nodes[name], channels=nodes[name].channels[keep])
        pending += [reader.name for reader in readers[name] if reader.kind in ("keeps", "channelwise", "wire")]
    return replace(structure, nodes=nodes, task_sets=task_sets)


def _give_back(structure: Structure, layer: str, channels: NDArray[np.int64]) -> Structure:
    """Gives channels of a layer's output, wherever they are used from there on, to their own tasks alone."""
    readers = consumers(structure.nodes)
    task_sets = dict(structure.task_sets)
    pending, done = [layer], set()
    while pending:
        name = pending.pop()
        done.add(name)
        if name in task_sets:
            task_sets[name] = _own(structure, name, task_sets[name], channels)
        pending += [r.name for r in readers[name] if r.kind != "weighted" and r.name not in done]
    return replace(structure, task_sets=task_sets)


def _own(structure: Structure, name: str, masks: Masks, channels: NDArray[np.int64]) -> Masks:
    """Own tasks where the channel was used at all; a channel that the junction did not use stays unused."""
    node = structure.nodes[name]
    chosen = np.isin(node.channels, channels) & (masks != 0)
    return np.where(chosen, structure.origins[node.channels], masks)
