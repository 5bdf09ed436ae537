"""A merge whose task sets somebody else has chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pamerge.merging.material import Material
from pamerge.network.network import Junction, MultitaskNetwork
from pamerge.tasks import TaskSet


@dataclass(frozen=True)
class Assigned:
    """Give every neuron the task set that a function chooses.

    Attributes:
        choose: from a junction, in which every neuron still has the task of its own network, to the tasks of each
            neuron. Neurons that it leaves out are dropped.

    >>> def share_all(junction):
    ...     return {neuron: {"age", "gender"} for neuron in junction.task_sets()}
    >>> scheme = Assigned(share_all)
    """

    choose: Callable[[Junction], Mapping[int, Iterable[str]]]

    def merge(self, material: Material) -> MultitaskNetwork:
        """The networks with the chosen task sets, repaired where a neuron would have nothing to read."""
        network = material.side_by_side()
        network.regroup(
            {
                name: {neuron: TaskSet(tasks) for neuron, tasks in self.choose(junction).items()}
                for name, junction in network.junctions.items()
                if not junction.fixed
            }
        )
        return network
