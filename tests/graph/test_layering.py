from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pamerge import PamergeError
from pamerge.graph.layering import layers

Graph = Mapping[int, frozenset[int]]
Layers = Sequence[frozenset[int]]


def graph(size: int, edges: set[tuple[int, int]]) -> Graph:
    return {v: frozenset(b for a, b in edges if a == v) for v in range(size)}


def predecessors(successors: Graph) -> Graph:
    return {v: frozenset(u for u in successors if v in successors[u]) for v in successors}


def sources(successors: Graph) -> frozenset[int]:
    return frozenset(v for v, inputs in predecessors(successors).items() if not inputs)


def sinks(successors: Graph) -> frozenset[int]:
    return frozenset(v for v in successors if not successors[v])


def layers_as_printed(successors: Graph, max_layers: int) -> list[frozenset[int]] | None:
    """Algorithm 1, line by line; None if it has not ended after ``max_layers`` layers."""
    output = sinks(successors)
    result = [sources(successors)]
    while (following := frozenset().union(*(successors[v] for v in result[-1]))) != output:
        if len(result) == max_layers:
            return None
        kept = frozenset(v for v in result[-1] if successors[v] & output)
        result.append(kept | (following - result[-1]))
    return [*result, output]


def each_is_a_function_of_the_one_before(successors: Graph, result: Layers) -> bool:
    inputs = predecessors(successors)
    return all(
        v in before or (bool(inputs[v]) and inputs[v] <= before)
        for before, layer in itertools.pairwise(result)
        for v in layer
    )


def longest_path(successors: Graph, v: int) -> int:
    return max((1 + longest_path(successors, u) for u in predecessors(successors)[v]), default=0)


@st.composite
def dags(draw: st.DrawFn, max_size: int = 9) -> Graph:
    size = draw(st.integers(1, max_size))
    pairs = list(itertools.combinations(draw(st.permutations(range(size))), 2))
    return graph(size, set(draw(st.lists(st.sampled_from(pairs), unique=True))) if pairs else set())


def small_dags(size: int) -> list[Graph]:
    """Every DAG with this many vertices, up to renaming."""
    pairs = list(itertools.combinations(range(size), 2))
    return [
        graph(size, set(itertools.compress(pairs, chosen)))
        for chosen in itertools.product([False, True], repeat=len(pairs))
    ]


def test_the_printed_loop_does_not_end_on_a_shortcut_to_the_output() -> None:
    x, u, z, y = range(4)
    shortcut = graph(4, {(x, u), (u, z), (z, y), (u, y)})
    assert layers_as_printed(shortcut, max_layers=1000) is None
    assert layers(shortcut) == [{x}, {u}, {u, z}, {y}]


def test_the_printed_loop_lets_a_vertex_enter_before_its_inputs_but_the_repair_does_not() -> None:
    x, a, b, c, y = range(5)
    shortcut = graph(5, {(x, a), (a, b), (b, c), (a, c), (c, y)})
    printed = layers_as_printed(shortcut, max_layers=10)
    assert printed == [{x}, {a}, {b, c}, {c, y}, {y}]
    assert not each_is_a_function_of_the_one_before(shortcut, printed)
    assert layers(shortcut) == [{x}, {a}, {a, b}, {c}, {y}]


def test_an_early_output_waits_for_the_output_layer_and_its_input_is_kept() -> None:
    x, a, b, c, early, late = range(6)
    two_heads = graph(6, {(x, a), (x, b), (a, early), (b, c), (c, late)})
    assert layers(two_heads) == [{x}, {a, b}, {a, c}, {early, late}]


@given(st.integers(2, 12))
def test_a_chain_gives_one_vertex_a_layer_as_printed(size: int) -> None:
    chain = graph(size, set(itertools.pairwise(range(size))))
    assert layers(chain) == layers_as_printed(chain, max_layers=size) == [{v} for v in range(size)]


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_fully_connected_layers_are_found_as_printed(widths: list[int]) -> None:
    ends = [0, *itertools.accumulate(widths)]
    true = [frozenset(range(a, b)) for a, b in itertools.pairwise(ends)]
    edges = {edge for a, b in itertools.pairwise(true) for edge in itertools.product(a, b)}
    network = graph(ends[-1], edges)
    assert layers(network) == layers_as_printed(network, max_layers=9) == true


