"""The small protocol that every estimator of information follows.

An estimator makes a *collector*, which reads activations and labels batch by batch. The collector makes
*states*, one for each set of samples that carry the same labels. A state is a set S of neurons that grows: it
tells the information of S ∪ {j} for every candidate j, and adds one. Because information is summed over
labels and tasks, each measured on the samples that carry its labels, the greedy sums over
states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pamerge.information.labels import ArrayLike, Labels


class State(Protocol):
    """A growing set S of neurons, and its information about the labels of one set of samples."""

    def candidates(self) -> Tensor:
        """The information of S ∪ {j} in bits, for every neuron j, ``(M,)``; infinite for the neurons in S.

        This is the plain estimate. Its bias is nearly the same for every candidate of a step (it depends on
        how many values S holds), so subtracting it here would only add noise to the comparison; :meth:`bits`
        subtracts it.
        """

    def add(self, neuron: int) -> None:
        """Move a candidate into S."""

    def bits(self) -> Tensor:
        """The information of S after each :meth:`add` so far, corrected for bias; maybe just below zero."""


class Collector(Protocol):
    """What an estimator keeps of the data."""

    def add(self, activations: ArrayLike, labels: Labels) -> None:
        """Read a batch: activations ``(N, M)`` or ``(N, M, P)``; labels, or those of some tasks by name."""

    def states(self, tasks: Iterable[str] | None = None, neurons: Iterable[int] | None = None) -> Sequence[State]:
        """Empty sets of ``neurons``, whose information about the labels of ``tasks`` is to be summed."""


@dataclass(frozen=True)
class LayerInformation:
    """What a whole layer says about labels, through how much noise.

    Attributes:
        bits: Information of all neurons about the labels, corrected for bias.
        noise: Variance of the noise that the estimator adds to every activation, in units of activation².
        entropies: Entropy in bits of each neuron as information through that noise, ``½ log₂ |I + Σ_jj /
            noise|``, ``(M,)``.
    """

    bits: float
    noise: float
    entropies: Tensor


class Estimator(Protocol):
    """A way to estimate information; the specs :class:`Gaussian` and :class:`Mixture` are estimators."""

    def collector(self) -> Collector:
        """A new, empty collector."""

    def layer(self, activations: ArrayLike, labels: Mapping[str, ArrayLike]) -> LayerInformation:
        """The information of a whole layer about the labels of all tasks together."""
