"""The ONNX graph of a subset of tasks, with named inputs and outputs and a batch of any size."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto, helper

from pamerge.deploy.fold import Layer
from pamerge.deploy.graph import OPSET, GraphWriter
from pamerge.deploy.lower import Lowered
from pamerge.deploy.operators import emit
from pamerge.deploy.weights import Place

IR_VERSION = 9
INPUT = "input"
NUMBER_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}


def write_graph(
    lowered: Lowered,
    layers: Mapping[str, Layer],
    places: Mapping[str, Place],
    outputs: Mapping[str, tuple[tuple[int, ...], str]],
) -> tuple[bytes, int]:
    """The graph of a subset, and the bytes of weights that it touches.

    Args:
        lowered: the operations.
        layers: the layers by key.
        places: where their tensors stand in the weights file.
        outputs: for each task, the shape of its output without the batch, and its type.
    """
    writer = GraphWriter(layers, places)
    names = {0: INPUT}
    sizes = {number: shape[0] if shape else 1 for number, shape in enumerate(lowered.shapes)}
    for operation in lowered.operations:
        if operation.view is not None:
            names[operation.out] = writer.collect(operation.view, names, sizes)
        else:
            names[operation.out] = writer.name()
            shapes = [lowered.shapes[tensor] for tensor in operation.inputs]
            sources = [names[tensor] for tensor in operation.inputs]
            emit(writer, operation, sources, shapes, names[operation.out])
    for task, tensor in lowered.outputs.items():
        writer.node("Identity", [names[tensor]], task)
    graph = helper.make_graph(
        writer.nodes,
        "pamerge",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", *lowered.shapes[0]])],
        [
            helper.make_tensor_value_info(task, NUMBER_TYPES[outputs[task][1]], ["batch", *outputs[task][0]])
            for task in lowered.outputs
        ],
        list(writer.initializers.values()),
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="pamerge"
    )
    return model.SerializeToString(deterministic=True), sum(writer.touched.values())
