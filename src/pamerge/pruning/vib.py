"""P1: the variational information bottleneck: noisy gates that close where nothing is worth passing on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.network.program import JunctionHook
from pamerge.network.structure import junction_names
from pamerge.pruning.gates import multiply
from pamerge.pruning.protocol import QuietSession, Scores, Session, Surroundings
from pamerge.tasks import TaskSet
from pamerge.training.data import Batch

TOO_MANY = 0.3
"""When more than this share of a subgraph's gates is closed, their noise drowns what the others say: γ goes back."""

_LEAST = 1e-8
_MOST_NOISE = 1.0


@dataclass(frozen=True)
class VIB:
    """A gate z = μ + ε·√D on every neuron, ε ~ N(0, 1) for each sample, and a penalty on what passes through it.

    The penalty is ``γ · ½ · √(H·W) · Σ ln(1 + μ²/D)`` over the neurons of the subgraph whose turn it is (Dai et al.
    2018, eq. 12, with κ = 1/√(H·W)). A gate is closed when D ≥ μ². After every round μ is folded into the layers that
    read the neuron, so the network without its gates is always the network that was trained. A neuron has one gate,
    also when it is shared.

    Attributes:
        gamma: The weight γ of the penalty at the start.
        growth: γ grows by this factor after a round in which fewer than ``wanted`` of the gates were closed, and
            shrinks by it when more than three tenths were.
        wanted: See ``growth``.
        lr: The learning rate of the gates. They have a long way to go, from ln D = −9 to 0, so it is larger than that
            of weights.
    """

    gamma: float = 1e-5
    growth: float = 1.5
    wanted: float = 0.01
    lr: float = 0.05

    def start(self, surroundings: Surroundings) -> Session:
        """Begin to prune a network."""
        if not 0 < self.gamma < math.inf or not 1 <= self.growth < math.inf:
            raise PamergeError(
                f"gamma={self.gamma!r}, growth={self.growth!r}; expected gamma above 0 and growth from 1."
            )
        if not 0 <= self.wanted <= TOO_MANY:
            raise PamergeError(f"wanted={self.wanted!r}; expected a share from 0 to {TOO_MANY}.")
        if not 0 < self.lr < math.inf:
            raise PamergeError(f"lr={self.lr!r}; expected a number above 0.")
        return _VIBSession(self, surroundings)


def gate_penalty(mu: Tensor, log_d: Tensor, pixels: int) -> Tensor:
    """KL of the gates of one junction: ``½ · √pixels · Σ ln(1 + μ²/D)``."""
    ratio = mu.square() / log_d.exp().clamp_min(_LEAST)
    return 0.5 * math.sqrt(pixels) * torch.log1p(ratio).sum()


