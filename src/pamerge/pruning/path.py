"""What pruning did: a sequence of frozen steps from the network at entry to the one that was kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pamerge.tasks import TaskSet


@dataclass(frozen=True)
class PruningStep:
    """The network after a lap: one round of every task that was still being pruned.

    Attributes:
        lap: Number of the lap, 0 for the network at entry.
        removed: For each task whose turn it was, how many neurons (or tasks of neurons) were removed at each junction.
        refused: How many removals were refused because a group would have had nothing to read.
        metrics: The validation metric of each task.
        flops: The cost of every subset of tasks, by its name; for more than five tasks of single tasks and of all.
        task_batches: Batches used for one task's loss so far.
        within: Whether every task is within its budget.
        recovered: Whether extra training was needed to judge the point.
    """

    lap: int
    removed: Mapping[str, Mapping[str, int]]
    refused: int
    metrics: Mapping[str, float]
    flops: Mapping[str, int]
    task_batches: int
    within: bool
    recovered: bool = False


@dataclass(frozen=True)
class PruningPath:
    """How a network was pruned: a sequence of its steps, ``path[0]`` the network at entry.

    Attributes:
        steps: All points that were judged, in order.
        kept: Index of the point that the network went back to.
        reference: The metric of each task that its budget counts from.
        max_drop: How much of the metric each task was allowed to lose.
        final: The validation metrics of the network as it was left, after the last fine-tuning.
        stopped: Why pruning ended.
        task_batches: Batches used for one task's loss, all in all.
        seconds: How long it took.
    """

    steps: tuple[PruningStep, ...]
    kept: int
    reference: Mapping[str, float]
    max_drop: float | None
    final: Mapping[str, float]
    stopped: str
    task_batches: int
    seconds: float

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[PruningStep]:
        return iter(self.steps)

    def __getitem__(self, index: int) -> PruningStep:
        return self.steps[index]

    @property
    def flops(self) -> Mapping[str, int]:
        """The cost of every subset at the point that was kept."""
        return self.steps[self.kept].flops

    def gain(self, tasks: str | TaskSet) -> float:
        """How many times cheaper a subset became."""
        name = str(tasks)
        return self.steps[0].flops[name] / self.steps[self.kept].flops[name]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PruningPath:
        """The path that :meth:`to_json` wrote."""
        return cls(**{**data, "steps": tuple(PruningStep(**step) for step in data["steps"])})

    def __str__(self) -> str:
        names = list(self.steps[0].flops)
        lines = [f"{len(self.steps) - 1} laps, kept lap {self.steps[self.kept].lap}: {self.stopped}"]
        for name in names:
            before, after = self.steps[0].flops[name], self.flops[name]
            lines.append(f"  {name}: {before / 1e6:.2f} → {after / 1e6:.2f} MFLOPs ({before / max(1, after):.2f}×)")
        for task, value in self.final.items():
            lines.append(f"  {task}: {value:.4f} (reference {self.reference[task]:.4f})")
        return "\n".join(lines)


def expected_laps(steps: Sequence[PruningStep], cost: float, target: float | None, most: int | None) -> int | None:
    """How many laps it will take, where that can be said: costs fall by about the same factor in every lap.

    Args:
        steps: The path so far.
        cost: The expected cost now.
        target: The expected cost at which pruning stops.
        most: The most laps that are allowed.
    """
    lap = steps[-1].lap
    first, now = (sum(steps[i].flops.values()) for i in (0, -1))
    by_target = None
    if target and lap and now < first:
        whole = cost * first / now
        by_target = max(lap, math.ceil(lap * math.log(max(whole / target, 1.0)) / math.log(first / now)))
    return min((n for n in (by_target, most) if n is not None), default=None)
