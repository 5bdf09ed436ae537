"""Every operation of the op table, in a small network of its own that is merged with another one of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from support.merged import expect_conformity, with_lively_weights
from torch import Tensor, nn
from torch.nn import functional

from pamerge.graph import capture, known_ops

CONV = {0: nn.Linear, 1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SPACE = {0: (), 1: (10,), 2: (7, 6), 3: (5, 4, 4)}


class Around(nn.Module):
    """A weighted layer, a function of its outputs, another weighted layer, perhaps something behind the last one."""

    def __init__(
        self, function: Callable[[Tensor], Tensor], rank: int, behind: Callable[[Tensor], Tensor], outputs: int
    ) -> None:
        super().__init__()
        kernel = () if rank == 0 else (3,)
        self.first = CONV[rank](3, 4, *kernel)
        self.second = nn.LazyLinear(outputs)
        self.function, self.behind = function, behind

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.function(self.first(x))
        return self.behind(self.second(hidden.flatten(1)))


def nothing(x: Tensor) -> Tensor:
    return x


class Layer(nn.Module):
    """A layer with a weight that a function applies."""

    def __init__(self, weight: tuple[int, ...], function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(weight))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


# Between two weighted layers: name → (rank of space, a function or a factory of modules)
HIDDEN: dict[str, tuple[int, Callable]] = {
    "conv1d.default": (1, lambda: nn.Conv1d(4, 5, 3, stride=2)),
    "conv2d.default": (2, lambda: nn.Conv2d(4, 5, (3, 1), padding=(1, 0), dilation=(2, 1))),
    "conv3d.default": (3, lambda: nn.Conv3d(4, 5, 2, bias=False)),
    "conv1d.padding": (1, lambda: nn.Conv1d(4, 5, 4, padding="same")),
    "conv2d.padding": (2, lambda: nn.Conv2d(4, 8, 3, padding="same", groups=4)),
    "conv3d.padding": (3, lambda: nn.Conv3d(4, 5, 2, padding="valid")),
    "conv_transpose1d.default": (1, lambda: nn.ConvTranspose1d(4, 5, 3, stride=2, output_padding=1)),
    "conv_transpose2d.input": (2, lambda: nn.ConvTranspose2d(4, 5, 3, padding=1, dilation=2)),
    "conv_transpose3d.input": (3, lambda: nn.ConvTranspose3d(4, 5, 2, bias=False)),
    "linear.default": (0, lambda: nn.Linear(4, 5)),
    "batch_norm.default": (2, lambda: nn.BatchNorm2d(4)),
    "instance_norm.default": (2, lambda: nn.InstanceNorm2d(4, affine=True)),
    "group_norm.default": (2, lambda: nn.GroupNorm(4, 4)),
    "prelu.default": (2, lambda: nn.PReLU(4)),
    "add.Tensor": (2, lambda: lambda x: torch.add(x, functional.relu(x), alpha=0.5) + 1.5),
    "sub.Tensor": (2, lambda: Layer((4, 1, 1), lambda x, w: x - w)),
    "mul.Tensor": (2, lambda: Layer((4, 1, 1), lambda x, w: x * w)),
    "div.Tensor": (2, lambda: lambda x: x / (1.5 + x.sigmoid())),
    "div.Tensor_mode": (2, lambda: lambda x: torch.div(3 * x, 2, rounding_mode="trunc")),
    "maximum.default": (2, lambda: lambda x: torch.maximum(x, -0.3 * x)),
    "minimum.default": (2, lambda: lambda x: torch.minimum(x, x.mean((2, 3), keepdim=True))),
    "max.other": (2, lambda: lambda x: torch.max(x, -0.3 * x)),
    "min.other": (2, lambda: lambda x: torch.min(x, -0.3 * x)),
    "where.self": (2, lambda: lambda x: torch.where(x > 0.1, x, torch.ones_like(x))),
    "where.ScalarOther": (2, lambda: lambda x: torch.where(x <= 0.1, x, 0.5)),
    "where.ScalarSelf": (2, lambda: lambda x: torch.where(x >= 0.1, 0.5, x)),
    "gt.Scalar": (2, lambda: lambda x: x * (x > 0.1)),
    "ge.Scalar": (2, lambda: lambda x: x * (x >= 0.1)),
    "lt.Scalar": (2, lambda: lambda x: x * (x < 0.1)),
    "le.Scalar": (2, lambda: lambda x: x * (x <= 0.1)),
    "zeros_like.default": (2, lambda: lambda x: torch.maximum(x, torch.zeros_like(x))),
    "ones_like.default": (2, lambda: lambda x: torch.minimum(x, torch.ones_like(x))),
    "clone.default": (2, lambda: lambda x: x + functional.relu_(x.clone())),
    "detach.default": (2, lambda: lambda x: x.detach()),
    "to.dtype": (2, lambda: lambda x: x.float()),
    "to.device": (2, lambda: lambda x: x.to(x)),
    "type_as.default": (2, lambda: lambda x: x.type_as(x.sum(2))),
    "contiguous.default": (2, lambda: lambda x: x.transpose(2, 3).contiguous()),
    "to.dtype_layout": (2, lambda: lambda x: x.to("cpu")),
    "view.default": (2, lambda: lambda x: x * x.mean((2, 3)).view(len(x), 4, 1, 1)),
    "view_as.default": (2, lambda: lambda x: x.view_as(functional.relu(x))),
    "reshape_as.default": (2, lambda: lambda x: x.mean((2, 3)).reshape_as(x.sum((2, 3), keepdim=True))),
    "reshape.default": (2, lambda: lambda x: x[:, :, ::2].reshape(len(x), 4, -1)),
    "flatten.using_ints": (2, lambda: lambda x: x.flatten(2)),
    "squeeze.default": (2, lambda: lambda x: x.mean((2, 3), keepdim=True).squeeze()),
    "squeeze.dim": (2, lambda: lambda x: x.mean(2, keepdim=True).squeeze(2)),
    "squeeze.dims": (2, lambda: lambda x: x.mean((2, 3), keepdim=True).squeeze((2, 3))),
    "unsqueeze.default": (1, lambda: lambda x: functional.avg_pool2d(x.unsqueeze(2), (1, 2))),
    "unflatten.int": (1, lambda: lambda x: functional.avg_pool2d(x.unflatten(2, (2, 4)), 2)),
    "expand.default": (2, lambda: lambda x: x + x.mean((2, 3), keepdim=True).expand(-1, -1, 5, 4)),
    "expand_as.default": (2, lambda: lambda x: x.mean((2, 3), keepdim=True).expand_as(x) + x),
    "permute.default": (2, lambda: lambda x: x.permute(0, 1, 3, 2)[..., :2]),
    "transpose.int": (2, lambda: lambda x: x.transpose(-1, -2)[..., :2]),
    "select.int": (2, lambda: lambda x: x[:, :, 1, -1]),
    "mean.dim": (2, lambda: lambda x: x.mean((-1, -2))),
    "sum.dim_IntList": (2, lambda: lambda x: x.sum(2)),
    "amax.default": (2, lambda: lambda x: x.amax((2, 3))),
    "amin.default": (2, lambda: lambda x: x.amin((2, 3), keepdim=True)),
    "max.dim": (2, lambda: lambda x: x.max(2).values),
    "min.dim": (2, lambda: lambda x: x.min(dim=3, keepdim=True)[0]),
    "argmax.default": (2, lambda: lambda x: x * 0.1 * x.argmax(2, keepdim=True)),
    "argmin.default": (2, lambda: lambda x: x * 0.1 * x.argmin(3, keepdim=True)),
    "logsumexp.default": (2, lambda: lambda x: x.logsumexp((2, 3))),
    "linalg_vector_norm.default": (2, lambda: lambda x: torch.linalg.vector_norm(x, dim=(2, 3))),
    "std.dim": (2, lambda: lambda x: x.std((2, 3))),
    "var.dim": (2, lambda: lambda x: x.var(2)),
    "std.correction": (2, lambda: lambda x: x.std((2, 3), correction=2)),
    "var.correction": (2, lambda: lambda x: x.var((2, 3), correction=0, keepdim=True)),
    "softmax.int": (2, lambda: lambda x: x.flatten(2).softmax(-1)),
    "log_softmax.int": (2, lambda: lambda x: x.flatten(2).log_softmax(2)),
    "pad.default": (2, lambda: lambda x: functional.pad(x, (1, 0, 1, 1), mode="reflect")),
    "constant_pad_nd.default": (2, lambda: lambda x: torch.constant_pad_nd(x, (1, 2), 0.5)),
    "cat.default": (2, lambda: Layer((5, 4, 1, 1), lambda x, w: torch.cat([x, functional.conv2d(x, w)], 1))),
    "concat.default": (2, lambda: lambda x: torch.concat([x, functional.relu(x)], 3)),
    "slice.Tensor": (2, lambda: lambda x: x[:, -3:][:, ::2, 1:-1, ::2]),
    "narrow.default": (2, lambda: lambda x: x.narrow(1, 1, 2).narrow(2, 0, 3)),
    "chunk.default": (2, lambda: Layer((2, 2, 1, 1), lambda x, w: _halves(*x.chunk(2, 1), w))),
    "split.Tensor": (2, lambda: Layer((2, 2, 1, 1), lambda x, w: _halves(*x.split(2, 1), w))),
    "split_with_sizes.default": (2, lambda: lambda x: torch.split(x, [1, 3], 1)[1].split([2, 3], 2)[0]),
    "dropout.default": (2, lambda: nn.Dropout(0.4)),
    "feature_dropout.default": (2, lambda: nn.Dropout2d(0.4)),
    "max_pool1d.default": (1, lambda: nn.MaxPool1d(2)),
    "max_pool2d.default": (2, lambda: nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)),
    "max_pool3d.default": (3, lambda: nn.MaxPool3d((2, 1, 1))),
    "avg_pool1d.default": (1, lambda: nn.AvgPool1d(3, stride=1, padding=1, count_include_pad=False)),
    "avg_pool2d.default": (2, lambda: lambda x: functional.avg_pool2d(x, 2)),
    "avg_pool3d.default": (3, lambda: nn.AvgPool3d((2, 1, 1), divisor_override=3)),
    "adaptive_avg_pool1d.default": (1, lambda: nn.AdaptiveAvgPool1d(3)),
    "adaptive_avg_pool2d.default": (2, lambda: nn.AdaptiveAvgPool2d((2, None))),
    "adaptive_avg_pool3d.default": (3, lambda: nn.AdaptiveAvgPool3d(1)),
    "adaptive_max_pool1d.default": (1, lambda: nn.AdaptiveMaxPool1d(2)),
    "adaptive_max_pool2d.default": (2, lambda: nn.AdaptiveMaxPool2d(1)),
    "adaptive_max_pool3d.default": (3, lambda: nn.AdaptiveMaxPool3d(1)),
    "upsample_nearest1d.vec": (1, lambda: nn.Upsample(scale_factor=2)),
    "upsample_nearest2d.vec": (2, lambda: nn.Upsample(scale_factor=2)),
    "upsample_nearest3d.vec": (3, lambda: nn.Upsample(scale_factor=2)),
    "upsample_linear1d.vec": (1, lambda: nn.Upsample(scale_factor=2, mode="linear")),
    "upsample_bilinear2d.vec": (2, lambda: nn.Upsample((9, 8), mode="bilinear", align_corners=True)),
    "upsample_bicubic2d.vec": (2, lambda: nn.Upsample(scale_factor=2, mode="bicubic")),
    "upsample_trilinear3d.vec": (3, lambda: nn.Upsample(scale_factor=2, mode="trilinear")),
    "_upsample_nearest_exact1d.vec": (1, lambda: nn.Upsample(scale_factor=1.5, mode="nearest-exact")),
    "_upsample_nearest_exact2d.vec": (2, lambda: nn.Upsample(scale_factor=1.5, mode="nearest-exact")),
    "_upsample_nearest_exact3d.vec": (3, lambda: nn.Upsample(scale_factor=1.5, mode="nearest-exact")),
    "relu.default": (2, lambda: nn.ReLU(inplace=True)),
    "relu6.default": (2, lambda: lambda x: functional.relu6(3 * x)),
    "leaky_relu.default": (2, lambda: nn.LeakyReLU(0.2, inplace=True)),
    "elu.default": (2, lambda: nn.ELU(0.7)),
    "celu.default": (2, lambda: nn.CELU()),
    "selu.default": (2, lambda: nn.SELU()),
    "gelu.default": (2, lambda: nn.GELU(approximate="tanh")),
    "silu.default": (2, lambda: nn.SiLU(inplace=True)),
    "mish.default": (2, lambda: nn.Mish()),
    "sigmoid.default": (2, lambda: lambda x: x.sigmoid_()),
    "tanh.default": (2, lambda: nn.Tanh()),
    "hardtanh.default": (2, lambda: nn.Hardtanh(-0.5, 0.7)),
    "hardsigmoid.default": (2, lambda: nn.Hardsigmoid()),
    "hardswish.default": (2, lambda: nn.Hardswish()),
    "softplus.default": (2, lambda: nn.Softplus()),
    "log_sigmoid.default": (2, lambda: nn.LogSigmoid()),
    "hardshrink.default": (2, lambda: nn.Hardshrink()),
    "softshrink.default": (2, lambda: nn.Softshrink()),
    "threshold.default": (2, lambda: nn.Threshold(0.1, 0.3)),
    "exp.default": (2, lambda: torch.exp),
    "log.default": (2, lambda: lambda x: x.abs().add(1).log()),
    "log1p.default": (2, lambda: lambda x: x.abs().log1p()),
    "sqrt.default": (2, lambda: lambda x: (x.square() + 1).sqrt()),
    "rsqrt.default": (2, lambda: lambda x: x * torch.rsqrt(x * x + 1)),
    "abs.default": (2, lambda: torch.abs),
    "neg.default": (2, lambda: lambda x: -x),
    "square.default": (2, lambda: torch.square),
    "reciprocal.default": (2, lambda: lambda x: 1 / (x.abs() + 1)),
    "sin.default": (2, lambda: torch.sin),
    "cos.default": (2, lambda: torch.cos),
    "erf.default": (2, lambda: torch.erf),
    "clamp.default": (2, lambda: lambda x: x.clamp(-0.5, 0.5)),
    "clamp_min.default": (2, lambda: lambda x: x.clamp_min(-0.1)),
    "clamp_max.default": (2, lambda: lambda x: x.clamp_max_(0.2)),
    "pow.Tensor_Scalar": (2, lambda: lambda x: x**3),
    "rsub.Scalar": (2, lambda: lambda x: 1 - x),
    "sign.default": (2, lambda: torch.sign),
    "floor.default": (2, lambda: lambda x: (2 * x).floor()),
    "ceil.default": (2, lambda: lambda x: (2 * x).ceil()),
    "round.default": (2, lambda: lambda x: (2 * x).round()),
}
# Behind the last weighted layer, where channels may be mixed
BEHIND: dict[str, Callable[[Tensor], Tensor]] = {
    "lift_fresh_copy.default": lambda y: y * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "softmax.int": lambda y: y.softmax(1),
    "log_softmax.int": lambda y: functional.log_softmax(y, -1),
    "linalg_vector_norm.default": lambda y: functional.normalize(y),
    "expand.default": lambda y: y.softmax(1).sum(1, keepdim=True).expand(len(y), 4),
    "stack.default": lambda y: torch.stack([y, y.exp()], 1),
    "argmax.default": lambda y: y.argmax(1),
    "max.dim": lambda y: y.max(1).values,
    "select.int": lambda y: y.softmax(1)[:, 1],
    "slice.Tensor": lambda y: y.softmax(1)[:, 1:],
    "permute.default": lambda y: y.view(len(y), 2, 2).permute(0, 2, 1).flatten(1),
    "transpose.int": lambda y: y.view(len(y), 2, 2).transpose(1, 2),
    "mean.dim": lambda y: y.mean(1),
    "mul.Tensor": lambda y: (y.softmax(1) * torch.arange(4)).sum(1),
    "dropout.default": lambda y: functional.dropout(y.softmax(1), 0.3, False) * 2,
    "cat.default": lambda y: torch.cat([y.softmax(1), y], 1),
    "chunk.default": lambda y: y.softmax(1).chunk(2, 1)[1],
    "squeeze.dim": lambda y: y.softmax(1)[:, :1].squeeze(1).sigmoid(),
}


def _halves(left: Tensor, right: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([right, functional.conv2d(left, weight)], 1)


def build(case: Callable, rank: int, behind: Callable[[Tensor], Tensor] = nothing) -> dict[str, nn.Module]:
    networks = {task: Around(case(), rank, behind, outputs=4) for task in ("A", "B")}
    for network in networks.values():
        network(torch.zeros(2, 3, *SPACE[rank]))
    return with_lively_weights(networks)


def example(rank: int) -> Tensor:
    return torch.randn(2, 3, *SPACE[rank], generator=torch.Generator().manual_seed(1))


def ops_of(network: nn.Module, x: Tensor) -> Iterator[str]:
    with torch.no_grad():
        for node in torch.export.export(network.eval(), (x,), strict=False).graph.nodes:
            if node.op == "call_function":
                yield str(node.target).replace("_.", ".")


@pytest.mark.parametrize("op", HIDDEN)
def test_an_op_between_weighted_layers_keeps_channels_apart(op: str) -> None:
    rank, case = HIDDEN[op]
    networks, x = build(case, rank), example(rank)
    assert f"aten.{op}" in set(ops_of(networks["A"], x)), "the example does not use the operation"
    source = expect_conformity(networks, x, poison=False)
    assert source.alignment.matched_layers()


@pytest.mark.parametrize("op", BEHIND)
def test_an_op_behind_the_last_weighted_layer_is_kept(op: str) -> None:
    networks, x = build(lambda: nothing, 2, BEHIND[op]), example(2)
    assert f"aten.{op}" in set(ops_of(networks["A"], x)), "the example does not use the operation"
    expect_conformity(networks, x, poison=False)


def test_every_op_of_the_table_is_exercised() -> None:
    tested = {f"aten.{op}" for op in [*HIDDEN, *BEHIND]}
    assert [op for op in known_ops() if op.startswith("aten.") and op not in tested] == []


def test_the_captured_graph_of_an_example_names_every_node_and_prints_readably() -> None:
    graph = capture(build(lambda: nn.BatchNorm2d(4), 2)["A"], example(2))
    assert [node.name for node in graph] == ["input", "first", "function", "flatten", "second"]
    assert "first                            weighted     conv" in str(graph)
    assert str(graph).endswith("output: second")
