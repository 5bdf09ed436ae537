"""The multitask network as its user sees it."""

from __future__ import annotations

import copy

import pytest
import torch
from support.architectures import inputs, make_networks, material
from torch import nn

import pamerge
from pamerge import Assigned, PamergeError, Separate, TaskSet, zoo
from pamerge.network.structure import junction_names


def shared(*tasks: str) -> Assigned:
    return Assigned(lambda junction: dict.fromkeys(junction.task_sets(), tasks))


class TwoResidualBlocks(nn.Module):
    """The worked example of the design: a stream of two channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1)
        self.conv1, self.conv2 = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)
        self.conv3, self.conv4 = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)
        self.fc = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s0 = self.stem(x)
        s1 = torch.relu(s0 + self.conv2(torch.relu(self.conv1(s0))))
        s2 = torch.relu(s1 + self.conv4(torch.relu(self.conv3(s1))))
        return self.fc(s2.mean((2, 3)))


def needs_by_layer(network: pamerge.MultitaskNetwork, layer: str) -> dict[int, str]:
    structure = network.structure
    node = structure.nodes[layer]
    return {int(c): str(structure.task_set(int(n))) for c, n in zip(node.channels, structure.needs[layer], strict=True)}


def test_the_need_of_a_stream_channel_is_the_union_of_its_later_task_sets() -> None:
    networks = {task: TwoResidualBlocks().eval() for task in "AB"}

    def choose(junction: pamerge.network.Junction) -> dict[int, str]:
        return {neuron: ("AB", "A", "B")[i % 3] for i, neuron in enumerate(junction.task_sets())}

    network = pamerge.merge(networks, [torch.randn(2, 1, 6, 6)], Assigned(choose))
    first = network.junctions["stem"].groups[TaskSet("AB")][0]
    streams = [name for name, junction in network.junctions.items() if first in junction.task_sets()]
    s0, s1, s2 = streams
    network.restrict({s0: {first: TaskSet("A")}, s1: {first: TaskSet()}, s2: {first: TaskSet("B")}})
    network.check()
    assert needs_by_layer(network, "stem")[first] == "A+B"
    assert needs_by_layer(network, "conv2")[first] == "B"
    assert needs_by_layer(network, "conv4")[first] == "B"


def test_a_stream_channel_that_nothing_uses_any_more_disappears() -> None:
    network = pamerge.merge({"A": TwoResidualBlocks().eval()}, [torch.randn(2, 1, 6, 6)], Separate())
    first = network.junctions["stem"].groups[TaskSet("A")][0]
    streams = [name for name, junction in network.junctions.items() if first in junction.task_sets()]
    network.remove({name: [first] for name in streams})
    assert network.blocks["stem:A"].weight.shape == (1, 1, 3, 3)
    assert network.blocks["conv2:A"].weight.shape == (1, 3, 3, 3)
    assert network.blocks["fc:A"].weight.shape == (1, 1)


def test_a_removed_channel_leaves_flatten_and_linear_consistent() -> None:
    network = pamerge.merge({"A": zoo.lenet5(5, (1, 28, 28)).eval()}, [torch.randn(2, 1, 28, 28)], Separate())
    neurons = network.junctions["conv2"].groups[TaskSet("A")]
    network.remove({"conv2": neurons[:6]})
    assert network.blocks["conv2:A"].out_channels == 10
    assert network.blocks["fc3:A"].in_features == 10 * 7 * 7


def test_the_last_supplier_of_a_group_stays_and_the_result_says_so() -> None:
    network = Separate().merge(material("lenet5", 2))
    neurons = network.junctions["conv2"].groups[TaskSet("A")]
    change = network.remove({"conv2": neurons})
    assert change.refused == {"conv2": (neurons[-1],)}
    assert network.junctions["conv2"].groups[TaskSet("A")] == (neurons[-1],)


def test_a_block_that_no_change_touches_keeps_its_parameters() -> None:
    network = Separate().merge(material("lenet5", 2))
    before = network.blocks["conv1:A"]
    network.remove({"conv1": network.junctions["conv1"].groups[TaskSet("B")][:1]})
    assert network.blocks["conv1:A"] is before


def test_a_shared_neuron_is_computed_once() -> None:
    network = shared("A", "B").merge(material("lenet5", 2))
    calls = []
    network.blocks["conv1:A+B"].register_forward_hook(lambda *_: calls.append(1))
    network(inputs("lenet5"))
    assert calls == [1]


def test_neurons_of_tasks_that_are_off_are_not_computed() -> None:
    network = Separate().merge(material("lenet5", 2))
    for key, block in network.blocks.items():
        if network.layouts[key].group == {"B"}:
            block.register_forward_hook(lambda *_: pytest.fail("a block of B ran"))
    assert set(network(inputs("lenet5"), tasks="A")) == {"A"}


def test_what_follows_the_last_weighted_layer_is_kept() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 3, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Softmax(1),
    )
    x = torch.randn(2, 1, 8, 8)
    merged = pamerge.merge({"A": network.eval(), "B": copy.deepcopy(network)}, [x], shared("A", "B"))
    torch.testing.assert_close(merged(x)["A"], network(x))
    torch.testing.assert_close(merged(x)["A"].sum(1), torch.ones(2))


def test_dropout_works_in_training_mode_only() -> None:
    network = shared("A", "B").merge(material("vgg16", 2))
    x = inputs("vgg16")
    assert torch.equal(network(x)["A"], network(x)["A"])
    network.train()
    assert not torch.equal(network(x)["A"], network(x)["A"])


def test_a_copy_of_a_network_runs_its_own_blocks() -> None:
    network = Separate().merge(material("lenet5", 2))
    x = inputs("lenet5")
    expected = network(x)["A"]
    twin = copy.deepcopy(network)
    for parameter in twin.parameters():
        parameter.data.zero_()
    assert torch.equal(network(x)["A"], expected)
    assert not twin(x)["A"].any()


def test_the_originals_are_left_as_they_are() -> None:
    networks = make_networks("lenet5", 2)
    before = {task: copy.deepcopy(network.state_dict()) for task, network in networks.items()}
    merged = pamerge.merge(networks, [inputs("lenet5")], shared("A", "B"))
    for parameter in merged.parameters():
        parameter.data.fill_(0.5)
    for task, network in networks.items():
        assert all(torch.equal(value, before[task][key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("network", "size", "flops"),
    [
        (lambda: zoo.lenet5(5), (1, 124, 496), 106_422_711),
        (lambda: zoo.vgg16(20), (3, 72, 72), 3_112_200_684),
        (lambda: zoo.vgg16(15, fc=128), (3, 72, 72), 3_110_120_433),
    ],
)
def test_flops_of_the_paper_to_the_unit(network, size: tuple[int, ...], flops: int) -> None:
    merged = pamerge.merge({"A": network().eval()}, [torch.zeros(1, *size)], Separate())
    assert merged.flops() == flops
    assert sum(merged.layer_flops().values()) == flops
    assert set(merged.layer_flops()) == {
        node.name for node in merged.structure.nodes.values() if node.kind == "weighted"
    }


def test_flops_of_another_input_size_without_running() -> None:
    network = Separate().merge(material("resnet18", 2))
    fresh = pamerge.merge(make_networks("resnet18", 2), [torch.zeros(1, 3, 64, 64)], Separate())
    assert network.flops("A", input_size=(3, 64, 64)) == fresh.flops("A")
    assert network(torch.randn(1, 3, 64, 64))["A"].shape == (1, 3)


def test_the_number_of_parameters_is_that_of_the_originals_when_separate() -> None:
    source = material("resnet18", 2)
    network = Separate().merge(source)
    for task, original in source.networks.items():
        assert network.parameter_count(task) == sum(parameter.numel() for parameter in original.parameters())


def test_str_is_a_table_of_junctions_and_group_sizes() -> None:
    text = str(Separate().merge(material("lenet5", 2)))
    assert "2 task(s): A, B" in text
    row = next(line for line in text.splitlines() if line.startswith("conv1"))
    assert row.split()[:4] == ["conv1", "6", "6", "0"]


def test_junctions_have_readable_unique_names() -> None:
    structure = Separate().merge(material("densenet", 2)).structure
    names = list(junction_names(structure).values())
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n, x: n(x, tasks={"Z"}), r"Unknown task\(s\) 'Z'; this network has: A, B"),
        (lambda n, x: n(x, tasks=set()), "An empty set of tasks was asked for"),
        (lambda n, x: n.subnet({"A", "Z"}), r"Unknown task\(s\) 'Z'"),
        (lambda n, x: n.flops("Z"), r"Unknown task\(s\) 'Z'"),
        (lambda n, x: n.flops(convention="mac"), "expected 'paper' or '2mac'"),
        (lambda n, x: n.flops(input_size=(1, 5, 5)), "cannot run on inputs of size"),
        (lambda n, x: n(x[:, :, :20]), "The input has shape 3×1×20×112; expected batch×1×28×112"),
        (lambda n, x: n(torch.zeros(2, 3, 28, 112)), "expected batch×1×28×112"),
        (lambda n, x: n([1, 2]), "The input has shape list"),
        (lambda n, x: n.remove({"nowhere": [1]}), "'nowhere' is no junction whose .* be removed; these are: conv1"),
        (lambda n, x: n.remove({"input": [0]}), "'input' is no junction whose neurons can be removed"),
        (lambda n, x: n.remove({"conv1": [10**6]}), "Junction 'conv1' has no neuron 1000000"),
        (lambda n, x: n.restrict({"conv1": {1: TaskSet("B")}}), "serves A; it cannot be restricted to B"),
    ],
)  # fmt: skip
def test_bad_input_gets_a_clear_error_and_changes_nothing(call, message: str) -> None:
    network, x = Separate().merge(material("lenet5", 2)), inputs("lenet5")
    before = str(network)
    with pytest.raises(PamergeError, match=message):
        call(network, x)
    assert str(network) == before


def test_a_concatenated_layer_may_be_pruned_away_whole() -> None:
    class Concatenated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.fc = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.cat([self.left(x), self.right(x)], 1).mean((2, 3)))

    x = torch.randn(2, 1, 6, 6)
    original = Concatenated().eval()
    network = pamerge.merge({"A": original}, [x], Separate())
    right = network.layouts["right:A"].outputs.tolist()
    name = next(name for name, junction in network.junctions.items() if not junction.fixed)
    network.remove({name: right})
    network.check()
    assert not any(key.startswith("right") for key in network.blocks)
    expected = original.fc(torch.cat([original.left(x), 0 * original.right(x)], 1).mean((2, 3)))
    torch.testing.assert_close(network(x)["A"], expected)