@given(dags())
def test_each_layer_is_a_function_of_the_one_before(successors: Graph) -> None:
    assert each_is_a_function_of_the_one_before(successors, layers(successors))


@given(dags())
def test_the_first_layer_is_the_input_and_the_last_the_output(successors: Graph) -> None:
    found = layers(successors)
    assert found[0] == sources(successors)
    assert found[-1] == sinks(successors)
    assert len(found) == 1 + max(longest_path(successors, v) for v in successors)


@given(dags())
def test_a_layer_holds_exactly_what_the_next_one_needs(successors: Graph) -> None:
    inputs = predecessors(successors)
    for before, layer in itertools.pairwise(layers(successors)):
        assert before == frozenset().union(*({v} if v in before else inputs[v] for v in layer))


@given(dags())
def test_hidden_vertices_follow_the_formula_of_the_repair(successors: Graph) -> None:
    found = layers(successors)
    hidden = frozenset(successors) - sources(successors) - sinks(successors)
    # An output is read off at the end of the network, whatever its own longest path is.
    depth = {v: longest_path(successors, v) if successors[v] else len(found) - 1 for v in successors}
    for i, layer in enumerate(found):
        at_i = {v for v in hidden if depth[v] == i}
        kept = {v for v in hidden if depth[v] < i and any(depth[w] > i for w in successors[v])}
        assert layer & hidden == at_i | kept


@pytest.mark.parametrize(("size", "valid"), [(2, 1), (3, 3), (4, 15), (5, 109)])
def test_where_the_printed_loop_ends_with_valid_layers_the_result_is_the_same(size: int, valid: int) -> None:
    # The printed loop also puts early outputs into hidden layers, where nothing reads them; leave them out.
    compared = 0
    for successors in small_dags(size):
        printed = layers_as_printed(successors, max_layers=4 * size)
        if printed is None or not each_is_a_function_of_the_one_before(successors, printed):
            continue
        *hidden, output = printed
        assert layers(successors) == [*(layer - output for layer in hidden), output]
        compared += 1
    assert compared == valid


@given(dags(max_size=12))
def test_where_the_printed_loop_keeps_outputs_out_of_hidden_layers_it_is_equal_or_invalid(
    successors: Graph,
) -> None:
    printed = layers_as_printed(successors, max_layers=50)
    if printed is None or any(layer & printed[-1] for layer in printed[:-1]):
        return
    assert layers(successors) == printed or not each_is_a_function_of_the_one_before(successors, printed)


def test_a_vertex_without_edges_is_input_and_output_and_in_every_layer() -> None:
    assert layers({"a": ["b"], "b": ["c"], "alone": []}) == [{"a", "alone"}, {"b", "alone"}, {"c", "alone"}]
    assert layers({"alone": []}) == [{"alone"}]


def test_a_graph_without_vertices_has_no_layers() -> None:
    assert layers({}) == []


def test_a_vertex_that_feeds_nothing_may_be_left_out() -> None:
    assert layers({"x": ["y"]}) == layers({"x": ["y"], "y": []}) == [{"x"}, {"y"}]


def test_a_deep_graph_needs_no_recursion() -> None:
    assert len(layers({v: [v + 1] for v in range(5000)})) == 5001


@pytest.mark.parametrize(
    ("successors", "cycle"),
    [({"a": ["b"], "b": ["c"], "c": ["b"]}, "(b → c → b|c → b → c)"), ({"a": ["a"]}, "a → a")],
)
def test_a_cycle_is_an_error_that_shows_it(successors: dict[str, list[str]], cycle: str) -> None:
    with pytest.raises(PamergeError, match=f"has a cycle: {cycle}.*without feedback loops"):
        layers(successors)
