"""Reading the user's batches, and saying clearly what is wrong with them before any training starts.

A batch is ``(inputs, targets)``, where ``targets`` maps a task to its labels and may leave tasks out; or just
``inputs``. With a single task ``targets`` may be its labels themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.tasks import TaskSet
from pamerge.training.protocol import Objective, check_targets

Shapes = Mapping[str, tuple[int, ...]]
"""For each task, the shape of its outputs without the dimension of the batch."""


@dataclass(frozen=True)
class Batch:
    """A batch that was read and checked.

    Attributes:
        inputs: One row for each sample.
        targets: For each task that has labels here, the rows that have any.
        rows: For each of these tasks, which samples the rows belong to; None stands for all of them.
        counts: For each of these tasks, how many labels are present.
    """

    inputs: Tensor
    targets: Mapping[str, Tensor]
    rows: Mapping[str, Tensor | None]
    counts: Mapping[str, int]

    @property
    def labelled(self) -> TaskSet:
        """The tasks that have labels here."""
        return TaskSet(self.targets)

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        if self.inputs.device == device:
            return self
        targets = {task: labels.to(device, non_blocking=True) for task, labels in self.targets.items()}
        rows = {task: None if rows is None else rows.to(device, non_blocking=True) for task, rows in self.rows.items()}
        return Batch(self.inputs.to(device, non_blocking=True), targets, rows, self.counts)

    def matching(self, outputs: Tensor, task: str) -> Tensor:
        """The rows of a task's outputs that have labels."""
        rows = self.rows[task]
        return outputs if rows is None else outputs[rows]


class Batches:
    """Data of which every batch is checked as it is read; can be iterated as often as the data itself.

    Args:
        data: An iterable of batches.
        name: What to call it in messages, such as "the training data".
        objectives: The tasks whose labels are read.
        known: All tasks that targets may name; None allows any.
        probe: From one input to the shapes of the outputs; called once.
    """

    def __init__(
        self,
        data: Iterable[Any],
        name: str,
        objectives: Mapping[str, Objective],
        known: Iterable[str] | None,
        probe: Callable[[Tensor], Shapes],
    ) -> None:
        self.data = check_iterable(data, name)
        self.name = name
        self.objectives = objectives
        self.known = None if known is None else tuple(known)
        self._probe = probe
        self._shapes: Shapes | None = None

    def __iter__(self) -> Iterator[Batch]:
        """The batches, checked."""
        for number, raw in enumerate(self.data, start=1):
            try:
                batch = self._read(raw)
            except PamergeError as error:
                raise PamergeError(f"Batch {number} of {self.name}: {error}") from error.__cause__
            yield batch

    @property
    def length(self) -> int | None:
        """The number of batches, if the data knows it."""
        try:
            return len(self.data)  # type: ignore[arg-type]
        except TypeError:
            return None

    def _read(self, raw: Any) -> Batch:
        inputs, labels = _split(raw)
        if not isinstance(inputs, Tensor) or inputs.dim() < 2 or len(inputs) == 0:
            shown = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise PamergeError(f"the inputs are {shown}; expected a tensor of shape (batch, channels, …).")
        found = self._by_task(labels)
        if self._shapes is None:
            self._shapes = self._probe(inputs[:1])
        targets: dict[str, Tensor] = {}
        rows: dict[str, Tensor | None] = {}
        counts: dict[str, int] = {}
        for task, objective in self.objectives.items():
            values = found.get(task)
            if values is None:
                continue
            check_targets(task, objective, (len(inputs), *self._shapes[task]), values)
            present = objective.labelled(values)
            counts[task] = int(present.sum())
            if counts[task] < present.numel():
                with_label = present.reshape(len(present), -1).any(1).nonzero().flatten()
                if not len(with_label):
                    del counts[task]
                    continue
                targets[task], rows[task] = values[with_label], with_label
            else:
                targets[task], rows[task] = values, None
        return Batch(inputs, targets, rows, counts)

    def _by_task(self, labels: Any) -> dict[str, Tensor]:
        if labels is None:
            return {}
        if isinstance(labels, (Tensor, np.ndarray)) and len(self.objectives) == 1 and len(self.known or "?") == 1:
            labels = {next(iter(self.objectives)): labels}
        if not isinstance(labels, Mapping):
            tasks = ", ".join(repr(task) for task in self.objectives)
            raise PamergeError(
                f"the targets are a {type(labels).__name__}; expected a mapping from tasks ({tasks}) to labels."
            )
        unknown = sorted(set(labels) - set(self.known)) if self.known is not None else []
        if unknown:
            raise PamergeError(
                f"it has labels of unknown task(s) {', '.join(map(repr, unknown))}; "
                f"the network has: {', '.join(self.known or ())}."
            )
        return {task: torch.as_tensor(labels[task]) for task in self.objectives if labels.get(task) is not None}


