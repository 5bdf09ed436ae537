"""The label files of LFW and CelebA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pamerge.errors import FileFormatError, PamergeError


@dataclass(frozen=True)
class AttributeTable:
    """One row of attribute values an image.

    Attributes:
        names: The attributes (L).
        images: Path of each image relative to the folder of images (N).
        people: Who is in each image (N); empty if the file does not say.
        values: (N, L); above a threshold, zero unless said otherwise, the attribute is present.
    """

    names: tuple[str, ...]
    images: tuple[str, ...]
    people: tuple[str, ...]
    values: npt.NDArray[np.float64]

    def take(self, rows: npt.NDArray[np.int64]) -> AttributeTable:
        """Some of the rows."""
        return AttributeTable(
            self.names,
            tuple(self.images[row] for row in rows),
            tuple(self.people[row] for row in rows) if self.people else (),
            self.values[rows],
        )


def read_lfw_attributes(path: Path) -> AttributeTable:
    """``lfw_attributes.txt``: a comment line, a line of column names, then person, image number and values.

    Columns are separated by tabs; there may be any number of attributes.
    """
    lines = _lines(path)
    _, first = next(lines, (0, ""))
    number, header = next(lines, (0, ""))
    columns = header.lstrip("#").strip().split("\t")
    if not first.startswith("#") or columns[:2] != ["person", "imagenum"] or len(columns) < 3:
        raise FileFormatError(
            f"{path} is no LFW attribute file: expected a comment line and then the column names, "
            f"'#', 'person', 'imagenum' and the attributes, separated by tabs; "
            f"line {number} is {header[:80]!r}."
        )
    names = tuple(columns[2:])
    images, people, values = [], [], []
    for number, line in lines:
        person, image, *numbers = line.split("\t") if line.count("\t") > 1 else (line, "")
        if not image.isdecimal():
            raise _bad_row(path, number, f"the image number is {image!r}")
        folder = person.replace(" ", "_")
        images.append(f"{folder}/{folder}_{int(image):04d}.jpg")
        people.append(person)
        values.append(_numbers(path, number, numbers, len(names)))
    return _table(path, names, images, people, values)


def read_celeba_attributes(path: Path) -> AttributeTable:
    """``list_attr_celeba.txt``: the number of images, a line of names, then image name and values −1 or 1."""
    lines = _lines(path)
    _, promised = next(lines, (0, ""))
    _, header = next(lines, (0, ""))
    names = tuple(header.split())
    if not promised.strip().isdecimal() or not names:
        raise FileFormatError(
            f"{path} is no CelebA attribute file: expected the number of images in the first line "
            f"and the names of the attributes in the second; it starts with {promised[:80]!r}."
        )
    images, values = [], []
    for number, line in lines:
        image, *numbers = line.split()
        images.append(image)
        values.append(_numbers(path, number, numbers, len(names)))
    if len(images) != int(promised):
        raise FileFormatError(
            f"{path} promises {int(promised):,} images but has {len(images):,} rows. Download it again."
        )
    return _table(path, names, images, [], values)


def read_celeba_partition(path: Path) -> dict[str, int]:
    """``list_eval_partition.txt``: 0 (training), 1 (validation) or 2 (test) for each image."""
    partition = {}
    for number, line in _lines(path):
        image, *part = line.split()
        if part not in (["0"], ["1"], ["2"]):
            raise _bad_row(path, number, "expected an image and 0, 1 or 2")
        partition[image] = int(part[0])
    return partition


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, and their numbers."""
    if not path.is_file():
        raise PamergeError(f"There is no file {path}; it comes with the data set, place it there.")
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not a text file: {error}.") from error


def _numbers(path: Path, number: int, texts: list[str], expected: int) -> npt.NDArray[np.float64]:
    if len(texts) != expected:
        raise _bad_row(path, number, f"it has {len(texts)} values, but there are {expected} attributes")
    try:
        values = np.asarray([float(text) for text in texts])
    except ValueError as error:
        raise _bad_row(path, number, str(error)) from error
    if not np.isfinite(values).all():
        raise _bad_row(path, number, "a value is not finite")
    return values


def _bad_row(path: Path, number: int, reason: str) -> FileFormatError:
    return FileFormatError(f"Line {number} of {path} is damaged: {reason}. Download the file again or remove the line.")


def _table(
    path: Path,
    names: tuple[str, ...],
    images: list[str],
    people: list[str],
    values: list[npt.NDArray[np.float64]],
) -> AttributeTable:
    for kind, entries in (("image", images), ("attribute", names)):
        repeated = [name for name, times in Counter(entries).items() if times > 1]
        if repeated:
            raise FileFormatError(f"{path} has the {kind} {repeated[0]!r} more than once; keep one of them.")
    if not images:
        raise FileFormatError(f"{path} has no rows. Download it again.")
    return AttributeTable(names, tuple(images), tuple(people), np.asarray(values))
