from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pamerge import FileFormatError, PamergeError
from pamerge.data import read_idx

GOOD = struct.pack(">HBBII", 0, 8, 2, 2, 3) + bytes(range(6))


@pytest.mark.parametrize("name", ["images.gz", "images"])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 3)])
def test_what_was_written_is_read(
    tmp_path: Path, write_idx: Callable[..., None], name: str, shape: tuple[int, ...]
) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    write_idx(tmp_path / name, array)
    assert np.array_equal(read_idx(tmp_path / name), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it starts with ''"),
        (b"\x1f\x8b" + GOOD[2:], "it starts with '1f 8b 08 02', but an idx file of bytes with 00 00 08 0n"),
        (b"\0\0\x0d" + GOOD[3:], "it starts with '00 00 0d 02'"),
        (b"\0\0\x08\0" + GOOD[4:], "it starts with '00 00 08 00'"),
        (GOOD[:9], "it ends within the lengths of its 2 dimensions"),
        (GOOD[:-1], r"promises 6 bytes of shape \(2, 3\), but there are 5"),
        (GOOD + b"x", r"promises 6 bytes of shape \(2, 3\), but there are more"),
        (struct.pack(">HBBI", 0, 8, 1, 2**32 - 1) + b"x", "promises 4,294,967,295 bytes .* but there are 1"),
    ],
)
def test_a_file_that_is_not_complete_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    for name, packed in (("labels", content), ("labels.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(packed)
        with pytest.raises(FileFormatError, match=f"{name} is not a complete idx file: .*{message}.*Download it again"):
            read_idx(tmp_path / name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(position=st.integers(0, 200), length=st.integers(0, 200), flip=st.integers(1, 255))
def test_no_damage_to_a_packed_file_goes_unnoticed(tmp_path: Path, position: int, length: int, flip: int) -> None:
    whole = gzip.compress(struct.pack(">HBBII", 0, 8, 2, 10, 20) + bytes(range(200)), mtime=0)
    path = tmp_path / "images.gz"
    expected = np.arange(200, dtype=np.uint8).reshape(10, 20)
    cut = whole[: min(length, len(whole) - 1)]
    position %= len(whole)
    flipped = whole[:position] + bytes([whole[position] ^ flip]) + whole[position + 1 :]
    for damaged in (cut, flipped):
        path.write_bytes(damaged)
        try:
            # Some bytes of the gzip header, such as the time, say nothing about the content.
            assert np.array_equal(read_idx(path), expected)
            assert damaged is flipped
            assert position < 10
        except FileFormatError as error:
            assert "images.gz is not a complete idx file" in str(error)  # noqa: PT017


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PamergeError, match=r"There is no file .*nothing\.gz"):
        read_idx(tmp_path / "nothing.gz")
