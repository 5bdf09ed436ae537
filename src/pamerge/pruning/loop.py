"""The pruning loop: task after task, a few steps of training, a few neurons less, within an accuracy budget."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from pamerge.network.files import describe, from_description
from pamerge.network.network import MultitaskNetwork
from pamerge.network.structure import Structure
from pamerge.pruning.feed import Feed
from pamerge.pruning.gates import Places
from pamerge.pruning.path import PruningPath, PruningStep
from pamerge.pruning.protocol import Pruner, Scores, Session, Surroundings
from pamerge.pruning.ranking import expected_flops, flops_freed, lowest, per_flop
from pamerge.tasks import TaskSet, all_subsets
from pamerge.training.checkpoint import (
    optimizer_state_to_tensors,
    prefixed,
    restore_optimizer_state,
    save_state,
    under,
)
from pamerge.training.data import Batches
from pamerge.training.divergence import DivergenceWatch
from pamerge.training.evaluation import Run, evaluate_batches
from pamerge.training.optimizer import OptimizerFactory, rebuild_optimizer, set_learning_rate
from pamerge.training.processes import average_statistics
from pamerge.training.progress import Display, Log
from pamerge.training.random_state import RandomState, capture_random_state
from pamerge.training.run_state import Found, find_checkpoint
from pamerge.training.steps import Distillation, set_training_mode, train_step

if TYPE_CHECKING:
    from lightning_fabric import Fabric

MOST_SUBSETS = 5
"""With more tasks than this, a step records the cost of single tasks and of all tasks only."""


@dataclass(frozen=True)
class Settings:
    """How to prune; see :func:`pamerge.pruning.prune`."""

    max_drop: float | None
    target: float | None
    fraction: float
    steps: int
    recovery: int
    final: int
    patience: int
    laps: int | None
    remove: Literal["neuron", "task"]
    per_flop: bool
    lr: float
    freeze_batch_norm: bool


@dataclass(frozen=True)
class Ingredients:
    """What a run is made of."""

    network: MultitaskNetwork
    run_network: Run
    train: Batches
    validation: Batches
    pruner: Pruner
    optimizer: OptimizerFactory
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
    """How far a run is, as plain JSON."""

    lap: int = 0
    task_batches: int = 0
    seconds: float = 0.0
    active: list[str] = field(default_factory=list)
    fractions: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    reference: dict[str, float] = field(default_factory=dict)
    steps: list[PruningStep] = field(default_factory=list)
    kept: int = 0
    stopped: str = ""


@dataclass
class Snapshot:
    """A network and its pruner at a point to which one may go back."""

    structure: Structure
    weights: dict[str, Tensor]
    session: dict[str, Tensor]


class Loop:
    """One run of pruning."""

    def __init__(self, of: Ingredients, display: Display, log: Log) -> None:
        self.of, self.display, self.log = of, display, log
        self.network = of.network
        generator = torch.Generator().manual_seed(of.seed)
        self.places = Places(of.network)
        around = Surroundings(of.network, of.train.objectives, self.places, of.fabric, generator)
        self.session: Session = of.pruner.start(around)
        self.optimizer = self._new_optimizer()
        self.feed = Feed(of.train, of.fabric)
        self.at = Position()
        self.good = self._snapshot()
        self.watch = DivergenceWatch()
        self.started = time.monotonic()

    def run(self) -> PruningPath:
        """Prune to the end, or go on from a checkpoint to the end."""
        finished = self._resume()
        if finished is not None:
            return finished
        if not self.at.steps:
            self._begin()
        while not self.at.stopped:
            self._lap()
            self._save()
        return self._finish()

    # -- laps and rounds -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        metrics = self._evaluate()
        self.at.reference = dict(self.of.reference or metrics)
        self.at.active = list(self.network.tasks)
        self.at.fractions = dict.fromkeys(self.network.tasks, self.of.settings.fraction)
        self.at.failures = dict.fromkeys(self.network.tasks, 0)
        self.log.cut(0)
        self.log.write("start", tasks=list(self.network.tasks), **self.of.identity)
        over = self._over(metrics)
        for _ in range(1 + self.of.settings.patience):  # a merge may need training before it can be judged
            if over and self.of.settings.recovery:
                self._train(self.of.settings.recovery, None)
                metrics = self._evaluate()
                over = self._over(metrics)
        self._record({}, 0, metrics, not over, recovered=False)
        self.good = self._snapshot()
        if over:
            listed = ", ".join(f"{task}: {metrics[task]:.4f}" for task in over)
            self.at.stopped = f"the network was over its budget before anything was removed ({listed})"
        self._save()

    def _lap(self) -> None:
        """One round of every task that is still being pruned, then a look at the validation data."""
        self.at.lap += 1
        removed: dict[str, dict[str, int]] = {}
        refused = 0
        for task in list(self.at.active):
            found, stayed = self._round(task)
            removed[task] = found
            refused += stayed
        metrics = self._evaluate()
        over, recovered = self._over(metrics), False
        if over and self.of.settings.recovery:
            self._train(self.of.settings.recovery, None)
            metrics = self._evaluate()
            over, recovered = self._over(metrics), True
        self._record(removed, refused, metrics, not over, recovered)
        if over:
            self._go_back(over)
        else:
            self.at.kept = len(self.at.steps) - 1
            self.good = self._snapshot()
            if not any(removed.values()) and self._may_stop_idle():
                self.at.stopped = "nothing is left that could be removed"
        settings = self.of.settings
        if settings.target is not None and expected_flops(self.network, self.of.mix) <= settings.target:
            self.at.stopped = self.at.stopped or "the target was reached"
        if settings.laps is not None and self.at.lap >= settings.laps:
            self.at.stopped = self.at.stopped or f"{settings.laps} laps were done"

    def _may_stop_idle(self) -> bool:
        """A pruner that waits for gates to close may have idle laps; one that ranks neurons has none."""
        return not self.session.parameters() or sum(not any(s.removed.values()) for s in self.at.steps[-20:]) >= 20

    def _round(self, task: str) -> tuple[dict[str, int], int]:
        """Train a little, look at the neurons of one task's subgraph, remove the least important ones."""
        self._train(self.of.settings.steps, task)
        self.at.task_batches += self.session.measure(task, self.feed)
        scores = self._candidates(task, self.session.importance(task))
        count = sum(map(len, scores.values()))
        quota = self.session.quota(task, self.at.fractions[task], count) if count else 0
        if self.of.settings.per_flop and quota:
            scores = per_flop(scores, flops_freed(self.network, self.of.mix))
        chosen = lowest(scores, min(quota, count))
        if not chosen:
            return {}, 0
        old = dict(self.network.named_parameters())
        sets = self.places.sets
        change = self.network.restrict(
            {
                name: {n: sets[name][n] - {task} if self.of.settings.remove == "task" else TaskSet() for n in neurons}
                for name, neurons in chosen.items()
            }
        )
        rebuild_optimizer(self.optimizer, old, self.network, change)
        self.places.refresh(self.network)
        stayed = {name: len(neurons) for name, neurons in change.refused.items()}
        removed = {name: len(neurons) - stayed.get(name, 0) for name, neurons in chosen.items()}
        return {name: number for name, number in removed.items() if number > 0}, sum(stayed.values())

    def _candidates(self, task: str, scores: Scores) -> Scores:
        """Neurons that a task's turn may remove: those that no finished task needs, unless only tasks are removed."""
        if self.of.settings.remove == "task":
            return scores
        finished = TaskSet(self.network.tasks) - set(self.at.active)
        sets = self.places.sets
        kept = {
            name: {neuron: value for neuron, value in neurons.items() if not sets[name][neuron] & finished}
            for name, neurons in scores.items()
        }
        return {name: neurons for name, neurons in kept.items() if neurons}

    def _train(self, steps: int, task: str | None, schedule: Literal["constant", "cosine"] = "constant") -> None:
        """Some steps on all tasks, with the pruner's gates and penalty if it is a task's turn."""
        of = self.of
        set_training_mode(self.network, of.settings.freeze_batch_norm)
        hook = self.session.hook() if task is not None else None
        penalty = (lambda: self.session.penalty(task)) if task is not None and hook is not None else None
        for step in range(steps):
            set_learning_rate(self.optimizer, schedule, step / steps)
            result = train_step(
                self.network,
                next(self.feed),
                of.train.objectives,
                self.optimizer,
                fabric=of.fabric,
                distillation=of.distillation,
                at_junction=hook,
                penalty=penalty,  # type: ignore[arg-type]
            )
            self.watch.check(self.at.task_batches, result.losses)
            average_statistics(self.network, of.fabric)
            self.at.task_batches += len(result.losses)
            self.display.update(self.at.lap, losses=result.losses)

    # -- the budget ------------------------------------------------------------------------------------------------

    def _over(self, metrics: Mapping[str, float]) -> list[str]:
        """The tasks that have lost more than they may."""
        drop = self.of.settings.max_drop
        if drop is None:
            return []
        found = []
        for task, value in metrics.items():
            sign = 1 if self.of.train.objectives[task].higher_is_better else -1
            if sign * (self.at.reference[task] - value) > drop + 1e-12:
                found.append(task)
        return found

    def _go_back(self, over: list[str]) -> None:
        """Return to the last good point; whoever was over goes in smaller steps, and stops after some failures."""
        self._restore(self.good)
        to_blame = [task for task in over if task in self.at.active] or list(self.at.active)
        for task in to_blame:
            self.at.failures[task] += 1
            self.at.fractions[task] /= 2
            if self.at.failures[task] > self.of.settings.patience:
                self.at.active.remove(task)
        if not self.at.active:
            self.at.stopped = "the budget is spent"

    def _finish(self) -> PruningPath:
        """Train once more at the point that was kept, unless that made it worse than the budget allows."""
        if self.at.kept != len(self.at.steps) - 1:
            self._restore(self.good)
        metrics = dict(self.at.steps[self.at.kept].metrics)
        if self.of.settings.final:
            before = self._snapshot()
            self._train(self.of.settings.final, None, schedule="cosine")
            after = self._evaluate()
            if self._over(after) and not self._over(metrics):
                self._restore(before)
            else:
                metrics = after
        self.network.eval()
        path = PruningPath(
            steps=tuple(self.at.steps),
            kept=self.at.kept,
            reference=self.at.reference,
            max_drop=self.of.settings.max_drop,
            final=metrics,
            stopped=self.at.stopped,
            task_batches=self.at.task_batches,
            seconds=self._seconds(),
        )
        self.log.write("end", stopped=path.stopped, kept=path.kept, metrics=metrics, seconds=path.seconds)
        self._save(path)
        return path

    def _record(
        self,
        removed: Mapping[str, Mapping[str, int]],
        refused: int,
        metrics: dict[str, float],
        within: bool,
        recovered: bool,
    ) -> None:
        step = PruningStep(
            self.at.lap, removed, refused, metrics, self._flops(), self.at.task_batches, within, recovered
        )
        self.at.steps.append(step)
        single = {task: self.network.flops(task) for task in self.network.tasks}
        self.display.update(self.at.lap, metrics=metrics, flops=single)
        self.log.write("lap", **asdict(step))

    def _flops(self) -> dict[str, int]:
        tasks = self.network.tasks
        subsets = list(all_subsets(tasks))
        if len(tasks) > MOST_SUBSETS:
            subsets = [subset for subset in subsets if len(subset) in (1, len(tasks))]
        return {str(subset): self.network.flops(subset) for subset in subsets}

    def _evaluate(self) -> dict[str, float]:
        return evaluate_batches(self.network, self.of.run_network, self.of.validation, self.of.fabric)

    # -- going back and going on -----------------------------------------------------------------------------------

    def _new_optimizer(self) -> torch.optim.Optimizer:
        own = [p for p in self.network.parameters() if p.requires_grad]
        return self.of.optimizer([{"params": own}, *self.session.parameters()], lr=self.of.settings.lr)

    def _snapshot(self) -> Snapshot:
        weights = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}
        session = {name: tensor.detach().clone() for name, tensor in self.session.tensors().items()}
        return Snapshot(self.network.structure, weights, session)

    def _restore(self, snapshot: Snapshot) -> None:
        self.network.rebuild(snapshot.structure)
        self.network.load_state_dict(snapshot.weights)
        self.session.restore(snapshot.session)
        self.places.refresh(self.network)
        self.optimizer = self._new_optimizer()
        self.watch = DivergenceWatch()

    def _seconds(self) -> float:
        return self.at.seconds + time.monotonic() - self.started

    def _save(self, path: PruningPath | None = None) -> None:
        if self.of.checkpoint is None:
            return
        now = capture_random_state(self.of.train.data, self.of.validation.data, fabric=self.of.fabric)
        if not self.of.fabric.is_global_zero:
            return
        tensors, optimizer = optimizer_state_to_tensors(self.optimizer)
        kept = {
            **prefixed("weights", self.network.state_dict()),
            **prefixed("good", self.good.weights),
            **prefixed("good session", self.good.session),
            **prefixed("session", self.session.tensors()),
            **prefixed("optimizer", tensors),
            **prefixed("random", now.tensors),
        }
        meta: dict[str, Any] = {
            "identity": self.of.identity,
            "network": describe(self.network.structure),
            "good": describe(self.good.structure),
            "position": {**asdict(self.at), "seconds": self._seconds()},
            "feed": [self.feed.epoch, self.feed.used],
            "watch": self.watch.state(),
            "optimizer": optimizer,
            "random": now.numbers,
            "log": self.log.size(),
        }
        if self.feed.epoch_start is not None:
            kept |= prefixed("epoch", self.feed.epoch_start.tensors)
            meta["epoch"] = self.feed.epoch_start.numbers
        if path is not None:
            meta["path"] = path.to_json()
        save_state(self.of.checkpoint, kept, meta)

    def _resume(self) -> PruningPath | None:
        """Take over a checkpoint, if there is one; the path, if it is of a run that is over."""
        found = find_checkpoint(self.of.checkpoint, self.of.identity) if self.of.checkpoint is not None else None
        self.of.fabric.barrier()
        if found is None:
            return None
        self.display.note(f"going on from {self.of.checkpoint}")
        meta = found.meta
        self._restore(self._found_snapshot(found, "network", "weights", "session"))
        self.good = self._found_snapshot(found, "good", "good", "good session")
        if "path" in meta:
            self.network.eval()
            return PruningPath.from_json(meta["path"])
        restore_optimizer_state(self.optimizer, under("optimizer", found.tensors), meta["optimizer"])
        steps = [PruningStep(**step) for step in meta["position"]["steps"]]
        self.at = Position(**{**meta["position"], "steps": steps})
        self.watch.restore(meta["watch"])
        self.log.cut(meta["log"])
        epoch = RandomState(under("epoch", found.tensors), meta["epoch"]) if "epoch" in meta else None
        self.feed.go_on(*meta["feed"], epoch, found.random)
        return None

    def _found_snapshot(self, found: Found, structure: str, weights: str, session: str) -> Snapshot:
        described = replace(from_description(found.meta[structure]), origins=self.network.structure.origins)
        return Snapshot(described, under(weights, found.tensors), under(session, found.tensors))
