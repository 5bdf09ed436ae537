"""Which layers of several networks belong together, and what the result says about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.merged import expect_conformity, with_lively_weights
from torch import Tensor, nn
from torch.nn import functional

import pamerge
from pamerge.errors import PamergeError
from pamerge.graph import Alignment, align, capture

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))


def chain(*layers: nn.Module, features: int, outputs: int = 2) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, outputs))


def convs(*widths: int, outputs: int = 2) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, width in zip((3, *widths), widths, strict=False):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
    return chain(*layers, features=widths[-1], outputs=outputs)


def aligned(**networks: nn.Module) -> Alignment:
    return align({task: capture(network.eval(), IMAGES) for task, network in networks.items()})


# -- what matches ----------------------------------------------------------------------------------------------------


def test_networks_that_differ_in_width_and_in_their_number_of_outputs_match() -> None:
    alignment = aligned(A=convs(4, 6, outputs=2), B=convs(5, 3, outputs=7))
    assert alignment.matched_layers() == ["0", "2"]
    assert len(alignment.nodes["2"].channels) == 9
    assert alignment.differences == {("A", "B"): "all hidden layers match"}
    assert [name for name in alignment.nodes if ":" in name] == ["A:6", "B:6"]


def test_a_deeper_network_matches_until_the_other_one_ends() -> None:
    alignment = aligned(short=convs(4, 6), long=convs(4, 6, 5))
    assert alignment.matched_layers() == ["0", "2"]
    (reason,) = alignment.differences.values()
    assert reason == (
        "'short' has 4 (aten.adaptive_avg_pool2d.default, output 6×1×1), and 'long' has 4 (conv: kernel [3, 3], "
        "stride [1, 1], padding [1, 1], dilation [1, 1], output 5×8×8) there"
    )


def test_the_output_layer_of_one_network_does_not_match_a_hidden_layer_of_another() -> None:
    one = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, 2))
    other = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    alignment = aligned(one=one, other=other)
    assert alignment.matched_layers() == []
    assert alignment.differences["one", "other"] == (
        "'one' has 1 (linear, output 5), and 'other' has its output layer 1 (linear, output 2) there"
    )


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 5, padding=2), "kernel [3, 3]"),
        (nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, stride=2), "stride [2, 2]"),
        (nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3), "output 4×6×6"),
        (nn.Conv2d(4, 4, 3, padding=2), nn.Conv2d(4, 4, 3, padding=2, dilation=2), "dilation [2, 2]"),
        (nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, groups=4), "depthwise"),
        (nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 4, 1), "conv_transpose"),
        (nn.BatchNorm2d(4), nn.BatchNorm2d(4, eps=1e-3), "eps 0.001"),
        (nn.BatchNorm2d(4), nn.InstanceNorm2d(4), "instance_norm"),
        (nn.ReLU(), nn.LeakyReLU(), "aten.leaky_relu.default"),
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2), "aten.leaky_relu.default"),
        (nn.MaxPool2d(2), nn.AvgPool2d(2), "aten.avg_pool2d.default"),
    ],
)
def test_a_difference_in_kind_or_geometry_ends_the_match_and_is_named(
    one: nn.Module, other: nn.Module, says: str
) -> None:
    def network(middle: nn.Module) -> nn.Module:
        return chain(nn.Conv2d(3, 4, 1), middle, nn.Conv2d(4, 4, 1), nn.ReLU(), features=4)

    alignment = aligned(A=network(one), B=network(other))
    assert alignment.matched_layers() == ["0"]
    assert "'A' has 1 (" in alignment.differences["A", "B"]
    assert ", and 'B' has 1 (" in alignment.differences["A", "B"]
    assert says in alignment.differences["A", "B"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.Conv2d(4, 4, 1, bias=False), nn.Conv2d(4, 4, 1, bias=True)),
        (nn.BatchNorm2d(4, momentum=0.1), nn.BatchNorm2d(4, momentum=0.01)),
        (nn.Dropout(0.5), nn.Dropout(0.2)),
        (nn.ReLU(), nn.ReLU(inplace=True)),
        (nn.MaxPool2d(2), nn.MaxPool2d(2, stride=2)),
        (nn.PReLU(4), nn.PReLU(1)),
    ],
)
def test_differences_that_do_not_matter_do_not_end_the_match(one: nn.Module, other: nn.Module) -> None:
    def network(middle: nn.Module) -> nn.Module:
        return chain(nn.Conv2d(3, 4, 1), middle, nn.Conv2d(4, 4, 1), nn.ReLU(), features=4)

    networks = with_lively_weights({"A": network(one), "B": network(other)})
    source = expect_conformity(networks, IMAGES)
    assert source.alignment.differences == {("A", "B"): "all hidden layers match"}


def test_two_spellings_of_one_pooling_match() -> None:
    class Pooled(nn.Module):
        def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.a, self.b, self.pool = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1), pool

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.pool(self.a(x)))

    alignment = aligned(
        A=Pooled(nn.AvgPool2d(2, count_include_pad=False)),
        B=Pooled(lambda x: functional.avg_pool2d(x, (2, 2), count_include_pad=False)),
    )
    assert alignment.differences == {("A", "B"): "all hidden layers match"}


class Sum(nn.Module):
    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.stem, self.branch, self.out = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 2, 1)
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.out(self.combine(x, self.branch(x)).relu())


@pytest.mark.parametrize("combine", [torch.add, torch.mul, torch.maximum, torch.minimum])
def test_the_order_of_the_operands_of_a_sum_does_not_matter(combine: Callable) -> None:
    networks = with_lively_weights({"A": Sum(combine), "B": Sum(lambda x, y: combine(y, x))})
    source = expect_conformity(networks, IMAGES)
    assert source.alignment.differences == {("A", "B"): "all hidden layers match"}


@pytest.mark.parametrize("combine", [torch.sub, lambda x, y: torch.add(x, y, alpha=2), lambda x, y: x / (y.abs() + 1)])
def test_the_order_of_operands_matters_where_the_operation_is_not_commutative(combine: Callable) -> None:
    networks = with_lively_weights({"A": Sum(combine), "B": Sum(lambda x, y: combine(y, x))})
    source = expect_conformity(networks, IMAGES)
    assert source.alignment.differences != {("A", "B"): "all hidden layers match"}


class Parallel(nn.Module):
    """Two branches of the same kind on one tensor, of different widths."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Conv2d(3, left, 1), nn.Conv2d(3, right, 1), nn.Conv2d(left + right, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.left(x), self.right(x)], 1))


