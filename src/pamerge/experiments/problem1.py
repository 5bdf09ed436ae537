"""What one task loses when only another task's subgraph is pruned.

In a network that was merged without pruning in mind, the neurons that are redundant for one task may be those that
another one lives on (Problem 1 of the paper). Here one task's subgraph is pruned in a series of removals; no budget
protects the others, and what they lose is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.experiments.config import Choice, Problem1
from pamerge.experiments.registry import make_pruner
from pamerge.experiments.stages import Setting, at_first, finetuned, pruned_depends_on
from pamerge.merging import Material
from pamerge.network.program import JunctionHook
from pamerge.pruning import Pruner, Scores, Session, Surroundings, prune
from pamerge.training.data import Batch


@dataclass(frozen=True)
class OnlyOneTask:
    """A pruner that lets another one work in one task's turns, and removes nothing in those of the others."""

    task: str
    pruner: Pruner

    def start(self, surroundings: Surroundings) -> Session:
        """Begin to prune a network."""
        return _OneTasksTurns(self.task, self.pruner.start(surroundings))


class _OneTasksTurns:
    def __init__(self, task: str, session: Session) -> None:
        self.task, self.session = task, session

    @property
    def idle_laps(self) -> int:
        return self.session.idle_laps

    def hook(self) -> JunctionHook | None:
        return self.session.hook()

    def penalty(self, task: str) -> Tensor | None:
        return self.session.penalty(task) if task == self.task else None

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        return self.session.parameters()

    def alone(self, task: str) -> AbstractContextManager[None]:
        return self.session.alone(task)

    def measure(self, task: str, batches: Iterator[Batch]) -> int:
        return self.session.measure(task, batches) if task == self.task else 0

    def importance(self, task: str) -> Scores:
        return self.session.importance(task) if task == self.task else {}

    def quota(self, task: str, fraction: float, scores: Scores) -> int:
        return self.session.quota(task, fraction, scores)

    def tensors(self) -> dict[str, Tensor]:
        return self.session.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.session.restore(tensors)


def prune_one_task(setting: Setting, material: Material, choice: Choice, options: Problem1) -> dict[str, Any]:
    """Prune one task's subgraph of a scheme's merged network, step by step.

    Returns:
        The task, and for every step the FLOPs of every combination and the validation metric of every task; the first
        is before any removal.
    """
    task = pruned_task(options, list(setting.networks))
    depends_on = {**pruned_depends_on(setting, choice), "problem1": asdict(options)}
    checkpoint = setting.store.path("problem1", depends_on, ".checkpoint")

    def make() -> dict[str, Any]:
        network, _ = finetuned(at_first(setting), material, choice)
        path = prune(
            network,
            setting.loaders.train(),
            setting.loaders.validation(),
            setting.objectives,
            pruner=OnlyOneTask(task, make_pruner(setting.pruner)),
            laps=options.laps,
            fraction=options.fraction,
            steps=options.steps,
            remove=setting.prune.get("remove", "neuron"),
            final=0,
            checkpoint=checkpoint,
            seed=setting.seed,
            progress=setting.progress,
            **setting.lessons(),
        )
        return {
            "task": task,
            "series": [{"flops": dict(step.flops), "metrics": dict(step.metrics)} for step in path.steps],
        }

    found = setting.store.json("problem1", depends_on, make, f"{choice.label}: prune {task} alone")
    checkpoint.unlink(missing_ok=True)
    return found


def pruned_task(options: Problem1, tasks: Sequence[str]) -> str:
    """The task to prune."""
    task = tasks[-1] if options.task is None else options.task
    if task not in tasks:
        raise PamergeError(f"problem1.task = {task!r}; expected one of: {', '.join(tasks)}.")
    return task