def check_iterable(data: Any, name: str) -> Iterable[Any]:
    """The data, or an error if it cannot be iterated again and again."""
    if not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
        raise PamergeError(
            f"{capital(name)} is a {type(data).__name__}; expected an iterable of (inputs, targets) batches."
        )
    if isinstance(data, Iterator):
        raise PamergeError(
            f"{capital(name)} is a {type(data).__name__}, which can be read only once; expected something that can be "
            "read again and again, such as a DataLoader or a list of batches."
        )
    if isinstance(data, (Tensor, Mapping, str)):
        raise PamergeError(
            f"{capital(name)} is one {type(data).__name__}; expected an iterable of (inputs, targets) batches."
        )
    return data  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Survey:
    """What data holds.

    Attributes:
        labelled: The tasks that have labels anywhere.
        batches: How many batches there are; None if they were not all read and the data does not know.
        used: How many batches were read.
    """

    labelled: TaskSet
    batches: int | None
    used: int


def survey(
    batches: Batches, *, most: int | None = None, count: bool = False, seconds: float = 10.0, allow_empty: bool = False
) -> Survey:
    """Read data once without training on it, so that mistakes in it come to light first.

    It goes on until labels of all tasks were seen, then to the end of the data if that takes no longer than
    ``seconds``. (Batches after that are checked when they are used: reading a large data set twice would cost an
    epoch of loading.)

    Args:
        batches: The data.
        most: Read no more batches than this; for data without an end.
        count: Read to the end unless the data knows its length.
        seconds: How long to go on after labels of all tasks were seen.
        allow_empty: Whether there may be no batch at all, as in one of several processes.

    Raises:
        PamergeError: The data is empty, or a batch is wrong.
    """
    start, seen, number = time.monotonic(), TaskSet(), 0
    must_count = count and batches.length is None
    complete = True
    for batch in batches:
        number += 1
        seen = seen | batch.labelled
        in_time = time.monotonic() - start < seconds
        if (most is not None and number >= most) or (
            len(seen) == len(batches.objectives) and not in_time and not must_count
        ):
            complete = False
            break
    if not number and not allow_empty:
        raise PamergeError(f"{capital(batches.name)} is empty; expected at least one batch of (inputs, targets).")
    return Survey(seen, number if complete else batches.length, number)


def _split(raw: Any) -> tuple[Any, Any]:
    if isinstance(raw, Tensor):
        return raw, None
    if isinstance(raw, (tuple, list)) and len(raw) in (1, 2):
        return raw[0], raw[1] if len(raw) == 2 else None
    shown = f"{type(raw).__name__} of {len(raw)}" if isinstance(raw, (tuple, list, Mapping)) else type(raw).__name__
    raise PamergeError(f"it is a {shown}; expected (inputs, targets), or just inputs.")


def capital(text: str) -> str:
    """The text with a capital at the start, for the start of a message."""
    return text[:1].upper() + text[1:]
