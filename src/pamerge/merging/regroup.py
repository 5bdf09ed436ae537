"""Algorithms 2 and 3 of the paper: regroup the neurons of a layer into exclusive and shared sets.

The greedy order of a direction does not depend on α: a direction is traced once, and every α is a prefix of the trace.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pamerge.errors import PamergeError
from pamerge.information import Trace
from pamerge.tasks import TaskSet

Overlap = Literal["drop", "share", "origin"]
"""What happens to a neuron that lies in several exclusive sets of one level.

- ``drop``: it is deleted, as in the paper: it says nothing to either side.
- ``share``: it stays in the pool, for the next level and in the end for the shared set.
- ``origin``: it goes to the set that its own network's task is in, if that is one set only; otherwise it stays in the
  pool.
"""

Tracer = Callable[[TaskSet, Sequence[int] | None], Trace]
"""``tracer(tasks, neurons)``: the trace of some neurons (all for None) about the labels of some tasks."""


@dataclass(frozen=True)
class Regrouping:
    """The groups of one layer.

    Attributes:
        task_sets: the task set of each neuron, empty where it was dropped.
        claimed: how many neurons each exclusive set took, before overlaps were resolved.
        bits: the information of each exclusive set, as claimed, about the labels outside it.
        totals: the information of the whole layer about the same labels, which α is a share of.
    """

    task_sets: tuple[TaskSet, ...]
    claimed: Mapping[TaskSet, int]
    bits: Mapping[TaskSet, float]
    totals: Mapping[TaskSet, float]

    @property
    def carried(self) -> float:
        """The largest share of what the layer says about other tasks that an exclusive set carries."""
        return max((self.bits[tasks] / total for tasks, total in self.totals.items() if total > 0), default=0.0)

    @property
    def dropped(self) -> tuple[int, ...]:
        """Neurons that lay in several exclusive sets and were deleted."""
        return tuple(neuron for neuron, tasks in enumerate(self.task_sets) if not tasks)


def regroup(
    origins: Sequence[TaskSet],
    tracer: Tracer,
    alpha: float,
    *,
    overlap: Overlap = "origin",
    levels: int | None = None,
) -> Regrouping:
    """Algorithm 3 of the paper (Algorithm 2 when there are two tasks).

    Level n goes through all sets τ of n tasks: τ takes neurons from the pool, those that say least about the labels
    outside τ first, while these say no more than the share ``alpha`` of what the whole layer says. What is left after
    the last level is shared by all tasks.

    Args:
        origins: the task that each neuron's network was trained for.
        tracer: gives the greedy order of neurons about the labels of some tasks.
        alpha: below 0 everything is shared; at 1 everything is exclusive.
        overlap: see :data:`Overlap`.
        levels: how many levels; all by default, 1 for the paper's simplified form.
    """
    everyone = TaskSet(task for origin in origins for task in origin)
    last = _check(alpha, overlap, levels, everyone)
    alone = {task: tracer(everyone - {task}, None) for task in everyone} if len(everyone) > 1 else {}
    # what the layer says about each task's labels, from what it says about all the others'
    whole = sum(found.total for found in alone.values()) / max(1, len(everyone) - 1)
    says = {task: whole - found.total for task, found in alone.items()} if len(everyone) > 2 else {}

    chosen: dict[int, TaskSet] = {}
    pool = list(range(len(origins)))
    claimed, bits, totals = {}, {}, {}
    for level in range(1, last + 1):
        claims: dict[int, list[TaskSet]] = {}
        for tasks in map(TaskSet, itertools.combinations(sorted(everyone), level)):
            if level == 1:
                trace = alone[next(iter(tasks))]
                totals[tasks] = trace.total
            elif pool:
                trace = tracer(everyone - tasks, pool)
                totals[tasks] = max(0.0, sum(says[task] for task in everyone - tasks))
            else:
                continue
            count = trace.prefix(alpha, total=totals[tasks])
            claimed[tasks], bits[tasks] = count, trace.bits[count - 1] if count else 0.0
            for neuron in trace.order[:count]:
                claims.setdefault(neuron, []).append(tasks)
        for neuron, sets in claims.items():
            winner = sets[0] if len(sets) == 1 else _resolve(overlap, sets, origins[neuron])
            if winner is not None:
                chosen[neuron] = winner
        pool = [neuron for neuron in pool if neuron not in chosen]
    task_sets = tuple(chosen.get(neuron, everyone) for neuron in range(len(origins)))
    return Regrouping(task_sets, claimed, bits, totals)


def regroup_share(origins: Sequence[TaskSet], tracer: Tracer, share: float) -> Regrouping:
    """A share of each network's neurons becomes exclusive to its task: those that say most about its labels alone.

    Theorem 2 of the paper wants exclusive sets that say little about the other tasks' labels *and* much about their
    own. The greedy of :func:`regroup` looks at the first only, so that neurons that say nothing to anyone are exclusive
    first. Here each neuron has a place in two orders, from those that say least to those that say most about its own
    task's labels, and about the others'; exclusive are those that are further up in the first than in the second. What
    is left is shared by all tasks.

    Args:
        origins: the task that each neuron's network was trained for.
        tracer: gives the greedy order of neurons about the labels of some tasks.
        share: from 0, where everything is shared, to 1, where everything is exclusive.
    """
    check_share(share)
    everyone = TaskSet(task for origin in origins for task in origin)
    task_sets = [everyone] * len(origins)
    claimed, bits, totals = {}, {}, {}
    for tasks in [TaskSet([task]) for task in sorted(everyone)] if len(everyone) > 1 else []:
        own = [neuron for neuron, origin in enumerate(origins) if origin == tasks]
        inside, outside = (
            {neuron: place for place, neuron in enumerate(tracer(about, own).order)}
            for about in (tasks, everyone - tasks)
        )
        taken = sorted(own, key=lambda neuron: outside[neuron] - inside[neuron])[: round(share * len(own))]
        for neuron in taken:
            task_sets[neuron] = tasks
        claimed[tasks], bits[tasks] = len(taken), tracer(everyone - tasks, taken).total if taken else 0.0
        totals[tasks] = tracer(everyone - tasks, None).total
    return Regrouping(tuple(task_sets), claimed, bits, totals)


def check_share(share: float) -> None:
    """Raises if a share of the neurons is none."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise PamergeError(f"exclusive={share!r}; expected a share of the neurons, from 0 to 1.")


def _resolve(overlap: Overlap, sets: list[TaskSet], origin: TaskSet) -> TaskSet | None:
    """The set of a neuron that several sets claim: empty to delete it, None to leave it in the pool."""
    if overlap == "drop":
        return TaskSet()
    own = [tasks for tasks in sets if origin.issubset(tasks)]
    return own[0] if overlap == "origin" and len(own) == 1 else None


def _check(alpha: float, overlap: Overlap, levels: int | None, everyone: TaskSet) -> int:
    if not isinstance(alpha, (int, float)) or alpha != alpha:
        raise PamergeError(f"alpha={alpha!r}; expected a number: a share of the layer's information, such as 0.05.")
    if overlap not in get_args(Overlap):
        raise PamergeError(f"overlap={overlap!r}; expected one of {', '.join(map(repr, get_args(Overlap)))}.")
    if levels is not None and levels < 1:
        raise PamergeError(f"levels={levels!r}; expected a whole number from 1, or None for all.")
    all_levels = len(everyone) - 1
    return all_levels if levels is None else min(levels, all_levels)
