"""What labels are: their kind, and the columns of numbers or codes that an estimator reads.

=====================================  ==================  ================================================
labels                                 kind                missing
=====================================  ==================  ================================================
integers or booleans ``(N,)``          ``classification``  any negative integer
zeros and ones ``(N, L)``, any dtype   ``multilabel``      NaN, or a negative integer
other floats, ``(N,)`` or ``(N, L)``   ``regression``      NaN
=====================================  ==================  ================================================

Floats ``(N,)`` are regression even when they are all zeros and ones; give such labels as integers, or as
``(N, 1)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from pamerge.errors import PamergeError

Kind: TypeAlias = Literal["multilabel", "classification", "regression"]
ArrayLike: TypeAlias = Tensor | NDArray[Any]
Labels: TypeAlias = ArrayLike | Mapping[str, ArrayLike]

ONLY_TASK = "labels"
"""The task that labels belong to when they are given without a task's name."""


def kind_of(labels: ArrayLike) -> Kind:
    """What kind of labels these are.

    >>> kind_of(torch.tensor([2, 0, 1]))
    'classification'
    >>> kind_of(torch.tensor([[0.0, 1.0], [1.0, float("nan")]]))
    'multilabel'
    >>> kind_of(torch.tensor([21.5, 63.0]))
    'regression'

    Raises:
        PamergeError: If the labels are empty, of a wrong shape, infinite, or all missing.
    """
    values = checked_labels(labels)
    if is_classes(values):
        return "classification"
    columns = _as_float(values)
    present = columns[~columns.isnan()]
    if not len(present):
        raise PamergeError("Every label is missing, so their kind cannot be told; give labels with some values.")
    if values.ndim == 2 and bool(((present == 0) | (present == 1)).all()):
        return "multilabel"
    return "regression"


def label_columns(labels: ArrayLike, classes: int | None = None) -> Tensor:
    """Labels as columns of numbers, ``(N, L)`` float64, NaN where a label is missing.

    Multi-label and regression labels are their own columns. Classes become one-hot columns without the last
    one, which the others determine.

    >>> label_columns(torch.tensor([2, 0, 1, -1]))
    tensor([[0., 0.],
            [1., 0.],
            [0., 1.],
            [nan, nan]], dtype=torch.float64)

    Args:
        labels: See the table at the top of this module.
        classes: The number of classes of integer labels; by default one more than the largest.

    Raises:
        PamergeError: If the labels are empty, of a wrong shape or infinite, or do not fit ``classes``.
    """
    values = checked_labels(labels)
    if is_classes(values):
        seen = class_count(values)
        # A single class is a constant column, so that there is always at least one column.
        count = max(seen, 2) if classes is None else classes
        if count < max(seen, 2):
            raise PamergeError(f"classes={classes}, but labels go up to {seen - 1}; expected at least {max(seen, 2)}.")
        return one_hot(values, count)[:, :-1]
    return _as_float(values)


def label_codes(labels: ArrayLike, bins: int = 4) -> Tensor:
    """Labels as discrete codes, ``(N, L)`` int64, -1 where a label is missing.

    Classes are one column of codes, and each column of multi-label labels is one of zeros and ones. The
    values of a regression label are binned at their quantiles into ``bins`` codes, or kept apart if there are
    no more than ``bins`` different ones.

    >>> label_codes(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), bins=2).squeeze(1)
    tensor([0, 0, 0, 1, 1, 1])
    """
    values = checked_labels(labels)
    if is_classes(values):
        return values.long().clamp_min(-1).unsqueeze(1)
    columns = _as_float(values)
    codes = torch.full(columns.shape, -1, dtype=torch.long)
    for column, code in zip(columns.T, codes.T, strict=True):
        present = ~column.isnan()
        levels, inverse = torch.unique(column[present], return_inverse=True)
        if len(levels) <= bins:
            code[present] = inverse
        else:
            quantiles = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
            code[present] = torch.bucketize(column[present], torch.quantile(column[present], quantiles))
    return codes


