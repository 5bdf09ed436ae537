"""A look into a graph before onnxruntime sees it: it may read the bundle's weights file and nothing else.

ONNX graphs can name any file as the place of a tensor, and any bytes of it. This walks the protobuf encoding (a field
is a number, a wire type and a value) far enough to find every such name, and refuses the parts of ONNX that a bundle
never uses and that could hide one: subgraphs, functions, sparse tensors. What a graph reads must be a tensor that the
weights file holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from pamerge_runtime.errors import BundleError
from pamerge_runtime.weights_check import Stored

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_ALLOWED = 7, {1, 2, 3, 4, 5, 6, 7, 8, 14}
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_ALLOWED = 1, 5, {1, 2, 5, 10, 11, 12, 13}
_NODE_ATTRIBUTE, _ATTRIBUTE_TENSOR, _ATTRIBUTE_FORBIDDEN = 5, 5, {6, 10, 11, 22, 23}
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 1, 2, 13, 14
_FLOAT, _EXTERNAL = 1, 1  # values of a type and of a location


def check_graph(model: bytes, name: str, weights: str, stored: Stored) -> None:
    """Raise unless every external tensor of a graph is one that the weights file holds."""
    try:
        for graph in _messages(model, _MODEL_GRAPH, allowed=_MODEL_ALLOWED):
            for tensor in _messages(graph, _GRAPH_INITIALIZER, allowed=_GRAPH_ALLOWED):
                _check_tensor(tensor, weights, stored)
            for node in _messages(graph, _GRAPH_NODE):
                for attribute in _messages(node, _NODE_ATTRIBUTE):
                    for tensor in _messages(attribute, _ATTRIBUTE_TENSOR, forbidden=_ATTRIBUTE_FORBIDDEN):
                        if any(True for _ in _messages(tensor, _TENSOR_EXTERNAL)):
                            raise ValueError("a constant of it lies in another file")
    except (ValueError, IndexError) as error:
        raise BundleError(f"{name} is refused: {error or 'it is no ONNX graph'}.") from error


def _check_tensor(tensor: memoryview | bytes, weights: str, stored: Stored) -> None:
    entries: dict[str, str] = {}
    for entry in _messages(tensor, _TENSOR_EXTERNAL):
        found = {number: bytes(value).decode() for number, kind, value in _fields(entry) if kind == _BYTES}
        if set(found) != {1, 2} or found[1] in entries:
            raise ValueError("the place of a tensor is not clear")
        entries[found[1]] = found[2]
    numbers = _numbers(tensor)
    if not entries:
        if any(numbers[_TENSOR_LOCATION]):
            raise ValueError("the place of a tensor is not clear")
        return
    if entries.get("location") != weights:
        raise ValueError(f"it reads {entries.get('location')!r:.80}; a graph of a bundle reads {weights!r} only")
    if set(entries) != {"location", "offset", "length"} or numbers[_TENSOR_LOCATION] != [_EXTERNAL]:
        raise ValueError("the place of a tensor is not clear")
    offset, length = entries["offset"], entries["length"]
    plain = all(number.isascii() and number.isdigit() and len(number) < 19 for number in (offset, length))
    if not plain or (int(offset), int(length)) not in stored:
        raise ValueError("it reads what is no tensor of the weights file")
    if numbers[_TENSOR_TYPE] != [_FLOAT] or tuple(numbers[_TENSOR_DIMS]) != stored[int(offset), int(length)]:
        raise ValueError("a tensor has another shape or type than in the weights file")


def _numbers(tensor: memoryview | bytes) -> dict[int, list[int]]:
    """Shape, type and location of a tensor, as often as they are given; whole numbers may come one by one or packed."""
    found: dict[int, list[int]] = {_TENSOR_DIMS: [], _TENSOR_TYPE: [], _TENSOR_LOCATION: []}
    for number, kind, value in _fields(tensor):
        if number in found:
            if kind not in (_VARINT, _BYTES):
                raise ValueError("it is no ONNX graph")
            at = 0
            while at < len(value):
                item, at = _varint(value, at)
                found[number].append(item)
    return found


def _messages(
    message: memoryview | bytes, field: int, allowed: set[int] | None = None, forbidden: set[int] | None = None
) -> Iterator[memoryview]:
    for number, kind, value in _fields(message):
        if (allowed is not None and number not in allowed) or (forbidden is not None and number in forbidden):
            raise ValueError("it uses parts of ONNX that no bundle uses")
        if number == field:
            if kind != _BYTES:
                raise ValueError("it is no ONNX graph")
            yield value


def _fields(message: memoryview | bytes) -> Iterator[tuple[int, int, memoryview]]:
    view, at = memoryview(message), 0
    while at < len(view):
        tag, at = _varint(view, at)
        number, kind, stop = tag >> 3, tag & 7, at
        if kind == _VARINT:
            _, stop = _varint(view, at)
        elif kind == _FIXED64:
            stop = at + 8
        elif kind == _FIXED32:
            stop = at + 4
        elif kind == _BYTES:
            length, at = _varint(view, at)
            stop = at + length
        if kind not in (_VARINT, _FIXED64, _BYTES, _FIXED32) or stop > len(view) or not 0 < number < 2**29:
            raise ValueError("it is no ONNX graph")
        yield number, kind, view[at:stop]
        at = stop


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            break
        byte = view[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise ValueError("it is no ONNX graph")
