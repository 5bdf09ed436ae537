"""Algorithm 1 of the paper: organise the vertices of a neuron graph into layers that form a Markov chain."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from pamerge.errors import PamergeError

Node = TypeVar("Node", bound=Hashable)


def layers(successors: Mapping[Node, Collection[Node]]) -> list[frozenset[Node]]:
    """Layers of an acyclic directed graph, from the input to the output, each a function of the one before.

    The loop that the paper prints as Algorithm 1 keeps a vertex that feeds an output for ever, and lets a
    vertex enter before all of its inputs are there; it does not end on x → u → z → y with an extra u → y.
    This is its repair. With depth(v) the length of the longest path from the input to v, a hidden vertex is
    in layer i if

    - depth(v) = i, or
    - depth(v) < i and v has a successor deeper than i, which still has to read it.

    The ends are the paper's. Layer 0 is the input: all vertices that nothing feeds. The last layer is the
    output: all vertices that feed nothing. So an output counts as being as deep as the deepest one, even if
    it could be computed earlier, and what it reads is kept until then. A vertex without edges is an input and
    an output, so it is in every layer.

    Args:
        successors: The vertices that each vertex feeds; a vertex that feeds nothing may be left out.

    Returns:
        As many layers as the longest path has vertices.

    Raises:
        PamergeError: The graph has a cycle.

    >>> [sorted(layer) for layer in layers({"x": ["u"], "u": ["z", "y"], "z": ["y"]})]
    [['x'], ['u'], ['u', 'z'], ['y']]
    """
    order = _topological_order(successors)
    path = dict.fromkeys(order, 0)
    for vertex in order:
        for successor in successors.get(vertex, ()):
            path[successor] = max(path[successor], path[vertex] + 1)
    output = max(path.values(), default=-1)

    found: list[set[Node]] = [set() for _ in range(output + 1)]
    is_sink = {vertex: not successors.get(vertex) for vertex in order}
    depth = {vertex: output if is_sink[vertex] and path[vertex] > 0 else path[vertex] for vertex in order}
    for vertex in order:
        last = output if is_sink[vertex] else max(depth[successor] for successor in successors[vertex]) - 1
        for i in range(depth[vertex], last + 1):
            found[i].add(vertex)
    return [frozenset(layer) for layer in found]


def _topological_order(successors: Mapping[Node, Iterable[Node]]) -> list[Node]:
    sorter: TopologicalSorter[Node] = TopologicalSorter()
    for vertex, targets in successors.items():
        sorter.add(vertex)
        for target in targets:
            sorter.add(target, vertex)
    try:
        return list(sorter.static_order())
    except CycleError as error:
        cycle = " → ".join(map(str, error.args[1]))
        raise PamergeError(
            f"The graph cannot be organised into layers because it has a cycle: {cycle}. "
            "Expected a network without feedback loops; remove one of these edges or unroll the loop."
        ) from None
