"""What each operation of a network is in ONNX; what is not listed goes through torch's own exporter, alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pamerge.deploy.graph import GraphWriter
from pamerge.deploy.lower import Operation, Shape
from pamerge.deploy.translate import translate
from pamerge.graph.layer_graph import Node

_SIMPLE = {
    "aten.relu.default": "Relu",
    "aten.sigmoid.default": "Sigmoid",
    "aten.tanh.default": "Tanh",
    "aten.exp.default": "Exp",
    "aten.abs.default": "Abs",
    "aten.maximum.default": "Max",
    "aten.minimum.default": "Min",
}
_ARITHMETIC = {"aten.add.Tensor": "Add", "aten.mul.Tensor": "Mul", "aten.sub.Tensor": "Sub", "aten.div.Tensor": "Div"}


def emit(writer: GraphWriter, operation: Operation, sources: Sequence[str], shapes: Sequence[Shape], out: str) -> None:
    """Adds the nodes of one operation to a graph."""
    if operation.parts:
        _LAYERS[operation.node.op](writer, operation, sources[0], shapes[0], out)
    elif not _function(writer, operation.node, sources, shapes, out):
        translate(writer, operation.node, sources, shapes, out)


# -- layers ------------------------------------------------------------------------------------------------------------


def _convolution(writer: GraphWriter, operation: Operation, source: str, shape: Shape, out: str) -> None:
    settings = operation.node.settings
    is_depthwise = operation.node.op == "depthwise"
    weight = writer.stacked(operation, "weight") if is_depthwise else writer.weight_matrix(operation, shape[0])
    inputs = [source, weight, *([writer.stacked(operation, "bias")] if writer.has(operation, "bias") else [])]
    attributes: dict[str, Any] = {"group": shape[0]} if is_depthwise else {}
    writer.node("Conv", inputs, out, **attributes, **_geometry(settings, _padding(settings)))


def _transposed_convolution(writer: GraphWriter, operation: Operation, source: str, shape: Shape, out: str) -> None:
    settings, (part,) = operation.node.settings, operation.parts
    names = [name for name in ("weight", "bias") if writer.has(operation, name)]
    extra = {"output_padding": settings["output_padding"]} if any(settings["output_padding"]) else {}
    pads = [*settings["padding"], *settings["padding"]]
    inputs = [source, *(writer.weight(part.key, name) for name in names)]
    writer.node("ConvTranspose", inputs, out, **extra, **_geometry(settings, pads))


def _linear(writer: GraphWriter, operation: Operation, source: str, shape: Shape, out: str) -> None:
    inputs = [source, writer.weight_matrix(operation, shape[0])]
    if writer.has(operation, "bias"):
        inputs.append(writer.stacked(operation, "bias"))
    writer.node("Gemm", inputs, out, transB=1)


def _norm(op: str, *names: str) -> Callable[[GraphWriter, Operation, str, Shape, str], None]:
    def write(writer: GraphWriter, operation: Operation, source: str, shape: Shape, out: str) -> None:
        inputs = [source, *(writer.stacked(operation, name) for name in names)]
        writer.node(op, inputs, out, epsilon=float(operation.node.settings["eps"]))

    return write


def _for_each_channel(op: str) -> Callable[[GraphWriter, Operation, str, Shape, str], None]:
    def write(writer: GraphWriter, operation: Operation, source: str, shape: Shape, out: str) -> None:
        writer.node(op, [source, writer.stacked(operation, "weight")], out)

    return write


_LAYERS: dict[str, Callable[[GraphWriter, Operation, str, Shape, str], None]] = {
    "conv": _convolution,
    "depthwise": _convolution,
    "conv_transpose": _transposed_convolution,
    "linear": _linear,
    "batch_norm": _norm("BatchNormalization", "weight", "bias", "running_mean", "running_var"),
    "instance_norm": _norm("InstanceNormalization", "weight", "bias"),
    "prelu": _for_each_channel("PRelu"),
    "scale": _for_each_channel("Mul"),
    "shift": _for_each_channel("Add"),
}


def _padding(settings: Any) -> list[int]:
    padding = settings["padding"]
    if padding == "valid":
        padding = [0] * len(settings["kernel"])
    if padding == "same":  # torch puts the odd one at the end
        total = [d * (k - 1) for d, k in zip(settings["dilation"], settings["kernel"], strict=True)]
        return [t // 2 for t in total] + [t - t // 2 for t in total]
    return [*padding, *padding]


def _geometry(settings: Any, pads: list[int]) -> dict[str, Any]:
    """Attributes that are not ONNX's defaults; leaving the others out keeps graphs small."""
    found = {"pads": (pads, 0), "strides": (settings["stride"], 1), "dilations": (settings["dilation"], 1)}
    return {name: list(values) for name, (values, default) in found.items() if set(values) != {default}}


# -- functions ---------------------------------------------------------------------------------------------------------


def _function(writer: GraphWriter, node: Node, sources: Sequence[str], shapes: Sequence[Shape], out: str) -> bool:
    """Writes a function that ONNX has as well; False for the others."""
    op, settings = node.op, node.settings
    if settings.get("kwargs"):  # such as the alpha of a sum, which ONNX's operation does not have
        return False
    if op == "dropout":
        writer.node("Identity", sources, out)
    elif op == "reshape":
        size = settings["shape"] if node.kind == "whole" else [-1, *settings["space"]]
        if size.count(-1) == 0 and not size:
            return False
        writer.node("Reshape", [sources[0], writer.constant([0, *size])], out)
    elif op in _SIMPLE and settings["args"] == [{"input": i} for i in range(len(sources))]:
        writer.node(_SIMPLE[op], sources, out)
    elif op in _ARITHMETIC and len(settings["args"]) == 2:
        writer.node(_ARITHMETIC[op], _operands(writer, settings["args"], sources), out)
    elif op == "aten.hardtanh.default":
        given = list(settings["args"][1:])
        low, high = given + [-1.0, 1.0][len(given) :]
        writer.node("Clip", [sources[0], writer.constant(low, "float32"), writer.constant(high, "float32")], out)
    elif op in ("aten.max_pool2d.default", "aten.avg_pool2d.default"):
        return _pool(writer, node, sources[0], out)
    elif op == "aten.adaptive_avg_pool2d.default" and set(node.space) == {1}:
        writer.node("GlobalAveragePool", sources, out)
    else:
        return False
    return True


def _operands(writer: GraphWriter, arguments: Sequence[Any], sources: Sequence[str]) -> list[str]:
    return [
        sources[item["input"]] if isinstance(item, dict) else writer.constant(float(item), "float32")
        for item in arguments
    ]


def _pool(writer: GraphWriter, node: Node, source: str, out: str) -> bool:
    arguments = node.settings["args"][1:]
    if len(arguments) > 3:  # dilation, rounding up, other divisors
        return False
    defaults: list[Any] = [[], [], 0]
    kernel, stride, padding = map(_pair, [*arguments, *defaults[len(arguments) :]])
    extra: dict[str, Any] = {"pads": [*padding, *padding]} if any(padding) else {}
    is_mean = node.op == "aten.avg_pool2d.default"
    if is_mean and extra:
        extra["count_include_pad"] = 1
    op = "AveragePool" if is_mean else "MaxPool"
    writer.node(op, [source], out, kernel_shape=kernel, strides=stride or kernel, **extra)
    return True


def _pair(setting: Any) -> list[int]:
    return [setting, setting] if isinstance(setting, int) else list(setting) * (2 if len(setting) == 1 else 1)
