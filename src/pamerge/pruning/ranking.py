"""From scores to what is removed: scores of several tasks as one, importance per operation, the lowest ranked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import numpy as np

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.pruning.protocol import Scores
from pamerge.tasks import TaskSet, all_subsets

Shared = Literal["own", "max", "sum"]
"""How a neuron that several tasks share is ranked on one task's turn: by that task's own score (the paper), or by the largest
or the sum of its tasks' scores, each in units of the mean score of the task's subgraph."""

Mix = Mapping[TaskSet, float]
"""How often each subset of tasks is executed."""


def check_shared(shared: str) -> None:
    """Raises if ``shared`` is not one of the ways."""
    if shared not in get_args(Shared):
        raise PamergeError(f"shared={shared!r}; expected one of {', '.join(map(repr, get_args(Shared)))}.")


def combine(
    scores: Mapping[str, Scores], task: str, sets: Mapping[str, Mapping[int, TaskSet]], shared: Shared
) -> Scores:
    """The score of each neuron of a task's subgraph on that task's turn."""
    if shared == "own":
        return scores[task]
    units = {name: _mean(found) for name, found in scores.items()}
    join = max if shared == "max" else math.fsum
    result: Scores = {}
    for junction, neurons in scores[task].items():
        result[junction] = {}
        for neuron in neurons:
            tasks = [t for t in sets[junction][neuron] if neuron in scores.get(t, {}).get(junction, {})]
            result[junction][neuron] = join([scores[t][junction][neuron] / units[t] for t in tasks])
    return result


def _mean(scores: Scores) -> float:
    values = [value for neurons in scores.values() for value in neurons.values()]
    return max(sum(values) / max(1, len(values)), 1e-30)


def lowest(scores: Scores, count: int) -> dict[str, list[int]]:
    """The ``count`` neurons with the lowest scores, the lowest first within each junction; ties by order."""
    flat = [(value, junction, neuron) for junction, neurons in scores.items() for neuron, value in neurons.items()]
    flat.sort(key=lambda item: item[0])
    found: dict[str, list[int]] = {}
    for _, junction, neuron in flat[:count]:
        found.setdefault(junction, []).append(neuron)
    return found


def resolve_mix(mix: Mapping[Iterable[str] | str, float] | None, tasks: Iterable[str]) -> dict[TaskSet, float]:
    """Probabilities of task combinations that sum to one; all combinations alike by default."""
    tasks = tuple(tasks)
    if mix is None:
        subsets = list(all_subsets(tasks))
        return dict.fromkeys(subsets, 1 / len(subsets))
    found = {TaskSet.parse(key) if isinstance(key, str) else TaskSet(key): float(value) for key, value in mix.items()}
    unknown = {task for key in found for task in key} - set(tasks)
    if unknown or not all(found):
        raise PamergeError(
            f"mix names {', '.join(map(repr, sorted(unknown))) or 'an empty set'}; the tasks are {', '.join(tasks)}."
        )
    total = sum(found.values())
    if not total > 0 or any(value < 0 for value in found.values()):
        raise PamergeError(f"mix={dict(mix)!r}; expected probabilities that are not negative and not all zero.")
    return {key: value / total for key, value in found.items()}


def expected_flops(network: MultitaskNetwork, mix: Mix) -> float:
    """The mean cost of an execution under a mix of task combinations."""
    return sum(share * network.flops(tasks) for tasks, share in mix.items() if share)


def flops_freed(network: MultitaskNetwork, mix: Mix) -> Scores:
    """What the removal of each neuron would save, as expected cost under a mix.

    Its columns in all blocks that read it, and, if no other junction uses it, its rows in the blocks that compute it.
    """
    structure, spaces = network.structure, network.structure.nodes
    active = {group: sum(p for tasks, p in mix.items() if tasks & group) for group in _groups(network)}
    users: dict[int, int] = {}
    for junction in network.junctions.values():
        for neuron in junction.task_sets():
            users[neuron] = users.get(neuron, 0) + 1
    rows: dict[int, float] = {}
    columns: dict[tuple[str, int], float] = {}
    for layout in network.layouts.values():
        if layout.node.op not in ("conv", "linear", "conv_transpose", "depthwise"):
            continue
        kernel = math.prod(layout.node.settings.get("kernel", ()))
        pixels = math.prod(
            layout.node.space if layout.node.op != "conv_transpose" else spaces[layout.node.inputs[0]].space
        )
        cost = 2 * kernel * pixels * active[layout.group]
        inputs = 1 if layout.node.op == "depthwise" else len(layout.inputs) * layout.input_width
        for neuron in layout.outputs.tolist():
            rows[neuron] = rows.get(neuron, 0.0) + cost * layout.node.width * inputs
        if layout.node.kind == "weighted":
            share = cost * layout.input_width * len(layout.outputs) * layout.node.width
            for neuron in layout.inputs.tolist():
                key = (layout.node.inputs[0], neuron)
                columns[key] = columns.get(key, 0.0) + share
    from pamerge.network.structure import junction_names

    names = junction_names(structure)
    found: Scores = {}
    for (value, neuron), saved in columns.items():
        alone = rows.get(neuron, 0.0) if users.get(neuron) == 1 else 0.0
        found.setdefault(names[value], {})[neuron] = saved + alone
    return found


def _groups(network: MultitaskNetwork) -> set[TaskSet]:
    return {layout.group for layout in network.layouts.values()}


def per_flop(scores: Scores, freed: Scores) -> Scores:
    """Importance divided by the operations that a removal frees."""
    typical = float(np.mean([v for neurons in freed.values() for v in neurons.values()])) if freed else 1.0
    return {
        junction: {n: value / max(freed.get(junction, {}).get(n, 0.0) / typical, 1e-12) for n, value in neurons.items()}
        for junction, neurons in scores.items()
    }
