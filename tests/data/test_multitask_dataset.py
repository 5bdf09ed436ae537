from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from pamerge import PamergeError
from pamerge.data import LoadReport, MultitaskDataset, Splits, split_labels
from pamerge.data.dataset import make_splits


def dataset(count: int = 10, resize: tuple[int, int] | None = None) -> MultitaskDataset:
    """Image i has the grey value i; labels are the bits of i."""
    images = np.arange(2 * count, dtype=np.uint8).reshape(-1, 1, 1, 1) * np.ones((1, 3, 2, 4), dtype=np.uint8)
    rows = np.arange(0, 2 * count, 2)
    labels = torch.tensor([[float(i >> bit & 1) for bit in range(4)] for i in range(count)])
    names = ("one", "two", "four", "eight")
    tasks = {"A": ("one", "two"), "B": ("four", "eight")}
    return MultitaskDataset(images, rows, labels, names, tasks, (0.0,) * 3, (1 / 255,) * 3, resize)


def test_a_sample_is_an_input_and_the_labels_of_each_task() -> None:
    x, targets = dataset()[5]
    assert torch.allclose(x, torch.full((3, 2, 4), 10.0))
    assert {task: labels.tolist() for task, labels in targets.items()} == {"A": [1, 0], "B": [1, 0]}
    assert x.dtype == targets["A"].dtype == torch.float32


def test_inputs_are_normalised_by_mean_and_deviation_of_each_channel() -> None:
    images = np.asarray([0, 51, 255], dtype=np.uint8).reshape(1, 3, 1, 1)
    labels = torch.ones(1, 1)
    data = MultitaskDataset(images, np.arange(1), labels, ("l",), {"A": ("l",)}, (0.5, 0.2, 0.0), (0.5, 0.1, 2.0))
    assert torch.allclose(data[0][0].flatten(), torch.tensor([-1.0, 0.0, 0.5]))


def test_a_negative_index_counts_from_the_end_and_one_too_large_ends_the_iteration() -> None:
    data = dataset(3)
    assert torch.equal(data[-1][0], data[2][0])
    assert len(list(data)) == 3
    with pytest.raises(IndexError):
        data[3]


def test_the_loader_gives_the_same_batches_as_a_plain_dataloader() -> None:
    data = dataset(10)
    ours, plain = list(data.loader(4)), list(DataLoader(data, batch_size=4))
    assert [len(x) for x, _ in ours] == [4, 4, 2]
    for (x, targets), (plain_x, plain_targets) in zip(ours, plain, strict=True):
        assert torch.equal(x, plain_x)
        assert all(torch.equal(targets[task], plain_targets[task]) for task in ("A", "B"))


def test_a_mirrored_data_set_has_every_image_twice_the_second_time_with_left_and_right_exchanged() -> None:
    plain = dataset(3)
    images = np.arange(plain.images.size, dtype=np.uint8).reshape(plain.images.shape)
    images.setflags(write=False)  # as those of a memory-mapped file
    plain = replace(plain, images=images)
    data = replace(plain, mirror=True)
    assert len(data) == 6
    [(inputs, targets)] = data.loader(6)
    [(once, labels)] = plain.loader(3)
    assert torch.equal(inputs, torch.cat([once, once.flip(-1)]))
    assert all(torch.equal(targets[task], labels[task].repeat(2, 1)) for task in ("A", "B"))
    assert torch.equal(data[-1][0], once[2].flip(-1))


@pytest.mark.parametrize("index", [[0, 20], [-21]])
def test_a_list_of_indices_that_is_out_of_range_is_an_error(index: list[int]) -> None:
    data = replace(dataset(10), mirror=True)
    assert torch.equal(data[[-1, 19]][0][0], data[19][0])
    with pytest.raises(IndexError, match="There are 20 samples"):
        data[index]


def test_parts_must_be_of_equal_width() -> None:
    splits = Splits(*[dataset()] * 3, LoadReport(10))
    assert len(splits.with_moved_training(4).train) == 40
    for places in (0, 3):
        with pytest.raises(PamergeError, match=f"places={places}; expected a number that divides .* width, 4"):
            splits.with_moved_training(places)


def test_the_parts_of_an_image_can_come_again_in_other_places_and_mirrored() -> None:
    plain = dataset(3)
    plain = replace(plain, images=np.arange(plain.images.size, dtype=np.uint8).reshape(plain.images.shape))
    [(once, _)] = plain.loader(3)
    [(inputs, targets)] = replace(plain, places=2).loader(6)
    assert torch.equal(inputs, torch.cat([once, once.roll(2, -1)]))
    assert torch.equal(targets["A"][:3], targets["A"][3:])
    [(inputs, _)] = replace(plain, places=2, mirror=True).loader(12)
    assert torch.equal(inputs, torch.cat([once, once.flip(-1), once.roll(2, -1), once.roll(2, -1).flip(-1)]))


@pytest.mark.parametrize("resize", [None, (4, 8)])
def test_channels_can_come_last_in_memory_without_a_change_of_values(resize) -> None:
    plain = dataset(resize=resize)
    last = replace(plain, memory_format=torch.channels_last)
    (x, targets), (other, others) = next(iter(plain.loader(4))), next(iter(last.loader(4)))
    assert torch.equal(x, other)
    assert torch.equal(targets["A"], others["A"])
    assert x.is_contiguous()
    assert other.is_contiguous(memory_format=torch.channels_last)
    assert not other.is_contiguous()


