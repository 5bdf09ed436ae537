from __future__ import annotations

import copy
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.architectures import material
from training.small import merged

import pamerge
from pamerge import PamergeError, TaskSet
from pamerge.merging import Assigned
from pamerge.pruning.freed import flops_freed, per_flop, that_free
from pamerge.pruning.ranking import balanced, cost_parts, expected_flops, lowest, resolve_mix, sharers, sharing_most

scores = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.dictionaries(st.integers(0, 9), st.floats(-5, 5), min_size=1), max_size=3
)


@given(scores, st.integers(0, 12))
def test_the_lowest_scores_are_chosen_lowest_first(scores, count):
    chosen = lowest(scores, count)
    flat = sorted(value for found in scores.values() for value in found.values())
    taken = [scores[name][n] for name, found in chosen.items() for n in found]
    assert sorted(taken) == flat[:count]
    for name, found in chosen.items():
        values = [scores[name][n] for n in found]
        assert values == sorted(values)


@given(scores, st.floats(0, 50))
def test_no_more_is_chosen_than_is_needed(scores, needed):
    freed = {name: {n: 1.0 + n for n in found} for name, found in scores.items()}
    chosen = lowest(scores, 1000, freed, needed)
    saved = [freed[name][n] for name, found in chosen.items() for n in found]
    everything = sum(value for found in freed.values() for value in found.values())
    assert sum(saved) >= min(needed, everything) - 1e-9
    assert not saved or sum(saved) - max(saved) < needed


