"""Pruning by the size of weights: the simplest pruner, and an example of how to write one."""

from __future__ import annotations

from dataclasses import dataclass

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
        feeds = {name: junction.feeds for name, junction in network.junctions.items()}
        found: Scores = {}
        for junction, neurons in self.surroundings.places.served(task).items():
            squares: dict[int, list[float]] = {neuron: [] for neuron in neurons}
            for key, layout in network.layouts.items():
                if layout.node.name in feeds[junction] and task in layout.group:
                    weight = network.blocks[key].weight.detach()
                    weight = weight if layout.node.op == "conv_transpose" else weight.transpose(0, 1)
                    columns = weight.reshape(len(layout.inputs), -1).square().mean(1).tolist()
                    for neuron, column in zip(layout.inputs.tolist(), columns, strict=True):
                        squares[neuron].append(column)
            found[junction] = {neuron: sum(values) / max(1, len(values)) for neuron, values in squares.items()}
        return found
