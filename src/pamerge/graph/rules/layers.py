"""Rules of the weighted layers: convolutions and linear layers, which mix channels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pamerge.graph.ops import Call, Draft, Problem, Value
from pamerge.graph.rules.arguments import activation, expect_rank, parameter, per_axis, weight_of


def convolution(call: Call) -> Draft:
    """A weighted layer; a depthwise convolution keeps channels apart."""
    value, weight, bias = activation(call, "input"), weight_of(call), parameter(call, "bias")
    rank = expect_rank(call, value)
    padding = call["padding"]
    settings: dict[str, Any] = {
        "kernel": list(weight.shape[2:]),
        "stride": per_axis(call["stride"], rank, 1),
        "padding": padding if isinstance(padding, str) else per_axis(padding, rank, 0),
        "dilation": per_axis(call["dilation"], rank, 1),
        "bias": bias is not None,
    }
    groups = call["groups"] or 1
    if groups == 1:
        return _weighted("conv", value, weight.shape[0], settings, weight, bias)
    if groups == value.features:
        tensors = {"weight": weight, "bias": bias}
        return Draft("channelwise", "depthwise", [value], value.channels, settings=settings, tensors=tensors)
    raise Problem(
        f"it is a grouped convolution ({groups} groups, {value.features} input channels); "
        "only ordinary (groups=1) and depthwise (groups = input channels) convolutions are supported"
    )


def transposed_convolution(call: Call) -> Draft:
    """A weighted layer."""
    value, weight, bias = activation(call, "input"), weight_of(call), parameter(call, "bias")
    if (call["groups"] or 1) != 1:
        raise Problem(f"it is a grouped transposed convolution ({call['groups']} groups); only groups=1 is supported")
    rank = expect_rank(call, value)
    settings = {
        "kernel": list(weight.shape[2:]),
        "stride": per_axis(call["stride"], rank, 1),
        "padding": per_axis(call["padding"], rank, 0),
        "output_padding": per_axis(call["output_padding"], rank, 0),
        "dilation": per_axis(call["dilation"], rank, 1),
        "bias": bias is not None,
    }
    return _weighted("conv_transpose", value, weight.shape[1], settings, weight, bias)


def linear(call: Call) -> Draft:
    """A weighted layer."""
    value, weight, bias = activation(call, "input"), weight_of(call), parameter(call, "bias")
    if value.rank != 2:
        raise Problem(
            f"it is a linear layer over the last of {value.rank} dimensions; linear layers are supported on "
            "(batch, features) tensors. Write it as a 1×1 convolution over channels, or flatten first"
        )
    return _weighted("linear", value, weight.shape[0], {"bias": bias is not None}, weight, bias)


def _weighted(
    op: str, value: Value, outputs: int, settings: dict[str, Any], weight: Tensor, bias: Tensor | None
) -> Draft:
    return Draft("weighted", op, [value], count=outputs, settings=settings, tensors={"weight": weight, "bias": bias})
