"""Everything that a run of pruning is at one moment: how it goes back, into a checkpoint, and on from there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pamerge.errors import PamergeError
from pamerge.network.files import describe, from_description
from pamerge.network.network import MultitaskNetwork
from pamerge.network.structure import Structure
from pamerge.pruning.averages import rescale
from pamerge.pruning.feed import Feed
from pamerge.pruning.gates import Places
from pamerge.pruning.path import PruningPath, PruningStep
from pamerge.pruning.protocol import Pruner, Session, Surroundings
from pamerge.pruning.settings import Settings
from pamerge.tasks import TaskSet
from pamerge.training.checkpoint import (
    optimizer_state_to_tensors,
    prefixed,
    restore_optimizer_state,
    save_state,
    under,
)
from pamerge.training.data import Batches
from pamerge.training.divergence import DivergenceWatch
from pamerge.training.evaluation import Run
from pamerge.training.optimizer import OptimizerFactory
from pamerge.training.random_state import RandomState, capture_random_state, restore_random_state
from pamerge.training.run_state import Found
from pamerge.training.steps import Distillation

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Ingredients:
    """What a run is made of."""

    network: MultitaskNetwork
    run_network: Run
    train: Batches
    validation: Batches
    pruner: Pruner
    optimizer: OptimizerFactory | None
    distillation: Distillation
    reference: Mapping[str, float] | None
    mix: Mapping[TaskSet, float]
    settings: Settings
    fabric: Fabric
    seed: int
    identity: Mapping[str, Any]
    checkpoint: Path | None


@dataclass
class Position:
    """How far a run is, as plain JSON.

    Attributes:
        lap: Laps begun.
        task_batches: Batches used for one task's loss.
        seconds: Time taken by earlier processes.
        active: The tasks whose subgraphs are still being pruned.
        reach: How many rounds each task has in a lap, at least; below one, one round that removes so much less.
        failures: How often each task was over its budget, with a reach of one or less.
        calm: For how many laps each task has been well within its budget.
        blame: How often a neuron was one of very few whose removal put its task over the budget.
        alone: The tasks whose laps alone come next, in this order.
        idle: How many of the last laps of all tasks were within the budget and removed nothing.
        round_cost: The most task-batches that a round of all tasks took.
        reference: The metric of each task that its budget counts from.
        steps: The path so far.
        kept: Index of the last point within the budget; until there is one, of the network at entry.
        stopped: Why pruning is over; empty while it goes on.
    """

    lap: int = 0
    task_batches: int = 0
    seconds: float = 0.0
    active: list[str] = field(default_factory=list)
    reach: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    calm: dict[str, int] = field(default_factory=dict)
    blame: dict[str, int] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    idle: int = 0
    round_cost: int = 0
    reference: dict[str, float] = field(default_factory=dict)
    steps: list[PruningStep] = field(default_factory=list)
    kept: int = 0
    stopped: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Position:
        """The position that ``asdict`` wrote; what only earlier versions wrote is left out."""
        known = {entry.name: data[entry.name] for entry in fields(cls) if entry.name in data}
        return cls(**{**known, "steps": [PruningStep(**step) for step in data["steps"]]})


@dataclass(frozen=True)
class Snapshot:
    """A network and its pruner at a point to which one may go back."""

    structure: Structure
    weights: Mapping[str, Tensor]
    session: Mapping[str, Tensor]
    frozen: frozenset[str]


class RunState:
    """A run at one moment.

    Attributes:
        of: What it is made of.
        places: Where the network's neurons stand in the pruner's arrays.
        session: The pruner at work.
        optimizer: Trains the network and the pruner's own parameters.
        feed: The training batches.
        at: How far the run is.
        watch: What it knows about divergence.
        good: The point that is kept. Whenever a checkpoint is written, that is where the network is.
    """

    optimizer: Optimizer

    def __init__(self, of: Ingredients, neurons: Mapping[str, list[int]] | None = None) -> None:
        self.of = of
        self.places = Places(of.network, neurons)
        self.generator = torch.Generator().manual_seed(of.seed)
        self.session: Session = of.pruner.start(
            Surroundings(
                network=of.network,
                objectives=of.train.objectives,
                places=self.places,
                fabric=of.fabric,
                generator=self.generator,
                distillation=of.distillation,
                remove=of.settings.remove,
                rescale=lambda weight, factors: rescale(self.optimizer, weight, factors),
            )
        )
        self.optimizer = self._new_optimizer()
        self.feed = Feed(of.train, of.fabric)
        self.at = Position()
        self.watch = DivergenceWatch()
        self.good = self.snapshot()
        self.started = time.monotonic()

    def _new_optimizer(self) -> Optimizer:
        own = [p for p in self.of.network.parameters() if p.requires_grad]
        if not own:
            raise PamergeError(
                "The network has no parameter that could be trained: all of them have requires_grad=False."
            )
        groups = [{"params": own}, *map(dict, self.session.parameters())]
        if self.of.optimizer is None:  # fused: one pass over memory instead of eight
            return torch.optim.Adam(groups, lr=self.of.settings.lr, fused=own[0].device.type in ("cpu", "cuda"))
        optimizer = self.of.optimizer(groups, lr=self.of.settings.lr)
        if not isinstance(optimizer, Optimizer):
            raise PamergeError(
                f"optimizer made a {type(optimizer).__name__}; expected a function (parameters, lr=…) that makes a "
                "torch.optim.Optimizer, such as torch.optim.Adam."
            )
        return optimizer

    def snapshot(self) -> Snapshot:
        """The network and the pruner as they are now."""
        network = self.of.network
        return Snapshot(
            network.structure,
            {name: tensor.detach().clone() for name, tensor in network.state_dict().items()},
            {name: tensor.detach().clone() for name, tensor in self.session.tensors().items()},
            frozenset(name for name, parameter in network.named_parameters() if not parameter.requires_grad),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a point; the optimiser starts anew, since what it knows belongs to other weights."""
        network = self.of.network
        network.rebuild(snapshot.structure)
        network.load_state_dict(dict(snapshot.weights))
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name not in snapshot.frozen)
        self.session.restore(snapshot.session)
        self.places.refresh(network)
        self.optimizer = self._new_optimizer()
        self.watch = DivergenceWatch()

    def seconds(self) -> float:
        """How long the run has taken, all processes of a killed run together."""
        return self.at.seconds + time.monotonic() - self.started

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, log_size: int, path: PruningPath | None = None) -> None:
        """Write a checkpoint from which the run can go on, or one that says that it is over."""
        of = self.of
        if of.checkpoint is None:
            return
        now = capture_random_state(of.train.data, of.validation.data, fabric=of.fabric)
        if not of.fabric.is_global_zero:
            return
        tensors, optimizer = optimizer_state_to_tensors(self.optimizer)
        kept = {
            **prefixed("weights", of.network.state_dict()),
            **prefixed("session", self.session.tensors()),
            **prefixed("optimizer", tensors),
            **prefixed("random", now.tensors),
            "generator": self.generator.get_state(),
        }
        frozen = sorted(name for name, parameter in of.network.named_parameters() if not parameter.requires_grad)
        meta: dict[str, Any] = {
            "identity": of.identity,
            "network": describe(of.network.structure),
            "neurons": self.places.neurons,
            "frozen": frozen,
            "position": {**asdict(self.at), "seconds": self.seconds()},
            "feed": [self.feed.epoch, self.feed.used],
            "watch": self.watch.state(),
            "optimizer": optimizer,
            "random": now.numbers,
            "precision": of.fabric.strategy.precision.state_dict(),
            "log": log_size,
        }
        if self.feed.epoch_start is not None:
            kept |= prefixed("epoch", self.feed.epoch_start.tensors)
            meta["epoch"] = self.feed.epoch_start.numbers
        if path is not None:
            meta["path"] = path.to_json()
        save_state(of.checkpoint, kept, meta)

    def go_on(self, found: Found) -> PruningPath | None:
        """Take over a checkpoint; the path, if it is of a run that is over."""
        of, meta = self.of, found.meta
        self.restore(self._found_snapshot(found))
        self.good = self.snapshot()
        restore_optimizer_state(self.optimizer, under("optimizer", found.tensors), meta["optimizer"])
        self.generator.set_state(found.tensors["generator"])
        self.at = Position.from_json(meta["position"])
        self.watch.restore(meta["watch"])
        of.fabric.strategy.precision.load_state_dict(meta["precision"])
        over = PruningPath.from_json(meta["path"]) if "path" in meta else None
        if over is None:
            epoch = RandomState(under("epoch", found.tensors), meta["epoch"]) if "epoch" in meta else None
            passes, used = meta["feed"]
            self.feed.go_on(passes, used, epoch)
        restore_random_state(found.random, of.train.data, of.validation.data, fabric=of.fabric)
        return over

    def return_to_checkpoint(self, found: Found) -> None:
        """Leave the network as the checkpoint has it, so that the same call with it goes on from there."""
        self.restore(self._found_snapshot(found))

    def _found_snapshot(self, found: Found) -> Snapshot:
        structure = replace(from_description(found.meta["network"]), origins=self.of.network.structure.origins)
        return Snapshot(structure, found.weights, under("session", found.tensors), frozenset(found.meta["frozen"]))
