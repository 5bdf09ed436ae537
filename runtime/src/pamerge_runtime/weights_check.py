"""A look into the weights file: which tensors it holds, and where, so that graphs can be held to them.

A safetensors file is the length of its header (8 bytes), a header in JSON, and the bytes of the tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pamerge_runtime.errors import BundleError
from pamerge_runtime.manifest import File, open_file

LARGEST_HEADER = 64 * 2**20
_SIZES = {"F32": 4, "U8": 1}  # the weights, and the gaps between them

Stored = Mapping[tuple[int, int], tuple[int, ...]]
"""The shape of each tensor by its first byte in the file and its length in bytes."""


def stored_tensors(folder: Path, file: File) -> Stored:
    """The tensors of a weights file; raises unless they fill the file one after the other."""
    with open_file(folder, file.name) as stream:
        length = int.from_bytes(stream.read(8), "little")
        _expect(file, 2 <= length <= min(LARGEST_HEADER, file.bytes - 8), "its header has no possible length")
        text = stream.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file.name} cannot be used: its header is no JSON ({error}).") from error
    _expect(file, isinstance(header, dict), "its header is no table")
    base, places = 8 + length, []
    for name, item in header.items():
        if name != "__metadata__":
            _expect(file, _is_tensor(item), f"the tensor {name!r:.80} is not described")
            places.append((*item["data_offsets"], item["dtype"], tuple(item["shape"])))
    end = 0
    for start, stop, _, _ in sorted(places):
        _expect(file, start == end, "its tensors overlap or leave holes")
        end = stop
    _expect(file, base + end == file.bytes, "its tensors do not fill it")
    return {(base + start, stop - start): shape for start, stop, kind, shape in places if kind == "F32"}


def _is_tensor(item: Any) -> bool:
    if (
        not isinstance(item, dict)
        or set(item) != {"dtype", "shape", "data_offsets"}
        or item["dtype"] not in ("F32", "U8")
    ):
        return False
    shape, offsets = item["shape"], item["data_offsets"]
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
            return False
    return (
        len(shape) <= 8
        and len(offsets) == 2
        and offsets[1] > offsets[0]
        and math.prod(shape) * _SIZES[item["dtype"]] == offsets[1] - offsets[0]
    )


def _expect(file: File, condition: bool, problem: str) -> None:
    if not condition:
        raise BundleError(f"{file.name} cannot be used: {problem}.")
