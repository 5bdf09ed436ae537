"""The theory's conditions for a whole network: layer by layer, on data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from pamerge.errors import PamergeError
from pamerge.information.activations import junction_activations
from pamerge.information.conditions import LayerConditions, layer_conditions
from pamerge.information.gaussian import Gaussian
from pamerge.network.network import MultitaskNetwork
from pamerge.tasks import resolve_tasks

_DEFAULT = Gaussian()


def network_conditions(
    network: MultitaskNetwork,
    data: Iterable[Any],
    objectives: Mapping[str, Any],
    *,
    estimator: Gaussian = _DEFAULT,
    samples: int | None = None,
) -> dict[str, LayerConditions]:
    """How well the conditions of Theorem 1 (and of its extension to K tasks) hold at each junction.

    Compare the same networks merged in different ways: the smaller the numbers, the less pruning one task's subgraph
    takes from another.

    Args:
        network: a merged network.
        data: batches of ``(inputs, targets)``.
        objectives: the tasks to look at, by name.
        estimator: how information is measured.
        samples: how many samples to use at most; None for all.

    Returns:
        The conditions of every junction that serves at least two of the tasks, by its name.
    """
    tasks = resolve_tasks(objectives, network.tasks)
    if len(tasks) < 2:
        raise PamergeError(f"objectives names one task, {tasks}; the conditions are about pairs of tasks.")
    junctions = {
        name: junction
        for name, junction in network.junctions.items()
        if not junction.fixed and len({task for group in junction.groups for task in group} & tasks) > 1
    }
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in junctions}
    labels: dict[str, list[torch.Tensor]] = {task: [] for task in tasks}
    for activations, targets in junction_activations(network, data, samples=samples):
        missing = tasks - set(targets)
        if missing:
            raise PamergeError(f"A batch has no labels for {missing}; mark missing labels with NaN, or a class of −1.")
        for name, found in seen.items():
            found.append(activations[name])
        for task, parts in labels.items():
            parts.append(targets[task])
    together = {task: torch.cat(parts) for task, parts in labels.items()}
    return {
        name: layer_conditions(torch.cat(seen[name]), list(junctions[name].task_sets().values()), together, estimator)
        for name in junctions
    }