def as_tasks(labels: Labels) -> dict[str, Tensor]:
    """Labels by task, checked; labels without a task's name belong to :data:`ONLY_TASK`.

    Raises:
        PamergeError: If there are none, if they are invalid, or if the numbers of samples differ.
    """
    if not isinstance(labels, Mapping):
        return {ONLY_TASK: checked_labels(labels)}
    if not labels:
        raise PamergeError("No labels were given; expected the labels of at least one task.")
    tasks = {}
    for task, values in labels.items():
        try:
            tasks[task] = checked_labels(values)
        except PamergeError as error:
            raise PamergeError(f"The labels of task {task!r}: {error}") from None
    if len({len(values) for values in tasks.values()}) > 1:
        counts = ", ".join(f"{task}: {len(values)}" for task, values in tasks.items())
        raise PamergeError(
            f"The tasks' labels have different numbers of samples ({counts}); expected the same samples in "
            "the same order. Mark labels that a sample lacks as missing (NaN, or -1 for integers)."
        )
    return tasks


def checked_labels(labels: ArrayLike) -> Tensor:
    """The labels as a tensor on the CPU, or an error that says why they cannot be labels."""
    values = torch.as_tensor(labels).detach().cpu()
    if values.ndim not in (1, 2):
        raise PamergeError(f"labels have shape {tuple(values.shape)}; expected (N,) or (N, L).")
    if values.numel() == 0:
        raise PamergeError(f"labels are empty (shape {tuple(values.shape)}); expected at least one sample and label.")
    if values.is_complex():
        raise PamergeError(f"labels are of dtype {values.dtype}; expected integers, booleans or floats.")
    if values.is_floating_point() and bool(values.isinf().any()):
        raise PamergeError("labels contain infinite values; expected finite numbers, or NaN for a missing label.")
    if values.ndim == 2 and not values.is_floating_point() and bool((values > 1).any()):
        raise PamergeError(
            f"labels are integers of shape {tuple(values.shape)} up to {int(values.max())}; expected zeros "
            "and ones for (N, L). Give classes as (N,), and regression values as floats."
        )
    return values


def checked_activations(activations: ArrayLike, samples: int | None = None) -> Tensor:
    """Activations as ``(N, M, P)`` on the CPU, or an error that says why they cannot be activations."""
    values = torch.as_tensor(activations).detach().cpu()
    if values.ndim not in (2, 3):
        raise PamergeError(
            f"activations have shape {tuple(values.shape)}; expected (N, M), or (N, M, P) for P values a "
            "neuron. Pool feature maps to their spatial mean, or to a few values, first."
        )
    if values.numel() == 0:
        raise PamergeError(f"activations are empty (shape {tuple(values.shape)}).")
    if samples is not None and len(values) != samples:
        raise PamergeError(
            f"activations have {len(values)} samples and labels have {samples}; expected the same number."
        )
    if not values.is_floating_point():
        values = values.double()
    if not bool(values.isfinite().all()):
        raise PamergeError("activations contain NaN or infinite values; expected finite numbers.")
    return values if values.ndim == 3 else values.unsqueeze(2)


def check_neurons(neurons: Iterable[int] | None, count: int) -> Tensor:
    """The chosen neurons of a layer of ``count`` as an index; all of them for ``None``."""
    if neurons is None:
        return torch.arange(count)
    chosen = [int(neuron) for neuron in neurons]
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0 or max(chosen) >= count:
        raise PamergeError(f"neurons={chosen!r}; expected at least one different index from 0 to {count - 1}.")
    return torch.tensor(chosen)


def is_classes(values: Tensor) -> bool:
    """Whether labels are classes: integers or booleans ``(N,)``."""
    return values.ndim == 1 and not values.is_floating_point()


def class_count(values: Tensor) -> int:
    """One more than the largest class; 0 if every label is missing."""
    return max(int(values.max()) + 1, 0)


def one_hot(values: Tensor, classes: int) -> Tensor:
    """All one-hot columns of integer labels, float64, NaN for negative ones."""
    codes = values.long()
    columns = (codes.unsqueeze(1) == torch.arange(classes)).double()
    columns[codes < 0] = torch.nan
    return columns


def _as_float(values: Tensor) -> Tensor:
    columns = values.double()
    if not values.is_floating_point():
        columns = columns.where(values >= 0, torch.nan) if values.dtype != torch.bool else columns
    return columns if columns.ndim == 2 else columns.unsqueeze(1)