class _VIBSession(QuietSession):
    idle_laps = 3  # gates take many rounds to close, and γ has to grow until they do

    def __init__(self, settings: VIB, surroundings: Surroundings) -> None:
        self.settings = settings
        self.around = surroundings
        places, generator = surroundings.places, surroundings.generator
        self.mu = _parameters(places.new_arrays(lambda n: 1 + 0.01 * torch.randn(n, generator=generator)))
        self.log_d = _parameters(places.new_arrays(lambda n: -9 + 0.01 * torch.randn(n, generator=generator)))
        self._leave_alone_all_but(surroundings.objectives)
        self.gamma = dict.fromkeys(surroundings.network.tasks, settings.gamma)
        self.pixels = _pixels(surroundings.network)
        self.only: str | None = None

    @torch.no_grad()
    def _leave_alone_all_but(self, tasks: Iterable[str]) -> None:
        """Gates that are exactly one for neurons of tasks that are not being pruned."""
        served = {task: self.around.places.served_index(task) for task in tasks}
        for name, mu in self.mu.items():
            others = torch.ones_like(mu, dtype=torch.bool)
            for index in served.values():
                if name in index:
                    others[index[name]] = False
            mu[others] = 1.0

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """Means and variances of all gates, with a learning rate of their own."""
        return [{"params": [*self.mu.values(), *self.log_d.values()], "lr": self.settings.lr}]

    def hook(self) -> JunctionHook:
        """Multiply every neuron by a sample of its gate; by its mean when the network is not being trained."""
        places = self.around.places

        def sample(junction: str, group: TaskSet, tensor: Tensor) -> Tensor:
            index = places.index(junction, group)
            if index is None or (self.only is not None and group - {self.only}):
                return tensor
            mu, deviation = self.mu[junction][index], (0.5 * self.log_d[junction][index]).exp()
            if not self.around.network.training:
                return multiply(tensor, mu)
            # from the global state, which is each process's own, unlike that of the surroundings' generator
            noise = torch.randn(len(tensor), len(index), device=tensor.device)
            return multiply(tensor, mu + noise * deviation)

        return sample

    def penalty(self, task: str) -> Tensor:
        """γ times the information that the gates of the task's subgraph let through."""
        parts = [
            gate_penalty(self.mu[name][index], self.log_d[name][index], self.pixels[name])
            for name, index in self.around.places.served_index(task).items()
        ]
        return self.gamma[task] * torch.stack(parts).sum()

    @contextmanager
    def alone(self, task: str) -> Iterator[None]:
        """Gates of neurons that other tasks use let everything pass, and stay as they are."""
        places = self.around.places
        others = {
            junction: places.positions(junction, [n for n, tasks in sets.items() if tasks - {task}])
            for junction, sets in places.sets.items()
        }
        before = {junction: self.log_d[junction].detach()[index] for junction, index in others.items()}
        self.only = task
        try:
            yield
        finally:
            self.only = None
            with torch.no_grad():
                for junction, index in others.items():
                    self.mu[junction][index] = 1.0  # nothing to be folded into weights that others need
                    self.log_d[junction][index] = before[junction]

    def _gates(self) -> Iterator[tuple[str, nn.Parameter]]:
        for junction in self.mu:
            yield f"mu/{junction}", self.mu[junction]
            yield f"log_d/{junction}", self.log_d[junction]

    def measure(self, task: str, batches: Iterator[Batch]) -> int:
        """Fold the means into the weights; raise γ where too few gates closed, lower it where too many did."""
        self.fold()
        scores = self.importance(task)
        closed = _closed(scores) / max(1, sum(map(len, scores.values())))
        if closed < self.settings.wanted:
            self.gamma[task] *= self.settings.growth
        elif closed > TOO_MANY:
            self.gamma[task] /= self.settings.growth
        return 0

    @torch.no_grad()
    def fold(self) -> None:
        """Move μ into the weights that read each neuron; outputs and signal-to-noise ratios stay as they are."""
        for reader in self.around.places.readers(self.around.network):
            self.around.rescale(reader.weight, reader.spread(self.mu[reader.junction][reader.index]))
        for name, mu in self.mu.items():
            # a closed gate that has to wait for its removal must not drown the others in noise
            self.log_d[name].sub_(mu.square().clamp_min(_LEAST).log()).clamp_(max=_MOST_NOISE)
            mu.fill_(1.0)

    @torch.no_grad()
    def importance(self, task: str) -> Scores:
        """How far a gate is open, ln μ² − ln D: below zero it is closed. All tasks see the same gate."""
        ratios = {name: mu.square().clamp_min(_LEAST).log() - self.log_d[name] for name, mu in self.mu.items()}
        return self.around.places.by_neuron(task, ratios)

    def quota(self, task: str, fraction: float, scores: Scores) -> int:
        """All closed gates, which pass on more noise than anything else; the loop still limits what they may save.

        While closed gates wait for their removal, γ does not grow: a limit to their number would cost many rounds.
        """
        return _closed(scores)

    def tensors(self) -> dict[str, Tensor]:
        """Gates, and γ of each task."""
        kept: dict[str, Tensor] = dict(self._gates())
        return kept | {f"gamma/{task}": torch.tensor(value, dtype=torch.float64) for task, value in self.gamma.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over gates and γ."""
        for name, gate in self._gates():
            gate.copy_(tensors[name])
        self.gamma = {task: float(tensors[f"gamma/{task}"]) for task in self.gamma}


def _closed(scores: Scores) -> int:
    return sum(value < 0 for neurons in scores.values() for value in neurons.values())


def _parameters(arrays: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(array) for name, array in arrays.items()}


def _pixels(network: MultitaskNetwork) -> dict[str, int]:
    """How many values a neuron of each junction has."""
    nodes = network.structure.nodes
    return {
        name: nodes[value].width * math.prod(nodes[value].space)
        for value, name in junction_names(network.structure).items()
    }
