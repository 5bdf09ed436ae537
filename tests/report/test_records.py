"""What a result records of networks and merges."""

from __future__ import annotations

import json

import pytest
from report.samples import merging_material
from support.architectures import material
from support.merged import at_random

from pamerge import PAM, Separate
from pamerge.experiments.describe import ALPHAS, POINTS, information_record, network_record
from pamerge.tasks import TaskSet, all_subsets


@pytest.mark.parametrize("architecture", ["lenet5", "small_resnet", "mobilenetv2"])
def test_the_costs_of_groups_add_up_to_the_cost_of_every_subset(architecture: str) -> None:
    network = at_random(material(architecture, 2))
    costs = network_record(network)["layer_flops"]
    for tasks in all_subsets(network.tasks):
        active = {
            layer: sum(flops for group, flops in groups.items() if TaskSet.parse(group) & tasks)
            for layer, groups in costs.items()
        }
        assert sum(active.values()) == network.flops(tasks)
        assert {layer: flops for layer, flops in active.items() if flops} == network.layer_flops(tasks)


def test_groups_are_those_of_the_network_without_its_input() -> None:
    network = at_random(material("lenet5", 2))
    groups = network_record(network)["groups"]
    assert list(groups) == [name for name, junction in network.junctions.items() if not junction.fixed]
    for name, sizes in groups.items():
        assert sizes == {str(tasks): len(found) for tasks, found in network.junctions[name].groups.items()}


@pytest.mark.parametrize("architecture", ["lenet5", "small_resnet"])
def test_layers_are_named_in_the_order_of_computation(architecture: str) -> None:
    network = at_random(material(architecture, 2))
    record = network_record(network)
    assert set(record["layers"]) == {*record["groups"], *record["layer_flops"]}
    for part in ("groups", "layer_flops"):
        assert [name for name in record["layers"] if name in record[part]] == list(record[part])
    if architecture == "small_resnet":
        unit = "features.stage2.unit1"
        around = [name for name in record["layers"] if name.startswith(unit)]
        assert around[-1] == unit, "a sum comes after what it adds up"


def test_a_trace_is_recorded_with_its_ends_and_few_points() -> None:
    network = PAM(alpha=0.1).merge(merging_material(2, 0))
    record = information_record(network.merging)
    for name, layer in record["layers"].items():
        for task, trace in network.merging.layers[name].traces.items():
            found = layer["traces"][task]
            assert len(found["taken"]) == len(found["bits"]) == min(POINTS, len(trace.bits))
            assert (found["taken"][0], found["taken"][-1]) == (1, len(trace.bits))
            assert found["bits"][-1] == found["total"] == pytest.approx(trace.total, rel=1e-3)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.01, 0.1, 1.0])
def test_the_groups_of_an_alpha_are_those_that_merging_with_it_gives(alpha: float) -> None:
    source = merging_material(2, 0)
    record = information_record(PAM(alpha=0.0123).merge(source).merging)
    place = record["alphas"].index(alpha)
    for name, layer in PAM(alpha=alpha).merge(source).merging.layers.items():
        found = record["layers"][name]
        claimed = {str(tasks): count for tasks, count in layer.claimed.items()}
        assert {task: counts[place] for task, counts in found["claimed"].items()} == claimed
        if not layer.repaired and not layer.dropped:
            exclusive = {task: layer.sizes.get(TaskSet({task}), 0) for task in found["exclusive"]}
            assert {task: counts[place] for task, counts in found["exclusive"].items()} == exclusive


def test_the_alpha_that_was_used_is_on_the_scale() -> None:
    record = information_record(PAM(alpha=0.0123).merge(merging_material(2, 0)).merging)
    assert record["alphas"] == sorted({*ALPHAS, 0.0123})
    assert {layer["alpha"] for layer in record["layers"].values()} == {0.0123}


def test_neurons_that_would_be_deleted_are_counted() -> None:
    record = information_record(PAM(alpha=0.1).merge(merging_material(2, 0)).merging, overlap="drop")
    layer = record["layers"]["fc3"]
    assert layer["dropped"][0] == 0
    assert layer["dropped"][-1] == sum(layer["origins"].values()) == 240


def test_a_record_is_plain_json() -> None:
    network = PAM(alpha=0.1).merge(merging_material(2, 0))
    record = network_record(network) | information_record(network.merging)
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_a_scheme_that_measures_nothing_has_no_information() -> None:
    assert information_record(Separate().merge(merging_material(2, 0)).merging) == {}
