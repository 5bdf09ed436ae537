"""What a task is trained for and judged by: its loss, its metric, and which of its labels are missing.

==================  ===================  =====================================  ==============================
objective           outputs              labels                                 missing
==================  ===================  =====================================  ==============================
`MultiLabel`        logits ``(N, L)``    from 0 to 1, ``(N, L)``                NaN, or a negative integer
`Classification`    logits ``(N, C)``    integers from 0 to C − 1, ``(N,)``     any negative integer
`Regression`        values ``(N, L)``    floats ``(N, L)``                      NaN
`Custom`            anything             anything with one row a sample         rows of NaN or negative integers
==================  ===================  =====================================  ==============================

One column may be left out: labels ``(N,)`` fit outputs ``(N, 1)``. Dimensions after the second one (as in
segmentation) are allowed everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from pamerge.errors import PamergeError
from pamerge.information.labels import ArrayLike, kind_of
from pamerge.training.protocol import Objective


@dataclass(frozen=True)
class MultiLabel:
    """Several labels that are each present or absent.

    Loss: binary cross-entropy with logits. Metric: accuracy of each label, averaged over the labels. Distillation:
    the Kullback–Leibler divergence of each label at ``temperature`` T, times T² (Hinton et al. 2015).
    """

    temperature: float = 2.0
    metric_name: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def check(self, outputs: tuple[int, ...], targets: Tensor) -> None:
        """Labels must have the shape of the outputs and lie between 0 and 1."""
        _check_shape(outputs, targets)
        values = _floats(targets)
        wrong = values[~values.isnan() & ~((values >= 0) & (values <= 1))]
        if wrong.numel():
            raise PamergeError(f"labels contain {_number(wrong[0])}; expected 0 or 1, or NaN for a missing label.")

    def labelled(self, targets: Tensor) -> Tensor:
        """Where labels are present."""
        return ~_floats(targets).isnan()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy."""
        values = _floats(targets).reshape(outputs.shape).to(outputs.dtype)
        losses = functional.binary_cross_entropy_with_logits(outputs, values.nan_to_num(), reduction="none")
        return _mean_where(losses, ~values.isnan())

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """How many are right, for each label."""
        values = _floats(targets).reshape(outputs.shape)
        present = ~values.isnan()
        return _by_column(((outputs > 0) == (values > 0.5)) & present), _by_column(present)

    def distillation(self, outputs: Tensor, teacher: Tensor) -> Tensor:
        """Divergence from the teacher's probabilities."""
        _check_temperature(self.temperature)
        soft = teacher / self.temperature
        cross = functional.binary_cross_entropy_with_logits(outputs / self.temperature, soft.sigmoid())
        return (cross - functional.binary_cross_entropy_with_logits(soft, soft.sigmoid())) * self.temperature**2


@dataclass(frozen=True)
class Classification:
    """One of several classes.

    Loss: cross-entropy. Metric: accuracy. Distillation: the Kullback–Leibler divergence at ``temperature`` T, times
    T².
    """

    temperature: float = 2.0
    metric_name: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def check(self, outputs: tuple[int, ...], targets: Tensor) -> None:
        """Labels must be integers below the number of outputs, without the dimension of the classes."""
        if len(outputs) < 2:
            raise PamergeError(f"outputs have shape {outputs}; expected (N, C) for C classes.")
        expected = (outputs[0], *outputs[2:])
        if targets.is_floating_point() or targets.is_complex():
            dtype = str(targets.dtype).removeprefix("torch.")
            raise PamergeError(f"labels are of type {dtype}; expected integers from 0 to {outputs[1] - 1}.")
        if tuple(targets.shape) != expected:
            raise PamergeError(f"labels have shape {tuple(targets.shape)}; expected {expected} for outputs {outputs}.")
        if targets.numel() and int(targets.max()) >= outputs[1]:
            raise PamergeError(
                f"labels go up to {int(targets.max())}; expected 0 to {outputs[1] - 1} for {outputs[1]} outputs, or a "
                "negative number for a missing label."
            )

    def labelled(self, targets: Tensor) -> Tensor:
        """Where labels are present."""
        return targets >= 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy."""
        targets = targets.long()
        return functional.cross_entropy(outputs, targets.where(targets >= 0, -100), ignore_index=-100)

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """How many are right."""
        present = targets >= 0
        return ((outputs.argmax(1) == targets) & present).sum().double(), present.sum().double()

    def distillation(self, outputs: Tensor, teacher: Tensor) -> Tensor:
        """Divergence from the teacher's probabilities."""
        _check_temperature(self.temperature)
        soft = (teacher / self.temperature).log_softmax(1)
        mine = (outputs / self.temperature).log_softmax(1)
        return (soft.exp() * (soft - mine)).sum(1).mean() * self.temperature**2


