"""Rules of operations that only pick channels: concatenation, slices, splits."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from pamerge.graph.layer_graph import Channels
from pamerge.graph.ops import Call, Draft, Problem, Value, joins_channels, keeps_channels, mixes_output
from pamerge.graph.rules.arguments import activation


def concat(call: Call) -> Draft:
    """Only picks channels: puts the channels of several tensors side by side."""
    values = call["tensors"]
    if not all(isinstance(value, Value) for value in values):
        raise Problem("it concatenates a constant")
    first = values[0]
    axis = first.axis(call["dim"] or 0)
    if any(value.whole for value in values):
        return mixes_output(call)
    if axis != 1:
        return joins_channels(call)
    if any(value.width != first.width for value in values):
        widths = ", ".join(str(value.width) for value in values)
        raise Problem(f"it concatenates tensors with different numbers of features a channel ({widths})")
    return Draft("wire", "concat", values, np.concatenate([value.channels for value in values]))


def slices(call: Call) -> Draft | Value:
    """Only picks channels, or positions in space."""
    value = activation(call)
    if (call["dim"] or 0) % value.rank == 0:
        if call["start"] or (call["end"] or sys.maxsize) < sys.maxsize or (call["step"] or 1) != 1:
            raise Problem("it slices the batch")
        return value
    if value.axis(call["dim"]) != 1 or value.whole:
        return keeps_channels(call)
    start, stop, step = slice(call["start"], call["end"], call["step"] or 1).indices(value.features)
    return _picked(value, start, stop, step)


def narrow(call: Call) -> Draft | Value:
    """Only picks channels, or positions in space."""
    value, start = activation(call), call["start"]
    if value.axis(call["dim"]) != 1 or value.whole:
        return keeps_channels(call)
    start %= value.features
    return _picked(value, start, start + call["length"])


def split(call: Call) -> list[Draft | Value]:
    """Only picks channels, or positions in space: several results, each a plain range."""
    value = activation(call)
    axis = value.axis(call["dim"] or 0)
    stops = np.cumsum([shape[axis] for shape in call.shapes]).tolist()
    ranges = [(stop - shape[axis], stop) for stop, shape in zip(stops, call.shapes, strict=True)]
    if axis == 1 and not value.whole:
        return [_picked(value, start, stop) for start, stop in ranges]
    slices_of = replace(call, op="aten.slice.Tensor")
    return [
        keeps_channels(replace(slices_of, arguments={"self": value, "dim": axis, "start": start, "end": stop}))
        for start, stop in ranges
    ]


def _picked(value: Value, start: int, stop: int, step: int = 1) -> Draft | Value:
    """A range of features, which must be whole channels."""
    if (start, stop, step) == (0, value.features, 1):
        return value
    if stop <= start:
        raise Problem(f"it picks none of {value.features} features")
    # Where the range lies, in words that do not depend on how wide the tensor is: two networks of different width match
    # where both take the front, or both take the end.
    settings = {"front": start == 0, "end": stop == value.features, "step": step}
    return Draft("wire", "slice", [value], _channels_at(value, np.arange(start, stop, step)), settings=settings)


def _channels_at(value: Value, positions: Channels) -> Channels:
    width = value.width
    if len(positions) % width == 0:
        rows = positions.reshape(-1, width)
        if not (rows[:, 0] % width).any() and (np.diff(rows, axis=1) == 1).all():
            return value.channels[rows[:, 0] // width]
    raise Problem(f"it cuts through channels of {width} features")