def test_the_mix_is_uniform_over_all_combinations_by_default_and_normalised_otherwise():
    assert resolve_mix(None, "AB") == {TaskSet("A"): 1 / 3, TaskSet("B"): 1 / 3, TaskSet("AB"): 1 / 3}
    assert resolve_mix({"A": 1, ("A", "B"): 3}, "AB") == {TaskSet("A"): 0.25, TaskSet("AB"): 0.75}
    assert resolve_mix({"A+B": 2.0}, "AB") == {TaskSet("AB"): 1.0}


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({"C": 1.0}, "mix names 'C'; the tasks are A, B"),
        ({"A": -1.0, "B": 2.0}, "expected probabilities that are not negative"),
        ({"A": 0.0}, "not all zero"),
        ({"A": "often"}, "expected probabilities"),
        ({"": 1.0}, "mix names an empty set"),
        ({}, "expected probabilities of task combinations"),
        (0.5, "expected probabilities of task combinations"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(mix, message):
    with pytest.raises(PamergeError, match=message):
        resolve_mix(mix, "AB")


def network_of(name):
    if name == "chain":
        return merged()
    made_of = material(name, 2)
    return pamerge.merge(made_of.networks, made_of.calibration, pamerge.Separate())


@pytest.mark.parametrize("name", ["chain", "small_resnet", "mobilenetv2"])
def test_what_a_removal_saves_is_what_it_was_said_to_save(name):
    """Exact unless tightening takes more away with it; never more than is really saved."""
    network = network_of(name)
    mix = resolve_mix(None, network.tasks)
    before = sum(p * network.flops(t, convention="2mac") for t, p in mix.items())
    freed = flops_freed(network, mix)
    exact = total = 0
    for junction in network.junctions.values():
        for neuron in [] if junction.fixed else list(junction.task_sets())[::7]:
            other = copy.deepcopy(network)
            if other.remove({junction.name: [neuron]}).refused:
                continue
            saved = before - sum(p * other.flops(t, convention="2mac") for t, p in mix.items())
            assert freed[junction.name][neuron] <= saved * (1 + 1e-9) + 1e-6
            exact += freed[junction.name][neuron] == pytest.approx(saved)
            total += 1
    assert exact >= 0.7 * total > 3


def test_what_it_saves_when_one_task_leaves_a_neuron():
    """Exact at the first junction, whose neurons read the input whoever needs them, and up to what it loses with it."""
    made_of = material("lenet5", 2)
    network = pamerge.merge(
        made_of.networks,
        made_of.calibration,
        Assigned(lambda junction: dict.fromkeys(junction.task_sets(), ("A", "B"))),
    )
    mix = resolve_mix({"A": 0.5, "B": 0.2, "A+B": 0.3}, network.tasks)
    before = expected_flops(network, mix)
    freed = flops_freed(network, mix, "A")
    for neuron, tasks in network.junctions["conv1"].task_sets().items():
        assert str(tasks) == "A+B"
        other = copy.deepcopy(network)
        other.restrict({"conv1": {neuron: TaskSet("B")}})
        assert freed["conv1"][neuron] == pytest.approx(before - expected_flops(other, mix), rel=0.02)


@pytest.mark.parametrize("leaving", ["shape", "parts", "size"])
def test_what_it_saves_when_one_task_leaves_a_neuron_of_a_mixed_network(leaving):
    """A neuron of fewer tasks reads more, so that leaving it may even cost something."""
    network = merged()
    mix = resolve_mix(None, network.tasks)
    before = sum(p * network.flops(t, convention="2mac") for t, p in mix.items())
    freed = flops_freed(network, mix, leaving)
    seen = []
    for junction in network.junctions.values():
        for neuron, tasks in [] if junction.fixed else list(junction.task_sets().items())[::3]:
            other = copy.deepcopy(network)
            if leaving in tasks and not other.restrict({junction.name: {neuron: tasks - {leaving}}}).refused:
                saved = before - sum(p * other.flops(t, convention="2mac") for t, p in mix.items())
                seen.append(freed[junction.name][neuron] == pytest.approx(saved))
    assert sum(seen) >= 0.7 * len(seen) > 3


def test_negative_importance_per_flop_prefers_what_saves_much_too():
    found = per_flop({"a": {0: -1.0, 1: -1.0}}, {"a": {0: 10.0, 1: 30.0}})
    assert found["a"][1] < found["a"][0] < 0


def test_what_saves_nothing_is_left_alone():
    found = that_free({"a": {0: 1.0, 1: 1.0, 2: 0.0}, "b": {0: 1.0}}, {"a": {0: 2.0, 1: -1.0, 2: -1.0}, "b": {0: 0.0}})
    assert found == {"a": {0: 1.0, 2: 0.0}}  # a neuron that says nothing may go


def test_the_expected_cost_follows_the_mix():
    network = merged()
    tasks = network.tasks
    assert expected_flops(network, {TaskSet(tasks): 1.0}) == network.flops()
    half = expected_flops(network, resolve_mix({"shape": 1, "size": 1}, tasks))
    assert half == (network.flops("shape") + network.flops("size")) / 2


def test_importance_per_flop_prefers_what_saves_much():
    found = per_flop({"a": {0: 1.0, 1: 1.0}}, {"a": {0: 10.0, 1: 30.0}})
    assert found["a"][1] < found["a"][0]
    assert found["a"][0] / found["a"][1] == pytest.approx(3.0)


def test_a_subgraph_is_shared_by_as_many_tasks_as_its_operations_serve_on_average():
    source = material("lenet5", 3)
    separate = pamerge.Separate().merge(source)
    tasks = separate.tasks
    assert [sharers(separate, task, tasks) for task in tasks] == [1.0] * 3
    everyone = TaskSet(tasks)
    shared = Assigned(lambda junction: dict.fromkeys(junction.task_sets(), everyone)).merge(source)
    assert sharers(shared, tasks[0], tasks) == pytest.approx(3, rel=0.01)  # all but the heads
    assert sharers(shared, tasks[0], tasks[:2]) == pytest.approx(2, rel=0.01)


def test_who_shares_more_than_half_of_what_it_computes_with_a_task():
    source = material("lenet5", 3)
    separate = pamerge.Separate().merge(source)
    first, *others = separate.tasks
    assert sharing_most(separate, first, others) == []
    pair = TaskSet([first, others[0]])
    together = Assigned(
        lambda junction: {n: pair if tasks & pair else tasks for n, tasks in junction.task_sets().items()}
    ).merge(source)
    assert sharing_most(together, first, [first, *others]) == others[:1]
    assert sharing_most(together, others[1], [first, *others]) == []


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_parts_of_the_cost_add_up_to_it_whatever_is_shared(shared):
    network = merged(shared=shared)
    mix = resolve_mix(None, network.tasks)
    parts = cost_parts(network, mix, network.tasks)
    assert sum(parts.values()) == pytest.approx(expected_flops(network, mix))
    if shared == 0.5:  # whoever shares more has the smaller part of what it costs alone
        kept = {task: parts[task] / network.flops(task) for task in network.tasks}
        crowds = {task: sharers(network, task, network.tasks) for task in network.tasks}
        assert sorted(kept, key=kept.__getitem__) == sorted(crowds, key=crowds.__getitem__, reverse=True)
    alone = cost_parts(network, mix, ["size"])
    often = sum(share for tasks, share in mix.items() if "size" in tasks)
    assert alone == {"size": pytest.approx(often * network.flops("size"))}
    never = cost_parts(network, resolve_mix({"shape": 1}, network.tasks), ["size"])
    assert never == {"size": 0.0}


@given(scores, st.floats(0, 1))
def test_balancing_keeps_the_order_within_a_layer_and_at_zero_all_scores(scores, power):
    positive = {name: {n: abs(value) for n, value in found.items()} for name, found in scores.items()}
    found = balanced(positive, power)
    assert balanced(positive, 0.0) == positive
    for name, values in positive.items():
        order = sorted(values, key=values.__getitem__)
        assert all(found[name][low] <= found[name][high] for low, high in itertools.pairwise(order))


def test_fully_balanced_layers_have_the_same_mean():
    found = balanced({"a": {0: 1.0, 1: 3.0}, "b": {2: 0.02, 3: 0.06}, "silent": {4: 0.0}}, 1.0)
    assert found["a"][0] == pytest.approx(found["b"][2]) == pytest.approx(0.5)
    assert found["silent"] == {4: 0.0}
