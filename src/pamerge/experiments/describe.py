"""What a result records of a network and of how it was merged, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pamerge.information import Trace
from pamerge.merging import LayerMerging, Merging, regroup
from pamerge.merging.regroup import Overlap
from pamerge.network.cost import block_flops
from pamerge.network.network import MultitaskNetwork
from pamerge.network.structure import junction_names
from pamerge.tasks import TaskSet

POINTS = 200
"""At most so many points of a trace are recorded."""

ALPHAS = (-1.0, 0.0, *(float(f"{alpha:.3g}") for alpha in np.geomspace(1e-3, 1.0, 91)))
"""The values of α that groups are recorded for: below zero (everything is shared), zero, and a logarithmic scale."""


def network_record(network: MultitaskNetwork) -> dict[str, Any]:
    """The groups of every junction and the cost of every layer, by task set.

    A subset of tasks runs the groups that have a task in it, so both can be added up for any subset.

    Returns:
        ``groups``: for each junction but the input, the number of neurons of each task set, such as
        ``{"conv1": {"A": 3, "A+B": 2}}``; ``layer_flops``: for each layer, the FLOPs of each task set's block;
        ``layers``: the names of both in the order of computation.
    """
    groups = {
        name: {str(tasks): len(neurons) for tasks, neurons in junction.groups.items()}
        for name, junction in network.junctions.items()
        if not junction.fixed
    }
    costs: dict[str, dict[str, int]] = {}
    for layout in network.layouts.values():
        cost = block_flops(layout, network.structure.nodes[layout.node.inputs[0]].space, layout.node.space)
        if cost:
            layer = costs.setdefault(layout.node.name, {})
            layer[str(layout.group)] = layer.get(str(layout.group), 0) + cost
    places = {name: place for place, name in enumerate(network.structure.nodes)}
    order = {name: places[value] for value, name in junction_names(network.structure).items() if name in groups}
    order |= {name: places[name] for name in costs}
    return {"groups": groups, "layer_flops": costs, "layers": sorted(order, key=order.__getitem__)}


def information_record(merging: Merging, *, overlap: Overlap = "origin") -> dict[str, Any]:
    """The information traces of every layer, and the groups that each α of a scale would give.

    The groups are those of the first level of Algorithm 3: neurons exclusive to one task, and the rest, which two or
    more tasks share. With two tasks that is all there is; with more, further levels divide the rest.

    Args:
        merging: what the scheme did.
        overlap: what happens to a neuron in several exclusive sets.

    Returns:
        ``alphas``: the scale, with the values that were used among them; ``layers``: for each junction

        - ``alpha``: the value that was used;
        - ``origins``: how many neurons came from each task's network;
        - ``merged``: the number of neurons of each task set after merging;
        - ``traces``: for each task, the information about the other tasks' labels (``bits``) of the first ``taken``
          neurons of the greedy order, at up to :data:`POINTS` points, and ``total``, that of all neurons;
        - ``claimed``: for each task and α, how long a prefix of its trace stays within α;
        - ``exclusive``: for each task and α, how many neurons would be its own;
        - ``dropped``: for each α, how many neurons would be deleted; only for ``overlap="drop"``.

        Empty if the scheme measured no information.
    """
    layers = {name: layer for name, layer in merging.layers.items() if layer.traces}
    if not layers:
        return {}
    alphas = sorted({*ALPHAS, *(float(layer.alpha) for layer in layers.values())})
    return {
        "alphas": alphas,
        "layers": {name: _layer_record(layer, alphas, overlap) for name, layer in layers.items()},
    }


def _layer_record(layer: LayerMerging, alphas: Sequence[float], overlap: Overlap) -> dict[str, Any]:
    origins = list(layer.origins.values())
    record: dict[str, Any] = {
        "alpha": float(layer.alpha),
        "origins": {task: sum(task in origin for origin in origins) for task in layer.traces},
        "merged": {str(tasks): count for tasks, count in layer.sizes.items()},
        "traces": {task: _trace_record(trace) for task, trace in layer.traces.items()},
        "claimed": {task: [trace.prefix(alpha) for alpha in alphas] for task, trace in layer.traces.items()},
    }
    if all(len(trace.order) == len(origins) for trace in layer.traces.values()):  # not so for a part of a tied stream
        record |= _groups_by_alpha(origins, layer.traces, alphas, overlap)
    return record


def _groups_by_alpha(
    origins: Sequence[TaskSet], traces: Mapping[str, Trace], alphas: Sequence[float], overlap: Overlap
) -> dict[str, Any]:
    everyone = TaskSet(traces)
    about_others = {everyone - {task}: trace for task, trace in traces.items()}
    exclusive: dict[str, list[int]] = {task: [] for task in traces}
    dropped = []
    for alpha in alphas:
        found = regroup(origins, lambda others, _: about_others[others], alpha, overlap=overlap, levels=1)
        for task, counts in exclusive.items():
            counts.append(found.task_sets.count(TaskSet({task})))
        dropped.append(len(found.dropped))
    return {"exclusive": exclusive} | ({"dropped": dropped} if overlap == "drop" else {})


def _trace_record(trace: Trace) -> dict[str, Any]:
    count = len(trace.bits)
    places = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int)).tolist()
    return {
        "total": _short(trace.total),
        "taken": [place + 1 for place in places],
        "bits": [_short(trace.bits[place]) for place in places],
    }


def _short(value: float) -> float:
    """Four digits are plenty for an estimate, and keep the file small."""
    return float(f"{value:.4g}")
