"""What cannot be captured says so: the operation, where it is, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pamerge
from pamerge.errors import CaptureError
from pamerge.graph import capture

IMAGE = torch.zeros(2, 3, 8, 8)


class Network(nn.Module):
    """A convolution, then a function of the network and the activation, then a convolution that pools to an output."""

    def __init__(self, function: Callable[[Network, Tensor], Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        for name, part in parts.items():
            setattr(self, name, part)
        self.last = nn.LazyConv2d(5, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x))).mean((2, 3))


def network(function: Callable[[Any, Tensor], Any], **parts: nn.Module | Tensor) -> nn.Module:
    made = Network(function, **parts).eval()
    with torch.no_grad():
        made(IMAGE)
    return made


def error_of(module: nn.Module, example: Tensor = IMAGE) -> str:
    with pytest.raises(CaptureError) as caught:
        capture(module, example)
    return str(caught.value)


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 2)


def test_an_unknown_op_is_named_with_its_module_and_source_line_and_a_way_out() -> None:
    message = error_of(network(lambda net, x: net.inner(x), inner=Inner()))
    line = Inner.forward.__code__.co_firstlineno + 1
    assert message.startswith("Cannot capture aten.cumsum.default in module 'inner' (")
    assert f"test_capture_errors.py:{line}): it is not in the op table" in message
    assert "pamerge.graph.register_op('aten.cumsum.default', rule=pamerge.graph.keeps_channels)" in message
    assert "docs/networks.md" in message


def test_a_weighted_module_that_is_called_twice_is_an_error() -> None:
    message = error_of(network(lambda net, x: net.twice(net.twice(x)), twice=nn.Conv2d(8, 8, 1)))
    assert "aten.conv2d.default in module 'twice'" in message
    assert "its weights are used twice (first in 'twice'); a weighted layer can be called only once" in message
    assert "Give each call a module of its own" in message


def test_a_weight_that_two_layers_share_is_an_error() -> None:
    one, other = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
    other.weight = one.weight
    message = error_of(network(lambda net, x: net.other(net.one(x)), one=one, other=other))
    assert "in module 'other'" in message
    assert "its weights are used twice (first in 'one')" in message


def test_a_weight_that_is_used_twice_by_functions_is_an_error_even_if_it_is_reshaped() -> None:
    weight = nn.Parameter(torch.zeros(8, 8))
    message = error_of(
        network(
            lambda net, x: functional.conv2d(functional.conv2d(x, net.w.view(8, 8, 1, 1)), net.w[:, :, None, None]),
            w=weight,
        )
    )
    assert "its weights are used twice" in message


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (
            nn.Conv2d(8, 8, 1, groups=2),
            "it is a grouped convolution (2 groups, 8 input channels); only ordinary (groups=1) and depthwise",
        ),
        (
            nn.ConvTranspose2d(8, 8, 1, groups=8),
            "it is a grouped transposed convolution (8 groups); only groups=1 is supported",
        ),
        (nn.GroupNorm(2, 8), "it is a group norm of 2 groups over 8 channels, which mixes channels"),
        (nn.InstanceNorm2d(8, track_running_stats=True), "it is an instance norm with running statistics"),
        (nn.BatchNorm2d(8, track_running_stats=False), "it is a batch norm that uses the statistics of the batch"),
        (nn.LayerNorm(8), "Cannot capture aten.layer_norm.default in module 'layer'"),
        (
            nn.Linear(8, 8),
            "it is a linear layer over the last of 4 dimensions; linear layers are supported on (batch, features)",
        ),
        (nn.ConstantPad3d((0, 0, 0, 0, 1, 1), 0.5), "this padding of channels is not supported"),
        (nn.ZeroPad3d((1, 1, 0, 0, 1, 1)), "this padding of channels is not supported"),
        (nn.PixelShuffle(2), "Cannot capture aten.pixel_shuffle.default in module 'layer'"),
    ],
)
def test_a_layer_that_mixes_or_regroups_channels_is_an_error(layer: nn.Module, reason: str) -> None:
    message = error_of(network(lambda net, x: net.layer(x), layer=layer))
    assert "in module 'layer'" in message
    assert reason in message


def added_later(x: Tensor) -> Tensor:
    y = functional.conv2d(x, torch.zeros(8, 8, 1, 1))
    both = functional.conv2d(torch.cat([x, y], 1), torch.zeros(2, 16, 1, 1))
    return torch.cat([both, functional.conv2d(x + y, torch.zeros(2, 8, 1, 1))], 1)


def twisted(net: nn.Module, x: Tensor) -> Tensor:
    y = functional.conv2d(x, torch.zeros(8, 8, 1, 1))
    return torch.cat([y, y], 1) + torch.cat([x, y], 1)


def shuffled(net: nn.Module, x: Tensor) -> Tensor:
    return x.view(len(x), 2, 4, 8, 8).transpose(1, 2).flatten(1, 2)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            shuffled,
            "mixes channels (it reshapes 8 channels to (2, 4, 8, 8))",
        ),
        (lambda net, x: x.softmax(1), "aten.softmax.int ("),
        (
            lambda net, x: functional.normalize(x),
            "mixes channels, and the weighted layer 'last' computes on the result",
        ),
        (lambda net, x: x.permute(0, 2, 3, 1), "supported only behind a network's last weighted layer"),
        (lambda net, x: x.amax(1, keepdim=True), "supported only behind a network's last weighted layer"),
        (lambda net, x: torch.cat([x, x], 1), "holds the same channel twice, as in cat([x, relu(x)])"),
        (lambda net, x: torch.cat([x, x.relu()], 1), "holds the same channel twice"),
        (lambda net, x: x[:, :4] + x[:, 4:], "holds the same channel twice"),
        (
            lambda net, x: functional.pad(x, (0, 0, 0, 0, 1, 1)),
            "it reads channels that were padded with zeros; only the sum",
        ),
        (lambda net, x: functional.pad(x, (0, 0, 0, 0, 0, 8)) + torch.cat([x, x], 1), "holds the same channel twice"),
        (twisted, "Cannot capture aten.cat.default ("),
        (lambda net, x: added_later(x), "Cannot capture concat ("),
        (lambda net, x: torch.cat([x, torch.zeros_like(x[:, :1])], 1), "holds the same channel twice"),
        (lambda net, x: torch.cat([x, torch.zeros(2, 1, 8, 8)], 1), "it concatenates a constant"),
        (lambda net, x: torch.cat([x, x], 0)[:2], "its result of shape (4, 8, 8, 8) has lost the batch dimension"),
        (lambda net, x: x.softmax(0), "it works across the samples of a batch"),
        (lambda net, x: x - x.mean(0, keepdim=True), "its result of shape (1, 8, 8, 8) has lost the batch dimension"),
        (lambda net, x: x - x.mean(), "Cannot capture aten.mean.default ("),
        (lambda net, x: x[:2], "it slices the batch"),
        (
            lambda net, x: functional.dropout(x),
            "it drops numbers at random even in eval mode; pass training=self.training",
        ),
        (lambda net, x: x[1:].expand(2, -1, -1, -1), "its result of shape (1, 8, 8, 8) has lost the batch dimension"),
        (
            lambda net, x: x.transpose(0, 1).transpose(0, 1),
            "its result of shape (8, 2, 8, 8) has lost the batch dimension",
        ),
        (lambda net, x: x.view(1, 16, 8, 8).view(2, 8, 8, 8), "has lost the batch dimension"),
        (lambda net, x: x[:, :, :2] * x.mean((2, 3)), "it combines tensors of 8 and 8 features (4 and 2 dimensions)"),
        (lambda net, x: x * x[:, :1], "it combines tensors of 8 and 1 features"),
        (lambda net, x: x + torch.rand(8, 1, 1), "Cannot capture aten.rand.default"),
        (
            lambda net, x: x + torch.arange(8.0),
            "a parameter or constant of shape (8,), which may vary over the channels only",
        ),
        (lambda net, x: x * torch.zeros(1, 8, 8, 8), "of shape (1, 8, 8, 8), which may vary over the channels only"),
        (lambda net, x: torch.maximum(x, torch.tensor(0.1)), "its argument 'other' is a parameter or constant tensor"),
        (
            lambda net, x: torch.arange(8.0)[:, None, None] - x,
            "this form of arithmetic with a parameter or constant tensor",
        ),
        (
            lambda net, x: x.double().float(),
            "it turns torch.float32 into torch.float64; a network must compute with one type",
        ),
        (lambda net, x: functional.conv2d(x, x), "its weight is computed by the network"),
        (
            lambda net, x: functional.max_pool2d(x.flatten(2), 3, 1, 1)[:, :, :, None],
            "it works on 2 spatial dimensions",
        ),
        (
            lambda net, x: functional.adaptive_max_pool2d(x, 2, return_indices=True)[1].float(),
            "only the first result of this operation",
        ),
        (lambda net, x: x[:, 8:], "it picks none of 8 features"),
        (lambda net, x: x.expand(2, 2, 8, 8, 8)[:, 0], "only space can be expanded"),
        (lambda net, x: x[:, :1].expand(-1, 4, -1, -1), "only space can be expanded"),
    ],
)
def test_a_function_that_does_not_keep_channels_apart_is_an_error(function: Callable, reason: str) -> None:
    assert reason in error_of(network(function))


def test_a_flatten_that_is_cut_through_a_channel_is_an_error() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), Slice(10), nn.Linear(10, 2)).eval()
    assert "it cuts through channels of 64 features" in error_of(net)


class Slice(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.count]


def test_tensors_of_unequal_width_cannot_be_concatenated_or_added() -> None:
    flat = "it concatenates tensors with different numbers of features a channel (64, 1)"
    assert flat in error_of(FlatAndPooled())

    class Added(FlatAndPooled):
        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.a(x).flatten(1) + self.wide(x.mean((2, 3))))

    assert "it combines tensors with 64 and 1 features a channel" in error_of(Added(64).eval())


class FlatAndPooled(nn.Module):
    def __init__(self, features: int = 65) -> None:
        super().__init__()
        self.a, self.b, self.wide = nn.Conv2d(3, 1, 1), nn.Conv2d(3, 1, 1), nn.Linear(3, 64)
        self.out = nn.Linear(features, 2)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.a(x).flatten(1), self.b(x).mean((2, 3))], 1))


def test_the_input_cannot_be_added_to_the_output_of_a_layer() -> None:
    class Shortcut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x.relu() + self.conv(x))

    message = error_of(Shortcut().eval())
    assert "it combines the network's input with the output of a layer; put a convolution before it" in message


def test_hidden_channels_cannot_be_mixed_into_the_output() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.conv(x)
            return torch.cat([self.out(hidden).softmax(1), hidden], 1)

    assert "mixes the channels of a hidden layer into the output" in error_of(Both().eval())


def test_in_place_changes_through_a_view_are_an_error_when_the_base_is_read_again() -> None:
    def through_a_view(net: nn.Module, x: Tensor) -> Tensor:
        x[:, :4].relu_()
        return x

    message = error_of(network(through_a_view))
    assert "it reads a tensor after aten.relu_.default has changed its memory through a view of it" in message
    assert "use the form that is not in place (aten.relu.default)" in message


def test_a_forward_that_changes_a_buffer_is_an_error() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.conv(x)

    net = Counting().eval()
    assert "it changes a parameter or buffer of the network" in error_of(net)


def test_training_mode_is_an_error_also_of_a_part() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    assert "in training mode (the network itself); call .eval()" in error_of(net)
    net.eval()[1].train()
    assert "in training mode (1); call .eval()" in error_of(net)


def test_a_batch_norm_function_in_training_mode_is_an_error() -> None:
    message = error_of(network(lambda net, x: functional.batch_norm(x, torch.zeros(8), torch.ones(8), training=True)))
    assert "it is a batch norm that uses the statistics of the batch" in message


@pytest.mark.parametrize(
    ("result", "kind"), [(lambda y: (y, y), "tuple"), (lambda y: {"out": y}, "dict"), (lambda y: [y], "list")]
)
def test_a_network_that_returns_something_else_than_a_tensor_is_an_error(result: Callable, kind: str) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Any:
            return result(self.conv(x))

    message = error_of(Several().eval())
    assert f"The network Several returns a {kind}; pamerge needs networks that return one tensor" in message
    assert "Wrap the network in a module that picks one" in message


def test_a_network_that_takes_several_inputs_is_an_error() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    message = error_of(Two().eval())
    assert "The network Two cannot run on an input of shape (2, 3, 8, 8)" in message
    assert "missing 1 required positional argument: 'y'" in message


def test_control_flow_that_depends_on_values_is_an_error_with_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    def choose(net: nn.Module, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    message = error_of(network(choose))
    assert "torch.export cannot trace Network (" in message
    assert f"test_capture_errors.py:{choose.__code__.co_firstlineno + 1})" in message
    assert "control flow depends on the values of tensors cannot be captured" in message
    assert capfd.readouterr() == ("", ""), "torch prints the whole program"


def test_a_network_without_a_weighted_layer_is_an_error() -> None:
    assert "The network has no weighted layer (convolution or linear)" in error_of(nn.Sequential(nn.ReLU()).eval())


def test_an_output_that_ignores_the_input_is_an_error() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Parameter(torch.zeros(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.out + 1

    assert "The network's output does not depend on its input" in error_of(Constant().eval())


def test_an_example_of_the_wrong_shape_is_an_error() -> None:
    net = network(lambda net, x: x)
    message = error_of(net, torch.zeros(2, 4, 8, 8))
    assert "The network Network cannot run on an input of shape (2, 4, 8, 8)" in message
    assert "expected input[2, 4, 8, 8] to have 3 channels" in message
    for example in (torch.zeros(3), torch.zeros(0, 3, 8, 8), "image"):
        assert "The example input must be a tensor with a batch dimension and channels" in error_of(net, example)


def test_merge_says_whose_network_cannot_be_captured() -> None:
    networks = {"age": network(lambda net, x: x), "mood": network(lambda net, x: x.cumsum(1))}
    with pytest.raises(CaptureError, match=r"^Task 'mood': Cannot capture aten\.cumsum\.default"):
        pamerge.merge(networks, [IMAGE])
