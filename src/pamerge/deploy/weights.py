"""The weights file: plain safetensors, laid out so that a runtime can map it into memory.

Large tensors start on a page, and small ones fill the gaps before them. Safetensors allows no holes, so what is left
of a gap becomes a tensor of its own, whose name starts with ``_gap``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pamerge.deploy.fold import Array

PAGE = 4096
LARGE = 64 * 1024
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class Place:
    """Where the bytes of a tensor stand in the weights file."""

    number: int
    offset: int
    length: int
    shape: tuple[int, ...]


def lay_out_weights(tensors: Mapping[str, Array]) -> tuple[bytes, dict[str, Place]]:
    """The content of the file, and the place of each tensor."""
    small = sorted((name for name, t in tensors.items() if t.nbytes < LARGE), key=lambda name: -tensors[name].nbytes)
    order: list[tuple[str, int]] = []  # name and start; a name that is no tensor's is a gap
    end = 0

    def put(name: str) -> None:
        nonlocal end
        order.append((name, end))
        end += tensors[name].nbytes

    for name in (name for name, tensor in tensors.items() if tensor.nbytes >= LARGE):
        for other in [other for other in small if tensors[other].nbytes <= -end % PAGE]:
            if tensors[other].nbytes <= -end % PAGE:
                put(other)
                small.remove(other)
        if end % PAGE:
            order.append((f"_gap{len(order)}", end))
            end += -end % PAGE
        put(name)
    for name in small:
        put(name)
    return _file(tensors, order, end)


def _file(tensors: Mapping[str, Array], order: list[tuple[str, int]], end: int) -> tuple[bytes, dict[str, Place]]:
    header: dict[str, object] = {"__metadata__": {"format": "pamerge-weights"}}
    stops = [start for _, start in order[1:]] + [end]
    for (name, start), stop in zip(order, stops, strict=True):
        tensor = tensors.get(name)
        kind, shape = ("F32", list(tensor.shape)) if tensor is not None else ("U8", [stop - start])
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % PAGE)  # the data start on a page
    base = len(text) + 8
    content = bytearray(base + end)
    content[:base] = struct.pack("<Q", len(text)) + text
    places = {}
    for number, (name, start) in enumerate(order):
        tensor = tensors.get(name)
        if tensor is not None:
            flat = np.ascontiguousarray(tensor, dtype="<f4")
            content[base + start : base + start + flat.nbytes] = flat.tobytes()
            places[name] = Place(number, base + start, flat.nbytes, tuple(tensor.shape))
    return bytes(content), places
