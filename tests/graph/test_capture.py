"""What a captured network computes is what the network computes, however its forward is written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.merged import EXACT, all_shared, expect_conformity, expect_originals, material_of, with_lively_weights
from torch import Tensor, nn
from torch.nn import functional

import pamerge
from pamerge import MultitaskNetwork, Separate
from pamerge.graph import capture

IMAGES = torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(3))


class Network(nn.Module):
    """A convolution, a function of the network and the activation, and a convolution that pools to an output."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 2, 1)
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x))).mean((2, 3))


def expect_captured(network: nn.Module, x: Tensor = IMAGES) -> MultitaskNetwork:
    """The network alone, merged with nothing, computes the same."""
    networks = with_lively_weights({"A": network})
    merged = Separate().merge(material_of(networks, x))
    expect_originals(merged, networks, x)
    return merged


# -- in place ----------------------------------------------------------------------------------------------------------


def _relu_then_read(net: Any, x: Tensor) -> Tensor:
    x.relu_()
    return x


def _read_before_and_after(net: Any, x: Tensor) -> Tensor:
    before = x * 2
    x.relu_()
    return before - x


def _through_dropout(net: Any, x: Tensor) -> Tensor:
    y = functional.dropout(x, 0.5, False)  # in eval mode y is x itself
    y.relu_()
    return x + y


def _of_a_copy(net: Any, x: Tensor) -> Tensor:
    return x - x.clone().relu_()


def _of_a_view_whose_base_is_not_read(net: Any, x: Tensor) -> Tensor:
    y = x.flatten(2)
    y.relu_()
    return y.unflatten(2, (6, 6))


def _sum_in_place(net: Any, x: Tensor) -> Tensor:
    y = functional.relu(x)
    y += x
    y.mul_(0.5).add_(y)
    return y


def _of_a_slice_of_a_copy(net: Any, x: Tensor) -> Tensor:
    y = x.clone()
    z = y[:, :2]
    z.relu_()
    return torch.cat([z, x[:, 2:]], 1)


@pytest.mark.parametrize(
    "function",
    [
        _relu_then_read,
        _read_before_and_after,
        _through_dropout,
        _of_a_copy,
        _of_a_view_whose_base_is_not_read,
        _sum_in_place,
        _of_a_slice_of_a_copy,
    ],
)
def test_operations_in_place_are_seen_by_every_later_reader(function: Callable) -> None:
    expect_captured(Network(function))


class NormalisesInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5).mul_(2.0)
        return self.out(self.conv(x).relu_())


def test_networks_may_change_their_input_in_place_and_the_merged_one_leaves_it_alone() -> None:
    networks = with_lively_weights({"A": NormalisesInPlace(), "B": NormalisesInPlace()})
    images = IMAGES.clone()
    network = pamerge.merge(networks, [images], Separate())
    expect_originals(network, networks, images)
    assert torch.equal(images, IMAGES)


def test_a_network_in_double_precision_is_captured_in_it() -> None:
    network = Network(
        lambda net, x: x * net.gamma + torch.arange(4)[:, None, None], gamma=nn.Parameter(torch.ones(4, 1, 1))
    )
    merged = expect_captured(network.double(), IMAGES.double())
    assert {tensor.dtype for tensor in merged.state_dict().values()} == {torch.float64}


# -- constants and parameters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scale",
    [
        lambda net, x: x * net.gamma[:, None, None],
        lambda net, x: net.gamma.view(1, -1, 1, 1) * x,
        lambda net, x: x.mul_(net.gamma.reshape(4, 1, 1)),
        lambda net, x: x / net.gamma.sigmoid()[None, :, None, None],
        lambda net, x: x + net.gamma[:, None, None],
        lambda net, x: x - net.gamma[:, None, None],
        lambda net, x: x * net.gamma.mean(),
        lambda net, x: x * net.gamma[0],
    ],
)
def test_a_parameter_for_each_channel_stays_learned_however_it_is_spelled(scale: Callable) -> None:
    merged = expect_captured(Network(scale, gamma=nn.Parameter(torch.ones(4))))
    learned = [name for name, _ in merged.named_parameters()]
    assert len(learned) == 5, learned  # two convolutions with biases, and gamma


def test_a_buffer_stays_a_buffer() -> None:
    merged = expect_captured(
        Network(lambda net, x: x * net.table + net.number, table=torch.rand(4, 1, 1), number=torch.tensor(2.0))
    )
    assert len(list(merged.parameters())) == 4
    assert [name.rpartition(".")[2] for name, _ in merged.named_buffers()] == ["weight"]


