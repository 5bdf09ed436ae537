"""Images with zeros and ones as labels, which are divided among tasks."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from pamerge.errors import PamergeError
from pamerge.tasks import check_task_names

Batch = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""Inputs (N, C, H, W) and, for each task, labels (N, L); without N for one sample."""

Tasks = Mapping[str, Sequence[str]]
"""The names of each task's labels."""


@dataclass(frozen=True, eq=False, repr=False)
class MultitaskDataset(Dataset[Batch]):
    """Images and their labels; an index gives a sample, a list of indices a batch.

    Attributes:
        images: Pixels (M, C, H, W); may be a memory map.
        rows: Which of the images belong to this data set (N,).
        labels: Zeros and ones (N, L), as floats.
        names: What each of the L labels means.
        tasks: The names of each task's labels.
        mean: Mean of each channel of the training images, whose pixels are taken from 0 to 1.
        std: Standard deviation of each channel. Inputs are (pixel / 255 − mean) / std.
        resize: Height and width to which inputs are scaled bilinearly when they are read.
        memory_format: How inputs lie in memory. With ``torch.channels_last``, convolutions of colour images are faster
            on a CPU, but networks that call ``view`` on what they get, instead of ``flatten``, fail.
        mirror: Every image comes a second time, left and right exchanged.
        places: Images consist of so many parts side by side, and come again with the parts moved on by one place, by
            two, and so on, the last ones to the front.
    """

    images: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.int64]
    labels: torch.Tensor
    names: tuple[str, ...]
    tasks: Mapping[str, tuple[str, ...]]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: tuple[int, int] | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    mirror: bool = False
    places: int = 1

    def __len__(self) -> int:
        return len(self.rows) * (1 + self.mirror) * self.places

    def __getitem__(self, index: int | Sequence[int]) -> Batch:
        if isinstance(index, Sequence):
            return self._batch(np.asarray(index, dtype=np.int64))
        position = range(len(self))[index]
        inputs, targets = self._batch(np.asarray([position]))
        return inputs[0], {task: labels[0] for task, labels in targets.items()}

    def __repr__(self) -> str:
        size = "×".join(map(str, self.input_size))
        tasks = ", ".join(f"{task}: {len(names)} labels" for task, names in self.tasks.items())
        return f"MultitaskDataset({len(self)} images of {size}; {tasks})"

    @property
    def input_size(self) -> tuple[int, int, int]:
        """(channels, height, width) of an input, as the networks of the zoo take it."""
        channels, *size = self.images.shape[1:]
        height, width = self.resize or size
        return channels, height, width

    def loader(
        self, batch_size: int, *, shuffle: torch.Generator | None = None, drop_last: bool = False
    ) -> DataLoader[Batch]:
        """Batches ``(inputs, {task: labels})``; in a new order in every epoch if ``shuffle`` is a generator.

        It is quicker than ``DataLoader(dataset, batch_size)``, which gives the same batches sample by sample.
        """
        if batch_size < 1:
            raise PamergeError(f"batch_size must be at least 1, got {batch_size!r}.")
        order = SequentialSampler(self) if shuffle is None else RandomSampler(self, generator=shuffle)
        batches = BatchSampler(order, batch_size, drop_last)
        return DataLoader(self, sampler=batches, batch_size=None, generator=shuffle)

    def with_tasks(self, tasks: Tasks) -> MultitaskDataset:
        """The same images with their labels divided in another way; labels may be left out or used twice."""
        check_task_names(tasks)
        for task, labels in tasks.items():
            unknown = sorted(set(labels) - set(self.names))
            if unknown or not labels:
                problem = f"unknown label(s) {', '.join(map(repr, unknown))}" if unknown else "no labels"
                raise PamergeError(f"Task {task!r} has {problem}; expected some of: {', '.join(self.names)}.")
        return replace(self, tasks={task: tuple(labels) for task, labels in tasks.items()})

    def _batch(self, index: npt.NDArray[np.int64]) -> Batch:
        if len(index) and not -len(self) <= index.min() <= index.max() < len(self):
            raise IndexError(f"There are {len(self)} samples; got indices from {index.min()} to {index.max()}.")
        variants, index = np.divmod(index, len(self.rows))
        # Indexing with a list copies, so that nothing that is written to a batch reaches the file.
        pixels = np.asarray(self.images[self.rows[index]])
        for variant in set(variants.tolist()) - {0}:
            pixels[variants == variant] = self._changed(pixels[variants == variant], variant)
        batch = torch.from_numpy(pixels).contiguous(memory_format=self.memory_format)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        inputs = (batch.float() / 255 - mean) / std
        if self.resize is not None:
            inputs = functional.interpolate(inputs, size=self.resize, mode="bilinear", align_corners=False)
        labels = self.labels[torch.from_numpy(index)]
        return inputs, {task: labels[:, columns] for task, columns in self._columns.items()}

    def _changed(self, pixels: npt.NDArray[np.uint8], variant: int) -> npt.NDArray[np.uint8]:
        """Images as they come the first time (variant 0), the second time and so on."""
        moved, mirrored = divmod(variant, 1 + self.mirror)
        pixels = np.roll(pixels, moved * (pixels.shape[-1] // self.places), axis=-1)
        return pixels[..., ::-1] if mirrored else pixels

    @cached_property
    def _columns(self) -> dict[str, list[int]]:
        return {task: [self.names.index(name) for name in names] for task, names in self.tasks.items()}


@dataclass(frozen=True)
class LoadReport:
    """What a loader did with the rows of its label file.

    Attributes:
        rows: How many rows were asked for.
        missing: The images that have a row but no file.
        corrupt: The images whose file cannot be decoded.
        thresholds: For real-valued attributes, the value above which each one counts as present.
    """

    rows: int
    missing: tuple[str, ...] = ()
    corrupt: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)

    @property
    def skipped(self) -> int:
        """How many rows are in none of the data sets."""
        return len(self.missing) + len(self.corrupt)

    def __str__(self) -> str:
        text = f"{self.rows - self.skipped} of {self.rows} images loaded"
        for kind, names in (("without an image file", self.missing), ("corrupt", self.corrupt)):
            if names:
                text += f"; {len(names)} {kind}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        return text


@dataclass(frozen=True)
class Splits:
    """Training, validation and test data that have no item (or person) in common, and how they were read."""

    train: MultitaskDataset
    validation: MultitaskDataset
    test: MultitaskDataset
    report: LoadReport

    def with_tasks(self, tasks: Tasks) -> Splits:
        """The same images with their labels divided in another way."""
        return self._each(lambda part: part.with_tasks(tasks))

    def with_mirrored_training(self) -> Splits:
        """The same data, with every training image also mirrored; twice as many of them."""
        return replace(self, train=replace(self.train, mirror=True))

    def with_moved_training(self, places: int) -> Splits:
        """The same data, with the parts of every training image also moved on by one place, two, and so on."""
        width = self.train.images.shape[-1]
        if places < 1 or width % places:
            raise PamergeError(f"places={places!r}; expected a number that divides the images' width, {width}.")
        return replace(self, train=replace(self.train, places=places))

    def with_memory_format(self, memory_format: torch.memory_format) -> Splits:
        """The same data, but its inputs lie in memory in another way."""
        return self._each(lambda part: replace(part, memory_format=memory_format))

    def _each(self, change: Callable[[MultitaskDataset], MultitaskDataset]) -> Splits:
        return Splits(change(self.train), change(self.validation), change(self.test), self.report)


def split_labels(
    names: Sequence[str], parts: int | Sequence[int], *, shuffle: torch.Generator | None = None
) -> dict[str, tuple[str, ...]]:
    """Divide labels into tasks A, B, C, … of neighbouring labels, or of random ones with a generator.

    Args:
        names: The labels.
        parts: The number of tasks, of equal size as far as possible; or the number of labels of each task.
        shuffle: Generator for a random division.

    >>> split_labels(["bald", "bangs", "hat", "smile"], 2)
    {'A': ('bald', 'bangs'), 'B': ('hat', 'smile')}
    >>> split_labels(["bald", "bangs", "hat", "smile"], [1, 3])
    {'A': ('bald',), 'B': ('bangs', 'hat', 'smile')}
    """
    if isinstance(parts, int):
        sizes = [(len(names) + part) // parts for part in range(parts)][::-1] if parts > 0 else []
    else:
        sizes = list(parts)
    letters = string.ascii_uppercase
    if not 0 < len(sizes) <= len(letters) or min(sizes) < 1 or sum(sizes) != len(names):
        raise PamergeError(
            f"parts must divide the {len(names)} labels into 1 to {len(letters)} tasks of one label or more, "
            f"got {parts!r}."
        )
    order = range(len(names)) if shuffle is None else torch.randperm(len(names), generator=shuffle).tolist()
    ends = [0, *accumulate(sizes)]
    return {
        letter: tuple(names[i] for i in order[start:end])
        for letter, (start, end) in zip(letters, pairwise(ends), strict=False)
    }


def make_splits(
    images: Sequence[npt.NDArray[np.uint8]],
    rows: Sequence[npt.NDArray[np.int64]],
    labels: Sequence[npt.NDArray[np.bool_]],
    names: Sequence[str],
    tasks: Tasks | None,
    report: LoadReport,
    resize: tuple[int, int] | None = None,
) -> Splits:
    """Data sets from the images, rows and labels of the training, validation and test part.

    Without ``tasks`` the labels are halved. Inputs are normalised by what the training images are like.
    """
    for part, part_rows in zip(("training", "validation", "test"), rows, strict=True):
        if len(part_rows) == 0:
            raise PamergeError(f"The {part} part has no images; read more rows or choose other shares.")
    mean, std = _channel_statistics(images[0], rows[0])
    train, validation, test = (
        MultitaskDataset(
            part_images,
            part_rows,
            torch.from_numpy(part_labels.astype(np.float32)),
            tuple(names),
            {},
            mean,
            std,
            resize,
        )
        for part_images, part_rows, part_labels in zip(images, rows, labels, strict=True)
    )
    return Splits(train, validation, test, report).with_tasks(tasks or split_labels(names, 2))


def _channel_statistics(
    images: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64], most: int = 2000
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over a few images, evenly spaced among the rows."""
    some = images[rows[:: -(-len(rows) // most)]] / np.float32(255)
    mean, std = some.mean(axis=(0, 2, 3), dtype=np.float64), some.std(axis=(0, 2, 3), dtype=np.float64)
    # A channel that is constant, as in an all-black data set, must not divide by zero.
    return tuple(mean.tolist()), tuple(np.where(std > 1e-6, std, 1.0).tolist())
