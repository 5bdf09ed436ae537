"""Everything that a run of fine-tuning is at one moment, and how it goes into a checkpoint and comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pamerge.errors import PamergeError
from pamerge.training.checkpoint import (
    fingerprint,
    load_state,
    optimizer_state_to_tensors,
    prefixed,
    restore_optimizer_state,
    save_state,
    under,
)
from pamerge.training.divergence import DivergenceWatch
from pamerge.training.random_state import RandomState
from pamerge.training.results import FinetuneResult, Record, Stopped

if TYPE_CHECKING:
    from lightning_fabric import Fabric

STARTING_WEIGHTS = "starting weights"


@dataclass
class Position:
    """How far a run is.

    Attributes:
        step: Steps taken.
        epoch: Epochs completed.
        batch: Batches used in this epoch.
        task_batches: Batches used for one task's loss, counted for each task.
        seconds: Time taken by earlier processes.
        stale: Validations in a row that brought nothing better.
        best_step: The step with the best validation.
        best_score: Its score.
        stopped: Why training is over; None while it goes on.
        loss_sums: For each task the sum of losses and their number since the last record.
        history: The records.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    task_batches: int = 0
    seconds: float = 0.0
    stale: int = 0
    best_step: int = 0
    best_score: float = 0.0
    stopped: Stopped | None = None
    loss_sums: dict[str, list[float]] = field(default_factory=dict)
    history: list[Record] = field(default_factory=list)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Position:
        """The position that ``asdict`` wrote."""
        return cls(**{**data, "history": [Record(**record) for record in data["history"]]})


@dataclass
class RunState:
    """A run at one moment.

    Attributes:
        network: The network.
        optimizer: Its optimiser.
        fabric: Whose precision has a state, too.
        good: The last good weights: the best ones on validation data, or those at the start.
        at: How far the run is.
        watch: What it knows about divergence.
        epoch_start: The random states at the start of the epoch; with them the order of its batches can be drawn
            again.
    """

    network: nn.Module
    optimizer: Optimizer
    fabric: Fabric
    good: Mapping[str, Tensor]
    at: Position = field(default_factory=Position)
    watch: DivergenceWatch = field(default_factory=DivergenceWatch)
    epoch_start: RandomState | None = None

    def save(self, path: Path, now: RandomState, identity: Mapping[str, Any], seconds: float, log_size: int) -> None:
        """Write a checkpoint from which the run can go on."""
        optimizer_tensors, optimizer_meta = optimizer_state_to_tensors(self.optimizer)
        tensors = {
            **prefixed("weights", self.network.state_dict()),
            **prefixed("random", now.tensors),
            **prefixed("optimizer", optimizer_tensors),
        }
        meta: dict[str, Any] = {
            "identity": identity,
            "position": {**asdict(self.at), "seconds": seconds},
            "watch": self.watch.state(),
            "log": log_size,
            "random": now.numbers,
            "optimizer": optimizer_meta,
            "precision": self.fabric.strategy.precision.state_dict(),
        }
        if self.at.best_step:  # otherwise they are the weights that the run started with
            tensors |= prefixed("good", self.good)
        if self.epoch_start is not None:
            tensors |= prefixed("epoch", self.epoch_start.tensors)
            meta["epoch"] = self.epoch_start.numbers
        save_state(path, tensors, meta)

    def save_result(self, path: Path, now: RandomState, identity: Mapping[str, Any], result: FinetuneResult) -> None:
        """Write a checkpoint of a run that is over."""
        tensors = {**prefixed("weights", self.network.state_dict()), **prefixed("random", now.tensors)}
        save_state(path, tensors, {"identity": identity, "random": now.numbers, "result": result.to_json()})

    def restore(self, found: Found) -> None:
        """Take over a checkpoint of a run that is not over."""
        self.at = Position.from_json(found.meta["position"])
        self.watch.restore(found.meta["watch"])
        self.network.load_state_dict(found.weights)
        self.good = under("good", found.tensors) or self.good
        restore_optimizer_state(self.optimizer, under("optimizer", found.tensors), found.meta["optimizer"])
        self.fabric.strategy.precision.load_state_dict(found.meta["precision"])
        if "epoch" in found.meta:
            self.epoch_start = RandomState(under("epoch", found.tensors), found.meta["epoch"])


@dataclass(frozen=True)
class Found:
    """A checkpoint that was read."""

    tensors: Mapping[str, Tensor]
    meta: Mapping[str, Any]

    @property
    def weights(self) -> dict[str, Tensor]:
        """The network's weights when it was written."""
        return under("weights", self.tensors)

    @property
    def random(self) -> RandomState:
        """The random states when it was written."""
        return RandomState(under("random", self.tensors), self.meta["random"])

    @property
    def result(self) -> FinetuneResult | None:
        """The result, if the run is over."""
        return FinetuneResult.from_json(self.meta["result"]) if "result" in self.meta else None


def find_checkpoint(path: Path, identity: Mapping[str, Any]) -> Found | None:
    """The checkpoint at a path, if there is one.

    Raises:
        PamergeError: It belongs to another call.
        FileFormatError: It is damaged.
    """
    loaded = load_state(path)
    if loaded is None:
        return None
    found = Found(*loaded)
    theirs = found.meta.get("identity", {})
    different = [name for name in identity if identity[name] != theirs.get(name)]
    # a call that was interrupted in this very process leaves the network with the weights of its checkpoint
    if different == [STARTING_WEIGHTS] and identity[STARTING_WEIGHTS] == fingerprint(found.weights):
        different = []
    if different:
        listed = "; ".join(f"{name}: {theirs.get(name)} there, {identity[name]} here" for name in different)
        raise PamergeError(
            f"The checkpoint {path} belongs to another call ({listed}). Delete it, or give another path."
        )
    return found