def test_weights_that_are_computed_from_parameters_are_ordinary_weights() -> None:
    class Standardised(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            return self._conv_forward(x, weight / weight.flatten(1).std(1).view(-1, 1, 1, 1), self.bias)

    expect_captured(nn.Sequential(Standardised(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)))
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 2, 1))
    expect_captured(nn.Sequential(nn.Conv2d(3, 4, 1), normed, nn.ReLU()))


def test_layers_may_use_different_slices_of_one_parameter() -> None:
    class Slices(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.out = nn.Parameter(torch.zeros(6, 3, 1, 1)), nn.Conv2d(6, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            fine = functional.conv2d(x, self.weight[::2])
            coarse = functional.conv2d(functional.avg_pool2d(x, 2), self.weight[1::2])
            return self.out(torch.cat([fine, functional.interpolate(coarse, scale_factor=2)], 1))

    expect_captured(Slices())


def test_a_single_prelu_slope_becomes_one_slope_a_channel() -> None:
    merged = expect_captured(Network(lambda net, x: net.act(net.act(x)), act=nn.PReLU()))
    slopes = [block.weight for block in merged.blocks.values() if isinstance(block, nn.PReLU)]
    assert [tuple(slope.shape) for slope in slopes] == [(4,), (4,)]


def test_a_batch_norm_with_a_bias_but_no_weight_is_captured() -> None:
    expect_captured(
        Network(
            lambda net, x: functional.batch_norm(x, net.mean, net.var, bias=net.shift),
            mean=torch.rand(4),
            var=torch.rand(4) + 1,
            shift=torch.rand(4),
        )
    )


def test_the_bare_network_is_left_as_it_was() -> None:
    network = Network(lambda net, x: x.relu_()).eval()
    before, images = copy.deepcopy(network.state_dict()), IMAGES.clone()
    capture(network, images)
    assert torch.equal(images, IMAGES)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())


# -- ways of writing a forward -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        lambda net, x: x * functional.relu6(x + 3) / 6,
        lambda net, x: x * (x + 3).clamp(0, 6).div(6.0),
        lambda net, x: x * torch.sigmoid(1.702 * x),
        lambda net, x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x**3))),
        lambda net, x: torch.where(x > 0, x, 0.1 * x),
        lambda net, x: functional.softsign(x) + functional.tanhshrink(x),
        lambda net, x: (x - 0.5) / torch.tensor(2.0) - 1,
        lambda net, x: torch.add(x, x.exp(), alpha=-0.3),
        lambda net, x: functional.lp_pool2d(x, 2, 2),
        lambda net, x: 2 / (1 + torch.exp(-x)),
    ],
)
def test_activations_spelled_as_arithmetic_are_captured(spelling: Callable) -> None:
    expect_captured(Network(spelling))


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: functional.avg_pool2d(x, kernel_size=2, ceil_mode=True, count_include_pad=False),
        lambda x: functional.max_pool2d(x, 3, padding=1, stride=1),
        lambda x: x.clamp(max=0.2),
        lambda x: x.clamp(min=-0.2),
        lambda x: torch.sum(x, dim=(2, 3), keepdim=True),
        lambda x: torch.mean(input=x, dim=[-1, -2], keepdim=True),
        lambda x: torch.var(x, dim=2, unbiased=False, keepdim=True),
        lambda x: torch.std(x, (2, 3), correction=0, keepdim=True),
        lambda x: x.flatten(start_dim=2, end_dim=-1).softmax(dim=-1).unflatten(-1, (6, 6)),
        lambda x: functional.leaky_relu(x, negative_slope=0.3),
        lambda x: functional.softplus(x, beta=2, threshold=3),
        lambda x: functional.gelu(x, approximate="tanh"),
        lambda x: functional.pad(x, pad=(1, 1), value=0.3),
        lambda x: functional.interpolate(x, size=(3, 9), mode="bilinear", align_corners=False),
        lambda x: torch.div(x, 2, rounding_mode=None),
        lambda x: torch.add(x, 2, alpha=3),
        lambda x: torch.add(x, torch.tensor(2), alpha=3),
        lambda x: torch.sub(x, x.relu(), alpha=0.5),
        lambda x: torch.sub(torch.tensor(1.0), x),
        lambda x: torch.tensor([[1.5]]) * x,
        lambda x: x.mul(other=2),
    ],
)
def test_arguments_may_be_given_by_position_by_name_or_not_at_all(spelling: Callable) -> None:
    expect_captured(Network(lambda net, x: spelling(x)))


