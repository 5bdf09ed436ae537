"""Building an ONNX graph: nodes, small constants, and references into the one weights file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from pamerge.deploy.fold import Layer
from pamerge.deploy.lower import Indices, Operation, View, column_runs, runs, sources_of
from pamerge.deploy.weights import Place

OPSET = 18
WEIGHTS = "weights.safetensors"
MAX_PARTS = 24  # features that lie in more parts than this are picked by an index from all their sources, joined
MAX_STRETCHES = 4  # a weight of more stretches is widened by an index


class GraphWriter:
    """Collects nodes and constants; the names of inner tensors start with a dot, which no task's name holds."""

    def __init__(self, layers: Mapping[str, Layer], places: Mapping[str, Place]) -> None:
        self.layers, self.places = layers, places
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.touched: dict[tuple[int, int], int] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._shaped: dict[str, str] = {}
        self._zeros: dict[tuple[int, ...], str] = {}
        self._picked: dict[tuple[str, int, tuple[tuple[int, int], ...]], str] = {}
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
            self.initializers[name] = _tensor(array, name)
        return self._constants[key]

    def zeros(self, shape: Sequence[int]) -> str:
        """A tensor of zeros, made when the graph is loaded."""
        key = tuple(shape)
        if key not in self._zeros:
            self._zeros[key] = self.node("ConstantOfShape", [self.constant(key)])
        return self._zeros[key]

    def weight(self, key: str, name: str) -> str:
        """A tensor of a block, by reference into the weights file; the reference's name is the same in every graph."""
        place = self.places[f"{key}.{name}"]
        self.touched[place.number, place.piece] = place.own_bytes
        stored = f".w{place.number}"
        if stored not in self.initializers:
            tensor = TensorProto(name=stored, data_type=TensorProto.FLOAT, dims=place.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for field, value in (("location", WEIGHTS), ("offset", place.offset), ("length", place.length)):
                tensor.external_data.add(key=field, value=str(value))
            self.initializers[stored] = tensor
            if place.sizes:
                pieces = [f"{stored}.{i}" for i in range(len(place.sizes))]
                self.nodes.append(helper.make_node("Split", [stored, self.constant(place.sizes)], pieces))
        if not place.sizes:
            return stored
        piece, shape = f"{stored}.{place.piece}", self.layers[key].tensors[name].shape
        if len(shape) == 1:
            return piece
        if piece not in self._shaped:
            self._shaped[piece] = self.node("Reshape", [piece, self.constant(shape)])
        return self._shaped[piece]

    def pick(self, source: str, stretches: Sequence[tuple[int, int]], axis: int = 1) -> list[str]:
        """Parts of a tensor along one axis, as ``(start, stop)``: all in one copy by an index if that is small."""
        return [self._picked_once(source, batch, axis) for batch in _batches(stretches)]

    def _picked_once(self, source: str, stretches: tuple[tuple[int, int], ...], axis: int) -> str:
        key = (source, axis, stretches)
        if key not in self._picked:
            if len(stretches) == 1:
                places = [self.constant([value]) for value in (*stretches[0], axis)]
                self._picked[key] = self.node("Slice", [source, *places])
            else:
                index = np.concatenate([np.arange(start, stop) for start, stop in stretches])
                self._picked[key] = self.node("Gather", [source, self.constant(index, "int32")], axis=axis)
        return self._picked[key]

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
            rows.append(self._widened(weight, self.layers[part.key].tensors["weight"].shape, part.columns, inputs))
        return self.concat(rows, axis=0)

    def _widened(self, weight: str, shape: Sequence[int], columns: Indices, inputs: int) -> str:
        """A weight with its columns where they belong among those of a larger one, and zeros elsewhere."""
        stretches = column_runs(columns, inputs)
        if len(stretches) > MAX_STRETCHES and _index_is_small(inputs, len(stretches)):
            index = np.full(inputs, shape[1])
            index[columns] = np.arange(shape[1])
            with_zeros = self.concat([weight, self.zeros([shape[0], 1, *shape[2:]])], axis=1)
            return self.node("Gather", [with_zeros, self.constant(index, "int32")], axis=1)
        found = []
        for start, stop in stretches:
            if start < 0:
                found.append(self.zeros([shape[0], stop, *shape[2:]]))
            else:
                found.extend([weight] if (start, stop) == (0, shape[1]) else self.pick(weight, [(start, stop)]))
        return self.concat(found, axis=1)

    def stacked(self, operation: Operation, name: str) -> str:
        """A tensor with a row for each output; zeros stand in for a bias that a block lacks."""
        rows = []
        for part in operation.parts:
            tensors = self.layers[part.key].tensors
            if name in tensors:
                rows.append(self.weight(part.key, name))
            else:
                rows.append(self.zeros([len(tensors["weight"])]))
        return self.concat(rows, axis=0)

    def has(self, operation: Operation, name: str) -> bool:
        """Whether one of the blocks has a tensor of this name."""
        return any(name in self.layers[part.key].tensors for part in operation.parts)

    def collect(self, view: View, names: Mapping[int, str], sizes: Mapping[int, int]) -> str:
        """Copies features from several tensors into one."""
        pieces = [
            (names[tensor], sizes[tensor], [(start, stop) for _, start, stop in found])
            for tensor, found in groupby(runs(view), key=lambda stretch: stretch[0])
        ]
        if sum(len(_batches(stretches)) for _, _, stretches in pieces) <= MAX_PARTS:
            parts = []
            for name, size, stretches in pieces:
                parts += [name] if stretches == [(0, size)] else self.pick(name, stretches)
            return self.concat(parts, axis=1)
        sources = sources_of(view)
        offsets = dict(zip(sources, np.cumsum([0, *(sizes[source] for source in sources)]), strict=False))
        index = np.concatenate([np.arange(start, stop) + offsets[tensor] for tensor, start, stop in runs(view)])
        joined = self.concat([names[source] for source in sources], axis=1)
        return self.node("Gather", [joined, self.constant(index, "int32")], axis=1)


def _index_is_small(length: int, stretches: int) -> bool:
    """Whether an index takes fewer bytes than slices: a byte or two an entry against about forty a slice."""
    return stretches > 1 and length < 20 * stretches


def _batches(stretches: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], ...]]:
    """Stretches of a tensor that are copied together: all, or each alone."""
    if _index_is_small(sum(stop - start for start, stop in stretches), len(stretches)):
        return [tuple(stretches)]
    return [(stretch,) for stretch in stretches]


def _tensor(array: NDArray[Any], name: str) -> onnx.TensorProto:
    """A tensor inside a graph; small whole numbers as variable-length ones, which take a byte or two each."""
    if array.dtype not in (np.int32, np.int64) or (array < 0).any():
        return numpy_helper.from_array(array, name)
    tensor = TensorProto(name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
    (tensor.int32_data if array.dtype == np.int32 else tensor.int64_data).extend(array.reshape(-1).tolist())
    return tensor
