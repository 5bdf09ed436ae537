"""The weights file: plain safetensors, laid out so that a runtime can map it into memory.

Large tensors start on a page, and small ones fill the gaps before them. Safetensors allows no holes, so what is left
of a gap becomes a tensor of its own, whose name starts with ``_gap``. A layer of very many blocks would cost more bytes
in references to its small tensors than it has weights, so these are stored as one, and graphs split it on loading.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pamerge.deploy.fold import Array, Layer

PAGE = 4096
LARGE = 64 * 1024
MANY = 8  # blocks of a layer; two or three tasks never have more
TINY = 4096
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class Place:
    """Where the bytes of a tensor stand in the weights file.

    Attributes:
        number: of the stored tensor.
        offset: where it begins in the file.
        length: its bytes.
        shape: its shape.
        sizes: if several tensors are stored as one, how many numbers each of them has.
        piece: which of these it is.
    """

    number: int
    offset: int
    length: int
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    piece: int = 0

    @property
    def own_bytes(self) -> int:
        """Bytes of the tensor itself."""
        return 4 * self.sizes[self.piece] if self.sizes else self.length


def store(layers: Mapping[str, Layer]) -> tuple[bytes, dict[str, Place]]:
    """The content of the weights file, and the place of each tensor of each layer."""
    tensors, together = {}, {}
    for (node, name), keys in _by_layer(layers).items():
        arrays = [layers[key].tensors[name] for key in keys]
        if len(keys) > MANY and max(array.nbytes for array in arrays) <= TINY:
            whole = f"{node}.all.{name}"
            tensors[whole] = np.concatenate([array.reshape(-1) for array in arrays])
            together[whole] = [f"{key}.{name}" for key in keys], tuple(array.size for array in arrays)
        else:
            tensors.update({f"{key}.{name}": array for key, array in zip(keys, arrays, strict=True)})
    content, places = lay_out_weights(tensors)
    for whole, (names, sizes) in together.items():
        place = places.pop(whole)
        places.update({name: replace(place, sizes=sizes, piece=i) for i, name in enumerate(names)})
    return content, places


def _by_layer(layers: Mapping[str, Layer]) -> dict[tuple[str, str], list[str]]:
    """For each layer and each name of a tensor, the blocks that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for key, layer in layers.items():
        for name in layer.tensors:
            found.setdefault((layer.node.name, name), []).append(key)
    return found


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
