"""Traces: the greedy order in which a layer's neurons join a set that should say little about some labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.information.gaussian import Gaussian
from pamerge.information.labels import ArrayLike, Labels
from pamerge.information.protocol import Collector, Estimator, State

_DEFAULT = Gaussian()


@dataclass(frozen=True)
class Trace:
    """A greedy order of neurons, and the information of every prefix of it.

    The order does not depend on α, so one trace serves every α.

    Attributes:
        order: Neurons, as indices into the layer, in the order in which the greedy takes them.
        bits: Information of the first 1, 2, … neurons of the order about the labels, never negative.
    """

    order: tuple[int, ...]
    bits: tuple[float, ...]

    @property
    def total(self) -> float:
        """Information of all neurons."""
        return self.bits[-1]

    def prefix(self, alpha: float, *, total: float | None = None) -> int:
        """How many neurons of the order carry no more than the share ``alpha`` of the layer's information.

        The longest prefix before the first crossing: each of its own prefixes satisfies ``bits ≤ alpha ·
        total`` too, so it never shrinks when ``alpha`` grows.

        >>> trace = Trace(order=(2, 0, 1), bits=(0.0, 0.1, 2.0))
        >>> trace.prefix(-0.1), trace.prefix(0), trace.prefix(0.1), trace.prefix(1)
        (0, 1, 2, 3)

        Args:
            alpha: A share; below 0 gives no neuron, 1 and above gives all.
            total: The layer's information, if the trace is of a part of its neurons only.

        Raises:
            PamergeError: If ``alpha`` is not a number.
        """
        if math.isnan(alpha):
            raise PamergeError(f"alpha={alpha!r}; expected a number, a share of the layer's information.")
        if alpha < 0:
            return 0
        if alpha >= 1:
            return len(self.order)
        bound = alpha * (self.total if total is None else total)
        return next((count for count, bits in enumerate(self.bits) if bits > bound), len(self.order))


def trace(
    activations: ArrayLike,
    labels: Labels,
    estimator: Estimator = _DEFAULT,
    *,
    neurons: Iterable[int] | None = None,
) -> Trace:
    """Order the neurons of a layer so that the first ones say as little as possible about labels.

    At every step the neuron j joins the set S for which the information of S ∪ {j} about the labels is least
    (Algorithm 2).

    >>> generator = torch.Generator().manual_seed(0)
    >>> activations = torch.randn(1000, 3, generator=generator)
    >>> labels = (activations[:, 0] > 0).long()
    >>> result = trace(activations, labels)
    >>> result.order[-1], result.bits[1] < 0.01 < 0.5 < result.total
    (0, True)

    Args:
        activations: ``(N, M)``, or ``(N, M, P)`` for P values a neuron.
        labels: Labels (see :mod:`pamerge.information.labels`), or the labels of several tasks by name. The
            information is summed over the tasks, each measured on the samples that carry its labels
            (Algorithm 3).
        estimator: :class:`Gaussian` or :class:`Mixture`.
        neurons: The candidates, as indices into the layer; all by default. The noise of the estimator is
            always that of the whole layer, so a set of neurons says the same whatever else is a candidate.

    Raises:
        PamergeError: If shapes disagree, values are not finite, or a task has too few labels.
    """
    collector = estimator.collector()
    collector.add(activations, labels)
    return trace_collected(collector, neurons=neurons)


def trace_collected(
    collector: Collector, tasks: Iterable[str] | None = None, neurons: Iterable[int] | None = None
) -> Trace:
    """The trace of data that were collected batch by batch; see :func:`trace`.

    One collector serves every direction of a layer: the greedy for τ asks for the tasks outside τ.

    Args:
        collector: From ``estimator.collector()``.
        tasks: The tasks whose labels count; all by default.
        neurons: The candidates, as indices into the layer; all by default.
    """
    chosen = None if neurons is None else list(neurons)
    found = greedy(collector.states(tasks, chosen))
    return found if chosen is None else Trace(tuple(int(chosen[place]) for place in found.order), found.bits)


def greedy(states: Sequence[State]) -> Trace:
    """Add the candidate with the least information, summed over the states, until none is left.

    A sum that its bias correction turned negative counts as zero. Ties go to the first neuron.
    """
    order: list[int] = []
    scores = _candidates(states)
    while True:
        neuron = int(scores.argmin())
        for state in states:
            state.add(neuron)
        order.append(neuron)
        if len(order) == len(scores):
            break
        scores = _candidates(states)
    bits = torch.stack([state.bits() for state in states]).sum(0).clamp_min(0)
    return Trace(tuple(order), tuple(bits.tolist()))


def _candidates(states: Sequence[State]) -> Tensor:
    first, *others = (state.candidates() for state in states)
    for scores in others:
        first = first + scores
    return first
