"""How much each task removes in a lap: less after a failure, more when it has been well within its budget for long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pamerge.pruning.run_state import Position

LARGEST_LAP = 0.3
"""No task comes to remove more than about this share of its subgraph in a lap by doing well, and it has no further turn
in a lap in which its subgraph has lost as much, unless ``rounds`` asks for more."""

LONGEST_REACH = 4.0
"""Nor does it get more rounds than this."""

KEPT_BACK = 0.25
"""Nobody is kept back by others to remove less than this share of what a round removes."""

GROWTH = 1.5
"""A lap is so much larger than one that went well; with halves after failures, three laps of five come to go well."""

CALM_LAPS = 3
"""After so many laps in which a task has half of its budget left or more, its steps become larger."""


def set_off(at: Position, tasks: Iterable[str], reach: float) -> None:
    """All tasks begin, as if none had failed."""
    at.active = list(tasks)
    at.reach = dict.fromkeys(at.active, reach)
    at.failures = dict.fromkeys(at.active, 0)


def slow_down(at: Position, tasks: Iterable[str], patience: int) -> None:
    """Smaller steps for tasks that were over their budgets; who fails too often with small ones stops."""
    for task in tasks:
        at.failures[task] += at.reach[task] <= 1
        at.reach[task] /= 2
        at.calm[task] = 0
        if at.failures[task] > patience:
            at.active.remove(task)


def keep_back(at: Position, task: str, others: Iterable[str]) -> None:
    """Some tasks go no faster than one that has failed and goes on, down to a limit: they have not failed."""
    if task in at.active:
        at.reach |= {other: min(at.reach[other], max(at.reach[task], KEPT_BACK)) for other in others}


def adapt(at: Position, tasks: Iterable[str], recoveries: int, fraction: float) -> None:
    """After a lap that went well, the next one is larger.

    To train what a lap has harmed takes about as long whatever the lap has removed, so that small laps cost the most;
    only a failure makes them smaller. A lap that set off with more rounds than any comes to have by doing well has
    fewer after long training.

    Args:
        at: where the run is.
        tasks: whose lap it was.
        recoveries: how often the network had to be trained to come back.
        fraction: what a round removes.
    """
    longest = _longest(fraction)
    for task in tasks:
        reach = at.reach[task]
        if reach < longest:
            at.reach[task] = min(longest, GROWTH * reach)
        else:
            at.reach[task] = max(longest, reach / 2 ** max(0, recoveries - 1))


def speed_up(at: Position, calm: Mapping[str, bool], fraction: float) -> None:
    """Larger steps for a task that has been calm for some laps, even if it had stopped.

    Args:
        at: where the run is.
        calm: for each task that counts in this lap, whether it has half of its budget left or more.
        fraction: what a round removes.
    """
    longest = _longest(fraction)
    for task, is_calm in calm.items():
        at.calm[task] = at.calm.get(task, 0) + 1 if is_calm else 0
        if at.calm[task] >= CALM_LAPS:
            at.calm[task] = at.failures[task] = 0
            at.reach[task] = max(at.reach[task], min(longest, 2 * at.reach[task]))
            at.active = [name for name in at.reach if name == task or name in at.active]


def _longest(fraction: float) -> float:
    """How many whole rounds a lap has at most by doing well."""
    return min(LONGEST_REACH, max(1.0, (LARGEST_LAP + 1e-9) // fraction))
