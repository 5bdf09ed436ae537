"""Faces with attributes: LFW and CelebA, as 72×72 crops."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pamerge.data.attributes import (
    AttributeTable,
    read_celeba_attributes,
    read_celeba_partition,
    read_lfw_attributes,
)
from pamerge.data.crops import Archive, Crop, Folder, ImageSource, Progress, read_crops
from pamerge.data.dataset import LoadReport, Splits, Tasks, make_splits
from pamerge.errors import FileFormatError, PamergeError, PamergeWarning

Shares = tuple[float, float, float]
"""Parts of the images for training, validation and test."""


def lfw(
    folder: Path | str,
    *,
    generator: torch.Generator,
    tasks: Tasks | None = None,
    quantile: float | None = None,
    shares: Shares = (0.7, 0.1, 0.2),
    size: int = 72,
    crop: int = 150,
    mirror: bool = False,
    cache_dir: Path | str | None = None,
    limit: int | None = None,
    on_progress: Progress | None = None,
) -> Splits:
    """Labeled Faces in the Wild with the attributes of ``lfw_attributes.txt``.

    A person is in one part only. An image that is missing or corrupt is left out, with a warning; ``report``
    of the result names it.

    Args:
        folder: Has ``lfw_attributes.txt`` and either ``lfw-deepfunneled.tgz`` or the folder
            ``lfw-deepfunneled`` that was unpacked from it.
        generator: Decides which people are in which part.
        tasks: The attributes of each task (see :func:`split_labels`); by default A and B have one half each.
        quantile: An attribute is present where its value is above this quantile of the training people's
            values (0.5: their median). By default it is present where its value is positive.
        shares: Parts of the images for training, validation and test; met as far as people can be divided.
        size: Height and width of an input.
        crop: Side of the central square that is cut out of the 250×250 image: with 150, pixels 50 to 200 both
            ways, which hold the face, most of the hair and the collar.
        mirror: Also train on every image mirrored; most attributes of a face are the same on both sides.
        cache_dir: Folder where the crops are kept as a memory-mapped file (200 MB for all images); by default
            they are kept in memory.
        limit: Read only this many rows, from the first on.
        on_progress: Is called after every image with the number of images so far and of all.
    """
    _check(size=size, crop=crop, limit=limit, shares=shares, quantile=quantile)
    folder = Path(folder)
    table = read_lfw_attributes(folder / "lfw_attributes.txt")
    if limit is not None:
        table = table.take(np.arange(min(limit, len(table.images))))
    unpacked, packed = folder / "lfw-deepfunneled", folder / "lfw-deepfunneled.tgz"
    if not unpacked.is_dir() and not packed.is_file():
        raise PamergeError(f"There are no images in {folder}: expected the folder {unpacked.name} or {packed.name}.")
    source = Folder(unpacked) if unpacked.is_dir() else Archive(packed)
    part = _divide(table.people, shares, generator)
    splits = _Faces(table, part, source, Crop(crop, size), tasks, quantile).load(cache_dir, on_progress)
    return splits.with_mirrored_training() if mirror else splits


def celeba(
    folder: Path | str,
    *,
    generator: torch.Generator | None = None,
    tasks: Tasks | None = None,
    shares: Shares = (0.7, 0.1, 0.2),
    size: int = 72,
    crop: int = 178,
    mirror: bool = False,
    cache_dir: Path | str | None = None,
    limit: int | None = None,
    on_progress: Progress | None = None,
) -> Splits:
    """CelebA, aligned and cropped, with its 40 attributes.

    The parts are those of ``list_eval_partition.txt`` if it is there, otherwise random. An image that is
    missing or corrupt is left out, with a warning; ``report`` of the result names it.

    Args:
        folder: Has ``list_attr_celeba.txt`` and the folder ``img_align_celeba``.
        generator: Decides which images are in which part; needed only without ``list_eval_partition.txt``.
        tasks: The attributes of each task (see :func:`split_labels`); by default A and B have 20 each.
        shares: Parts of the images for training, validation and test, if they are divided at random.
        size: Height and width of an input.
        crop: Side of the central square that is cut out of the 178×218 image: with 178, the whole width and
            rows 20 to 198.
        mirror: Also train on every image mirrored; most attributes of a face are the same on both sides.
        cache_dir: Folder where the crops are kept as a memory-mapped file (3 GB for all images); by default
            they are kept in memory.
        limit: Read only this many rows, evenly spaced, because the official parts follow one another.
        on_progress: Is called after every image with the number of images so far and of all.
    """
    _check(size=size, crop=crop, limit=limit, shares=shares, quantile=None)
    folder = Path(folder)
    table = read_celeba_attributes(folder / "list_attr_celeba.txt")
    if limit is not None and limit < len(table.images):
        table = table.take(np.linspace(0, len(table.images) - 1, limit).astype(np.int64))
    images, partition = folder / "img_align_celeba", folder / "list_eval_partition.txt"
    if not images.is_dir():
        raise PamergeError(f"There are no images in {folder}: expected the folder {images.name}.")
    if partition.is_file():
        part = _official_parts(table.images, partition)
    elif generator is not None:
        part = _divide(table.images, shares, generator)
    else:
        raise PamergeError(
            f"There is no {partition}, so the images have to be divided at random: "
            "add the file, or give a generator, such as torch.Generator().manual_seed(0)."
        )
    splits = _Faces(table, part, Folder(images), Crop(crop, size), tasks, None).load(cache_dir, on_progress)
    return splits.with_mirrored_training() if mirror else splits


@dataclass(frozen=True)
class _Faces:
    """Which images are to be read, and what becomes of them."""

    table: AttributeTable
    part: npt.NDArray[np.int64]
    source: ImageSource
    crop: Crop
    tasks: Tasks | None
    quantile: float | None

    def load(self, cache_dir: Path | str | None, on_progress: Progress | None) -> Splits:
        names, values = self.table.names, self.table.values
        crops = read_crops(self.source, self.table.images, self.crop, cache_dir, on_progress)
        good = np.ones(len(values), dtype=np.bool_)
        good[[*crops.missing, *crops.corrupt]] = False
        if not good.any():
            raise PamergeError(
                f"None of the {len(good)} rows has a readable image in {self.source}; the first would be "
                f"{self.table.images[0]}. Check that the label file and the images belong together."
            )
        rows = [np.flatnonzero(good & (self.part == part)) for part in range(3)]
        thresholds = np.zeros(len(names))
        if self.quantile is not None and len(rows[0]):
            thresholds = np.quantile(values[rows[0]], self.quantile, axis=0)
        report = LoadReport(
            rows=len(values),
            missing=tuple(self.table.images[i] for i in crops.missing),
            corrupt=tuple(self.table.images[i] for i in crops.corrupt),
            thresholds=dict(zip(names, thresholds.tolist(), strict=True)),
        )
        if report.skipped:
            warnings.warn(f"{report}. They are left out.", PamergeWarning, stacklevel=3)
        labels = [values[part_rows] > thresholds for part_rows in rows]
        return make_splits([crops.images] * 3, rows, labels, names, self.tasks, report)


def _divide(groups: Sequence[str], shares: Shares, generator: torch.Generator) -> npt.NDArray[np.int64]:
    """Part 0, 1 or 2 of each image, such that images of one group (a person) are in the same part.

    The groups are lined up in random order, each as long as it has images; a group belongs to the part in
    which its middle lies.
    """
    _, group, amounts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    order = torch.randperm(len(amounts), generator=generator).numpy()
    middles = np.cumsum(amounts[order]) - amounts[order] / 2
    part_of_group = np.empty(len(amounts), dtype=np.int64)
    part_of_group[order] = np.searchsorted(np.cumsum(shares)[:2] * len(groups), middles, side="right")
    return part_of_group[group]


def _official_parts(images: Sequence[str], path: Path) -> npt.NDArray[np.int64]:
    partition = read_celeba_partition(path)
    absent = [image for image in images if image not in partition]
    if absent:
        raise FileFormatError(
            f"{path} does not say in which part {len(absent)} of the images are, such as {absent[0]}. "
            "Download it again."
        )
    return np.asarray([partition[image] for image in images], dtype=np.int64)


def _check(*, size: int, crop: int, limit: int | None, shares: Shares, quantile: float | None) -> None:
    for name, value in (("size", size), ("crop", crop), ("limit", limit)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise PamergeError(f"{name} must be an integer of at least 1, got {value!r}.")
    if len(shares) != 3 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise PamergeError(f"shares must be three positive numbers that sum to 1, got {shares!r}.")
    if quantile is not None and not 0 < quantile < 1:
        raise PamergeError(f"quantile must be between 0 and 1, such as 0.5 for the median, got {quantile!r}.")
