"""What an objective is, and whether something is one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.tasks import resolve_tasks


class Objective(Protocol):
    """A loss and a metric. Write a class with these members, or use :class:`Custom`, to bring your own.

    ``loss`` and ``score`` are called with those samples of a batch that have at least one label.
    """

    @property
    def metric_name(self) -> str:
        """What the metric is called in tables."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger metric is a better one."""
        ...

    def check(self, outputs: tuple[int, ...], targets: Tensor, /) -> None:
        """Raises a :class:`PamergeError` that says why these labels do not fit outputs of this shape."""
        ...

    def labelled(self, targets: Tensor, /) -> Tensor:
        """True where a label is present, False where it is missing; one row for each sample."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """The mean loss over the labels that are present."""
        ...

    def score(self, outputs: Tensor, targets: Tensor, /) -> tuple[Tensor, Tensor]:
        """``(sums, counts)`` of a batch, which are added up over all batches.

        The metric is the mean of ``sums / counts``: of one number, or of one for each label (or class) in a vector.
        """
        ...

    def distillation(self, outputs: Tensor, teacher: Tensor, /) -> Tensor:
        """The mean loss of outputs that should be like a teacher's; 0 when they are."""
        ...


def check_objectives(objectives: Mapping[str, Objective], tasks: Iterable[str] | None, complete: bool = False) -> None:
    """Raises if objectives are not a mapping from the tasks; ``complete`` asks for all of them."""
    if not isinstance(objectives, Mapping) or not objectives:
        raise PamergeError(
            "objectives must map tasks to objectives, as in {'age': Regression(), 'gender': Classification()}."
        )
    for task, objective in objectives.items():
        if isinstance(objective, type) or not all(hasattr(objective, name) for name in ("loss", "score", "labelled")):
            shown = (
                f"the class {objective.__name__}" if isinstance(objective, type) else f"a {type(objective).__name__}"
            )
            raise PamergeError(
                f"The objective of task {task!r} is {shown}; expected an objective such as Classification() or "
                "Custom(loss=…, metric=…)."
            )
    if tasks is None:
        return
    resolve_tasks(objectives, tasks)
    missing = [task for task in tasks if task not in objectives]
    if complete and missing:
        raise PamergeError(
            f"objectives lacks task(s) {', '.join(map(repr, missing))}; expected one for each task of the network."
        )


def check_targets(task: str, objective: Objective, outputs: tuple[int, ...], targets: Tensor) -> None:
    """Raises an error that names the task if labels do not fit outputs of this shape."""
    try:
        objective.check(outputs, targets)
    except PamergeError as error:
        raise PamergeError(f"Task {task!r} ({type(objective).__name__}): {error}") from None
