"""A task's turn: which neurons it may remove, and removing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch.optim import Optimizer

from pamerge.network.network import MultitaskNetwork
from pamerge.pruning.gates import Places
from pamerge.pruning.protocol import Remove, Scores
from pamerge.tasks import TaskSet
from pamerge.training.optimizer import rebuild_optimizer


@dataclass(frozen=True)
class Removal:
    """What a turn did.

    Attributes:
        removed: How many neurons of each junction were removed, or left by the task.
        refused: How many had to stay because a group would have had nothing to read.
    """

    removed: Mapping[str, int]
    refused: int

    def __add__(self, other: Removal) -> Removal:
        names = dict.fromkeys([*self.removed, *other.removed])
        removed = {name: self.removed.get(name, 0) + other.removed.get(name, 0) for name in names}
        return Removal(removed, self.refused + other.refused)


def candidates(
    network: MultitaskNetwork, places: Places, scores: Scores, task: str, finished: TaskSet, remove: Remove
) -> Scores:
    """The scored neurons whose removal takes nothing from finished tasks.

    A neuron that a finished task uses stays. Where only ``task`` leaves neurons, a finished task loses something only
    if the neuron feeds outputs that both of them need.
    """
    if not finished:
        return scores
    cut: dict[str, set[TaskSet]] = {}
    for reader in places.readers(network):
        if task in reader.layout.group and reader.layout.group & finished:
            cut.setdefault(reader.junction, set()).add(reader.layout.group)

    def spared(junction: str, neuron: int) -> bool:
        tasks = places.sets[junction][neuron]
        if remove == "task":
            return any(group.issubset(tasks) for group in cut.get(junction, ()))
        return bool(tasks & finished)

    kept = {name: {n: v for n, v in neurons.items() if not spared(name, n)} for name, neurons in scores.items()}
    return {name: neurons for name, neurons in kept.items() if neurons}


def take_out(
    network: MultitaskNetwork,
    places: Places,
    optimizer: Optimizer,
    ranked: Mapping[str, list[int]],
    task: str,
    remove: Remove,
) -> tuple[dict[str, int], set[tuple[str, int]]]:
    """Remove neurons for good, with what the optimiser knows about them.

    Returns:
        How many of each junction, and the neurons that had to stay.
    """
    old = dict(network.named_parameters())
    change = network.restrict(
        {
            name: {n: places.sets[name][n] - {task} if remove == "task" else TaskSet() for n in neurons}
            for name, neurons in ranked.items()
        }
    )
    rebuild_optimizer(optimizer, old, network, change)
    places.refresh(network)
    stayed = {(name, neuron) for name, neurons in change.refused.items() for neuron in neurons}
    removed = {name: sum((name, n) not in stayed for n in neurons) for name, neurons in ranked.items()}
    return {name: number for name, number in removed.items() if number}, stayed
