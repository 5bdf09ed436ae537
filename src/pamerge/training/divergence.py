"""Noticing early that training goes wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pamerge.errors import PamergeError


class DivergenceError(PamergeError):
    """Training went wrong: a loss is not a number, or it exploded. The network has its last good weights."""


class DivergenceWatch:
    """Raises when a loss is NaN or infinite, or has been far above where it started for several steps in a row.

    "Far above" is ``factor`` times the first loss of the task, or ``factor`` itself if that is more: the loss of a
    good network may be tiny at first and grow many times over without harm. One bad batch is no divergence, hence
    ``steps``.
    """

    def __init__(self, factor: float = 10.0, steps: int = 10) -> None:
        self.factor = factor
        self.steps = steps
        self.first: dict[str, float] = {}
        self.above: dict[str, int] = {}

    def check(self, step: int, losses: Mapping[str, float]) -> None:
        """Look at the losses of a step."""
        for task, loss in losses.items():
            if not math.isfinite(loss):
                raise DivergenceError(self._message(step, task, f"is {loss}"))
            limit = self.factor * max(self.first.setdefault(task, loss), 1.0)
            self.above[task] = self.above.get(task, 0) + 1 if loss > limit else 0
            if self.above[task] >= self.steps:
                began = f"it began at {self.first[task]:.3g} and has been above {limit:.3g} for {self.steps} steps"
                raise DivergenceError(self._message(step, task, f"is {loss:.3g}; {began}"))

    def state(self) -> dict[str, Any]:
        """What to keep in a checkpoint."""
        return {"first": self.first, "above": self.above}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.first, self.above = dict(state["first"]), dict(state["above"])

    @staticmethod
    def _message(step: int, task: str, what: str) -> str:
        return (
            f"Training diverged at step {step}: the loss of task {task!r} {what}. The network was given back its last "
            "good weights. Try a smaller lr; if the loss is wrong from the first step on, look for NaN or huge values "
            "in the inputs and labels."
        )