def test_shuffling_follows_its_generator_and_differs_between_epochs() -> None:
    def epochs(seed: int) -> list[list[float]]:
        loader = dataset(50).loader(8, shuffle=torch.Generator().manual_seed(seed))
        return [[v for x, _ in loader for v in x[:, 0, 0, 0].tolist()] for _ in range(2)]

    first, second = epochs(0)
    assert [first, second] == epochs(0)
    assert first != second
    assert sorted(first) == sorted(second) == pytest.approx(list(range(0, 100, 2)))


def test_an_incomplete_batch_can_be_dropped() -> None:
    assert [len(x) for x, _ in dataset(10).loader(4, drop_last=True)] == [4, 4]


def test_writing_to_a_batch_leaves_the_images_alone() -> None:
    data = dataset()
    before = data.images.copy()
    for x, _ in data.loader(5):
        x.zero_()
    assert np.array_equal(data.images, before)


def test_resizing_keeps_the_data_small_and_scales_inputs() -> None:
    data = dataset(resize=(8, 6))
    assert data.input_size == data[0][0].shape == (3, 8, 6)
    assert data.images.shape[2:] == (2, 4)


def test_other_tasks_show_other_labels_of_the_same_images() -> None:
    data = dataset().with_tasks({"all": ["one", "two", "four", "eight"], "last": ["eight"]})
    x, targets = data[9]
    assert torch.equal(x, dataset()[9][0])
    assert {task: labels.tolist() for task, labels in targets.items()} == {"all": [1, 0, 0, 1], "last": [1]}
    assert repr(data) == "MultitaskDataset(10 images of 3×2×4; all: 4 labels, last: 1 labels)"


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"A": ["one", "nine"]}, r"Task 'A' has unknown label\(s\) 'nine'; expected some of: one, two"),
        ({"A": []}, "Task 'A' has no labels"),
        ({"A+B": ["one"]}, "cannot be the name of a task"),
        ({}, "No tasks were given"),
    ],
)
def test_tasks_that_cannot_be_are_refused(tasks: dict[str, list[str]], message: str) -> None:
    with pytest.raises(PamergeError, match=message):
        dataset().with_tasks(tasks)


def test_a_batch_size_of_zero_is_refused() -> None:
    with pytest.raises(PamergeError, match="batch_size must be at least 1, got 0"):
        dataset().loader(0)


def test_labels_are_divided_in_order_into_equal_or_given_parts() -> None:
    names = [str(i) for i in range(40)]
    assert split_labels(names, 2) == {"A": tuple(names[:20]), "B": tuple(names[20:])}
    assert [len(part) for part in split_labels(names, 5).values()] == [8] * 5
    assert [len(part) for part in split_labels(names[:7], 3).values()] == [3, 2, 2]
    assert split_labels(names[:3], [1, 2]) == {"A": ("0",), "B": ("1", "2")}


def test_a_random_division_follows_its_generator_and_uses_each_label_once() -> None:
    names = [str(i) for i in range(73)]
    sizes = [15, 15, 15, 15, 13]
    first, again, other = (
        split_labels(names, sizes, shuffle=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert first == again != other
    assert [len(part) for part in first.values()] == sizes
    assert sorted(name for part in first.values() for name in part) == sorted(names)


@pytest.mark.parametrize("parts", [0, -1, 5, [1, 2], [2, 3], [4, 0], []])
def test_a_division_that_leaves_labels_or_tasks_empty_is_refused(parts: int | list[int]) -> None:
    with pytest.raises(PamergeError, match=r"parts must divide the 4 labels .* got"):
        split_labels(["a", "b", "c", "d"], parts)


def test_inputs_are_normalised_by_the_training_images_alone() -> None:
    images = np.concatenate([np.full((4, 1, 2, 2), 51), np.full((4, 1, 2, 2), 255)]).astype(np.uint8)
    images[:2] = 153
    rows = [np.arange(4), np.arange(4, 6), np.arange(6, 8)]
    labels = [np.ones((len(part), 2), dtype=bool) for part in rows]
    splits = make_splits([images] * 3, rows, labels, ["a", "b"], None, LoadReport(rows=8))
    x = torch.stack([x for x, _ in splits.train])
    assert x.mean().item() == pytest.approx(0, abs=1e-5)
    assert x.std(unbiased=False).item() == pytest.approx(1, abs=1e-5)
    assert splits.test.mean == splits.train.mean == pytest.approx((0.4,))


def test_a_constant_channel_does_not_divide_by_zero() -> None:
    images, rows = np.zeros((3, 1, 2, 2), dtype=np.uint8), [np.asarray([i]) for i in range(3)]
    splits = make_splits([images] * 3, rows, [np.ones((1, 2), dtype=bool)] * 3, ["a", "b"], None, LoadReport(3))
    assert splits.train[0][0].isfinite().all()


def test_a_report_counts_and_names_what_was_skipped() -> None:
    report = LoadReport(rows=100, missing=("a", "b", "c", "d"), corrupt=("e",))
    assert report.skipped == 5
    assert str(report) == "95 of 100 images loaded; 4 without an image file: a, b, c, …; 1 corrupt: e"
    assert str(LoadReport(rows=3)) == "3 of 3 images loaded"
