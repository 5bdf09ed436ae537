"""Functions without an entry in the table: torch's exporter translates each alone, and its nodes are taken over."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, numpy_helper
from torch import Tensor, nn

from pamerge.deploy.graph import OPSET, GraphWriter
from pamerge.deploy.lower import Shape
from pamerge.errors import PamergeError
from pamerge.graph.layer_graph import Kind, Node
from pamerge.network.blocks import make_function


class _Function(nn.Module):
    def __init__(self, node: Node) -> None:
        super().__init__()
        self.function = make_function(node)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(inputs, False)


def translate(writer: GraphWriter, node: Node, sources: Sequence[str], shapes: Sequence[Shape], out: str) -> None:
    """Adds the nodes that torch's exporter makes of one function."""
    model = _exported(node.name, node.kind, node.op, json.dumps(dict(node.settings)), tuple(shapes))
    names = {value.name: source for value, source in zip(model.graph.input, sources, strict=True)}
    names[model.graph.output[0].name] = out
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        names[tensor.name] = writer.constant(array, str(array.dtype))
    for item in model.graph.node:
        if any(attribute.HasField("g") for attribute in item.attribute) or item.domain:
            raise PamergeError(
                f"The operation {node.op} ({node.name}) has no plain form in ONNX; it cannot be exported."
            )
        attributes: dict[str, Any] = {}
        inputs = [names[name] if name else "" for name in item.input]
        outputs = [names.setdefault(name, writer.name()) for name in item.output]
        new = writer.nodes
        writer.node(item.op_type, inputs, outputs[0], **attributes)
        new[-1].attribute.extend(item.attribute)
        new[-1].output.extend(outputs[1:])


@functools.lru_cache(maxsize=256)  # an export takes a second, and pieces and subsets ask for the same ones
def _exported(name: str, kind: Kind, op: str, settings: str, shapes: tuple[Shape, ...]) -> ModelProto:
    node = Node(name, kind, op, (), np.empty(0, np.int64), 1, (), json.loads(settings))
    inputs = tuple(torch.zeros(2, *shape) for shape in shapes)
    batch = torch.export.Dim("batch")
    try:
        with _silence():
            program = torch.onnx.export(
                _Function(node),
                inputs,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes={"inputs": tuple({0: batch} for _ in inputs)},
                verbose=False,
            )
        model = program.model_proto  # type: ignore[union-attr]
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PamergeError(
            f"The operation {node.op} ({node.name}) cannot be written as ONNX: {reason}. "
            "Replace it in the original networks by one that ONNX has."
        ) from error
    found = {item.domain: item.version for item in model.opset_import}
    if found.get("", OPSET) != OPSET or model.functions:
        raise PamergeError(f"The operation {node.op} ({node.name}) needs another version of ONNX than {OPSET}.")
    return model


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The exporter reports its progress on standard output and warns about its own internals."""
    level = logging.getLogger("torch.onnx").level
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch.onnx").setLevel(level)
