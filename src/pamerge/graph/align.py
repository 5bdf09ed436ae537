"""Which layers of K networks belong together.

Two nodes match iff they are the same operation with the same geometry and read matched tensors. So a node's key is
made of what it does and of the keys of what it reads: equal keys mean an equal history all the way from the input.
Widths are not part of the key. Output layers, and what follows them, never match: they belong to their task.
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
_SWAPPABLE = [{"input": 0}, {"input": 1}]  # the arguments of a commutative operation, and no factor such as alpha
_NOT_GEOMETRY = {"bias", "momentum", "p"}
"""Settings that may differ: a missing bias is zero; what only matters in training is taken from the first network."""

_Keys = Mapping[str, Mapping[str, int]]
"""For each task, a key for each node of its network; nodes of different networks with the same key match."""


@dataclass(frozen=True)
class Alignment:
    """K networks laid over each other.

    The channels of a node are those of all networks that have it, numbered through: the input's channels, which all
    networks share, come first, then the first task's, and so on.

    Attributes:
        tasks: the names of the tasks.
        nodes: the nodes of all networks, matched ones once, in an order of computation.
        sources: for each node, which node of which task's network it stands for.
        outputs: the node that computes each task's output.
        origins: for each channel, the tasks whose network it comes from, as a bit mask over ``tasks``.
        numbering: for each task, the number here of each channel of its own network.
        differences: for each pair of tasks, why the match stopped where it did.
    """

    tasks: tuple[str, ...]
    nodes: Mapping[str, Node]
    sources: Mapping[str, Mapping[str, str]]
    outputs: Mapping[str, str]
    origins: NDArray[np.int64]
    numbering: Mapping[str, NDArray[np.int64]]
    differences: Mapping[tuple[str, str], str]

    def layers(self, task: str) -> list[str]:
        """The weighted layers of a task's network, without its output layers: those that could match."""
        head = in_head(self.nodes)
        return [
            n.name
            for n in self.nodes.values()
            if n.kind == "weighted" and n.name not in head and task in self.sources[n.name]
        ]

    def matched_layers(self, *tasks: str) -> list[str]:
        """Weighted layers that all of some tasks have in common, or that at least two networks do."""
        found = [(node.name, self.sources[node.name]) for node in self.nodes.values() if node.kind == "weighted"]
        return [name for name, sources in found if len(sources) > 1 and set(tasks) <= set(sources)]

    def __str__(self) -> str:
        """A line for each pair of tasks: how far the match went and why it stopped."""
        counts = {task: len(self.layers(task)) for task in self.tasks}
        listed = ", ".join(f"{task} ({count} hidden layers)" for task, count in counts.items())
        lines = [f"{len(self.tasks)} network(s): {listed}"]
        for (one, other), reason in self.differences.items():
            matched = self.matched_layers(one, other)
            last = f", up to {self.sources[matched[-1]][one]!r}" if matched else ""
            lines.append(f"{one} and {other}: {len(matched)} matched{last}; {reason}")
        return "\n".join(lines)


def align(graphs: Mapping[str, LayerGraph]) -> Alignment:
    """Lay K captured networks over each other, as far as they match."""
    tasks = tuple(graphs)
    _check_inputs(graphs)
    keys = _keys(graphs)
    owners: dict[int, dict[str, str]] = {}
    for task in tasks:
        for name, key in keys[task].items():
            owners.setdefault(key, {})[task] = name

    numbering, origins = _numbering(graphs)
    names = {key: _name(sources, tasks) for key, sources in owners.items()}
    nodes, all_sources = {}, {}
    for key, sources in owners.items():
        matched = {task: graphs[task].nodes[name] for task, name in sources.items()}
        first, node = next(iter(matched.items()))
        channels = np.concatenate([numbering[task][own.channels] for task, own in matched.items()])
        _, where = np.unique(channels, return_index=True)  # the input's channels are common to all networks
        settings = dict(node.settings)
        if "bias" in settings:
            settings["bias"] = any(own.settings["bias"] for own in matched.values())
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
        numbering=numbering,
        differences=_differences(graphs, keys),
    )