@dataclass(frozen=True)
class Regression:
    """Numbers.

    Loss: mean squared error. Metric: mean absolute error, averaged over the outputs, in the unit of the labels; lower
    is better.
    Distillation: mean squared difference from the teacher.
    """

    metric_name: ClassVar[str] = "mean absolute error"
    higher_is_better: ClassVar[bool] = False

    def check(self, outputs: tuple[int, ...], targets: Tensor) -> None:
        """Labels must be finite and have the shape of the outputs."""
        _check_shape(outputs, targets)
        if targets.is_floating_point() and bool(targets.isinf().any()):
            raise PamergeError("labels contain infinite values; expected finite numbers, or NaN for a missing label.")

    def labelled(self, targets: Tensor) -> Tensor:
        """Where labels are present."""
        return ~targets.isnan()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error."""
        values = targets.reshape(outputs.shape).to(outputs.dtype)
        return _mean_where((outputs - values.nan_to_num()).square(), ~values.isnan())

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The absolute error of each output."""
        values = targets.reshape(outputs.shape).to(outputs.dtype)
        present = ~values.isnan()
        return _by_column((outputs - values.nan_to_num()).abs() * present), _by_column(present)

    def distillation(self, outputs: Tensor, teacher: Tensor) -> Tensor:
        """Mean squared difference."""
        return functional.mse_loss(outputs, teacher)


@dataclass(frozen=True)
class Custom:
    """Your own loss and metric.

    Attributes:
        loss: ``(outputs, targets) -> scalar tensor``, the mean over the batch.
        metric: ``(outputs, targets) -> number``, the mean over the batch; batches are weighted by their samples. For
            a metric that is no mean over samples write a class with the members of :class:`Objective`.
        metric_name: What the metric is called.
        higher_is_better: Whether a larger metric is a better one.
        distillation: ``(outputs, teacher's outputs) -> scalar tensor``; by default the mean squared difference.

    >>> huber = Custom(functional.huber_loss, functional.l1_loss, metric_name="MAE", higher_is_better=False)
    >>> huber.loss(torch.tensor([1.0]), torch.tensor([0.0]))
    tensor(0.5000)
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Callable[[Tensor, Tensor], Tensor | float]
    metric_name: str = "metric"
    higher_is_better: bool = True
    distillation: Callable[[Tensor, Tensor], Tensor] = functional.mse_loss

    def check(self, outputs: tuple[int, ...], targets: Tensor) -> None:
        """There must be a row of labels for each sample."""
        if targets.dim() == 0 or len(targets) != outputs[0]:
            raise PamergeError(
                f"labels have shape {tuple(targets.shape)}; expected {outputs[0]} rows, one for each sample."
            )

    def labelled(self, targets: Tensor) -> Tensor:
        """Which samples have any label."""
        present = ~targets.isnan() if targets.is_floating_point() or targets.is_complex() else targets >= 0
        return present.reshape(len(targets), -1).any(1)

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The user's metric, times the number of samples."""
        count = torch.tensor(float(len(targets)), dtype=torch.float64, device=outputs.device)
        return torch.as_tensor(self.metric(outputs, targets)).to(count) * count, count


def infer_objectives(labels: Mapping[str, ArrayLike]) -> dict[str, Objective]:
    """The objective of each task, read off some of its labels; see :func:`pamerge.information.labels.kind_of`.

    >>> infer_objectives({"age": torch.tensor([21.5, 63.0]), "gender": torch.tensor([0, 1])})
    {'age': Regression(), 'gender': Classification(temperature=2.0)}
    """
    found: dict[str, Objective] = {}
    for task, values in labels.items():
        try:
            kind = kind_of(values)
        except PamergeError as error:
            raise PamergeError(f"Task {task!r}: {error}") from None
        match kind:
            case "multilabel":
                found[task] = MultiLabel()
            case "classification":
                found[task] = Classification()
            case "regression":
                found[task] = Regression()
    return found


def _floats(targets: Tensor) -> Tensor:
    """Labels as floats with NaN for those that are missing."""
    if targets.is_floating_point():
        return targets
    values = targets.float()
    return values if targets.dtype == torch.bool else values.where(targets >= 0, torch.nan)


def _check_shape(outputs: tuple[int, ...], targets: Tensor) -> None:
    shape = tuple(targets.shape)
    one_column = (
        {outputs[:1] + outputs[2:]}
        if len(outputs) > 1 and outputs[1] == 1
        else {(*outputs, 1)}
        if len(outputs) == 1
        else set()
    )
    if shape != outputs and shape not in one_column:
        raise PamergeError(f"labels have shape {shape}; expected {outputs}, as the outputs.")
    if targets.is_complex():
        raise PamergeError("labels are complex numbers; expected floats, integers or booleans.")


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise PamergeError(f"temperature={temperature!r}; expected a number above 0.")


def _mean_where(losses: Tensor, present: Tensor) -> Tensor:
    return (losses * present).sum() / present.sum()


def _by_column(values: Tensor) -> Tensor:
    """Sums over all dimensions but the second, in double precision."""
    values = values.double()
    return values.sum() if values.dim() < 2 else values.transpose(0, 1).flatten(1).sum(1)


def _number(value: Tensor) -> str:
    return f"{float(value):g}"
