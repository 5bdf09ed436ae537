"""The rules of the op table, one small function for each way of treating channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pamerge.graph.ops import (
    Call,
    Draft,
    Problem,
    Value,
    channelwise,
    joins_channels,
    keeps_channels,
    mixes_output,
    new_layer,
    pick,
    register_op,
)

# -- weighted layers -------------------------------------------------------------------------------------------------


def _parameter(call: Call, name: str) -> Tensor | None:
    tensor = call[name]
    if isinstance(tensor, Value):
        raise Problem(f"its {name} is computed by the network instead of being a parameter")
    return tensor  # type: ignore[no-any-return]


def _weight(call: Call) -> Tensor:
    weight = _parameter(call, "weight")
    if weight is None:
        raise Problem("it has no weight")
    return weight


def _activation(call: Call, name: str = "input") -> Value:
    value = call[name]
    if not isinstance(value, Value):
        raise Problem(f"its {name} does not depend on the network's input")
    return value


def _tuple(setting: int | Sequence[int], rank: int) -> list[int]:
    return [setting] * rank if isinstance(setting, int) else list(setting) * (rank // len(setting))


def _convolution(call: Call) -> Draft:
    value, weight, bias = _activation(call), _weight(call), _parameter(call, "bias")
    rank = len(value.space)
    padding = call["padding"] if call["padding"] is not None else 0
    settings: dict[str, Any] = {
        "kernel": list(weight.shape[2:]),
        "stride": _tuple(call["stride"] or 1, rank),
        "padding": padding if isinstance(padding, str) else _tuple(padding, rank),
        "dilation": _tuple(call["dilation"] or 1, rank),
        "bias": bias is not None,
    }
    groups = call["groups"] or 1
    if groups == 1:
        return new_layer("conv", value, weight.shape[0], call, settings, weight=weight, bias=bias)
    if groups == value.features:
        width = value.width * weight.shape[0] // groups
        return channelwise("depthwise", value, call, settings, width=width, weight=weight, bias=bias)
    raise Problem(
        f"it is a grouped convolution ({groups} groups, {value.features} input channels); "
        "only ordinary (groups=1) and depthwise (groups = input channels) convolutions are supported"
    )


def _transposed_convolution(call: Call) -> Draft:
    value, weight, bias = _activation(call), _weight(call), _parameter(call, "bias")
    if (call["groups"] or 1) != 1:
        raise Problem(f"it is a grouped transposed convolution ({call['groups']} groups); only groups=1 is supported")
    rank = len(value.space)
    settings = {
        "kernel": list(weight.shape[2:]),
        "stride": _tuple(call["stride"] or 1, rank),
        "padding": _tuple(call["padding"] or 0, rank),
        "output_padding": _tuple(call["output_padding"] or 0, rank),
        "dilation": _tuple(call["dilation"] or 1, rank),
        "bias": bias is not None,
    }
    return new_layer("conv_transpose", value, weight.shape[1], call, settings, weight=weight, bias=bias)


def _linear(call: Call) -> Draft:
    value, weight, bias = _activation(call), _weight(call), _parameter(call, "bias")
    if value.rank != 2:
        raise Problem(
            f"it is a linear layer over the last of {value.rank} dimensions; linear layers are supported on (batch, features) "
            "tensors. Write it as a 1×1 convolution over channels, or flatten first"
        )
    return new_layer("linear", value, weight.shape[0], call, {"bias": bias is not None}, weight=weight, bias=bias)


# -- layers with parameters for each channel --------------------------------------------------------------------------


def _batch_norm(call: Call) -> Draft:
    if call["training"]:
        raise Problem("it is a batch norm in training mode; call .eval() on the network first")
    if call["running_mean"] is None:
        raise Problem("it is a batch norm without running statistics (track_running_stats=False)")
    weight = _parameter(call, "weight")
    return channelwise(
        "batch_norm",
        _activation(call),
        call,
        {"eps": call["eps"], "momentum": call["momentum"], "affine": weight is not None},
        weight=weight,
        bias=_parameter(call, "bias"),
        running_mean=_parameter(call, "running_mean"),
        running_var=_parameter(call, "running_var"),
    )


def _instance_norm(call: Call) -> Draft:
    if not call["use_input_stats"]:
        raise Problem("it is an instance norm with running statistics")
    return _norm_of_each_channel(call)


def _group_norm(call: Call) -> Draft:
    value = _activation(call)
    if call["num_groups"] != value.features:
        raise Problem(
            f"it is a group norm of {call['num_groups']} groups over {value.features} channels, which mixes channels; "
            "only one group a channel is supported"
        )
    return _norm_of_each_channel(call)


def _norm_of_each_channel(call: Call) -> Draft:
    value, weight, bias = _activation(call), _parameter(call, "weight"), _parameter(call, "bias")
    if not value.space:
        raise Problem("it normalises a channel that has a single value")
    settings = {"eps": call["eps"], "affine": weight is not None}
    return channelwise("instance_norm", value, call, settings, weight=weight, bias=bias)


def _prelu(call: Call) -> Draft:
    value, weight = _activation(call, "self"), _weight(call)
    return channelwise("prelu", value, call, {}, weight=weight.expand(value.features).clone())


def _per_channel(constant: Tensor, value: Value) -> Tensor:
    """A constant or parameter that varies over channels at most, as one number a feature."""
    shape = (1,) * (value.rank - constant.dim()) + tuple(constant.shape)
    varies = [axis for axis, size in enumerate(shape) if size != 1]
    if len(shape) > value.rank or varies not in ([], [1]) or (varies and shape[1] != value.features):
        raise Problem(
            f"it combines a tensor of {value.features} features with a constant of shape {tuple(constant.shape)}; "
            "a constant may vary over channels only"
        )
    return constant.reshape(-1).expand(value.features).clone()


def _arithmetic(call: Call) -> Draft:
    """Add, sub, mul, div: of two activations, with a number, or with a parameter for each channel."""
    left, right = call["self"], call["other"]
    if isinstance(left, Value) and isinstance(right, Value):
        return joins_channels(call)
    value, constant = (left, right) if isinstance(left, Value) else (right, left)
    is_learned = isinstance(constant, torch.nn.Parameter)
    if not isinstance(constant, Tensor) or (constant.numel() == 1 and not is_learned):
        return keeps_channels(call)
    if value.whole:
        raise Problem("it combines the output with a constant tensor behind an operation that mixes channels")
    name = call.op.split(".")[1].rstrip("_")
    if (
        call["alpha"] not in (None, 1)
        or call["rounding_mode"] is not None
        or (value is right and name in ("sub", "div"))
    ):
        raise Problem("this form of arithmetic with a constant tensor is not supported")
    numbers = _per_channel(constant, value)
    op = {"mul": "scale", "div": "scale", "add": "shift", "sub": "shift"}[name]
    numbers = 1 / numbers if name == "div" else -numbers if name == "sub" else numbers
    return channelwise(op, value, call, {"learned": is_learned}, weight=numbers)


# -- reshapes, pieces, reductions -------------------------------------------------------------------------------------


def _same_value(call: Call) -> Value:
    """Operations that give their input back: contiguous, clone, detach."""
    return _activation(call, next(iter(call.arguments)))


def _reshape(call: Call) -> Draft:
    """Flatten, view, squeeze, unsqueeze: channels stay apart iff each still owns whole slices of dimension 1."""
    value = _activation(call, "self")
    shape = call.shape
    numbers = math.prod((value.features, *value.space))
    if len(shape) < 1 or math.prod(shape[1:]) != numbers:
        raise Problem(f"it moves the batch dimension (result {shape})")
    if value.whole:
        return Draft(
            "whole", "reshape", [value], shape[1] if len(shape) > 1 else 1, shape[2:], count=1,
            settings={"shape": list(shape[1:])}, whole=True,
        )  # fmt: skip
    count = len(value.channels)
    if len(shape) < 2 or shape[1] % count:
        if count == 1:
            raise Problem("it splits a single channel")
        raise Problem(
            f"it reshapes {count} channels to {shape[1:]}, which does not keep channels apart "
            "(channel shuffles and reshapes for attention are not supported)"
        )
    width = shape[1] // count
    return Draft(
        "keeps", "reshape", [value], width, shape[2:], channels=value.channels, settings={"width": width, "space": list(shape[2:])}
    )  # fmt: skip


def _expand(call: Call) -> Draft:
    value = _activation(call, "self")
    if call.shape[1:2] != (value.features,) or len(call.shape) != value.rank or value.whole:
        raise Problem(f"it expands {value.features} features to a tensor of shape {call.shape}")
    return Draft(
        "keeps", "expand", [value], value.width, call.shape[2:], channels=value.channels, settings={"space": list(call.shape[2:])}
    )  # fmt: skip


def _reduce(call: Call) -> Draft:
    """Mean, sum, max over dimensions: over space it keeps channels apart."""
    value = _activation(call, "self")
    axes = call["dim"]
    axes = [axes] if isinstance(axes, int) else list(axes or [])
    axes = [axis % value.rank for axis in axes]
    if value.whole or not axes or 1 in axes:
        return mixes_output(call)
    if 0 in axes:
        raise Problem("it reduces over the batch")
    return keeps_channels(call)


def _softmax(call: Call) -> Draft:
    value = _activation(call, "self")
    if not value.whole and call["dim"] % value.rank >= 2:
        return keeps_channels(call)
    return mixes_output(call)


def _pad(call: Call) -> Draft:
    value = _activation(call, "self")
    pads = list(call["pad"])
    if len(pads) > 2 * len(value.space) and any(pads[2 * len(value.space) :]):
        raise Problem("it pads the channels; only padding over space is supported")
    return keeps_channels(call)


def _concat(call: Call) -> Draft:
    values = list(call["tensors"])
    if not all(isinstance(value, Value) for value in values):
        raise Problem("it concatenates a constant")
    if any(value.whole for value in values):
        return mixes_output(call)
    first = values[0]
    if (call["dim"] or 0) % first.rank != 1:
        if (call["dim"] or 0) % first.rank == 0:
            raise Problem("it concatenates over the batch")
        return joins_channels(call)
    if any(value.width != first.width for value in values):
        widths = ", ".join(str(value.width) for value in values)
        raise Problem(f"it concatenates tensors with different numbers of features a channel ({widths})")
    channels = np.concatenate([value.channels for value in values])
    return Draft("wire", "concat", values, first.width, call.shape[2:], channels=channels)


def _piece(value: Value, start: int, stop: int, step: int = 1) -> Draft:
    channels = pick(value, np.arange(start, stop, step))
    return Draft("wire", "slice", [value], value.width, value.space, channels=channels)


def _slice(call: Call) -> Draft | Value:
    value = _activation(call, "self")
    axis = (call["dim"] or 0) % value.rank
    if axis == 1 and not value.whole:
        start, stop, step = slice(call["start"], call["end"], call["step"] or 1).indices(value.features)
        return value if (start, stop, step) == (0, value.features, 1) else _piece(value, start, stop, step)
    if axis == 0:
        if call.shape[0] != 2:
            raise Problem("it slices the batch")
        return value
    return keeps_channels(call)


def _narrow(call: Call) -> Draft | Value:
    value, start = _activation(call, "self"), call["start"]
    if call["dim"] % value.rank == 1 and not value.whole:
        return _piece(value, start, start + call["length"])
    return keeps_channels(call)


def _split(call: Call) -> list[Draft | Value]:
    """Chunk, split, split with sizes: several results, each a plain range of channels."""
    value = _activation(call, "self")
    if (call["dim"] or 0) % value.rank != 1 or value.whole:
        raise Problem("it splits another dimension than the channels")
    stops = np.cumsum([shape[1] for shape in call.shapes])
    return [_piece(value, stop - shape[1], stop) for stop, shape in zip(stops, call.shapes, strict=True)]


def _dropout(call: Call) -> Draft:
    value = _activation(call)
    settings = {"p": call["p"], "feature": "feature" in call.op}
    return Draft("keeps", "dropout", [value], value.width, value.space, channels=value.channels, settings=settings)


def _batch_norm_in_training(call: Call) -> Draft:
    raise Problem("it is a batch norm in training mode; call .eval() on the network first")


def _register(rule: Any, names: str) -> None:
    register_op(*(f"aten.{name if '.' in name else name + '.default'}" for name in names.split()), rule=rule)


_register(_convolution, "conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding")
_register(_transposed_convolution, "conv_transpose1d conv_transpose2d.input conv_transpose3d.input")
_register(_linear, "linear")
_register(_batch_norm, "batch_norm")
_register(_batch_norm_in_training, "native_batch_norm _native_batch_norm_legit")
_register(_instance_norm, "instance_norm")
_register(_group_norm, "group_norm")
_register(_prelu, "prelu")
_register(
    _arithmetic,
    "add.Tensor sub.Tensor mul.Tensor div.Tensor add.Scalar sub.Scalar mul.Scalar div.Scalar div.Tensor_mode",
)
_register(_same_value, "contiguous clone detach alias lift_fresh_copy")
_register(
    _reshape,
    "view reshape _unsafe_view flatten.using_ints squeeze squeeze.dim squeeze.dims unsqueeze unflatten.int",
)
_register(_expand, "expand expand_as")
_register(
    _reduce,
    "mean.dim sum.dim_IntList amax amin argmax logsumexp linalg_vector_norm norm.ScalarOpt_dim var.correction",
)
_register(_softmax, "softmax.int log_softmax.int")
_register(_pad, "pad constant_pad_nd")
_register(_concat, "cat concat")
_register(_slice, "slice.Tensor")
_register(_narrow, "narrow")
_register(_split, "chunk split.Tensor split_with_sizes split.sizes")
_register(_dropout, "dropout feature_dropout")
_register(joins_channels, "maximum minimum")
_register(
    keeps_channels,
    "relu relu6 leaky_relu elu celu selu gelu silu mish sigmoid tanh hardtanh hardsigmoid hardswish softplus softsign "
    "log_sigmoid hardshrink softshrink tanhshrink threshold exp log log1p sqrt rsqrt abs neg square reciprocal sin cos erf "
    "clamp clamp_min clamp_max pow.Tensor_Scalar rsub.Scalar sign floor ceil round "
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool2d "
    "upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_linear1d.vec upsample_bilinear2d.vec "
    "upsample_bicubic2d.vec upsample_trilinear3d.vec upsample_nearest2d upsample_bilinear2d",
)
