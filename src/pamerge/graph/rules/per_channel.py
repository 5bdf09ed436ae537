"""Rules of layers that have parameters of their own for each channel: norms, PReLU, arithmetic with parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pamerge.graph.ops import Call, Draft, Problem, Value, joins_channels, keeps_channels
from pamerge.graph.rules.arguments import activation, parameter, weight_of


def batch_norm(call: Call) -> Draft:
    """A layer with parameters for each channel."""
    value = activation(call, "input")
    mean, variance = parameter(call, "running_mean"), parameter(call, "running_var")
    if call["training"] or mean is None or variance is None:
        raise Problem(
            "it is a batch norm that uses the statistics of the batch; call .eval() on the network, and do not use "
            "track_running_stats=False"
        )
    settings = {"eps": call["eps"], "momentum": call["momentum"]}
    return _norm("batch_norm", call, value, settings, running_mean=mean, running_var=variance)


def instance_norm(call: Call) -> Draft:
    """A layer with parameters for each channel."""
    if not call["use_input_stats"]:
        raise Problem("it is an instance norm with running statistics; use a batch norm, the same in eval mode")
    return _norm("instance_norm", call, activation(call, "input"), {"eps": call["eps"]})


def group_norm(call: Call) -> Draft:
    """A layer with parameters for each channel, if every channel is a group of its own."""
    value = activation(call, "input")
    if call["num_groups"] != value.features or not value.space:
        raise Problem(
            f"it is a group norm of {call['num_groups']} groups over {value.features} channels, which mixes channels; "
            "only one group a channel is supported"
        )
    eps = call["eps"] if call["eps"] is not None else 1e-5
    return _norm("instance_norm", call, value, {"eps": eps})


def prelu(call: Call) -> Draft:
    """A layer with parameters for each channel; a single slope becomes one slope a channel."""
    value = activation(call)
    slopes = weight_of(call).expand(value.features).clone()
    return Draft("channelwise", "prelu", [value], value.channels, tensors={"weight": slopes})


def arithmetic(call: Call) -> Draft:
    """Arithmetic: of two activations channel by channel, with a number, or with a parameter for each channel."""
    left, right = call["self"], call["other"]
    if isinstance(left, Value) and isinstance(right, Value):
        return joins_channels(call)
    value, constant = (left, right) if isinstance(left, Value) else (right, left)
    if not isinstance(constant, Tensor):
        return keeps_channels(call)
    learned = isinstance(constant, nn.Parameter)
    if constant.numel() == 1 and not learned:
        number = {"other" if value is left else "self": constant.item()}
        return keeps_channels(replace(call, arguments={**call.arguments, **number}))
    reversed_order = value is right and call.name in ("sub", "div")
    if reversed_order or call["alpha"] not in (None, 1) or call["rounding_mode"] is not None:
        raise Problem(
            "this form of arithmetic with a parameter or constant tensor c is not supported; x + c, x - c, x * c and "
            "x / c are"
        )
    numbers = _one_a_feature(constant, value)
    if call.name in ("mul", "div"):
        op, numbers = "scale", numbers if call.name == "mul" else 1 / numbers
    else:
        op, numbers = "shift", numbers if call.name == "add" else -numbers
    tensors = {"weight": numbers}
    return Draft("channelwise", op, [value], value.channels, settings={"learned": learned}, tensors=tensors)


def _norm(op: str, call: Call, value: Value, settings: Mapping[str, Any], **statistics: Tensor) -> Draft:
    weight, bias = parameter(call, "weight"), parameter(call, "bias")
    affine = weight is not None or bias is not None
    if bias is not None and weight is None:
        weight = torch.ones_like(bias)
    tensors = {"weight": weight, "bias": bias, **statistics}
    return Draft(
        "channelwise", op, [value], value.channels, settings={**settings, "affine": affine}, tensors=tensors
    )  # fmt: skip


def _one_a_feature(constant: Tensor, value: Value) -> Tensor:
    """A constant or parameter that varies over channels at most, as one number a feature."""
    shape = (1,) * (value.rank - constant.dim()) + tuple(constant.shape)
    varies = [axis for axis, size in enumerate(shape) if size != 1]
    if len(shape) > value.rank or varies not in ([], [1]) or (varies and shape[1] != value.features):
        raise Problem(
            f"it combines a tensor of shape {value.shape} with a parameter or constant of shape "
            f"{tuple(constant.shape)}, which may vary over the channels only"
        )
    return constant.detach().reshape(-1).expand(value.features).to(value.dtype).clone()
