"""The PAM scheme on networks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.architectures import ARCHITECTURES, CASES, inputs, material
from support.trained import digit_networks, digits
from torch import nn
from torch.nn import functional

import pamerge
from pamerge import PAM, Mixture, PamergeError, Separate, TaskSet, zoo
from pamerge.data import fashion_canvases
from pamerge.merging import LayerMerging, Material
from pamerge.merging.figures import groups_figure, trace_figure
from pamerge.tasks import all_subsets

DATA = Path(os.environ.get("PAMERGE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def with_labels(name: str, count: int, samples: int = 64) -> Material:
    """The architecture's networks with random multi-label targets."""
    source = material(name, count)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, *ARCHITECTURES[name].input_size, generator=generator)
    y = {task: (torch.rand(samples, 3, generator=generator) < 0.5).float() for task in source.networks}
    return Material(
        source.networks, source.graphs, source.alignment, [(x[:40], y_part(y, 0, 40)), (x[40:], y_part(y, 40, 64))]
    )


def y_part(y: dict[str, torch.Tensor], start: int, stop: int) -> dict[str, torch.Tensor]:
    return {task: labels[start:stop] for task, labels in y.items()}


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")  # 64 samples are few for the widest layers
@pytest.mark.parametrize(("name", "count"), CASES)
def test_every_architecture_can_be_regrouped(name: str, count: int) -> None:
    source, x = with_labels(name, count), inputs(name)
    for streams in ("block", "tied"):
        network = PAM(alpha=0.3, streams=streams).merge(source)
        network.check()
        outputs = network(x)
        for tasks in list(all_subsets(network.tasks))[:: max(1, 2**count // 6)]:
            for task, output in network(x, tasks=tasks).items():
                torch.testing.assert_close(output, outputs[task], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")
def test_a_trunk_is_shared_whatever_alpha_and_what_is_above_it_is_not() -> None:
    network = PAM(alpha=1.0, trunk=0.5).merge(with_labels("lenet5", 2))
    sets = [set(junction.groups) for junction in network.junctions.values() if not junction.fixed]
    both, alone = {TaskSet({"A", "B"})}, {TaskSet({"A"}), TaskSet({"B"})}
    assert sets == [both, both, alone, alone]


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")
def test_an_exclusive_share_divides_all_layers_above_the_trunk_alike() -> None:
    source = with_labels("lenet5", 2)
    network = PAM(exclusive=0.25, trunk=0.25).merge(source)
    first, *others = network.merging.layers.values()
    assert set(first.sizes) == {TaskSet("AB")}
    for layer in others:
        for task in "AB":
            assert layer.sizes[TaskSet(task)] == round(0.25 * list(layer.origins.values()).count(TaskSet(task)))
            assert layer.alpha * layer.totals[TaskSet(task)] >= layer.bits[TaskSet(task)] - 1e-9
    assert str(PAM(exclusive=0.25, alpha=-1.0).merge(source)) == str(PAM(exclusive=0.25).merge(source))
    assert str(PAM(exclusive=1.0).merge(source)) == str(Separate().merge(source))
    assert str(PAM(exclusive=0.0).merge(source)) == str(PAM(alpha=-1.0).merge(source))


def test_a_wrong_share_is_refused_even_where_a_trunk_leaves_nothing_to_share() -> None:
    with pytest.raises(PamergeError, match="exclusive=7; expected a share of the neurons, from 0 to 1"):
        PAM(exclusive=7, trunk=1.0).merge(with_labels("lenet5", 2))


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")
def test_with_an_exclusive_share_shared_neurons_without_a_partner_go_back_to_their_task() -> None:
    """Networks of different widths: the wider one has neurons that cannot be zipped."""
    source = with_labels("vgg11 and vgg16", 2)
    network = PAM(exclusive=0.25, zip=2.0).merge(source)
    network.check()
    origins = network.structure.origins
    both = network.structure.mask("AB")
    for junction in network.junctions.values():
        if not junction.fixed:
            assert all(origins[neuron] == both for neuron in junction.groups.get(TaskSet("AB"), ())), junction.name


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")
@pytest.mark.parametrize("trunk", [0.1, 0.3, 0.5, 0.7])
def test_a_residual_stream_is_in_the_trunk_as_a_whole_or_not_at_all(trunk: float) -> None:
    network = PAM(alpha=1.0, trunk=trunk).merge(with_labels("small_resnet", 2))
    widest: dict[int, int] = {}
    for junction in network.junctions.values():
        for neuron, tasks in junction.task_sets().items():
            assert widest.setdefault(neuron, len(tasks)) == len(tasks)
    assert set(widest.values()) == {1, 2}


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")
@pytest.mark.parametrize(
    ("name", "count"), [("lenet5", 2), ("small_resnet", 3), ("densenet", 2), ("vgg11 and vgg16", 2)]
)
def test_alpha_one_is_separate_and_below_zero_all_shared(name: str, count: int) -> None:
    source = with_labels(name, count)
    assert str(PAM(alpha=1.0).merge(source)) == str(Separate().merge(source))
    shared = PAM(alpha=-1.0).merge(source)
    for name, layer in shared.merging.layers.items():
        everyone = TaskSet(task for origin in layer.origins.values() for task in origin)
        assert set(layer.sizes) == {everyone}, name
    for task, original in source.networks.items():
        x = source.calibration[0][0]
        torch.testing.assert_close(shared(x)[task], original(x), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")
def test_a_tied_stream_channel_has_one_task_set_for_its_whole_stage() -> None:
    source = with_labels("small_resnet", 2)
    sets: dict[int, set[TaskSet]] = {}
    network = PAM(alpha=0.3, streams="tied").merge(source)
    for layer in network.merging.layers.values():
        for neuron, tasks in layer.task_sets.items():
            if tasks and neuron not in layer.repaired:
                sets.setdefault(neuron, set()).add(tasks)
    assert max(map(len, sets.values())) == 1


def test_exclusive_neurons_come_from_their_own_network() -> None:
    merging = merged_digits(PAM(alpha=0.05)).merging
    for name in ("fc3", "fc4"):
        assert_own_origin(merging.layers[name], at_least=0.9)


def merged_digits(scheme: PAM, **tasks: tuple[str, ...]) -> pamerge.MultitaskNetwork:
    return pamerge.merge(digit_networks(**tasks), digits(**tasks).train.loader(500), scheme)


def assert_own_origin(layer: LayerMerging, at_least: float) -> None:
    counts = layer.origin_counts()
    for task in ("A", "B"):
        origins = counts[TaskSet(task)]
        assert origins[task] >= 5
        assert origins[task] / sum(origins.values()) >= at_least, layer.name


def assert_three_phases(layer: LayerMerging) -> None:
    """Little information at first, then a rise, then saturation (the paper's appendix on α)."""
    for trace in layer.traces.values():
        bits = np.array(trace.bits) / trace.total
        tenth = len(bits) // 10
        gains = [bits[i + tenth] - bits[i] for i in range(0, len(bits) - tenth)]
        assert bits[2 * tenth] < 0.05
        assert max(gains) > 0.2
        assert bits[-1] - bits[-1 - tenth] < max(gains) / 1.5


def test_the_trace_of_a_trained_layer_has_three_phases() -> None:
    assert_three_phases(merged_digits(PAM()).merging.layers["fc4"])


def test_the_mixture_estimator_agrees_about_whose_neurons_are_exclusive() -> None:
    scheme = PAM(alpha=0.05, estimator=Mixture(samples=200), samples=200)
    assert_own_origin(merged_digits(scheme).merging.layers["fc4"], at_least=0.9)


def test_more_related_tasks_share_more_neurons() -> None:
    pairs = {
        "unrelated": {"A": ("0", "1", "2", "3", "4"), "B": ("5", "6", "7", "8", "9")},
        "half": {"A": ("0", "1", "2", "3", "4"), "B": ("3", "4", "5", "6", "7")},
        "most": {"A": ("0", "1", "2", "3", "4"), "B": ("1", "2", "3", "4", "5")},
    }
    for alpha in (0.02, 0.05, 0.1):
        shared = [merged_digits(PAM(alpha=alpha), **tasks).merging.layers["fc4"].sharing for tasks in pairs.values()]
        assert shared == sorted(shared), f"alpha={alpha}: {shared}"
        assert shared[-1] > shared[0]


def test_almost_nothing_is_exclusive_to_a_sub_task() -> None:
    tasks = {"A": ("0", "1", "2", "3", "4", "5"), "B": ("0", "1", "2")}
    for alpha in (0.01, 0.03, 0.05):
        merging = merged_digits(PAM(alpha=alpha, overlap="drop"), **tasks).merging
        for layer in merging.layers.values():
            only_b, only_a = (layer.sizes.get(TaskSet(task), 0) for task in "BA")
            assert only_b <= 0.02 * len(layer.task_sets), layer.name
            assert only_b <= only_a


def test_the_result_tells_what_went_where() -> None:
    network = merged_digits(PAM(alpha=0.05, overlap="drop"))
    layer = network.merging.layers["fc4"]
    assert {tasks: len(neurons) for tasks, neurons in network.junctions["fc4"].groups.items()} == layer.sizes
    assert sum(layer.sizes.values()) + len(layer.dropped) == 168
    assert set(layer.dropped.values()) == {"lay in several exclusive sets"}
    assert "fc4: A: " in str(network.merging)
    assert "dropped: " in str(network.merging)
    assert network.merging.alignment.matched_layers() == ["conv1", "conv2", "fc3", "fc4"]


def test_alpha_may_differ_from_layer_to_layer() -> None:
    network = merged_digits(PAM(alpha={"conv1": -1.0, "conv2": -1.0, "fc3": 1.0, "fc4": 1.0}))
    assert [len(network.junctions[name].groups) for name in ("conv1", "conv2", "fc3", "fc4")] == [1, 1, 2, 2]


def test_trying_another_alpha_reads_the_data_once() -> None:
    networks, passes = digit_networks(), []

    class Counted:
        def __iter__(self):
            passes.append(1)
            return iter(digits().train.loader(500))

    graphs = {task: pamerge.graph.capture(network, torch.zeros(1, 1, 8, 32)) for task, network in networks.items()}
    again = Material(networks, graphs, pamerge.graph.align(graphs), Counted())
    sizes = [str(PAM(alpha=alpha).merge(again).merging.layers["fc4"].sizes) for alpha in (0.01, 0.05, 0.2)]
    assert len(passes) == 1
    assert len(set(sizes)) == 3


def test_samples_limits_what_is_read() -> None:
    one = merged_digits(PAM(alpha=0.05, samples=500)).merging.layers["fc4"]
    other = pamerge.merge(digit_networks(), [next(iter(digits().train.loader(500)))], PAM(alpha=0.05)).merging.layers[
        "fc4"
    ]
    assert one.task_sets == other.task_sets


def test_tasks_may_have_different_data_sets() -> None:
    batches = list(digits().train.loader(500))
    apart = [(x, {"A": y["A"]}) for x, y in batches[:2]] + [(x, {"B": y["B"]}) for x, y in batches[2:]]
    layer = pamerge.merge(digit_networks(), apart, PAM(alpha=0.05)).merging.layers["fc4"]
    assert_own_origin(layer, at_least=0.9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": {"conv1": 0.1}}, "alpha has values for 'conv1'; expected one for each of: conv1, conv2, fc3, fc4"),
        ({"streams": "both"}, "streams='both'; expected 'block' or 'tied'"),
        ({"trunk": 1.5}, "trunk=1.5; expected a share of the layers from 0 to 1"),
        ({"samples": 1}, "samples=1; expected at least 2"),
        ({"pool": 0}, "pool=0; expected 1"),
        ({"overlap": "x"}, "overlap='x'; expected one of"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PamergeError, match=message):
        merged_digits(PAM(**options))


def test_missing_labels_are_said() -> None:
    x, y = next(iter(digits().train.loader(200)))
    with pytest.raises(PamergeError, match="the calibration data has none for 'B'"):
        pamerge.merge(digit_networks(), [(x, {"A": y["A"]})], PAM())
    with pytest.raises(PamergeError, match="A batch must be"):
        pamerge.merge(digit_networks(), [x], PAM())


def test_figures_show_traces_and_groups(tmp_path) -> None:
    merging = merged_digits(PAM(alpha=0.05)).merging
    figure = trace_figure(merging.layers["fc4"])
    assert [len(axes.lines[0].get_xdata()) for axes in figure.axes] == [168, 168]
    groups_figure(merging).savefig(tmp_path / "groups.svg")
    assert "fc4" in (tmp_path / "groups.svg").read_text()


def test_conditions_of_a_pam_network_lie_between_separate_and_all_shared() -> None:
    objectives = {"A": None, "B": None}
    data = digits().validation.loader(500)
    found = {
        name: pamerge.network_conditions(merged_digits(PAM(alpha=alpha)), data, objectives)["fc4"].pair({"A"}, {"B"})
        for name, alpha in {"separate": 1.0, "pam": 0.05, "all shared": -1.0}.items()
    }
    assert found["pam"].misplaced_a < found["separate"].misplaced_a
    assert found["pam"].private_a < found["all shared"].private_a
    assert found["all shared"].neurons == (0, 0, 168)
    assert found["separate"].private_a == 0.0


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA / "fashion-mnist").is_dir(), reason="Fashion-MNIST is not in ../shared/data or $PAMERGE_DATA"
)
def test_on_fashion_mnist_exclusive_neurons_come_from_their_own_network() -> None:
    splits = fashion_canvases(DATA / "fashion-mnist", train=4000, generator=torch.Generator().manual_seed(0))
    networks: dict[str, nn.Module] = {}
    for number, task in enumerate(splits.train.tasks):
        network = zoo.lenet5(5, splits.train.input_size, generator=torch.Generator().manual_seed(number))
        optimizer = torch.optim.Adam(network.parameters(), 2e-3)
        for _ in range(3):
            for x, y in splits.train.loader(64, shuffle=torch.Generator().manual_seed(number)):
                optimizer.zero_grad()
                functional.binary_cross_entropy_with_logits(network(x), y[task]).backward()
                optimizer.step()
        networks[task] = network.eval()
    merging = pamerge.merge(networks, splits.train.loader(500), PAM(alpha=0.05)).merging
    for name in ("fc3", "fc4"):
        assert_own_origin(merging.layers[name], at_least=0.9)
    assert_three_phases(merging.layers["fc4"])
