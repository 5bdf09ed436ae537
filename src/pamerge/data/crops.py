"""Square crops of many image files as one array, which is kept as a memory-mapped file."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import struct
import tarfile
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pamerge.errors import FileFormatError, PamergeError

Progress = Callable[[int, int], None]
"""Is told how many images have been read, and of how many."""

_FORMAT = 1
_STALE_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Crop:
    """The central square of ``side`` pixels of an image, scaled to ``size`` × ``size`` pixels."""

    side: int
    size: int


@dataclass(frozen=True, eq=False)
class Crops:
    """Crops (N, 3, size, size) in the order of the names; missing and corrupt images are black."""

    images: npt.NDArray[np.uint8]
    missing: tuple[int, ...]
    corrupt: tuple[int, ...]


class ImageSource(Protocol):
    """Where image files come from."""

    def fingerprint(self, names: Sequence[str]) -> list[object]:
        """Changes when the files change."""

    def read(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """The content of those files that are there, in any order."""


@dataclass(frozen=True)
class Folder:
    """Image files in a folder."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    def fingerprint(self, names: Sequence[str]) -> list[object]:
        """Size and time of every file."""
        found: list[object] = []
        for name in names:
            try:
                stat = (self.root / name).stat()
                found.append([stat.st_size, stat.st_mtime_ns])
            except OSError:
                found.append(None)
        return found

    def read(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """The files one by one; one that cannot be read counts as empty."""
        for name in names:
            try:
                yield name, (self.root / name).read_bytes()
            except FileNotFoundError:
                continue
            except OSError:
                yield name, b""


@dataclass(frozen=True)
class Archive:
    """Image files in a ``.tgz``, which is read once from front to back and never unpacked to disk."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def fingerprint(self, names: Sequence[str]) -> list[object]:
        """Size and time of the archive."""
        stat = self.path.stat()
        return [stat.st_size, stat.st_mtime_ns]

    def read(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """The files as they come; a name is the last two parts of a file's path in the archive."""
        wanted = set(names)
        try:
            # A truncated archive is an error of gzip's, whereas tarfile alone would take it for the end.
            with gzip.open(self.path) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as archive:
                for member in archive:
                    name = "/".join(PurePosixPath(member.name).parts[-2:])
                    if name in wanted and (stream := archive.extractfile(member)) is not None:
                        wanted.remove(name)
                        yield name, stream.read()
                        if not wanted:
                            return
                while unpacked.read(1 << 20):
                    pass
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise FileFormatError(
                f"{self.path} is truncated or damaged, or is no .tgz archive ({error}). Download it again."
            ) from error


def read_crops(
    source: ImageSource,
    names: Sequence[str],
    crop: Crop,
    cache_dir: Path | str | None,
    on_progress: Progress | None = None,
) -> Crops:
    """Crops of the named images: from the cache if they are there, otherwise read and put into the cache.

    The cache has two files: ``faces-<key>.npy`` with the pixels and ``faces-<key>.json``, which is written
    last and says which images are missing. Each is written to a temporary name and renamed, so that a run
    that is killed leaves nothing that looks complete. The key depends on the source's size and time, the
    names and the crop; files of other keys are never touched and may be deleted. Without ``cache_dir`` the
    crops are kept in memory.
    """
    shape = (len(names), 3, crop.size, crop.size)
    if cache_dir is None:
        images = np.zeros(shape, dtype=np.uint8)
        return Crops(images, *_fill(images, source, names, crop, on_progress))
    folder = Path(cache_dir)
    folder.mkdir(parents=True, exist_ok=True)
    facts = [_FORMAT, asdict(crop), list(names), source.fingerprint(names)]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]
    pixels, index = folder / f"faces-{key}.npy", folder / f"faces-{key}.json"
    cached = _open_cached(pixels, index, shape)
    if cached is not None:
        return cached
    _remove_stale(folder)
    with _temporary(pixels) as path:
        mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
        missing, corrupt = _fill(mapped, source, names, crop, on_progress)
        mapped.flush()
    with _temporary(index) as path:
        path.write_text(json.dumps({"missing": missing, "corrupt": corrupt}), encoding="utf-8")
    return Crops(np.load(pixels, mmap_mode="r"), missing, corrupt)


def decode(content: bytes, crop: Crop) -> npt.NDArray[np.uint8]:
    """The crop (3, size, size) of an image file.

    Raises:
        ValueError: The file is no image, is damaged, or is smaller than the crop.
    """
    image_module = _pillow()
    try:
        with image_module.open(io.BytesIO(content)) as image:
            left, top = (image.width - crop.side) // 2, (image.height - crop.side) // 2
            if left < 0 or top < 0:
                raise ValueError(f"an image of {image.width}×{image.height} is smaller than the crop")
            # Cropping and scaling in one step would let pixels around the crop in.
            square = image.convert("RGB").crop((left, top, left + crop.side, top + crop.side))
            small = square.resize((crop.size, crop.size), image_module.Resampling.BILINEAR)
    except (OSError, SyntaxError, struct.error, image_module.DecompressionBombError) as error:
        raise ValueError(str(error)) from error
    return np.asarray(small).transpose(2, 0, 1)


def _fill(
    images: npt.NDArray[np.uint8],
    source: ImageSource,
    names: Sequence[str],
    crop: Crop,
    on_progress: Progress | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Write the crops into ``images``; returns the positions of missing and of corrupt ones."""
    position = {name: i for i, name in enumerate(names)}
    missing, corrupt = set(range(len(names))), set()
    for done, (name, content) in enumerate(source.read(position), start=1):
        missing.remove(position[name])
        try:
            images[position[name]] = decode(content, crop)
        except ValueError:
            corrupt.add(position[name])
        if on_progress is not None:
            on_progress(done, len(names))
    return tuple(sorted(missing)), tuple(sorted(corrupt))


def _open_cached(pixels: Path, index: Path, shape: tuple[int, ...]) -> Crops | None:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))
        missing, corrupt = tuple(map(int, found["missing"])), tuple(map(int, found["corrupt"]))
        images = np.load(pixels, mmap_mode="r")
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None  # not there, or damaged by something else than pamerge: read the images again
    if images.shape != shape or images.dtype != np.uint8:
        return None
    return Crops(images, missing, corrupt)


@contextlib.contextmanager
def _temporary(final: Path) -> Iterator[Path]:
    """A path to write to, which becomes ``final`` when all went well."""
    path = final.with_name(f"{final.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield path
        path.replace(final)
    finally:
        path.unlink(missing_ok=True)


def _remove_stale(folder: Path) -> None:
    """Remove what a killed run left; a younger file may belong to one that is at work now."""
    for path in folder.glob("faces-*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise PamergeError("Reading face images needs pillow; install it with: pip install pillow") from error
    return Image
