"""The idx format, in which MNIST and Fashion-MNIST are published."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from io import BufferedReader
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pamerge.errors import FileFormatError, PamergeError

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path | str) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes in an idx file, packed with gzip (``.gz``) or plain.

    The file holds two zero bytes, a byte for the type (8), a byte for the number of dimensions, the length of
    each dimension (four bytes, big-endian), and then exactly as many bytes as these lengths ask for.

    Raises:
        FileFormatError: The file is truncated, damaged or of another kind.
    """
    path = Path(path)
    if not path.is_file():
        raise PamergeError(f"There is no file {path}; expected an idx file such as train-images-idx3-ubyte.gz.")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            magic = stream.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTE or magic[3] == 0:
                raise _error(path, f"it starts with {magic.hex(' ')!r}, but an idx file of bytes with 00 00 08 0n")
            lengths = stream.read(4 * magic[3])
            if len(lengths) < 4 * magic[3]:
                raise _error(path, f"it ends within the lengths of its {magic[3]} dimensions")
            shape = struct.unpack(f">{magic[3]}I", lengths)
            size = math.prod(shape)
            # One byte more than is expected: finds surplus bytes, and has gzip check its sum at the end.
            content = _read(stream, size + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _error(path, f"it cannot be unpacked ({error})") from error
    if len(content) != size:
        found = "more" if len(content) > size else f"{len(content):,}"
        raise _error(path, f"its header promises {size:,} bytes of shape {shape}, but there are {found}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read(stream: gzip.GzipFile | BufferedReader, most: int) -> bytes:
    """At most so many bytes; in pieces, since the number may come from a damaged header and be huge."""
    content = bytearray()
    while len(content) < most and (piece := stream.read(min(most - len(content), 1 << 20))):
        content += piece
    return bytes(content)


def _error(path: Path, reason: str) -> FileFormatError:
    return FileFormatError(f"{path} is not a complete idx file: {reason}. Download it again.")
