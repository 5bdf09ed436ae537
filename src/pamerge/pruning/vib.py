"""P1: the variational information bottleneck (Dai et al. 2018): noisy gates that close where nothing is worth passing on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.network.program import JunctionHook
from pamerge.pruning.gates import multiply
from pamerge.pruning.protocol import QuietSession, Scores, Session, Surroundings
from pamerge.tasks import TaskSet
from pamerge.training.data import Batch

_LEAST = 1e-8


@dataclass(frozen=True)
class VIB:
    """A gate z = μ + ε·√D on every neuron, ε ~ N(0, 1) for each sample, and a penalty on what passes through it.

    The penalty is ``γ · ½ · √(H·W) · Σ ln(1 + μ²/D)`` over the neurons of the subgraph whose turn it is (Dai et al., eq. 12, with
    κ = 1/√(H·W)). A gate is closed when D ≥ μ². After every round μ is folded into the layers that read the neuron, so the
    network without its gates is always the network that was trained.

    Attributes:
        gamma: the weight γ of the penalty at the start.
        growth: γ grows by this factor after a round in which fewer than ``wanted`` of the gates closed.
        wanted: see ``growth``.
        most: no more than this share of a subgraph is removed in one round.
        lr: the learning rate of the gates. They have a long way to go, from ln D = −9 to 0, so it is larger than that of
            weights.
    """

    gamma: float = 1e-5
    growth: float = 1.5
    wanted: float = 0.01
    most: float = 0.05
    lr: float = 0.02

    def start(self, surroundings: Surroundings) -> Session:
        """Begin to prune a network."""
        if not self.gamma > 0 or not self.growth >= 1:
            raise PamergeError(
                f"gamma={self.gamma!r}, growth={self.growth!r}; expected gamma above 0 and growth from 1."
            )
        if not 0 <= self.wanted <= self.most <= 1:
            raise PamergeError(f"wanted={self.wanted!r}, most={self.most!r}; expected 0 ≤ wanted ≤ most ≤ 1.")
        return _VIBSession(self, surroundings)


def gate_penalty(mu: Tensor, log_d: Tensor, pixels: int) -> Tensor:
    """KL of the gates of one junction: ``½ · √pixels · Σ ln(1 + μ²/D)``."""
    ratio = mu.square() / log_d.exp().clamp_min(_LEAST)
    return 0.5 * math.sqrt(pixels) * torch.log1p(ratio).sum()


class _VIBSession(QuietSession):
    def __init__(self, settings: VIB, surroundings: Surroundings) -> None:
        self.settings = settings
        self.around = surroundings
        places, generator = surroundings.places, surroundings.generator
        self.mu = _parameters(places.new_arrays(lambda n: 1 + 0.01 * torch.randn(n, generator=generator)))
        self.log_d = _parameters(places.new_arrays(lambda n: -9 + 0.01 * torch.randn(n, generator=generator)))
        self.gamma = dict.fromkeys(surroundings.network.tasks, settings.gamma)
        self.pixels = _pixels(surroundings.network)

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """Means and variances of all gates, with a learning rate of their own."""
        return [{"params": [*self.mu.values(), *self.log_d.values()], "lr": self.settings.lr}]

    def hook(self) -> JunctionHook:
        """Multiply every neuron by a sample of its gate."""
        places = self.around.places

        def sample(junction: str, group: TaskSet, tensor: Tensor) -> Tensor:
            index = places.index(junction, group)
            if index is None:
                return tensor
            mu, deviation = self.mu[junction][index], (0.5 * self.log_d[junction][index]).exp()
            if not self.around.network.training:
                return multiply(tensor, mu)
            noise = torch.randn(len(tensor), len(index), device=tensor.device)
            return multiply(tensor, mu + noise * deviation)

        return sample

    def penalty(self, task: str) -> Tensor:
        """γ times the information that the gates of the task's subgraph let through."""
        places = self.around.places
        parts = []
        for name, neurons in places.served(task).items():
            index = torch.tensor(places.positions(name, neurons), device=places.device)
            parts.append(gate_penalty(self.mu[name][index], self.log_d[name][index], self.pixels[name]))
        return self.gamma[task] * torch.stack(parts).sum()

    @torch.no_grad()
    def measure(self, task: str, batches: Iterator[Batch]) -> int:
        """Fold the means into the weights; raise γ where too few gates closed."""
        self.fold()
        importance = self.importance(task)
        values = [value for neurons in importance.values() for value in neurons.values()]
        if sum(value < 0 for value in values) < self.settings.wanted * len(values):
            self.gamma[task] *= self.settings.growth
        return 0

    @torch.no_grad()
    def fold(self) -> None:
        """Move μ into the weights that read each neuron, which leaves outputs and signal-to-noise ratios as they are."""
        network = self.around.network
        values = {name: junction for name, junction in network.junctions.items() if not junction.fixed}
        for name, junction in values.items():
            position = dict(zip(self.around.places.neurons[name], range(10**9), strict=False))
            for key, layout in network.layouts.items():
                if layout.node.name in junction.feeds:
                    index = torch.tensor(
                        [position[n] for n in layout.inputs.tolist()], device=self.around.places.device
                    )
                    factor = self.mu[name][index].repeat_interleave(layout.input_width)
                    weight = network.blocks[key].weight
                    axis = 0 if layout.node.op == "conv_transpose" else 1
                    shape = [1] * weight.dim()
                    shape[axis] = -1
                    weight.mul_(factor.view(shape))
            self.log_d[name].sub_(self.mu[name].square().clamp_min(_LEAST).log())
            self.mu[name].fill_(1.0)

    def importance(self, task: str) -> Scores:
        """ln μ² − ln D: below zero the gate is closed. A shared neuron has one gate, so all tasks see the same."""
        found: Scores = {}
        for name, neurons in self.around.places.served(task).items():
            open_by = (self.mu[name].square().clamp_min(_LEAST).log() - self.log_d[name]).tolist()
            positions = self.around.places.positions(name, neurons)
            found[name] = {neuron: open_by[p] for neuron, p in zip(neurons, positions, strict=True)}
        return found

    def quota(self, task: str, fraction: float, neurons: int) -> int:
        """The closed gates, but no more than a share of the subgraph."""
        values = [value for found in self.importance(task).values() for value in found.values()]
        return min(sum(value < 0 for value in values), round(self.settings.most * len(values)))

    def tensors(self) -> dict[str, Tensor]:
        """Gates, and γ of each task."""
        kept = {f"mu/{name}": value for name, value in self.mu.items()}
        kept |= {f"log_d/{name}": value for name, value in self.log_d.items()}
        return kept | {f"gamma/{task}": torch.tensor(value, dtype=torch.float64) for task, value in self.gamma.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over gates and γ."""
        for name in self.mu:
            self.mu[name].copy_(tensors[f"mu/{name}"])
            self.log_d[name].copy_(tensors[f"log_d/{name}"])
        self.gamma = {task: float(tensors[f"gamma/{task}"]) for task in self.gamma}


def _parameters(arrays: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(array) for name, array in arrays.items()}


def _pixels(network: MultitaskNetwork) -> dict[str, int]:
    """How many values a neuron of each junction has."""
    from pamerge.network.structure import junction_names

    structure = network.structure
    return {
        name: structure.nodes[value].width * math.prod(structure.nodes[value].space)
        for value, name in junction_names(structure).items()
    }
