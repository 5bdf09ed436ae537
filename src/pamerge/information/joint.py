"""The joint Gaussian of a layer and of several tasks' labels: information of any neurons about any tasks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.information.bias import Freedom, freedom, wishart_bias
from pamerge.information.labels import ArrayLike, as_tasks, checked_activations, label_columns
from pamerge.information.moments import Moments, Source


@dataclass(frozen=True)
class JointGaussian:
    """One covariance of neurons and labels, on the samples that carry all of these labels.

    Information here is *joint*, ``I(S; Y) = ½ log₂ |Σ_Y| / |Σ_{Y|S}|`` with ``Σ_{Y|S} = Σ_Y − Σ_YS (Σ_SS +
    λI)⁻¹ Σ_SY``, and not the sum over the labels that traces use: conditional information and co-information
    are differences of joint ones, and only joint information is bounded by what the layer can carry. Labels
    that others determine are left out, which changes no difference; constant labels carry nothing.

    Attributes:
        source: The covariance.
        noise: The ridge λ, in units of activation².
    """

    source: Source
    noise: float
    _given: dict[tuple[int, ...], tuple[Tensor, Freedom]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, activations: ArrayLike, labels: Mapping[str, ArrayLike], *, ridge: float) -> JointGaussian:
        """The joint Gaussian of activations and labels, from the samples that carry all of these labels.

        Raises:
            PamergeError: If fewer than 4 samples carry all labels.
        """
        tasks = as_tasks(labels)
        x = checked_activations(activations, len(next(iter(tasks.values()))))
        complete = complete_samples(tasks)
        if int(complete.sum()) < 4:
            raise PamergeError(
                f"{int(complete.sum())} samples carry the labels of all of {', '.join(tasks)}; expected at least 4."
            )
        moments = Moments()
        moments.add(x[complete], {task: values[complete] for task, values in tasks.items()})
        (source,) = moments.sources()
        return cls(source, noise_of(source, ridge))

    @property
    def neurons(self) -> int:
        """The number of neurons of the layer."""
        return len(self.source.xx) // self.source.values

    def labels(self, tasks: Iterable[str]) -> list[int]:
        """The labels of some tasks, without constant ones and those that others determine."""
        wanted = set(tasks)
        labels = [label for label, task in enumerate(self.source.tasks) if task in wanted]
        return independent(self.source.yy, labels)

    def enough(self, tasks: Collection[str]) -> bool:
        """Whether there are more samples than labels of these tasks, with some to spare."""
        return self.source.samples >= len(self.labels(tasks)) + 4

    def information(self, neurons: Iterable[int], tasks: Collection[str]) -> float:
        """The joint information in bits of neurons about the labels of tasks, corrected for bias."""
        chosen, index = tuple(sorted(neurons)), self.labels(tasks)
        if not chosen or not index:
            return 0.0
        if not self.enough(tasks):
            raise PamergeError(
                f"{self.source.samples} samples carry all labels of {', '.join(tasks)}; expected at least "
                f"{len(index) + 4} for {len(index)} labels."
            )
        explained, left = self._given[chosen] if chosen in self._given else self._regress(chosen)
        # Whitened by the labels' own covariance, what is left has eigenvalues in (0, 1].
        root = torch.linalg.cholesky(self.source.yy[index][:, index])
        white = torch.linalg.solve_triangular(root, explained[index][:, index], upper=False)
        white = torch.linalg.solve_triangular(root, white.T, upper=False)
        shares = 1 - torch.linalg.eigvalsh((white + white.T) / 2)
        bits = -0.5 * float(shares.clamp(1e-12, 1).log2().sum())
        return bits - float(wishart_bias(left, len(index)))

    def entropies(self) -> Tensor:
        """Entropy of each neuron through the noise, ``½ log₂ |I + Σ_jj / λ|``, ``(M,)``."""
        return noisy_entropies(self.source.xx, self.noise, self.source.values)

    def _regress(self, neurons: tuple[int, ...]) -> tuple[Tensor, Freedom]:
        values = self.source.values
        index = (torch.tensor(neurons).unsqueeze(1) * values + torch.arange(values)).flatten()
        xx, xy = self.source.xx[index][:, index], self.source.xy[index]
        root = torch.linalg.cholesky(xx + self.noise * torch.eye(len(xx), dtype=xx.dtype))
        white = torch.linalg.solve_triangular(root, xy, upper=False)
        self._given[neurons] = white.T @ white, freedom(xx, self.noise, self.source.samples - 1)
        return self._given[neurons]


def complete_samples(tasks: Mapping[str, Tensor]) -> Tensor:
    """Which samples carry every label of every task, ``(N,)``."""
    return ~torch.cat([label_columns(values) for values in tasks.values()], 1).isnan().any(1)


def noise_of(source: Source, ridge: float) -> float:
    """λ as a share of the mean variance of a layer's values; any number does when all are constant."""
    return source.variance * ridge or 1.0


def independent(yy: Tensor, labels: Iterable[int], tolerance: float = 1e-8) -> list[int]:
    """Those of the labels that earlier ones do not determine, by elimination of their correlations."""
    scale = yy.diagonal().sqrt()
    left = yy / scale.unsqueeze(1) / scale
    kept = []
    for label in labels:
        if float(left[label, label]) > tolerance:
            left = left - torch.outer(left[label], left[label]) / left[label, label]
            kept.append(label)
    return kept


def noisy_entropies(xx: Tensor, noise: float, values: int) -> Tensor:
    """``½ log₂ |I + Σ_jj / λ|`` of every neuron j, from the covariance of all values; P values a neuron."""
    count = len(xx) // values
    blocks = xx.reshape(count, values, count, values).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    nats: Tensor = 0.5 * torch.linalg.slogdet(torch.eye(values, dtype=xx.dtype) + blocks / noise).logabsdet
    return nats / math.log(2)
