"""The accuracy budget: how much each task may lose of its metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pamerge.training import Objective

_ROUNDING = 1e-12

MOST_USED = 2.0
"""Who has lost more than so many times its budget counts no more than one that has lost as much as that."""


def losses(
    metrics: Mapping[str, float], reference: Mapping[str, float], objectives: Mapping[str, Objective]
) -> dict[str, float]:
    """How much worse each task's metric is than the reference, whichever direction is better."""
    return {
        task: (reference[task] - value) * (1 if objectives[task].higher_is_better else -1)
        for task, value in metrics.items()
    }


def is_over(excess: float) -> bool:
    """Whether a loss beyond the budget is more than rounding; what is not a number is lost."""
    return not excess <= _ROUNDING


def worst_excess(lost: Mapping[str, float], max_drop: float | None) -> float:
    """By how much the worst task is over the budget; 0 if all are within it, or if there is none.

    >>> worst_excess({"A": 0.25, "B": 0.0}, 0.125)
    0.125
    """
    if max_drop is None:
        return 0.0
    over = [excess for excess in (value - max_drop for value in lost.values()) if is_over(excess)]
    return next((excess for excess in over if math.isnan(excess)), max(over, default=0.0))


@dataclass(frozen=True)
class Budget:
    """The budget of a run.

    Attributes:
        max_drop: How much each task may lose; None for no budget.
        reference: The metrics that losses count from.
        objectives: Say which direction is better.
    """

    max_drop: float | None
    reference: Mapping[str, float]
    objectives: Mapping[str, Objective]

    def excesses(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """How much more each task has lost than it may."""
        lost, most = losses(metrics, self.reference, self.objectives), self.max_drop
        return {task: -math.inf if most is None else value - most for task, value in lost.items()}

    def weights(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """How much each task counts in training: the more, the less is left of its budget.

        Where tasks share neurons, all of them have to be within their budgets at once, and those that have something
        left can help those that have not. A task at its limit counts four times as much as one that has lost nothing.

        >>> from pamerge.training import MultiLabel
        >>> Budget(0.125, {"A": 1.0, "B": 1.0}, dict.fromkeys("AB", MultiLabel())).weights({"A": 1.0, "B": 0.9375})
        {'A': 1.0, 'B': 2.0}
        """
        if not self.max_drop:
            return {}
        lost = losses(metrics, self.reference, self.objectives)
        used = {task: MOST_USED if math.isnan(value) else value / self.max_drop for task, value in lost.items()}
        return {task: 4.0 ** min(max(share, 0.0), MOST_USED) for task, share in used.items()}

    def over(self, metrics: Mapping[str, float]) -> list[str]:
        """The tasks that have lost more than they may."""
        return [task for task, excess in self.excesses(metrics).items() if is_over(excess)]

    def worst(self, metrics: Mapping[str, float]) -> float:
        """By how much the worst task is over the budget; 0 if all are within it."""
        return worst_excess(losses(metrics, self.reference, self.objectives), self.max_drop)
