"""Training between removals: for all tasks, or for one that is alone, with the averages that a lap is judged by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal

from torch import Tensor

from pamerge.pruning.alone import others_untouched
from pamerge.pruning.averages import take_averages, update_averages
from pamerge.pruning.ranking import tasks_served
from pamerge.pruning.run_state import Ingredients, RunState
from pamerge.training.data import Batch
from pamerge.training.optimizer import set_learning_rate
from pamerge.training.processes import average_statistics, sum_gradients, sums_of
from pamerge.training.progress import Display
from pamerge.training.statistics import refresh_statistics
from pamerge.training.steps import compute_gradients, set_training_mode


class Trainer:
    """Trains the network of a run of pruning.

    Attributes:
        alone: The task whose lap this is, if it is of one task alone.
        averaged: Steps since the averages were last used.
        weights: How much each task counts where it shares neurons with others.
        steps_each: With tasks that learn one after the other, how many steps of the optimiser it takes until what the
            network computes was trained once, on average: one if all is shared, one for each task if nothing is.
    """

    def __init__(self, of: Ingredients, state: RunState, tasks: list[str], display: Display) -> None:
        self.of, self.state, self.tasks, self.display = of, state, tasks, display
        self.network, self.settings = of.network, of.settings
        self.alone: str | None = None
        self.averaged = 0
        self.weights: Mapping[str, float] = {}
        self.steps_each = 1.0
        self._due: dict[str, float] = {}

    def begin_lap(self, alone: str | None, weights: Mapping[str, float]) -> None:
        """A lap of all tasks, or of one alone; earlier steps do not count in its averages."""
        self.alone = alone
        self.weights = weights
        self._due = dict.fromkeys(self._trained, 0.0)
        self.averaged = 0

    def train(
        self,
        steps: int,
        stage: str,
        task: str | None = None,
        schedule: Literal["constant", "cosine"] = "constant",
    ) -> None:
        """Some steps on all tasks, or on the one that is alone, with the pruner's gates and penalty in a task's turn.

        Args:
            steps: how many. Where tasks learn one after the other, how many a neuron takes part in, on average.
            stage: what they are for.
            task: whose turn it is.
            schedule: of the learning rate.
        """
        self.steps_each = self._steps_each(self._trained)
        steps = math.ceil(steps * self.steps_each)
        if self._one_by_one and self.settings.effort is not None:
            steps = max(0, min(steps, self.settings.effort - self.state.at.task_batches))
        with self._training():
            for step in range(steps):
                set_learning_rate(self.state.optimizer, schedule, step / steps)
                batch = next(self.state.feed)
                self._step(batch, self._next_task(batch) if self._one_by_one else self._trained, task, stage)

    def task_batches(self, steps: int) -> int:
        """How many batches for one task's loss so many steps on all tasks take, if the network stays as it is."""
        return steps * len(self.tasks) if self.settings.together else math.ceil(steps * self._steps_each(self.tasks))

    def take_averages(self) -> None:
        """What is judged: the averaged weights, with their own statistics."""
        take_averages(self.state.optimizer, self.network)
        if self.averaged:
            taught = [task for task in self._trained if self.of.distillation.teaches(task)]
            with self._training():
                refresh_statistics(self.network, self.state.feed, self._trained, self.of.fabric, taught)
        self.averaged = 0

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Meanwhile, the network is in training mode, or the part of it that serves the task that is alone."""
        set_training_mode(self.network, self.settings.freeze_batch_norm)
        with ExitStack() as held:
            if self.alone is not None:
                held.enter_context(others_untouched(self.network, self.alone))
                held.enter_context(self.state.session.alone(self.alone))
            yield

    def _next_task(self, batch: Batch) -> list[str]:
        """Which task learns from a batch, of those that can: in a lap, each as often as its weight says.

        Where several have waited alike, another one goes first in every pass over the data: it may come in a fixed
        order.
        """
        of, due = self.of, self._due
        says = sums_of([float(of.distillation.teaches(task) or batch.counts.get(task, 0)) for task in due], of.fabric)
        able = [task for task, much in zip(due, says, strict=True) if much]
        if not able:
            return list(due)
        weights = {task: self.weights.get(task, 1.0) for task in able}
        for task in able:
            due[task] += weights[task] / sum(weights.values())
        first = self.state.feed.epoch % len(able)
        chosen = max([*able[first:], *able[:first]], key=lambda task: round(due[task], 9))
        due[chosen] -= 1
        return [chosen]

    def _step(self, batch: Batch, tasks: list[str], turn: str | None, stage: str) -> None:
        of, state = self.of, self.state
        state.optimizer.zero_grad(set_to_none=True)
        result = compute_gradients(
            self.network,
            batch,
            of.train.objectives,
            fabric=of.fabric,
            tasks=tasks,
            distillation=of.distillation,
            at_junction=state.session.hook() if turn is not None else None,
            penalty=(lambda: self._penalty(turn)) if turn is not None else None,
            weights=None if self._one_by_one else self.weights,
        )
        if turn is not None and of.fabric.world_size > 1:
            own = [parameter for group in state.session.parameters() for parameter in group["params"]]
            sum_gradients(own, of.fabric)
        state.watch.check(state.at.task_batches, result.losses)
        if result.losses:
            of.fabric.strategy.optimizer_step(state.optimizer)
            self.averaged += 1
            update_averages(state.optimizer, self.network, self.averaged, self.steps_each)
        average_statistics(self.network, of.fabric)
        state.at.task_batches += len(result.losses)
        self.display.update(state.at.lap, losses=result.losses, stage=stage)

    @property
    def _trained(self) -> list[str]:
        return self.tasks if self.alone is None else [self.alone]

    @property
    def _one_by_one(self) -> bool:
        return not self.settings.together and len(self._trained) > 1

    def _steps_each(self, tasks: Sequence[str]) -> float:
        return 1.0 if self.settings.together else len(tasks) / tasks_served(self.network, tasks)

    def _penalty(self, task: str) -> Tensor:
        penalty = self.state.session.penalty(task)
        return next(self.network.parameters()).new_zeros(()) if penalty is None else penalty / self.steps_each
