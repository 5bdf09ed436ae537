"""Multi-label canvases: four small images side by side; a label says whether a class is among them.

The paper's Fashion-MNIST data are of this kind: ten classes, ten labels, two tasks of five labels each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from pamerge.data.dataset import LoadReport, Splits, make_splits
from pamerge.data.idx import read_idx
from pamerge.errors import FileFormatError, PamergeError

ITEMS_A_CANVAS = 4
PAPER_SIZE = (124, 496)
DIGITS = tuple(str(digit) for digit in range(10))
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True)
class _Items:
    """Single images (N, H, W) and their classes (N,)."""

    images: npt.NDArray[np.uint8]
    classes: npt.NDArray[np.int64]

    def take(self, rows: npt.NDArray[np.int64]) -> _Items:
        return _Items(self.images[rows], self.classes[rows])


def digit_canvases(
    *, train: int = 4000, validation: int = 1000, test: int = 1000, generator: torch.Generator
) -> Splits:
    """Canvases (1×8×32) of four of the handwritten digits that come with scikit-learn.

    Task A asks for the digits 0–4, task B for 5–9. The 1,797 images are divided at random, class by class,
    among training (60 %), validation and test canvases (20 % each), so that no image is in two of them.

    Args:
        train: Number of training canvases.
        validation: Number of validation canvases.
        test: Number of test canvases.
        generator: Decides the division of the images and the canvases. How many canvases one part has does
            not change those of another.
    """
    try:
        from sklearn.datasets import load_digits  # slow to import and needed only here
    except ImportError as error:
        raise PamergeError("digit_canvases needs scikit-learn; install it with: pip install scikit-learn") from error
    digits = load_digits()
    grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    items = _Items(grey, digits.target.astype(np.int64))
    division, *streams = _independent(generator, 4)
    return _canvases(_divide(items, (3, 1, 1), division), (train, validation, test), streams, DIGITS, None)


def fashion_canvases(
    folder: Path | str,
    *,
    size: Literal["native", "paper"] = "native",
    train: int = 8000,
    validation: int = 2000,
    test: int = 2000,
    move: bool = False,
    generator: torch.Generator,
) -> Splits:
    """Canvases of four images of clothing from Fashion-MNIST, as in the paper.

    Task A asks for the first five classes, task B for the others. Test canvases are made of the official test
    images; a random sixth of the official training images of each class is kept for validation canvases.

    Args:
        folder: Has the four official files, ``train-images-idx3-ubyte.gz`` and so on, or unpacked ones.
        size: ``"native"`` (1×28×112) or ``"paper"`` (1×124×496, scaled up bilinearly when it is read).
        train: Number of training canvases.
        validation: Number of validation canvases.
        test: Number of test canvases.
        move: Also train on every canvas with its images moved on by one, two and three places; four times as many.
        generator: Decides the division of the images and the canvases. How many canvases one part has does
            not change those of another.
    """
    if size not in ("native", "paper"):
        raise PamergeError(f'size must be "native" (28×112) or "paper" (124×496), got {size!r}.')
    official, test_items = _fashion_items(Path(folder), "train"), _fashion_items(Path(folder), "t10k")
    division, *streams = _independent(generator, 4)
    pools = [*_divide(official, (5, 1), division), test_items]
    resize = PAPER_SIZE if size == "paper" else None
    splits = _canvases(pools, (train, validation, test), streams, FASHION, resize)
    return splits.with_moved_training(ITEMS_A_CANVAS) if move else splits


def _fashion_items(folder: Path, part: str) -> _Items:
    def read(kind: str) -> npt.NDArray[np.uint8]:
        packed = folder / f"{part}-{kind}-ubyte.gz"
        plain = packed.with_suffix("")
        return read_idx(plain if plain.is_file() and not packed.is_file() else packed)

    images, classes = read("images-idx3"), read("labels-idx1")
    if images.ndim != 3 or classes.shape != images.shape[:1] or classes.max(initial=0) >= len(FASHION):
        raise FileFormatError(
            f"The {part} files in {folder} are not Fashion-MNIST: expected N images and N classes "
            f"from 0 to 9, got images of shape {images.shape} and classes of shape {classes.shape}, "
            f"the highest of which is {classes.max(initial=0)}."
        )
    return _Items(images, classes.astype(np.int64))


def _divide(items: _Items, parts: Sequence[int], generator: torch.Generator) -> list[_Items]:
    """Divide the items of each class at random, in the proportions of ``parts``."""
    order = torch.randperm(len(items.classes), generator=generator).numpy()
    by_class = order[np.argsort(items.classes[order], kind="stable")]
    lane = np.arange(len(by_class)) % sum(parts)
    part = np.repeat(np.arange(len(parts)), parts)[lane]
    return [items.take(by_class[part == i]) for i in range(len(parts))]


def _canvases(
    pools: Sequence[_Items],
    counts: Sequence[int],
    generators: Sequence[torch.Generator],
    names: tuple[str, ...],
    resize: tuple[int, int] | None,
) -> Splits:
    for part, count in zip(("train", "validation", "test"), counts, strict=True):
        if count < 1:
            raise PamergeError(f"{part} must be a number of canvases, at least 1, got {count!r}.")
    made = [
        _draw(pool, count, len(names), generator)
        for pool, count, generator in zip(pools, counts, generators, strict=True)
    ]
    images, labels = zip(*made, strict=True)
    rows = [np.arange(count) for count in counts]
    return make_splits(images, rows, labels, names, None, LoadReport(rows=sum(counts)), resize)


def _draw(
    items: _Items, count: int, classes: int, generator: torch.Generator
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Canvases (count, 1, H, 4·W) and their labels (count, classes).

    Each place gets a class with equal probability and then one of the class's items, independently of the
    others; so a label is present in 1 − 0.9⁴ = 34 % of the canvases.
    """
    by_class = np.argsort(items.classes, kind="stable")
    amounts = np.bincount(items.classes, minlength=classes)
    if amounts.min() == 0:
        raise PamergeError(f"There is no item of class {int(amounts.argmin())} to make canvases of.")
    drawn = torch.randint(classes, (count, ITEMS_A_CANVAS), generator=generator).numpy()
    fraction = torch.rand((count, ITEMS_A_CANVAS), dtype=torch.float64, generator=generator).numpy()
    starts = np.cumsum(amounts) - amounts
    chosen = by_class[starts[drawn] + (fraction * amounts[drawn]).astype(np.int64)]
    height, width = items.images.shape[1:]
    side_by_side = items.images[chosen].transpose(0, 2, 1, 3).reshape(count, 1, height, ITEMS_A_CANVAS * width)
    labels = np.zeros((count, classes), dtype=np.bool_)
    np.put_along_axis(labels, drawn, True, axis=1)
    return side_by_side, labels


def _independent(generator: torch.Generator, count: int) -> list[torch.Generator]:
    """Generators whose draws do not depend on how much is drawn from the others."""
    seeds = torch.randint(2**62, (count,), generator=generator).tolist()
    return [torch.Generator().manual_seed(seed) for seed in seeds]
