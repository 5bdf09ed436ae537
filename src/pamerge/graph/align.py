"""Which layers of K networks belong together.

Two nodes match iff they are the same operation with the same geometry and read matched tensors. That is a structural hash:
a node's key is made of what it does and of the keys of what it reads, so equal keys mean an equal history all the way
from the input. Widths are not part of the key. Output layers, and what follows them, never match: they belong to their task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pamerge.errors import PamergeError
from pamerge.graph.layer_graph import LayerGraph, Node, in_head

_COMMUTATIVE = {"aten.add.Tensor", "aten.mul.Tensor", "aten.maximum.default", "aten.minimum.default"}
_NOT_GEOMETRY = {"bias"}  # a layer with bias matches one without; the missing bias is zero


@dataclass(frozen=True)
class Alignment:
    """K networks laid over each other.

    The channels of a node are those of all networks that have it, numbered through: the input's channels, which all networks share,
    come first, then the first task's, and so on.

    Attributes:
        tasks: the names of the tasks.
        nodes: the nodes of all networks, matched ones once, in an order of computation.
        sources: for each node, which node of which task's network it stands for.
        outputs: the node that computes each task's output.
        origins: for each channel, the tasks whose network it comes from, as a bit mask over ``tasks``.
        differences: for each pair of tasks, why the match stopped where it did.
    """

    tasks: tuple[str, ...]
    nodes: Mapping[str, Node]
    sources: Mapping[str, Mapping[str, str]]
    outputs: Mapping[str, str]
    origins: NDArray[np.int64]
    differences: Mapping[tuple[str, str], str]

    def matched_layers(self) -> list[str]:
        """Weighted layers that at least two networks have in common."""
        return [
            node.name for node in self.nodes.values() if node.kind == "weighted" and len(self.sources[node.name]) > 1
        ]


def align(graphs: Mapping[str, LayerGraph]) -> Alignment:
    """Lay K captured networks over each other, as far as they match."""
    tasks = tuple(graphs)
    _check_inputs(graphs)
    keys = {task: _keys(task, graph) for task, graph in graphs.items()}
    owners: dict[Hashable, dict[str, str]] = {}
    for task in tasks:
        for name, key in keys[task].items():
            owners.setdefault(key, {})[task] = name

    renumber, origins = _numbering(graphs)
    names = {key: _name(sources, tasks) for key, sources in owners.items()}
    nodes, all_sources = {}, {}
    for key, sources in owners.items():
        first = next(iter(sources))
        node = graphs[first].nodes[sources[first]]
        channels = np.concatenate([renumber[task][graphs[task].nodes[name].channels] for task, name in sources.items()])
        _, where = np.unique(channels, return_index=True)  # the input's channels are common to all networks
        settings = dict(node.settings)
        if "bias" in settings:
            settings["bias"] = any(graphs[task].nodes[name].settings["bias"] for task, name in sources.items())
        nodes[names[key]] = replace(
            node,
            name=names[key],
            inputs=tuple(names[keys[first][name]] for name in node.inputs),
            channels=channels[np.sort(where)],
            settings=settings,
        )
        all_sources[names[key]] = sources
    return Alignment(
        tasks=tasks,
        nodes=nodes,
        sources=all_sources,
        outputs={task: names[keys[task][graph.output]] for task, graph in graphs.items()},
        origins=origins,
        differences=_differences(graphs, keys),
    )


def _check_inputs(graphs: Mapping[str, LayerGraph]) -> None:
    shapes = {task: (graph.input.features, *graph.input.space) for task, graph in graphs.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{task}: {'×'.join(map(str, shape))}" for task, shape in shapes.items())
        raise PamergeError(f"The networks have nothing in common: they take different inputs ({listed}).")


def _keys(task: str, graph: LayerGraph) -> dict[str, Hashable]:
    """A key for each node; nodes of different networks with the same key match."""
    head = in_head(graph.nodes)
    keys: dict[str, Hashable] = {}
    seen: Counter[Hashable] = Counter()
    numbers: dict[Hashable, int] = {}  # keeps keys flat: a long history is replaced by its hash
    for node in graph:
        inputs = [keys[name] for name in node.inputs]
        if node.op in _COMMUTATIVE:
            inputs.sort(key=repr)
        what = (_signature(node), tuple(inputs), task if node.name in head else None)
        keys[node.name] = hash((what, seen[what]))
        numbers[what] = seen[what]
        seen[what] += 1  # two equal layers on one tensor are matched in the order in which they run
    return keys


def _signature(node: Node) -> Hashable:
    settings = {key: value for key, value in node.settings.items() if key not in _NOT_GEOMETRY}
    picked = len(node.channels) if node.kind in ("input", "wire") and node.op != "concat" else None
    return (node.kind, node.op, _freeze(settings), node.width, node.space, picked)


def _freeze(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple(sorted((key, _freeze(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(item) for item in value)
    return value  # type: ignore[no-any-return]


def _numbering(graphs: Mapping[str, LayerGraph]) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.int64]]:
    """Each network's channels in the common numbering, and the tasks that each common channel comes from."""
    inputs = next(iter(graphs.values())).input.features
    everyone = (1 << len(graphs)) - 1
    origins = [np.full(inputs, everyone, dtype=np.int64)]
    renumber, start = {}, inputs
    for bit, (task, graph) in enumerate(graphs.items()):
        count = 1 + max(int(node.channels.max(initial=-1)) for node in graph) - inputs
        renumber[task] = np.concatenate([np.arange(inputs), np.arange(start, start + count)])
        origins.append(np.full(count, 1 << bit, dtype=np.int64))
        start += count
    return renumber, np.concatenate(origins)


def _name(sources: Mapping[str, str], tasks: tuple[str, ...]) -> str:
    first = next(iter(sources.values()))
    return first if len(sources) == len(tasks) else f"{'+'.join(sources)}:{first}"


def _differences(
    graphs: Mapping[str, LayerGraph], keys: Mapping[str, Mapping[str, Hashable]]
) -> dict[tuple[str, str], str]:
    """For each pair of tasks, the first node of one network that the other lacks although it has what the node reads."""
    found = {}
    tasks = list(graphs)
    for i, one in enumerate(tasks):
        for other in tasks[i + 1 :]:
            reason = _first_difference(one, other, graphs, keys) or _first_difference(other, one, graphs, keys)
            found[one, other] = reason or f"all hidden layers of {one!r} and {other!r} match"
    return found


def _first_difference(
    one: str, other: str, graphs: Mapping[str, LayerGraph], keys: Mapping[str, Mapping[str, Hashable]]
) -> str | None:
    theirs = set(keys[other].values())
    head = in_head(graphs[one].nodes)
    for node in graphs[one]:
        known = all(keys[one][name] in theirs for name in node.inputs)
        if keys[one][node.name] in theirs or not known or node.name in head:
            continue
        wanted = {keys[one][name] for name in node.inputs}
        ours = set(keys[one].values())
        rivals = [
            rival
            for rival in graphs[other]
            if keys[other][rival.name] not in ours and wanted & {keys[other][name] for name in rival.inputs}
        ]
        instead = f"{other!r} has {_describe(rivals[0])} there" if rivals else f"{other!r} has no further layer there"
        return f"{one!r} has {_describe(node)}, and {instead}"
    return None


def _describe(node: Node) -> str:
    geometry = ", ".join(
        f"{key} {value}" for key, value in node.settings.items() if key not in {"args", *_NOT_GEOMETRY}
    )
    shape = "×".join(map(str, (node.features, *node.space)))
    return f"{node.name} ({node.op}{': ' + geometry if geometry else ''}, output {shape})"
