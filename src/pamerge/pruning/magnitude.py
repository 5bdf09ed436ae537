"""Pruning by the size of weights: the simplest pruner, and an example of how to write one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pamerge.pruning.protocol import QuietSession, Scores, Session, Surroundings


@dataclass(frozen=True)
class Magnitude:
    """A neuron matters to a task as much as the weights that read it for the task: their mean square."""

    def start(self, surroundings: Surroundings) -> Session:
        """Begin to prune a network."""
        return _MagnitudeSession(surroundings)


class _MagnitudeSession(QuietSession):
    def __init__(self, surroundings: Surroundings) -> None:
        self.network, self.places = surroundings.network, surroundings.places

    @torch.no_grad()
    def importance(self, task: str) -> Scores:
        """The sum of a neuron's squared weights over their number."""
        sums, counts = self.places.new_arrays(torch.zeros), self.places.new_arrays(torch.zeros)
        for reader in self.places.readers(self.network):
            if task in reader.layout.group:
                weights = reader.by_neuron(reader.weight)
                sums[reader.junction][reader.index] += weights.square().sum(1)
                counts[reader.junction][reader.index] += weights.shape[1]
        return self.places.by_neuron(task, {name: sums[name] / counts[name].clamp_min(1) for name in sums})
