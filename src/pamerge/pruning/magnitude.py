"""Pruning by the size of weights: the simplest pruner, and an example of how to write one."""

from __future__ import annotations

from dataclasses import dataclass

from pamerge.network.layout import spread
from pamerge.pruning.protocol import QuietSession, Scores, Session, Surroundings


@dataclass(frozen=True)
class Magnitude:
    """A neuron matters as much as the weights that read it: the mean square of its column in every reader."""

    def start(self, surroundings: Surroundings) -> Session:
        """Begin to prune a network."""
        return _MagnitudeSession(surroundings)


class _MagnitudeSession(QuietSession):
    def __init__(self, surroundings: Surroundings) -> None:
        self.surroundings = surroundings

    def importance(self, task: str) -> Scores:
        """The mean square weight of the blocks that read a neuron for the task."""
        network = self.surroundings.network
        sums: dict[int, list[float]] = {}
        readers = {name: junction.feeds for name, junction in network.junctions.items()}
        found: Scores = {}
        for junction, neurons in self.surroundings.places.served(task).items():
            sums = {neuron: [0.0, 0.0] for neuron in neurons}
            for key, layout in network.layouts.items():
                if layout.node.name not in readers[junction] or task not in layout.group:
                    continue
                weight = network.blocks[key].weight.detach()
                weight = weight if layout.node.op == "conv_transpose" else weight.transpose(0, 1)
                squares = weight.flatten(1).square().mean(1)
                for position, neuron in enumerate(layout.inputs.tolist()):
                    if neuron in sums:
                        columns = squares[spread(_one(position), layout.input_width)]
                        sums[neuron][0] += float(columns.mean())
                        sums[neuron][1] += 1
            found[junction] = {neuron: total / max(1.0, count) for neuron, (total, count) in sums.items()}
        return found


def _one(position: int):  # type: ignore[no-untyped-def]
    import numpy as np

    return np.array([position])
