"""From scores to what is removed: scores of several tasks as one, importance per operation, the lowest ranked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.pruning.gates import Places
from pamerge.pruning.protocol import Scores
from pamerge.tasks import TaskSet, all_subsets

Shared = Literal["own", "max", "sum"]
"""How a neuron that several tasks share is ranked on one task's turn: by what that task loses alone (the paper), or by
the largest or the sum of what its tasks lose, each in units of the mean score of the task's subgraph."""

Mix = Mapping[TaskSet, float]
"""How often each subset of tasks is executed."""


def check_shared(shared: str) -> None:
    """Raises if ``shared`` is not one of the ways."""
    if shared not in get_args(Shared):
        raise PamergeError(f"shared={shared!r}; expected one of {', '.join(map(repr, get_args(Shared)))}.")


def combine(
    lost: Mapping[str, Mapping[str, Tensor]], units: Mapping[str, float], task: str, places: Places, shared: Shared
) -> dict[str, Tensor]:
    """The score of each neuron on a task's turn, from what each task would lose with it.

    Args:
        lost: For each task the loss at each neuron, by junction.
        units: For each task the loss that counts as one.
        task: Whose turn it is.
        places: Says which neurons each task uses.
        shared: How to count what several tasks lose.
    """
    if shared == "own":
        return dict(lost[task])
    join = torch.maximum if shared == "max" else torch.add
    result = {name: torch.zeros_like(array) for name, array in lost[task].items()}
    for name, arrays in lost.items():
        for junction, index in places.served_index(name).items():
            result[junction][index] = join(result[junction][index], arrays[junction][index] / units[name])
    return result


def balanced(scores: Scores, power: float) -> Scores:
    """Scores divided by a power of their junction's mean; those of a junction that says nothing stay as they are.

    >>> balanced({"first": {0: 4.0, 1: 12.0}, "second": {2: 1.0, 3: 1.0}}, 1.0)
    {'first': {0: 0.5, 1: 1.5}, 'second': {2: 1.0, 3: 1.0}}
    """
    units = {name: (sum(found.values()) / len(found) if found else 0.0) for name, found in scores.items()}
    return {
        name: {neuron: value / units[name] ** power if units[name] > 0 else value for neuron, value in found.items()}
        for name, found in scores.items()
    }


def lowest(scores: Scores, count: int, freed: Scores | None = None, needed: float = math.inf) -> dict[str, list[int]]:
    """The neurons with the lowest scores, the lowest first within each junction; ties by order.

    Args:
        scores: The candidates.
        count: How many at most.
        freed: What the removal of each neuron saves.
        needed: Stop when as much as this is saved.
    """
    flat = [(value, junction, neuron) for junction, neurons in scores.items() for neuron, value in neurons.items()]
    flat.sort(key=lambda item: item[0])
    found: dict[str, list[int]] = {}
    for _, junction, neuron in flat[:count]:
        if needed <= 0:
            break
        found.setdefault(junction, []).append(neuron)
        if freed is not None:
            needed -= freed.get(junction, {}).get(neuron, 0.0)
    return found


def resolve_mix(mix: Mapping[Iterable[str] | str, float] | None, tasks: Iterable[str]) -> dict[TaskSet, float]:
    """Probabilities of task combinations that sum to one; all combinations alike by default."""
    tasks = tuple(tasks)
    if mix is None:
        subsets = list(all_subsets(tasks))
        return dict.fromkeys(subsets, 1 / len(subsets))
    if not isinstance(mix, Mapping) or not mix:
        raise PamergeError(f"mix={mix!r}; expected probabilities of task combinations, such as {{'age+gender': 1.0}}.")
    found = {TaskSet.parse(key) if isinstance(key, str) else TaskSet(key): value for key, value in mix.items()}
    unknown = {task for key in found for task in key} - set(tasks)
    if unknown or not all(found):
        raise PamergeError(
            f"mix names {', '.join(map(repr, sorted(unknown))) or 'an empty set'}; the tasks are {', '.join(tasks)}."
        )
    numbers = all(isinstance(value, (int, float)) and 0 <= value < math.inf for value in found.values())
    if not numbers or not sum(found.values()) > 0:
        raise PamergeError(f"mix={dict(mix)!r}; expected probabilities that are not negative and not all zero.")
    total = float(sum(found.values()))
    return {key: value / total for key, value in found.items()}


def expected_flops(network: MultitaskNetwork, mix: Mix, tasks: Iterable[str] | None = None) -> float:
    """The mean cost of an execution under a mix of task combinations, or of what it runs for some tasks only."""
    some = TaskSet(network.tasks if tasks is None else tasks)
    return sum(share * network.flops(subset & some) for subset, share in mix.items() if share and subset & some)


def subgraph_cost(network: MultitaskNetwork, mix: Mix, task: str) -> float:
    """What a task's subgraph costs under a mix of task combinations."""
    return sum(share for tasks, share in mix.items() if task in tasks) * network.flops(task)


def sharers(network: MultitaskNetwork, task: str, tasks: Iterable[str]) -> float:
    """How many of some tasks, itself among them, use what a task's subgraph computes: a mean over its operations.

    1 if it shares nothing with them, their number if it shares everything.
    """
    cost = network.flops(task)
    shared = sum(_common_cost(network, task, other) for other in tasks)
    return shared / cost if cost else 1.0


def tasks_served(network: MultitaskNetwork, tasks: Iterable[str]) -> float:
    """How many of some tasks what they compute serves: a mean over all operations, each counted once.

    1 if nothing is shared, their number if everything is.
    """
    tasks = list(tasks)
    whole = network.flops(tasks)
    return sum(network.flops(task) for task in tasks) / whole if whole else 1.0


def sharing_most(network: MultitaskNetwork, task: str, others: Iterable[str]) -> list[str]:
    """Of some other tasks those that share more than half of what they compute with a task."""
    return [
        other for other in others if other != task and 2 * _common_cost(network, task, other) > network.flops(other)
    ]


def _common_cost(network: MultitaskNetwork, one: str, other: str) -> int:
    """What two tasks both need, or all of it if they are one."""
    return network.flops(one) + network.flops(other) - network.flops({one, other})


def cost_parts(network: MultitaskNetwork, mix: Mix, tasks: Sequence[str]) -> dict[str, float]:
    """What an execution costs for some tasks under a mix, divided among them: sharing a neuron is sharing its cost."""
    own = {task: subgraph_cost(network, mix, task) / sharers(network, task, tasks) for task in tasks}
    whole, total = expected_flops(network, mix, tasks), sum(own.values())
    return {task: whole * part / total if total else 0.0 for task, part in own.items()}
