"""What fine-tuning returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Stopped = Literal["finished", "patience"]


@dataclass(frozen=True)
class Record:
    """Where training stood at one moment.

    Attributes:
        step: Steps so far.
        epoch: Whole passes over the training data so far.
        losses: The mean training loss of each task since the record before.
        metrics: The metric of each task on the validation data; empty without.
        lr: The learning rate of the last step.
        seconds: Time so far, without the time that a killed run lost.
    """

    step: int
    epoch: int
    losses: Mapping[str, float]
    metrics: Mapping[str, float]
    lr: float
    seconds: float


@dataclass(frozen=True)
class FinetuneResult:
    """What fine-tuning did.

    Attributes:
        history: A record for every validation (or epoch, without validation data), the first one before training.
        steps: Steps taken.
        task_batches: Batches used for the loss of one task, counted once for each task.
        seconds: Time taken.
        stopped: "finished", or "patience" if the metrics stopped getting better.
        best_step: The step whose weights the network has now.
    """

    history: tuple[Record, ...]
    steps: int
    task_batches: int
    seconds: float
    stopped: Stopped
    best_step: int

    @property
    def metrics(self) -> Mapping[str, float]:
        """The validation metrics of the weights that the network has now; empty without validation data."""
        return next((record.metrics for record in reversed(self.history) if record.step == self.best_step), {})

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FinetuneResult:
        """The result that :meth:`to_json` wrote."""
        return cls(**{**data, "history": tuple(Record(**record) for record in data["history"])})
