"""A lap of one task alone: whatever other tasks need stays as it is, so that they lose nothing and need no training.

In a lap of all tasks one that is over its budget undoes the work of all, and a task that has nothing left to lose is
trained at every step, only to be over its budget by chance. What serves one task only can be pruned without all that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pamerge.network.network import MultitaskNetwork
from pamerge.pruning.freed import flops_freed
from pamerge.pruning.gates import Places
from pamerge.pruning.protocol import Remove
from pamerge.pruning.ranking import Mix
from pamerge.pruning.removal import candidates
from pamerge.tasks import TaskSet


def could_save_alone(network: MultitaskNetwork, places: Places, task: str, mix: Mix, remove: Remove) -> float:
    """How much of the expected cost the removals are worth that take nothing from other tasks."""
    others = TaskSet(network.tasks) - {task}
    scores = {junction: dict.fromkeys(neurons, 0.0) for junction, neurons in places.served(task).items()}
    own = candidates(network, places, scores, task, others, remove)
    freed = flops_freed(network, mix, task if remove == "task" else None)
    return sum(max(0.0, freed[junction][neuron]) for junction, neurons in own.items() for neuron in neurons)


def can_learn_alone(network: MultitaskNetwork, task: str) -> bool:
    """Whether anything that serves this task only may be trained."""
    own = (key for key, layout in network.layouts.items() if not layout.group - {task})
    return any(parameter.requires_grad for key in own for parameter in network.blocks[key].parameters())


@contextmanager
def others_untouched(network: MultitaskNetwork, task: str) -> Iterator[None]:
    """Meanwhile, what any other task needs keeps its weights and statistics, even in training mode."""
    held = []
    for key, layout in network.layouts.items():
        if layout.group - {task}:
            network.blocks[key].eval()
            held += [parameter for parameter in network.blocks[key].parameters() if parameter.requires_grad]
    for parameter in held:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)
