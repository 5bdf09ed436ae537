"""Blocks are ordinary modules: this makes them, and the functions between them, from a node's settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pamerge.graph.layer_graph import Node
from pamerge.graph.ops import fill_template, resolve_op
from pamerge.network.layout import BlockLayout

_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_CONV_TRANSPOSE = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_BATCH_NORM = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_INSTANCE_NORM = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}

BLOCK_OPS = {
    "conv",
    "conv_transpose",
    "linear",
    "depthwise",
    "batch_norm",
    "instance_norm",
    "prelu",
    "scale",
    "shift",
}
FUNCTION_OPS = {"reshape", "expand", "dropout"}


class ChannelScale(nn.Module):
    """Multiplies each channel by a number of its own (layer scale; division by constants)."""

    weight: Tensor

    def __init__(self, features: int, learned: bool) -> None:
        super().__init__()
        _register_weight(self, torch.ones(features), learned)

    def forward(self, x: Tensor) -> Tensor:
        """The scaled tensor."""
        return x * self.weight.view(-1, *[1] * (x.dim() - 2))


class ChannelShift(nn.Module):
    """Adds to each channel a number of its own."""

    weight: Tensor

    def __init__(self, features: int, learned: bool) -> None:
        super().__init__()
        _register_weight(self, torch.zeros(features), learned)

    def forward(self, x: Tensor) -> Tensor:
        """The shifted tensor."""
        return x + self.weight.view(-1, *[1] * (x.dim() - 2))


def _register_weight(module: nn.Module, weight: Tensor, learned: bool) -> None:
    if learned:
        module.register_parameter("weight", nn.Parameter(weight))
    else:
        module.register_buffer("weight", weight)


def make_block(layout: BlockLayout) -> nn.Module:
    """An uninitialised module (on the meta device) for a block; its tensors are put in by the caller."""
    node, settings = layout.node, layout.node.settings
    inputs, outputs = len(layout.inputs) * layout.input_width, len(layout.outputs) * node.width
    rank = len(node.space)
    with torch.device("meta"):
        match node.op:
            case "conv":
                return _CONV[rank](inputs, outputs, **_geometry(settings))
            case "depthwise":
                return _CONV[rank](inputs, outputs, groups=inputs, **_geometry(settings))
            case "conv_transpose":
                extra: dict[str, Any] = {"output_padding": tuple(settings["output_padding"])}
                return _CONV_TRANSPOSE[rank](inputs, outputs, **extra, **_geometry(settings))
            case "linear":
                return nn.Linear(inputs, outputs, bias=settings["bias"])
            case "batch_norm":
                return _BATCH_NORM[rank](
                    outputs, eps=settings["eps"], momentum=settings["momentum"], affine=settings["affine"]
                )
            case "instance_norm":
                return _INSTANCE_NORM[rank](outputs, eps=settings["eps"], affine=settings["affine"])
            case "prelu":
                return nn.PReLU(outputs)
            case "scale":
                return ChannelScale(outputs, settings["learned"])
            case "shift":
                return ChannelShift(outputs, settings["learned"])
    raise ValueError(f"no block for {node.op}")


def tensor_of(block: nn.Module, name: str) -> Tensor:
    """A parameter or buffer of a block, for those who know that it is there."""
    tensor = getattr(block, name)
    assert isinstance(tensor, Tensor)
    return tensor


def _geometry(settings: Any) -> dict[str, Any]:
    padding = settings["padding"]
    return {
        "kernel_size": tuple(settings["kernel"]),
        "stride": tuple(settings["stride"]),
        "padding": padding if isinstance(padding, str) else tuple(padding),
        "dilation": tuple(settings["dilation"]),
        "bias": settings["bias"],
    }


def make_function(node: Node) -> Callable[[Sequence[Tensor], bool], Tensor]:
    """What a node without parameters computes: ``function(inputs, training)``."""
    settings = node.settings
    if node.op == "reshape":
        if node.kind == "whole":
            whole = tuple(settings["shape"])
            return lambda inputs, training: inputs[0].reshape(len(inputs[0]), *whole)
        return _reshape(settings["from"], settings["width"], tuple(settings["space"]))
    if node.op == "expand":
        space = tuple(settings["space"])
        return lambda inputs, training: inputs[0].expand(-1, -1, *space)
    if node.op == "dropout":
        drop: Callable[..., Tensor] = torch.feature_dropout if settings["feature"] else functional.dropout
        p = settings["p"]
        return lambda inputs, training: drop(inputs[0], p, training)
    return _replay(node.op, settings["args"], settings.get("kwargs", {}))


def _reshape(old_width: int, width: int, space: tuple[int, ...]) -> Callable[[Sequence[Tensor], bool], Tensor]:
    """Gives every channel ``width`` features. A size that is left open lets images of other sizes through."""
    if not space:
        return lambda inputs, training: inputs[0].flatten(1)
    sizes = space if len(space) > 1 else (-1,)
    return lambda inputs, training: inputs[0].reshape(len(inputs[0]), inputs[0].shape[1] // old_width * width, *sizes)


def _replay(op: str, args: list[Any], kwargs: dict[str, Any]) -> Callable[[Sequence[Tensor], bool], Tensor]:
    """Calls an operation of the op table with the arguments that it had when the network was captured."""
    call = resolve_op(op)
    if args == [{"input": 0}] and not kwargs and not _returns_tuple(op):
        return lambda inputs, training: call(inputs[0])

    def replay(inputs: Sequence[Tensor], training: bool) -> Tensor:
        by_name = {name: fill_template(argument, inputs) for name, argument in kwargs.items()}
        result = call(*fill_template(args, inputs), **by_name)
        return result[0] if isinstance(result, (tuple, list)) else result  # type: ignore[no-any-return]

    return replay


def _returns_tuple(op: str) -> bool:
    returns = resolve_op(op)._schema.returns  # type: ignore[attr-defined]
    return len(returns) > 1
