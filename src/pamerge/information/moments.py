"""Means and covariances of activations and labels, streamed, so that the data need not fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.information.labels import (
    ArrayLike,
    Labels,
    as_tasks,
    check_neurons,
    checked_activations,
    class_count,
    is_classes,
    label_columns,
    one_hot,
)

_Label: TypeAlias = tuple[str, int]  # a task and one of its columns


@dataclass(frozen=True)
class Source:
    """Second moments of a layer's neurons and of labels, on the samples that carry all of these labels.

    Attributes:
        samples: Number of samples.
        xx: Covariance of the neurons' values, ``(M·P, M·P)``, the P values of a neuron next to each other.
        xy: Covariance of the neurons' values with the labels, ``(M·P, L)``.
        yy: Covariance of the labels, ``(L, L)``; no label is constant.
        values: P, the number of values of a neuron.
        variance: Mean variance of the values of all neurons of the layer, whichever are in ``xx``.
        tasks: The task of each label.
    """

    samples: int
    xx: Tensor
    xy: Tensor
    yy: Tensor
    values: int
    variance: float
    tasks: tuple[str, ...]


class Moments:
    """Moments of a layer's activations and of any number of tasks' labels, batch by batch.

    Labels that are present on exactly the same samples share one covariance matrix. When a batch first tells
    them apart, the matrix is duplicated, so each label is measured on exactly the samples that carry it,
    whatever is missing where. Batches are merged by their means and centred scatter (Chan, Golub and LeVeque
    1983), which loses no digits to a large mean.

    >>> moments = Moments()
    >>> moments.add(torch.tensor([[0.0], [2.0]]), {"age": torch.tensor([20.0, 40.0])})
    >>> moments.add(torch.tensor([[4.0], [6.0]]), {"age": torch.tensor([60.0, float("nan")])})
    >>> moments.add(torch.tensor([[8.0]]), {"age": torch.tensor([40.0])})
    >>> (source,) = moments.sources()
    >>> source.samples, round(source.xx.item(), 3), round(source.xy.item(), 3)
    (4, 11.667, 26.667)
    """

    def __init__(self) -> None:
        self._shape: tuple[int, int] | None = None
        self._groups: list[_Group] = []
        self._columns: dict[str, int] = {}
        self._classes: set[str] = set()

    def add(self, activations: ArrayLike, labels: Labels) -> None:
        """Add a batch.

        Args:
            activations: ``(N, M)``, or ``(N, M, P)`` for P values a neuron.
            labels: Labels, or the labels of some or all tasks by name. New classes and new tasks may appear
                in any batch.

        Raises:
            PamergeError: If shapes disagree with each other or with earlier batches, or values are not
                finite.
        """
        tasks = as_tasks(labels)
        x = checked_activations(activations, len(next(iter(tasks.values()))))
        shape = x.shape[1], x.shape[2]
        if self._shape not in (None, shape):
            raise PamergeError(f"activations have (M, P) = {shape}, but earlier batches had {self._shape}.")
        columns = {task: self._new_columns(task, values) for task, values in tasks.items()}
        self._shape = shape
        self._add(x.flatten(1).double(), columns)

    def sources(self, tasks: Iterable[str] | None = None, neurons: Iterable[int] | None = None) -> list[Source]:
        """The moments of the labels of ``tasks`` with ``neurons``, one source for each set of samples.

        Args:
            tasks: Names of tasks; all by default.
            neurons: The neurons that count, as indices into the layer; all by default.

        Raises:
            PamergeError: If a task has no labels, or if a set of labels is on fewer than 4 samples.
        """
        if self._shape is None:
            raise PamergeError("No activations were added yet.")
        wanted = tuple(self._columns) if tasks is None else tuple(tasks)
        unknown = [task for task in wanted if not any(g.samples and g.has(task) for g in self._groups)]
        if unknown or not wanted:
            known = ", ".join(self._columns)
            raise PamergeError(f"No sample carries labels of task(s) {unknown!r}; there are labels of: {known}.")
        count, values = self._shape
        index = (check_neurons(neurons, count).unsqueeze(1) * values + torch.arange(values)).flatten()
        # A single label that no sample carries says nothing; a task without any was an error above.
        groups = [g for g in self._groups if g.samples and any(g.has(task) for task in wanted)]
        return [group.source(index, count * values, values, wanted, self._last_classes()) for group in groups]

    def _new_columns(self, task: str, values: Tensor) -> Tensor:
        is_class = is_classes(values)
        if task in self._columns and is_class != (task in self._classes):
            raise PamergeError(f"The labels of task {task!r} are integer classes in some batches and not in others.")
        if not is_class:
            columns = label_columns(values)
            if self._columns.setdefault(task, columns.shape[1]) != columns.shape[1]:
                raise PamergeError(
                    f"Task {task!r} has {columns.shape[1]} labels a sample, but {self._columns[task]} in "
                    "earlier batches."
                )
            return columns
        # All one-hot columns are kept, since which class is the last is known only at the end.
        self._classes.add(task)
        before, now = self._columns.get(task, 0), max(self._columns.get(task, 0), class_count(values), 2)
        self._columns[task] = now
        if before:
            for group in self._groups:
                if group.has(task):
                    group.append_zeros([(task, column) for column in range(before, now)])
        return one_hot(values, now)

    def _add(self, x: Tensor, columns: dict[str, Tensor]) -> None:
        present = {task: ~values.isnan() for task, values in columns.items()}
        absent = torch.zeros(len(x), dtype=torch.bool)

        def mask(label: _Label) -> bytes:
            task, column = label
            return (present[task][:, column] if task in present else absent).numpy().tobytes()

        known = {label for group in self._groups for label in group.labels}
        new = [(task, column) for task, values in columns.items() for column in range(values.shape[1])]
        new = [label for label in new if label not in known]
        groups = [*self._groups, _Group.empty(x.shape[1], new)] if new else self._groups
        self._groups = []
        for group in groups:
            for labels in _partition(group.labels, mask):
                part = group if len(labels) == len(group.labels) else group.only(labels)
                rows = torch.frombuffer(bytearray(mask(labels[0])), dtype=torch.bool)
                if bool(rows.any()):
                    y = torch.stack([columns[task][rows, column] for task, column in labels], 1)
                    part.update(torch.cat([x[rows], y], 1))
                self._groups.append(part)

    def _last_classes(self) -> set[_Label]:
        return {(task, self._columns[task] - 1) for task in self._classes}


@dataclass
class _Group:
    """Moments of the features, then of labels that are present on the same samples."""

    labels: list[_Label]
    samples: int
    mean: Tensor
    scatter: Tensor
    features: int = field(kw_only=True)

    @classmethod
    def empty(cls, features: int, labels: list[_Label]) -> _Group:
        size = features + len(labels)
        zeros = torch.zeros(size, size, dtype=torch.float64)
        return cls(labels, 0, torch.zeros(size, dtype=torch.float64), zeros, features=features)

    def has(self, task: str) -> bool:
        return any(name == task for name, _ in self.labels)

    def only(self, labels: list[_Label]) -> _Group:
        places = {label: place for place, label in enumerate(self.labels, start=self.features)}
        index = torch.tensor([*range(self.features), *(places[label] for label in labels)])
        mean, scatter = self.mean[index], self.scatter[index][:, index]
        return _Group(labels, self.samples, mean, scatter, features=self.features)

    def append_zeros(self, labels: list[_Label]) -> None:
        """A class that was never seen before: its column has been zero on every sample so far."""
        if labels:
            self.labels = self.labels + labels
            self.mean = torch.nn.functional.pad(self.mean, (0, len(labels)))
            self.scatter = torch.nn.functional.pad(self.scatter, (0, len(labels), 0, len(labels)))

    def update(self, batch: Tensor) -> None:
        mean = batch.mean(0)
        centred = batch - mean
        shift = mean - self.mean
        total = self.samples + len(batch)
        self.scatter.addmm_(centred.T, centred)
        self.scatter.addr_(shift, shift, alpha=self.samples * len(batch) / total)
        self.mean += shift * (len(batch) / total)
        self.samples = total

    def source(self, index: Tensor, features: int, values: int, tasks: tuple[str, ...], dropped: set[_Label]) -> Source:
        # A constant column's scatter is rounding error, far below the square of its mean.
        varies = self.scatter.diagonal() > 1e-24 * self.samples * self.mean.square()
        places = [
            place
            for place, label in enumerate(self.labels, start=features)
            if label[0] in tasks and label not in dropped and varies[place]
        ]
        if self.samples < 4:
            tasks = tuple(sorted({task for task, _ in self.labels}))
            raise PamergeError(
                f"Only {self.samples} sample(s) carry labels of {', '.join(tasks)}; expected at least 4."
            )
        y = torch.tensor(places, dtype=torch.long)
        names = tuple(self.labels[place - features][0] for place in places)
        covariance = self.scatter / (self.samples - 1)
        return Source(
            samples=self.samples,
            xx=covariance[index][:, index],
            xy=covariance[index][:, y],
            yy=covariance[y][:, y],
            values=values,
            variance=float(covariance.diagonal()[:features][varies[:features]].sum()) / features,
            tasks=names,
        )


def _partition(labels: list[_Label], mask: Callable[[_Label], bytes]) -> list[list[_Label]]:
    parts: dict[bytes, list[_Label]] = {}
    for label in labels:
        parts.setdefault(mask(label), []).append(label)
    return list(parts.values())
