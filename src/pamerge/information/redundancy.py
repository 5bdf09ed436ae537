"""Redundancy of a layer: what it could express, less what it says about the labels (Definitions 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pamerge.information.gaussian import Gaussian
from pamerge.information.labels import ArrayLike, Labels, as_tasks
from pamerge.information.protocol import Estimator

_DEFAULT = Gaussian()


@dataclass(frozen=True)
class Redundancy:
    """The redundancy of a layer, in bits.

    Attributes:
        entropies: H(L_j) of each neuron: what it says of its own value through the estimator's noise.
        information: I(L; Y), between 0 and the sum of the entropies.
    """

    entropies: tuple[float, ...]
    information: float

    @property
    def bits(self) -> float:
        """``R = Σ_j H(L_j) − I(L; Y)``, never negative."""
        return max(sum(self.entropies) - self.information, 0.0)


def layer_redundancy(activations: ArrayLike, labels: Labels, estimator: Estimator = _DEFAULT) -> Redundancy:
    """The redundancy of a layer for one task (Definition 1), or for several at once (Definition 2).

    ``R(L) = Σ_j H(L_j) − I(L; Y)`` with ``H(L_j) = ½ log₂(1 + var_j / s²)``, the information through noise of
    variance s², the estimator's own. The entropy of a continuous value has no other finite
    meaning, and with this one the redundancy is never negative: through noise, no layer says more about
    labels than about itself. With :class:`Gaussian` I(L; Y) is the joint information; with :class:`Mixture`
    it is the sum over the labels, cut at what the layer can express.

    >>> activations = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    >>> activations[:, 3] = activations[:, 0]
    >>> redundancy = layer_redundancy(activations, activations[:, 0])
    >>> len(redundancy.entropies), 3 < redundancy.information < 4, 9 < redundancy.bits < 10
    (4, True, True)

    Args:
        activations: ``(N, M)``, or ``(N, M, P)`` for P values a neuron, of the neurons that are active for
            the tasks.
        labels: The labels of a task, or those of several tasks by name; only samples that carry all of them
            count.
        estimator: :class:`Gaussian` or :class:`Mixture`.

    Raises:
        PamergeError: If shapes disagree, values are not finite, or too few samples carry all labels.
    """
    measured = estimator.layer(activations, as_tasks(labels))
    entropies = torch.as_tensor(measured.entropies)
    information = min(max(measured.bits, 0.0), float(entropies.sum()))
    return Redundancy(tuple(entropies.tolist()), information)
