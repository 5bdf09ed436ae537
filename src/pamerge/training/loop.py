"""The loop of fine-tuning: epochs of steps, validations in between, checkpoints from which a killed run goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.training.data import Batch, Batches
from pamerge.training.divergence import DivergenceError
from pamerge.training.evaluation import Run, evaluate_batches
from pamerge.training.optimizer import set_learning_rate
from pamerge.training.processes import average_statistics, start_epoch, sums_of
from pamerge.training.progress import Display, Log
from pamerge.training.random_state import (
    RandomState,
    capture_random_state,
    part_random_state,
    restore_random_state,
    share_random_state,
)
from pamerge.training.results import FinetuneResult, Record
from pamerge.training.run_state import STARTING_WEIGHTS, RunState, find_checkpoint
from pamerge.training.settings import Settings
from pamerge.training.steps import Distillation, set_training_mode, train_step

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Ingredients:
    """What a run is made of.

    Attributes:
        network: The network to train.
        run_network: How to run some of its tasks.
        optimizer: The optimiser of its parameters.
        train: Training data.
        validation: Validation data, if any.
        distillation: Teachers and their shares.
        settings: How long and how.
        fabric: Device, precision and processes.
        total: The number of steps, if it is known.
        identity: What makes another call the same call.
        checkpoint: Where to write checkpoints, if anywhere.
    """

    network: MultitaskNetwork
    run_network: Run
    optimizer: Optimizer
    train: Batches
    validation: Batches | None
    distillation: Distillation
    settings: Settings
    fabric: Fabric
    total: int | None
    identity: Mapping[str, Any]
    checkpoint: Path | None


class Loop:
    """One run of fine-tuning."""

    def __init__(self, made_of: Ingredients, display: Display, log: Log) -> None:
        self.of = made_of
        self.display = display
        self.log = log
        self.state = RunState(made_of.network, made_of.optimizer, made_of.fabric, good=_copy(made_of.network))
        self.resumed_at: RandomState | None = None
        self.started = self.saved = time.monotonic()
        self.pause = made_of.settings.checkpoint_seconds

    def run(self) -> FinetuneResult:
        """Train to the end, or go on from a checkpoint to the end."""
        finished = self._resume()
        if finished is not None:
            return finished
        try:
            if self.resumed_at is None:
                self._begin()
            while self.state.at.stopped is None:
                self._epoch()
            return self._finish()
        except DivergenceError as error:
            self.of.network.load_state_dict(dict(self.state.good))
            self.log.write("diverged", step=self.state.at.step, message=str(error))
            if self.of.checkpoint is not None and self.of.fabric.is_global_zero:
                self.of.checkpoint.unlink(missing_ok=True)  # the same call would only diverge again
            raise
        except BaseException:
            # so that the same call with the same network goes on from the checkpoint, as in a notebook
            path, identity = self.of.checkpoint, _without_weights(self.of.identity)
            found = find_checkpoint(path, identity) if path is not None else None
            if found is not None:
                self.of.network.load_state_dict(found.weights)
            raise

    # -- training --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.log.cut(0)
        self.log.write("start", tasks=list(self.of.network.tasks), total=self.of.total, **self.of.identity)
        if self.of.validation is not None:
            self._record()
        self._save()

    def _epoch(self) -> None:
        at = self.state.at
        batches, batch = self._start_epoch()
        while at.stopped is None and self._step(batch):
            self._save_if_due()
            batch = next(batches, None) if at.stopped is None else None
        if at.stopped is not None:
            return
        if not at.batch:
            raise PamergeError(
                f"The training data gave no batches in epoch {at.epoch + 1}; expected data that can be read again and "
                "again, such as a DataLoader or a list of batches."
            )
        at.epoch, at.batch = at.epoch + 1, 0
        if not self.of.settings.validate_every:
            self._record()
        if at.epoch == self.of.settings.epochs and at.stopped is None:
            at.stopped = "finished"
        self._save_if_due()

    def _start_epoch(self) -> tuple[Iterator[Batch], Batch | None]:
        """What is left of the epoch, and the first batch of it, with the random states that belong to them."""
        set_training_mode(self.of.network, self.of.settings.freeze_batch_norm)
        skip, fabric = self.state.at.batch, self.of.fabric
        if skip and self.state.epoch_start is not None:
            restore_random_state(self.state.epoch_start, *self._loaders(), fabric=fabric)
        else:
            share_random_state(*self._loaders(), fabric=fabric)
            self.state.epoch_start = capture_random_state(*self._loaders(), fabric=fabric)
        start_epoch(self.of.train.data, self.state.at.epoch)
        batches = iter(self.of.train)
        for _ in range(skip):
            next(batches, None)
        if skip and self.resumed_at is not None:
            restore_random_state(self.resumed_at, fabric=fabric)
        first = next(batches, None)
        if not skip:
            part_random_state(fabric)
        return batches, first

    def _step(self, batch: Batch | None) -> bool:
        """Train on a batch; False when no process has one."""
        if batch is None and self.of.fabric.world_size == 1:
            return False
        at, of = self.state.at, self.of
        lr = set_learning_rate(of.optimizer, of.settings.schedule, at.step / of.total if of.total else 0.0)
        result = train_step(
            of.network, batch, of.train.objectives, of.optimizer, fabric=of.fabric, distillation=of.distillation
        )
        if not result.samples:
            return False
        self.state.watch.check(at.step + 1, result.losses)
        average_statistics(of.network, of.fabric)
        at.step, at.batch = at.step + 1, at.batch + 1
        at.task_batches += len(result.losses)
        for task, loss in result.losses.items():
            sums = at.loss_sums.setdefault(task, [0.0, 0.0])
            sums[0], sums[1] = sums[0] + loss, sums[1] + 1
        self.log.write("step", step=at.step, losses=result.losses, lr=lr)
        self.display.update(at.step, losses=result.losses)
        if of.settings.validate_every and at.step % of.settings.validate_every == 0:
            self._record()
        if at.step == of.settings.steps and at.stopped is None:
            at.stopped = "finished"
        return True

    def _record(self) -> None:
        """Look at the validation data, and remember the weights if they are the best so far."""
        at, of = self.state.at, self.of
        losses = {task: total / count for task, (total, count) in at.loss_sums.items()}
        metrics: dict[str, float] = {}
        if of.validation is not None:
            metrics = evaluate_batches(of.network, of.run_network, of.validation, of.fabric)
        lr = float(of.optimizer.param_groups[0]["lr"])
        record = Record(at.step, at.epoch, losses, metrics, lr, self._seconds())
        at.loss_sums = {}
        at.history.append(record)
        if metrics:
            score = self._score(metrics)
            at.stale = 0 if at.step == 0 or score > at.best_score else at.stale + 1
            if at.step == 0 or score >= at.best_score:  # of equally good weights, those that were trained for longer
                at.best_score, at.best_step = score, at.step
                self.state.good = _copy(of.network)
            if of.settings.patience and at.stale >= of.settings.patience:
                at.stopped = "patience"
        self.log.write("record", **asdict(record))
        self.display.update(at.step, losses=losses, metrics=metrics)

    def _score(self, metrics: Mapping[str, float]) -> float:
        """The relative improvement over the metrics before training, averaged over the tasks, whatever their units."""
        changes = []
        for task, value in metrics.items():
            first = self.state.at.history[0].metrics[task]
            sign = 1 if self.of.train.objectives[task].higher_is_better else -1
            changes.append(sign * (value - first) / (abs(first) or 1.0))
        return sum(changes) / len(changes)

    def _finish(self) -> FinetuneResult:
        at, of = self.state.at, self.of
        if not at.history or at.history[-1].step != at.step:
            self._record()
        if of.validation is not None:
            of.network.load_state_dict(dict(self.state.good))
        else:
            at.best_step = at.step
        result = FinetuneResult(
            tuple(at.history), at.step, at.task_batches, self._seconds(), at.stopped or "finished", at.best_step
        )
        self.log.write("end", stopped=result.stopped, steps=at.step, best_step=at.best_step, seconds=result.seconds)
        if of.checkpoint is not None:
            now = capture_random_state(*self._loaders(), fabric=of.fabric)
            if of.fabric.is_global_zero:
                self.state.save_result(of.checkpoint, now, of.identity, result)
        return result

    def _seconds(self) -> float:
        return self.state.at.seconds + time.monotonic() - self.started

    def _loaders(self) -> list[Any]:
        return [self.of.train.data] + ([self.of.validation.data] if self.of.validation is not None else [])

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        if self.of.checkpoint is None or self.state.at.stopped is not None:
            return
        due = float(self.of.fabric.is_global_zero and time.monotonic() - self.saved >= self.pause)
        if sums_of([due], self.of.fabric)[0]:
            self._save()

    def _save(self) -> None:
        if self.of.checkpoint is None:
            return
        begin = time.monotonic()
        now = capture_random_state(*self._loaders(), fabric=self.of.fabric)
        if self.of.fabric.is_global_zero:
            self.state.save(self.of.checkpoint, now, self.of.identity, self._seconds(), self.log.size())
        self.saved = time.monotonic()
        # a large network on a slow disk: never spend more than a twentieth of the time on writing
        pause = self.of.settings.checkpoint_seconds
        self.pause = max(pause, 20 * (self.saved - begin)) if pause else 0.0

    def _resume(self) -> FinetuneResult | None:
        """Take over a checkpoint, if there is one; the result, if it is of a run that is over."""
        of = self.of
        found = find_checkpoint(of.checkpoint, of.identity) if of.checkpoint is not None else None
        of.fabric.barrier()  # nobody may write before everyone has looked
        if found is None:
            return None
        restore_random_state(found.random, *self._loaders(), fabric=of.fabric)
        self.display.note(f"going on from {of.checkpoint}")
        if found.result is not None:
            of.network.load_state_dict(found.weights)
            return found.result
        self.of = replace(of, identity=found.meta["identity"])
        self.state.restore(found)
        self.log.cut(found.meta["log"])
        self.resumed_at = found.random
        return None


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def _without_weights(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in identity.items() if name != STARTING_WEIGHTS}