def _check_inputs(graphs: Mapping[str, LayerGraph]) -> None:
    shapes = {task: (graph.input.features, *graph.input.space) for task, graph in graphs.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{task}: {'×'.join(map(str, shape))}" for task, shape in shapes.items())
        raise PamergeError(
            f"The networks have nothing in common: the first difference is their input ({listed}). Only networks that "
            "look at the same input can be merged."
        )


# -- keys --------------------------------------------------------------------------------------------------------------


def _keys(graphs: Mapping[str, LayerGraph]) -> _Keys:
    """Keys are small numbers, given out in the order in which new histories turn up."""
    numbers: dict[Hashable, int] = {}
    found: dict[str, dict[str, int]] = {}
    for task, graph in graphs.items():
        head = in_head(graph.nodes)
        keys: dict[str, int] = {}
        seen: Counter[Hashable] = Counter()
        for node in graph:
            inputs = [keys[name] for name in node.inputs]
            if node.op in _COMMUTATIVE and node.settings.get("args") == _SWAPPABLE and "kwargs" not in node.settings:
                inputs.sort()
            owner = task if node.name in head else None
            history = (_signature(graph, node), tuple(inputs), owner)
            # Equal layers that read the same tensor are matched in the order in which they run.
            keys[node.name] = numbers.setdefault((history, seen[history]), len(numbers))
            seen[history] += 1
        found[task] = keys
    return found


def _signature(graph: LayerGraph, node: Node) -> Hashable:
    """What a node does, apart from widths and weights."""
    settings = {key: value for key, value in node.settings.items() if key not in _NOT_GEOMETRY}
    own: Hashable = None
    if node.kind == "channelwise" and (node.channels < graph.input.features).any():
        # The input's channels are everybody's, so there is one set of parameters for them: theirs must agree.
        own = tuple((name, tuple(tensor.flatten().tolist())) for name, tensor in graph.tensors[node.name].items())
    return (node.kind, node.op, _freeze(settings), node.width, node.space, own)


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
    numbering, start = {}, inputs
    for bit, (task, graph) in enumerate(graphs.items()):
        count = 1 + max(int(node.channels.max(initial=-1)) for node in graph) - inputs
        numbering[task] = np.concatenate([np.arange(inputs), np.arange(start, start + count)])
        origins.append(np.full(count, 1 << bit, dtype=np.int64))
        start += count
    return numbering, np.concatenate(origins)


def _name(sources: Mapping[str, str], tasks: tuple[str, ...]) -> str:
    first = next(iter(sources.values()))
    return first if len(sources) == len(tasks) else f"{'+'.join(sources)}:{first}"


# -- why a match stopped -----------------------------------------------------------------------------------------------


def _differences(graphs: Mapping[str, LayerGraph], keys: _Keys) -> dict[tuple[str, str], str]:
    """For each pair of tasks, the first node of one network that the other lacks, although it has what it reads."""
    found = {}
    tasks = list(graphs)
    for i, one in enumerate(tasks):
        for other in tasks[i + 1 :]:
            reason = _first_difference(one, other, graphs, keys) or _first_difference(other, one, graphs, keys)
            found[one, other] = reason or "all hidden layers match"
    return found


def _first_difference(one: str, other: str, graphs: Mapping[str, LayerGraph], keys: _Keys) -> str | None:
    ours, theirs = set(keys[one].values()), set(keys[other].values())
    head, their_head = in_head(graphs[one].nodes), in_head(graphs[other].nodes)
    for node in graphs[one]:
        read = {keys[one][name] for name in node.inputs}
        if keys[one][node.name] in theirs or not read <= theirs or node.name in head:
            continue
        rivals = [
            rival
            for rival in graphs[other]
            if keys[other][rival.name] not in ours and read & {keys[other][name] for name in rival.inputs}
        ]
        instead = f"{_describe(rivals[0])} there" if rivals else "nothing more there"
        is_output = rivals and rivals[0].name in their_head
        return f"{one!r} has {_describe(node)}, and {other!r} has {'its output layer ' if is_output else ''}{instead}"
    return None


def _describe(node: Node) -> str:
    hidden = {"args", "kwargs", *_NOT_GEOMETRY}
    geometry = ", ".join(f"{key} {value}" for key, value in node.settings.items() if key not in hidden)
    shape = "×".join(map(str, (node.features, *node.space)))
    return f"{node.name} ({node.op}{': ' + geometry if geometry else ''}, output {shape})"
