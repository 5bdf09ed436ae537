"""Building an ONNX graph: nodes, small constants, and references into the one weights file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pamerge.deploy.fold import Layer
from pamerge.deploy.lower import MAX_RUNS, Operation, View, column_runs, runs, sources_of
from pamerge.deploy.weights import Place

OPSET = 18
WEIGHTS = "weights.safetensors"


class GraphWriter:
    """Collects nodes and constants; the names of inner tensors start with a dot, which no task's name holds."""

    def __init__(self, layers: Mapping[str, Layer], places: Mapping[str, Place]) -> None:
        self.layers, self.places = layers, places
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.touched: dict[str, int] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._names = 0

    def name(self) -> str:
        """A new name."""
        self._names += 1
        return f".{self._names}"

    def node(self, op: str, inputs: Sequence[str], out: str | None = None, **attributes: Any) -> str:
        """Adds a node with one output and returns the output's name."""
        out = out or self.name()
        self.nodes.append(helper.make_node(op, list(inputs), [out], **attributes))
        return out

    def constant(self, values: Any, dtype: str = "int64") -> str:
        """A small tensor that is stored in the graph itself."""
        array = np.asarray(values, dtype=dtype)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = f".c{len(self._constants)}"
            self.initializers[name] = numpy_helper.from_array(array, name)
        return self._constants[key]

    def weight(self, key: str, name: str) -> str:
        """A tensor of a block, as a reference into the weights file; its name is the same in every graph."""
        place = self.places[f"{key}.{name}"]
        short = f".w{place.number}"
        if short not in self.initializers:
            tensor = TensorProto(name=short, data_type=TensorProto.FLOAT, dims=place.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for field, value in (("location", WEIGHTS), ("offset", place.offset), ("length", place.length)):
                tensor.external_data.add(key=field, value=str(value))
            self.initializers[short] = tensor
            self.touched[short] = place.length
        return short

    def slice(self, source: str, start: int, stop: int, axis: int = 1) -> str:
        """Part of a tensor along one axis."""
        return self.node("Slice", [source, *(self.constant([value]) for value in (start, stop, axis))])

    def concat(self, sources: Sequence[str], axis: int) -> str:
        """Several tensors as one."""
        return sources[0] if len(sources) == 1 else self.node("Concat", sources, axis=axis)

    # -- tensors of layers that are one block, or several fused ------------------------------------------------------

    def weight_matrix(self, operation: Operation, inputs: int) -> str:
        """The weight of a layer; of a fused one it is put together when the graph is loaded, with zero blocks."""
        rows = []
        for part in operation.parts:
            weight = self.weight(part.key, "weight")
            if len(operation.parts) == 1:  # reads the whole input in its own order
                return weight
            shape = self.layers[part.key].tensors["weight"].shape
            found = []
            for start, stop in column_runs(part.columns, inputs):
                if start < 0:
                    found.append(self.node("ConstantOfShape", [self.constant([shape[0], stop, *shape[2:]])]))
                else:
                    whole = (start, stop) == (0, shape[1])
                    found.append(weight if whole else self.slice(weight, start, stop))
            rows.append(self.concat(found, axis=1))
        return self.concat(rows, axis=0)

    def stacked(self, operation: Operation, name: str) -> str:
        """A tensor with a row for each output; zeros stand in for a bias that a block lacks."""
        rows = []
        for part in operation.parts:
            tensors = self.layers[part.key].tensors
            if name in tensors:
                rows.append(self.weight(part.key, name))
            else:
                rows.append(self.node("ConstantOfShape", [self.constant([len(tensors["weight"])])]))
        return self.concat(rows, axis=0)

    def has(self, operation: Operation, name: str) -> bool:
        """Whether one of the blocks has a tensor of this name."""
        return any(name in self.layers[part.key].tensors for part in operation.parts)

    def collect(self, view: View, names: Mapping[int, str], sizes: Mapping[int, int], out: str) -> None:
        """Copies features from several tensors into one."""
        stretches = runs(view)
        if len(stretches) <= MAX_RUNS:
            parts = [
                names[tensor] if (start, stop) == (0, sizes[tensor]) else self.slice(names[tensor], start, stop)
                for tensor, start, stop in stretches
            ]
            self.node("Concat" if len(parts) > 1 else "Identity", parts, out, **({"axis": 1} if len(parts) > 1 else {}))
            return
        sources = sources_of(view)
        offsets = dict(zip(sources, np.cumsum([0, *(sizes[source] for source in sources)]), strict=False))
        index = np.concatenate([np.arange(start, stop) + offsets[tensor] for tensor, start, stop in stretches])
        joined = self.concat([names[source] for source in sources], axis=1)
        self.node("Gather", [joined, self.constant(index, "int32")], out, axis=1)