def test_equal_layers_that_read_one_tensor_match_in_the_order_in_which_they_run() -> None:
    networks = with_lively_weights({"A": Parallel(2, 3), "B": Parallel(4, 5)})
    source = expect_conformity(networks, IMAGES)
    assert source.alignment.matched_layers() == ["left", "right"]
    assert source.alignment.sources["right"] == {"A": "right", "B": "right"}
    assert len(source.alignment.nodes["left"].channels) == 6


def test_of_three_networks_two_may_match_deeper_than_the_third() -> None:
    alignment = aligned(A=convs(4, 5, 6), B=convs(5, 6, 7), C=convs(4, 5))
    assert alignment.matched_layers() == ["0", "2", "A+B:4"]
    assert alignment.matched_layers("A", "B", "C") == ["0", "2"]
    assert alignment.matched_layers("A", "C") == ["0", "2"]
    assert alignment.matched_layers("A", "B") == ["0", "2", "A+B:4"]
    assert alignment.sources["A+B:4"] == {"A": "4", "B": "4"}
    assert alignment.differences["A", "B"] == "all hidden layers match"
    assert "'A' has 4 (conv" in alignment.differences["A", "C"]
    assert "'C' has 4 (aten.adaptive_avg_pool2d" in alignment.differences["A", "C"]


def test_three_networks_that_part_one_after_the_other_conform() -> None:
    networks = with_lively_weights({"A": convs(4, 5, 6), "B": convs(5, 6, 7), "C": convs(4, 5)})
    expect_conformity(networks, IMAGES)


def test_the_match_does_not_depend_on_the_order_of_the_networks() -> None:
    networks = {"A": convs(4, 5, 6), "B": convs(5, 6, 7), "C": convs(4, 5)}
    forwards, backwards = aligned(**networks), aligned(**dict(reversed(networks.items())))
    for pair in (("A", "B"), ("A", "C"), ("B", "C")):
        assert len(forwards.matched_layers(*pair)) == len(backwards.matched_layers(*pair))


# -- channels --------------------------------------------------------------------------------------------------------


def test_the_channels_of_the_input_are_common_and_all_others_have_one_origin() -> None:
    alignment = aligned(A=convs(4), B=convs(5))
    assert alignment.nodes["input"].channels.tolist() == [0, 1, 2]
    assert alignment.origins[:3].tolist() == [0b11, 0b11, 0b11]
    assert alignment.origins[alignment.nodes["0"].channels].tolist() == [0b01] * 4 + [0b10] * 5
    assert alignment.numbering["B"][3:8].tolist() == alignment.nodes["0"].channels[4:].tolist()


# -- what the result says --------------------------------------------------------------------------------------------


def test_the_alignment_prints_how_far_the_match_went_and_why_it_stopped() -> None:
    alignment = aligned(age=convs(4, 5, 6), mood=convs(5, 6))
    assert str(alignment).splitlines() == [
        "2 network(s): age (3 hidden layers), mood (2 hidden layers)",
        "age and mood: 2 matched, up to '2'; 'age' has 4 (conv: kernel [3, 3], stride [1, 1], padding [1, 1], "
        "dilation [1, 1], output 6×8×8), and 'mood' has 4 (aten.adaptive_avg_pool2d.default, output 6×1×1) there",
    ]


def test_a_network_alone_is_aligned_with_nothing() -> None:
    alignment = aligned(A=convs(4, 5))
    assert alignment.matched_layers() == []
    assert str(alignment) == "1 network(s): A (2 hidden layers)"


def test_networks_with_different_inputs_have_nothing_in_common() -> None:
    graphs = {"A": capture(convs(4).eval(), IMAGES), "B": capture(convs(4).eval(), IMAGES[..., :6])}
    with pytest.raises(PamergeError) as caught:
        align(graphs)
    assert str(caught.value) == (
        "The networks have nothing in common: the first difference is their input (A: 3×8×8, B: 3×8×6). "
        "Only networks that look at the same input can be merged."
    )


def test_networks_with_only_their_input_in_common_stay_separate_with_a_warning() -> None:
    networks = with_lively_weights(
        {"A": chain(nn.Conv2d(3, 4, 3), nn.ReLU(), features=4), "B": chain(nn.Conv2d(3, 4, 5), nn.ReLU(), features=4)}
    )
    with pytest.warns(pamerge.PamergeWarning) as caught:
        network = pamerge.merge(networks, [IMAGES], pamerge.Separate())
    message = str(caught[0].message)
    assert message.startswith(
        "The networks have only their input in common and stay separate: 'A' has 0 (conv: kernel [3, 3]"
    )
    assert "and 'B' has 0 (conv: kernel [5, 5]" in message
    assert all(len(group) == 1 for j in network.junctions.values() if not j.fixed for group in j.groups)
