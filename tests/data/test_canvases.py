from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pamerge import FileFormatError, PamergeError
from pamerge.data import Splits, digit_canvases, fashion_canvases, read_idx


@pytest.fixture
def fashion(tmp_path: Path, write_idx: Callable[..., None]) -> Path:
    """300 training and 100 test items of 4×4; pixels are the class and the item's number."""
    for part, count, first in (("train", 300, 0), ("t10k", 100, 1000)):
        classes = np.arange(count) % 10
        number = np.arange(count) + first
        images = np.zeros((count, 4, 4), dtype=np.uint8)
        images[:, 0, 0] = classes
        images[:, 0, 1], images[:, 0, 2] = number // 256, number % 256
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", classes)
    return tmp_path


def small(fashion: Path, seed: int = 0, **options: object) -> Splits:
    sizes = {"train": 200, "validation": 60, "test": 50} | options
    return fashion_canvases(fashion, generator=torch.Generator().manual_seed(seed), **sizes)


def items(canvases: np.ndarray) -> np.ndarray:
    """The four items (N, 4, 4, 4) of each canvas of 4×16."""
    return np.stack(np.split(canvases[:, 0], 4, axis=2), axis=1)


def test_a_label_says_whether_its_class_is_on_the_canvas(fashion: Path) -> None:
    for part in (splits := small(fashion)).train, splits.validation, splits.test:
        classes = items(part.images)[:, :, 0, 0]
        expected = np.stack([(classes == c).any(axis=1) for c in range(10)], axis=1)
        assert np.array_equal(part.labels.numpy(), expected)
        _, targets = part[list(range(len(part)))]
        assert torch.equal(torch.cat([targets["A"], targets["B"]], dim=1), part.labels)
        assert targets["A"].shape[1] == targets["B"].shape[1] == 5


def test_no_item_is_used_in_two_parts_and_test_items_are_the_official_ones(fashion: Path) -> None:
    splits = small(fashion, train=2000, validation=500, test=500)
    train, validation, test = (
        {int(high) * 256 + int(low) for high, low in items(part.images)[:, :, 0, 1:3].reshape(-1, 2)}
        for part in (splits.train, splits.validation, splits.test)
    )
    assert not train & validation
    assert len(train) == 250
    assert len(validation) == 50
    assert test == set(range(1000, 1100))


def test_the_same_seed_gives_the_same_canvases_and_another_one_others(fashion: Path) -> None:
    first, again, other = small(fashion), small(fashion), small(fashion, seed=1)
    for part in ("train", "validation", "test"):
        assert np.array_equal(getattr(first, part).images, getattr(again, part).images)
        assert torch.equal(getattr(first, part).labels, getattr(again, part).labels)
        assert not np.array_equal(getattr(first, part).images, getattr(other, part).images)


def test_the_number_of_training_canvases_does_not_change_the_test_canvases(fashion: Path) -> None:
    few, many = small(fashion, train=10), small(fashion, train=500)
    assert np.array_equal(few.test.images, many.test.images)
    assert np.array_equal(few.validation.images, many.validation.images)


def test_classes_are_equally_frequent_even_if_their_items_are_not(
    tmp_path: Path, write_idx: Callable[..., None]
) -> None:
    classes = np.concatenate([np.arange(10).repeat(20), np.zeros(2000, dtype=int)])
    for part in ("train", "t10k"):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", np.zeros((len(classes), 1, 1)))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", classes)
    share = small(tmp_path, train=8000).train.labels.mean(dim=0)
    assert torch.allclose(share, torch.full((10,), 1 - 0.9**4), atol=0.02)


def test_the_paper_size_scales_the_canvas_up_when_it_is_read(fashion: Path) -> None:
    native, paper = small(fashion), small(fashion, size="paper")
    assert paper.train.input_size == (1, 124, 496)
    x, targets = next(iter(paper.train.loader(3)))
    native_x, native_targets = next(iter(native.train.loader(3)))
    assert x.shape == (3, 1, 124, 496)
    assert torch.equal(targets["A"], native_targets["A"])
    shrunk = torch.nn.functional.interpolate(x, size=native_x.shape[2:], mode="area")
    assert torch.corrcoef(torch.stack([shrunk.flatten(), native_x.flatten()]))[0, 1] > 0.9


def test_unpacked_files_work_too(fashion: Path, write_idx: Callable[..., None]) -> None:
    packed = small(fashion).train.images
    for path in fashion.glob("*.gz"):
        write_idx(path.with_suffix(""), read_idx(path))
        path.unlink()
    assert np.array_equal(small(fashion).train.images, packed)


def test_digits_come_without_any_file(generator: torch.Generator) -> None:
    splits = digit_canvases(train=300, validation=100, test=100, generator=generator)
    assert splits.train.input_size == (1, 8, 32)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [300, 100, 100]
    assert splits.train.tasks == {"A": ("0", "1", "2", "3", "4"), "B": ("5", "6", "7", "8", "9")}
    assert splits.train.images.max() == 255
    assert (splits.train.labels.sum(dim=1) >= 1).all()
    assert (splits.train.labels.sum(dim=1) <= 4).all()


def test_no_digit_is_used_in_two_parts(generator: torch.Generator) -> None:
    splits = digit_canvases(train=5000, validation=2000, test=2000, generator=generator)
    train, validation, test = (
        {item.tobytes() for item in np.concatenate(np.split(part.images[:, 0], 4, axis=2))}
        for part in (splits.train, splits.validation, splits.test)
    )
    assert not train & validation
    assert not train & test
    assert not validation & test


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "large"}, r'size must be "native" .* or "paper" .* got \'large\''),
        ({"train": 0}, "train must be a number of canvases, at least 1, got 0"),
        ({"validation": -5}, "validation must be a number of canvases"),
    ],
)
def test_a_bad_parameter_is_named(fashion: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(PamergeError, match=message):
        small(fashion, **options)


def test_images_and_labels_that_do_not_belong_together_are_refused(
    fashion: Path, write_idx: Callable[..., None]
) -> None:
    write_idx(fashion / "t10k-labels-idx1-ubyte.gz", np.arange(99) % 10)
    with pytest.raises(FileFormatError, match=r"The t10k files .* got images of shape \(100, 4, 4\)"):
        small(fashion)
    write_idx(fashion / "t10k-labels-idx1-ubyte.gz", np.arange(100) % 11)
    with pytest.raises(FileFormatError, match="the highest of which is 10"):
        small(fashion)


def test_a_class_without_items_is_named(fashion: Path, write_idx: Callable[..., None]) -> None:
    write_idx(fashion / "t10k-labels-idx1-ubyte.gz", np.arange(100) % 9)
    with pytest.raises(PamergeError, match="There is no item of class 9"):
        small(fashion)


def test_real_fashion_mnist_gives_the_canvases_of_the_paper(
    real_data: Callable[[str], Path], generator: torch.Generator
) -> None:
    splits = fashion_canvases(real_data("fashion-mnist"), size="paper", generator=generator)
    assert (len(splits.train), len(splits.test)) == (8000, 2000)
    x, targets = splits.train[0]
    assert x.shape == (1, 124, 496)
    assert targets["A"].shape == targets["B"].shape == (5,)
    assert splits.train.mean[0] == pytest.approx(0.286, abs=0.005)
    assert splits.train.std[0] == pytest.approx(0.353, abs=0.005)