@pytest.mark.parametrize(
    "piece",
    [slice(-3, None), slice(None, 100), slice(1, 3), slice(None, None, 3), slice(-100, 2), slice(1, -1), slice(3, 4)],
    ids=str,
)
def test_slices_of_channels_pick_what_python_picks(piece: slice) -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(len(range(4)[piece]), 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x)[:, piece, 1:100:2, -4:])

    merged = expect_captured(Sliced())
    assert merged.structure.nodes["first"].channels.tolist() == [3 + i for i in range(4)[piece]], "the rest is dropped"


def test_parts_that_the_output_does_not_need_may_be_anything() -> None:
    def with_unused(net: Any, x: Tensor) -> Tensor:
        net.unused = torch.linalg.svdvals(x)
        return x.max(dim=2, keepdim=True)[0]

    expect_captured(Network(with_unused))


def test_gradients_may_be_switched_off_inside_a_forward() -> None:
    def frozen(net: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            return x.tanh()

    expect_captured(Network(frozen))


@pytest.mark.parametrize("behind", [lambda y: y.squeeze(1), lambda y: 100 * y.squeeze(1).sigmoid(), lambda y: y[:, 0]])
def test_a_regression_may_return_one_number_a_sample(behind: Callable) -> None:
    class Regression(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 1), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return behind(self.fc(self.conv(x).mean((2, 3))))

    expect_conformity(with_lively_weights({"A": Regression(), "B": Regression()}), IMAGES)


def test_an_expected_value_over_classes_is_captured() -> None:
    class Age(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 1), nn.Linear(4, 7)
            self.register_buffer("years", torch.arange(7))

        def forward(self, x: Tensor) -> Tensor:
            return (self.fc(self.conv(x).mean((2, 3))).softmax(1) * self.years).sum(1)

    expect_conformity(with_lively_weights({"A": Age(), "B": Age()}), IMAGES)


def test_a_detection_head_may_move_its_channels() -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fine, self.coarse = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1), nn.Conv2d(4, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x).relu()
            found = [self.fine(x), self.coarse(functional.max_pool2d(x, 2))]
            return torch.cat([y.permute(0, 2, 3, 1).contiguous().view(len(x), -1, 3) for y in found], 1)

    expect_conformity(with_lively_weights({"A": Detector(), "B": Detector()}), IMAGES)


def test_the_batch_size_of_the_example_does_not_matter() -> None:
    network = Network(lambda net, x: x.view(x.shape[0], 4, 6, 6)).eval()
    assert str(capture(network, IMAGES[:1])) == str(capture(network, IMAGES))


def test_a_network_that_works_on_other_image_sizes_still_does_when_merged() -> None:
    class AnySize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            x = x * x.mean((2, 3)).view(len(x), 4, 1, 1)
            return self.out(x).view(len(x), 2, -1).amax(2)

    network = AnySize().eval()
    merged = Separate().merge(material_of({"A": network}, IMAGES))
    larger = torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(merged(larger)["A"], network(larger), **EXACT)


def test_nodes_know_their_module_their_line_and_their_shape() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), Network(lambda net, x: x.relu()))
    network[1].first = nn.Conv2d(4, 4, 1)
    graph = capture(network.eval(), IMAGES)
    assert [node.name for node in graph] == ["input", "0", "1.first", "1", "1.last", "1#2"]
    assert [node.kind for node in graph] == ["input", "weighted", "weighted", "keeps", "weighted", "keeps"]
    assert [node.path for node in graph][2:] == ["1.first", "1", "1.last", "1"]
    assert (graph.nodes["1#2"].features, graph.nodes["1#2"].space) == (2, ())
    where, _, line = graph.nodes["1"].line.rpartition(":")
    assert where.endswith("test_capture.py")
    assert int(line) == Network.forward.__code__.co_firstlineno + 1
    assert [reader.name for reader in graph.consumers()["1.first"]] == ["1"]
    assert graph.output == "1#2"


def test_channels_that_are_added_to_each_other_are_one_and_the_same() -> None:
    network = Network(lambda net, x: x + net.branch(x.relu()), branch=nn.Conv2d(4, 4, 1))
    graph = capture(network.eval(), IMAGES)
    first, branch, last = (graph.nodes[name].channels.tolist() for name in ("first", "branch", "last"))
    assert first == branch == [3, 4, 5, 6]
    assert last == [7, 8]


def test_shared_networks_see_both_networks_through_a_captured_forward() -> None:
    networks = with_lively_weights({task: Network(_read_before_and_after) for task in ("A", "B")})
    expect_originals(all_shared(material_of(networks, IMAGES)), networks, IMAGES)
