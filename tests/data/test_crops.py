from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pamerge import FileFormatError
from pamerge.data.crops import Archive, Crop, Crops, Folder, decode, read_crops

CROP = Crop(side=4, size=2)
NAMES = [f"{i}.png" for i in range(5)]


def png(image: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images 0 to 4, with the grey value 40·i."""
    root = tmp_path / "images"
    root.mkdir()
    for i, name in enumerate(NAMES):
        (root / name).write_bytes(png(np.full((6, 6, 3), 40 * i, dtype=np.uint8)))
    return root


@pytest.fixture
def read(folder: Path, tmp_path: Path) -> Callable[..., tuple[Crops, int]]:
    """Read all images through the cache; also tells how many were decoded."""

    def read_and_count(crop: Crop = CROP, names: list[str] = NAMES) -> tuple[Crops, int]:
        calls: list[int] = []
        crops = read_crops(Folder(folder), names, crop, tmp_path / "cache", lambda done, _: calls.append(done))
        return crops, len(calls)

    return read_and_count


def values(crops: Crops) -> list[int]:
    return [int(value) for value in crops.images[:, 0, 0, 0]]


def test_the_crop_is_the_central_square_scaled() -> None:
    image = np.zeros((10, 8, 3), dtype=np.uint8)
    image[3:7, 2:6] = [10, 20, 30]
    assert decode(png(image), CROP).tolist() == [[[10] * 2] * 2, [[20] * 2] * 2, [[30] * 2] * 2]


def test_a_grey_image_becomes_rgb() -> None:
    assert decode(png(np.full((4, 4), 7, dtype=np.uint8)), CROP).tolist() == [[[7] * 2] * 2] * 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no image",
        png(np.zeros((3, 9, 3), dtype=np.uint8)),
    ],
    ids=["empty", "text", "too small"],
)
def test_what_cannot_be_decoded_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(content, CROP)


def test_every_truncation_of_a_jpeg_is_noticed() -> None:
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    Image.fromarray(noise).save(stream, "JPEG")
    whole = stream.getvalue()
    for length in range(0, len(whole) - 2, 7):
        with pytest.raises(ValueError, match=r"."):
            decode(whole[:length], CROP)


def test_the_second_read_comes_from_a_memory_map(read: Callable[..., tuple[Crops, int]]) -> None:
    (first, decoded), (second, decoded_again) = read(), read()
    assert values(first) == values(second) == [0, 40, 80, 120, 160]
    assert (decoded, decoded_again) == (5, 0)
    assert isinstance(second.images, np.memmap)
    assert not second.images.flags.writeable


def test_without_a_cache_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    crops = read_crops(Folder(folder), NAMES, CROP, None)
    assert values(crops) == [0, 40, 80, 120, 160]
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_another_crop_size_or_choice_of_images_is_read_anew(read: Callable[..., tuple[Crops, int]]) -> None:
    read()
    assert read(Crop(side=2, size=2))[1] == 5
    assert read(Crop(side=4, size=3))[0].images.shape == (5, 3, 3, 3)
    other, decoded = read(names=NAMES[:2])
    assert (values(other), decoded) == ([0, 40], 2)


def test_a_changed_file_is_read_anew(folder: Path, read: Callable[..., tuple[Crops, int]]) -> None:
    read()
    (folder / "3.png").write_bytes(png(np.full((6, 6, 3), 255, dtype=np.uint8)))
    os.utime(folder / "3.png", (1, 1))
    assert values(read()[0]) == [0, 40, 80, 255, 160]


def test_missing_and_corrupt_images_are_told_also_from_the_cache(
    folder: Path, read: Callable[..., tuple[Crops, int]]
) -> None:
    (folder / "1.png").unlink()
    (folder / "4.png").write_bytes(b"damaged")
    for crops, _ in (read(), read()):
        assert (crops.missing, crops.corrupt) == ((1,), (4,))
        assert values(crops) == [0, 0, 80, 120, 0]


def test_an_image_that_turns_up_later_is_read(folder: Path, read: Callable[..., tuple[Crops, int]]) -> None:
    content = (folder / "1.png").read_bytes()
    (folder / "1.png").unlink()
    read()
    (folder / "1.png").write_bytes(content)
    crops, _ = read()
    assert crops.missing == ()
    assert values(crops) == [0, 40, 80, 120, 160]


@pytest.mark.parametrize("suffix", [".npy", ".json"])
@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda _: b"", lambda _: None])
def test_a_damaged_or_incomplete_cache_is_rebuilt(
    tmp_path: Path,
    read: Callable[..., tuple[Crops, int]],
    suffix: str,
    damage: Callable[[bytes], bytes | None],
) -> None:
    read()
    (path,) = (tmp_path / "cache").glob(f"*{suffix}")
    content = damage(path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    crops, decoded = read()
    assert (values(crops), decoded) == ([0, 40, 80, 120, 160], 5)
    assert read()[1] == 0


def test_a_failure_leaves_no_file_behind(folder: Path, tmp_path: Path) -> None:
    def fail(done: int, _total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_crops(Folder(folder), NAMES, CROP, tmp_path / "cache", fail)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_killed_run_leaves_nothing_that_looks_complete(
    folder: Path, tmp_path: Path, read: Callable[..., tuple[Crops, int]]
) -> None:
    program = f"""
import os, signal
from pathlib import Path
from pamerge.data.crops import Crop, Folder, read_crops
def kill(done, total):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
read_crops(Folder(Path({str(folder)!r})), {NAMES!r}, {CROP!r}, {str(tmp_path / "cache")!r}, kill)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    (left,) = (tmp_path / "cache").iterdir()
    assert left.suffix == ".tmp"
    crops, decoded = read()
    assert (values(crops), decoded) == ([0, 40, 80, 120, 160], 5)


def test_what_a_killed_run_left_is_removed_after_a_day_and_nothing_else(
    tmp_path: Path, read: Callable[..., tuple[Crops, int]]
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    old, young, foreign = cache / "faces-1.npy.x.tmp", cache / "faces-2.npy.x.tmp", cache / "mine.tmp"
    for path in (old, young, foreign):
        path.write_bytes(b"")
    for path in (old, foreign):
        os.utime(path, (time.time() - 1e5,) * 2)
    read()
    assert [path.exists() for path in (old, young, foreign)] == [False, True, True]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_truncated_archive_is_refused(tmp_path: Path, make_lfw: Callable[..., Path], share: float) -> None:
    path = make_lfw(tmp_path / "lfw", {"A": 20}) / "lfw-deepfunneled.tgz"
    content = path.read_bytes()
    path.write_bytes(content[: round(share * len(content))])
    names = [f"A/A_{i:04d}.jpg" for i in range(1, 22)]
    with pytest.raises(FileFormatError, match=r"lfw-deepfunneled\.tgz is truncated or damaged.*Download it again"):
        read_crops(Archive(path), names, Crop(150, 72), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(b"<html>not found</html>")
    with pytest.raises(FileFormatError, match=r"or is no \.tgz archive"):
        read_crops(Archive(tmp_path / "a.tgz"), ["A/A_0001.jpg"], CROP, None)
