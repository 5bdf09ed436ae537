"""Removing neurons in blocks, since CPUs compute channels in blocks of 8 or 16: odd group sizes save no time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pamerge.pruning.protocol import Scores
from pamerge.tasks import TaskSet


def lowest_in_blocks(
    scores: Scores,
    sets: Mapping[str, Mapping[int, TaskSet]],
    count: int,
    round_to: int,
    freed: Scores | None = None,
    needed: float = math.inf,
) -> dict[str, list[int]]:
    """The blocks of neurons with the lowest mean scores, the lowest neuron first within each junction.

    A block is taken whole and leaves its group with a multiple of ``round_to`` neurons; the last block may go over
    ``count``. Neurons of a group that is smaller than ``round_to`` are taken one by one.

    Args:
        scores: The candidates.
        sets: For each junction the task sets of all its neurons.
        count: How many neurons, about.
        round_to: What group sizes are multiples of.
        freed: What the removal of each neuron saves.
        needed: Stop when as much as this is saved.
    """
    found = []
    for junction, neurons in scores.items():
        groups: dict[TaskSet, list[int]] = {}
        for neuron in sorted(neurons, key=neurons.__getitem__):
            groups.setdefault(sets[junction][neuron], []).append(neuron)
        for group, members in groups.items():
            size = sum(tasks == group for tasks in sets[junction].values())
            for block in _blocks(members, size, round_to):
                found.append((sum(neurons[n] for n in block) / len(block), junction, block))
    found.sort(key=lambda item: item[0])
    chosen: dict[str, list[int]] = {}
    for _, junction, block in found:
        if count <= 0 or needed <= 0:
            break
        chosen.setdefault(junction, []).extend(block)
        count -= len(block)
        if freed is not None:
            needed -= sum(freed.get(junction, {}).get(neuron, 0.0) for neuron in block)
    return chosen


def _blocks(members: list[int], size: int, round_to: int) -> list[list[int]]:
    """The neurons of a group that may be removed, in the order of removal; the group has ``size`` neurons now."""
    if size < round_to:
        return [[neuron] for neuron in members]
    blocks, start = [], 0
    stop = size % round_to or round_to
    while stop <= len(members):
        blocks.append(members[start:stop])
        start, stop = stop, stop + round_to
    return blocks
