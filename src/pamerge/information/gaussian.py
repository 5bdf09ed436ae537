"""Information in closed form: activations and labels as jointly Gaussian, with a small ridge.

Per label ``I(S; Y_l) = ½ log₂ var(Y_l) / var(Y_l | S)``, summed over the labels, with ``var(Y_l | S) =
var(Y_l) − cov(Y_l, S) (Σ_SS + λ I)⁻¹ cov(S, Y_l)``. The ridge λ is the variance of a noise on every
activation, so the estimate is what the neurons say *through that noise*, and is finite whatever the data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pamerge.errors import PamergeError, PamergeWarning
from pamerge.information.bias import Freedom, prefix_freedom, wishart_bias
from pamerge.information.joint import JointGaussian, noise_of
from pamerge.information.labels import ArrayLike, Labels
from pamerge.information.moments import Moments, Source
from pamerge.information.protocol import LayerInformation, State

_Array: TypeAlias = NDArray[np.float64]
_PANEL = 32  # values eliminated between two updates of the full covariance; 16 to 64 are equally fast
_LEAST = 1e-12  # the least share of a label's variance that can be left, against rounding to zero and below
_FACTORS = 24  # 24 shares of 1e-12 are still far above the smallest float64


@dataclass(frozen=True)
class Gaussian:
    """The Gaussian estimator: fast, streamed, any number of labels; the default.

    Attributes:
        ridge: The noise λ, as a share of the mean variance of the layer's values, above 0. A larger one
            ignores more of what is said only in directions of small variance. On two networks trained on the
            two digits of a canvas, the share of the other task's information that a network's own neurons
            seem to carry in the last hidden layer fell from 8 % (0.001) to 4 % (0.01) and 1 % (0.1).
    """

    ridge: float = 1e-2

    def collector(self) -> GaussianCollector:
        """A new, empty collector."""
        self.check()
        return GaussianCollector(self)

    def layer(self, activations: ArrayLike, labels: Mapping[str, ArrayLike]) -> LayerInformation:
        """The joint information of all neurons about all labels, on the samples that carry every label."""
        joint = self.joint(activations, labels)
        return LayerInformation(joint.information(range(joint.neurons), labels), joint.noise, joint.entropies())

    def joint(self, activations: ArrayLike, labels: Mapping[str, ArrayLike]) -> JointGaussian:
        """The joint Gaussian of a layer and labels, on the samples that carry every label."""
        self.check()
        return JointGaussian.of(activations, labels, ridge=self.ridge)

    def check(self) -> None:
        """Raise if a parameter is out of range."""
        if not (isinstance(self.ridge, int | float) and 0 < self.ridge < math.inf):
            raise PamergeError(f"Gaussian(ridge={self.ridge!r}): expected a number above 0, such as 0.01.")


class GaussianCollector:
    """Streams the moments of a layer; see :class:`~pamerge.information.moments.Moments`."""

    def __init__(self, estimator: Gaussian) -> None:
        self.estimator = estimator
        self.moments = Moments()

    def add(self, activations: ArrayLike, labels: Labels) -> None:
        """Add a batch."""
        self.moments.add(activations, labels)

    def states(self, tasks: Iterable[str] | None = None, neurons: Iterable[int] | None = None) -> Sequence[State]:
        """One empty set of neurons for each set of samples that carry the same labels of ``tasks``."""
        sources = self.moments.sources(tasks, neurons)
        for source in sources:
            warn_if_few(source.samples, len(source.xx))
        return [GaussianState(source, self.estimator) for source in sources]


class GaussianState:
    """A growing set of neurons, by pivoted Cholesky elimination of Σ_TT + λ I with the labels carried along.

    ``var(Y_l | S ∪ j) = var(Y_l | S) − cov(Y_l, j | S)² / var(j | S)``, and the P values of a neuron are
    eliminated together. As in LAPACK's ``pstrf``, the full residual covariance is brought up to date only once
    in a panel of eliminations, by a matrix product; in between, only what the next step needs is. A full order
    of M neurons costs O(M³) in products and O(M² · labels) besides.
    """

    def __init__(self, source: Source, estimator: Gaussian) -> None:
        estimator.check()
        self._source = source
        self._noise = noise_of(source, estimator.ridge)
        self._values = source.values
        count = len(source.xx) // source.values
        self._order: list[int] = []
        self._shares: list[_Array] = []
        # Small steps on small arrays: NumPy, whose calls cost a fraction of torch's. What follows is about the
        # neurons in `_neurons`: the candidates, and those added since the last panel.
        self._neurons = np.arange(count)
        self._place = np.arange(count)
        self._open = np.ones(count, dtype=bool)
        self._xx: _Array = source.xx.numpy() + self._noise * np.eye(len(source.xx))
        self._panel = np.empty((_PANEL + self._values, len(self._xx)))
        self._filled = 0
        blocks = self._xx.reshape(count, self._values, count, self._values)
        self._blocks: _Array = np.array(blocks.diagonal(0, 0, 2).transpose(2, 0, 1), order="C")  # var(j | S)
        # Labels are scaled to variance 1, so that what is left of them is a share.
        self._yx: _Array = np.ascontiguousarray((source.xy / source.yy.diagonal().sqrt()).T.numpy())
        self._left = np.ones(len(self._yx))

    def candidates(self) -> Tensor:
        """The plain information of S ∪ {j} in bits for every neuron j; infinite for the neurons in S."""
        explained = _explained(self._blocks, self._yx.reshape(len(self._left), len(self._neurons), self._values))
        bits = _bits(np.subtract(self._left[:, None], explained, out=explained))
        bits[~self._open] = np.inf
        everything = np.full(len(self._place), np.inf)
        everything[self._neurons] = bits
        return torch.from_numpy(everything)

    def add(self, neuron: int) -> None:
        """Move a candidate into S."""
        if neuron in self._order:
            raise PamergeError(f"Neuron {neuron} was added before.")
        place = int(self._place[neuron])
        for value in range(place * self._values, (place + 1) * self._values):
            self._eliminate(value)
        self._open[place] = False
        self._blocks[place] = np.eye(self._values)  # nothing is left of it; anything that can be divided by
        self._order.append(neuron)
        self._shares.append(self._left.copy())
        if self._filled >= _PANEL:
            self._update()

    def bits(self) -> Tensor:
        """The information of S after each addition, minus its expectation under independence."""
        if not self._order:
            return torch.empty(0, dtype=torch.float64)
        plain = torch.from_numpy(_bits(np.stack(self._shares, axis=1)))
        return plain - len(self._left) * wishart_bias(self._freedom(), 1)

    def _freedom(self) -> Freedom:
        order = torch.tensor(self._order)
        index = (order.unsqueeze(1) * self._values + torch.arange(self._values)).flatten()
        freedom = prefix_freedom(self._source.xx[index][:, index], self._noise, self._source.samples - 1)
        return freedom.every(self._values)

    def _eliminate(self, value: int) -> None:
        panel = self._panel[: self._filled]
        column = self._xx[value] - panel[:, value] @ panel
        # In exact arithmetic a pivot is never below the ridge.
        root = math.sqrt(max(column[value], self._noise))
        column /= root
        self._panel[self._filled] = column
        self._filled += 1
        label = self._yx[:, value] / root
        self._yx -= np.multiply.outer(label, column)
        self._left -= label**2
        pieces = column.reshape(-1, self._values)
        self._blocks -= pieces[:, :, None] * pieces[:, None, :]

    def _update(self) -> None:
        panel = self._panel[: self._filled]
        self._xx -= panel.T @ panel
        kept = self._open.nonzero()[0]
        values = (kept[:, None] * self._values + np.arange(self._values)).ravel()
        self._xx = self._xx.take(values, axis=0).take(values, axis=1)
        self._yx = self._yx[:, values]
        self._blocks = self._blocks[kept]
        self._neurons = self._neurons[kept]
        self._place[self._neurons] = np.arange(len(kept))
        self._open = np.ones(len(kept), dtype=bool)
        self._panel = np.empty((len(self._panel), len(values)))
        self._filled = 0


def warn_if_few(samples: int, values: int) -> None:
    """Warn when the samples are too few for this many values of neurons."""
    if samples < 1.5 * values:
        warnings.warn(
            f"{samples} samples are few for {values} values of neurons; their information is uncertain. "
            f"Expected at least {math.ceil(1.5 * values)} samples: give more data, or pool to fewer values.",
            PamergeWarning,
            stacklevel=3,
        )


def _explained(blocks: _Array, labels: _Array) -> _Array:
    """What each neuron explains of each label's variance, ``g_lᵀ B⁻¹ g_l``, by elimination of its P values.

    Args:
        blocks: ``(M, P, P)`` variances B of the neurons' values.
        labels: ``(L, M, P)`` covariances g of the labels with the neurons' values.

    Returns:
        ``(L, M)``.
    """
    # One division a neuron and a product for each label: divisions are several times as slow.
    explained: _Array = labels[:, :, 0] ** 2 * (1 / blocks[:, 0, 0])
    for _ in range(1, blocks.shape[1]):
        factor = blocks[:, 1:, 0] / blocks[:, 0, :1]
        labels = labels[:, :, 1:] - factor * labels[:, :, :1]
        blocks = blocks[:, 1:, 1:] - factor[:, :, None] * blocks[:, :1, 1:]
        explained += labels[:, :, 0] ** 2 * (1 / blocks[:, 0, 0])
    return explained


def _bits(shares: _Array) -> _Array:
    """``−½ Σ_l log₂`` of the shares ``(L, M)`` that are left of the labels, which it may overwrite; ``(M,)``.

    Logarithms are the dearest part of a step, so they are taken of products of as many shares as cannot underflow.
    """
    np.maximum(shares, _LEAST, out=shares)
    starts = range(0, len(shares), _FACTORS)
    products = [np.multiply.reduce(shares[start : start + _FACTORS], axis=0) for start in starts]
    return -0.5 * np.log2(products).sum(axis=0) if products else np.zeros(shares.shape[1])
