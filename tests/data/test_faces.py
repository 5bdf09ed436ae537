from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pamerge import PamergeError, PamergeWarning
from pamerge.data import Splits, celeba, lfw, split_labels
from pamerge.data.attributes import read_lfw_attributes

PEOPLE = {f"Person {i:02d}": 1 + i % 3 for i in range(12)}  # 24 images


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def parts(splits: Splits) -> tuple[set[int], set[int], set[int]]:
    train, validation, test = (set(part.rows.tolist()) for part in (splits.train, splits.validation, splits.test))
    return train, validation, test


def test_lfw_is_read_from_the_archive_and_from_the_folder_alike(tmp_path: Path, make_lfw: Callable[..., Path]) -> None:
    packed = lfw(make_lfw(tmp_path / "packed", PEOPLE), generator=seeded())
    unpacked = lfw(make_lfw(tmp_path / "unpacked", PEOPLE, unpacked=True), generator=seeded())
    assert np.array_equal(packed.train.images, unpacked.train.images)
    assert parts(packed) == parts(unpacked)
    assert packed.train.input_size == (3, 72, 72)
    assert packed.report == unpacked.report
    assert packed.report.rows == 24
    assert packed.report.skipped == 0


def test_each_image_keeps_its_own_labels(tmp_path: Path, make_lfw: Callable[..., Path]) -> None:
    splits = lfw(make_lfw(tmp_path / "lfw", PEOPLE), generator=seeded())
    for part in (splits.train, splits.validation, splits.test):
        for i, row in enumerate(part.rows.tolist()):
            # In the small LFW, row i is grey 10·i and its attribute a is positive where i + a is even.
            assert abs(int(part.images[row].mean()) - 10 * row % 250) <= 1
            assert part.labels[i].tolist() == [float((row + a) % 2 == 0) for a in range(4)]


def test_a_person_is_in_one_part_only_and_the_parts_are_all_images(
    tmp_path: Path, make_lfw: Callable[..., Path]
) -> None:
    folder = make_lfw(tmp_path / "lfw", PEOPLE)
    people = read_lfw_attributes(folder / "lfw_attributes.txt").people
    splits = lfw(folder, generator=seeded(), shares=(0.5, 0.25, 0.25))
    train, validation, test = ({people[row] for row in rows} for rows in parts(splits))
    assert len(train) + len(validation) + len(test) == len(train | validation | test) == 12
    sizes = [len(part) for part in parts(splits)]
    assert sum(sizes) == 24
    assert np.abs(np.asarray(sizes) - [12, 6, 6]).max() <= 3


def test_the_generator_decides_who_is_in_which_part(tmp_path: Path, make_lfw: Callable[..., Path]) -> None:
    folder = make_lfw(tmp_path / "lfw", PEOPLE)
    first, again, other = (lfw(folder, generator=seeded(seed)) for seed in (0, 0, 1))
    assert parts(first) == parts(again) != parts(other)


def test_a_quantile_is_taken_over_the_training_people_alone(tmp_path: Path, make_lfw: Callable[..., Path]) -> None:
    folder = make_lfw(tmp_path / "lfw", PEOPLE)
    values = read_lfw_attributes(folder / "lfw_attributes.txt").values
    splits = lfw(folder, generator=seeded(), quantile=0.5)
    medians = np.median(values[splits.train.rows], axis=0)
    assert not np.allclose(medians, np.median(values, axis=0))
    assert list(splits.report.thresholds.values()) == pytest.approx(medians)
    for part in (splits.train, splits.test):
        assert np.array_equal(part.labels.numpy(), values[part.rows] > medians)


def test_only_training_faces_are_mirrored(
    tmp_path: Path, make_lfw: Callable[..., Path], make_celeba: Callable[..., Path]
) -> None:
    folders = make_lfw(tmp_path / "lfw", PEOPLE), make_celeba(tmp_path / "celeba")
    for load, folder in zip((lfw, celeba), folders, strict=True):
        plain, mirrored = (load(folder, generator=seeded(), mirror=mirror) for mirror in (False, True))
        assert len(mirrored.train) == 2 * len(plain.train)
        assert (len(mirrored.validation), len(mirrored.test)) == (len(plain.validation), len(plain.test))


def test_the_threshold_is_zero_unless_said_otherwise(tmp_path: Path, make_lfw: Callable[..., Path]) -> None:
    splits = lfw(make_lfw(tmp_path / "lfw", PEOPLE), generator=seeded())
    assert set(splits.report.thresholds.values()) == {0.0}


@pytest.mark.parametrize("unpacked", [False, True])
def test_corrupt_and_missing_images_are_warned_of_skipped_and_counted(
    tmp_path: Path, make_lfw: Callable[..., Path], unpacked: bool
) -> None:
    damage = {"Person_00_0001": b"missing", "Person_02_0002": b"damaged", "Person_05_0003": b""}
    folder = make_lfw(tmp_path / "lfw", PEOPLE, unpacked=unpacked, **damage)
    for _ in range(2):  # the second time from the cache
        with pytest.warns(
            PamergeWarning, match=r"21 of 24 images loaded; 1 without an image file: Person_00/.*2 corrupt"
        ):
            splits = lfw(folder, generator=seeded(), cache_dir=tmp_path / "cache")
        assert splits.report.missing == ("Person_00/Person_00_0001.jpg",)
        assert splits.report.corrupt == ("Person_02/Person_02_0002.jpg", "Person_05/Person_05_0003.jpg")
        images = read_lfw_attributes(folder / "lfw_attributes.txt").images
        used = {images[row] for row in set.union(*parts(splits))}
        assert used == set(images) - set(splits.report.missing) - set(splits.report.corrupt)


def test_a_corrupt_image_moves_nobody_to_another_part(tmp_path: Path, make_lfw: Callable[..., Path]) -> None:
    whole = lfw(make_lfw(tmp_path / "whole", PEOPLE), generator=seeded())
    folder = make_lfw(tmp_path / "damaged", PEOPLE, Person_02_0002=b"damaged")
    with pytest.warns(PamergeWarning):
        damaged = lfw(folder, generator=seeded())
    assert all(less <= more for less, more in zip(parts(damaged), parts(whole), strict=True))


def test_attributes_are_divided_as_asked(tmp_path: Path, make_lfw: Callable[..., Path]) -> None:
    folder = make_lfw(tmp_path / "lfw", PEOPLE, attributes=40)
    halves = lfw(folder, generator=seeded())
    assert [len(labels) for labels in halves.train.tasks.values()] == [20, 20]
    fifths = lfw(folder, generator=seeded(), tasks=split_labels(halves.train.names, 5))
    _, targets = next(iter(fifths.test.loader(4)))
    assert {task: tuple(labels.shape) for task, labels in targets.items()} == dict.fromkeys("ABCDE", (4, 8))
    together = halves.with_tasks({"all": halves.train.names})
    assert torch.equal(together.validation[0][1]["all"], halves.validation.labels[0])


def test_a_limit_reads_the_first_rows_of_lfw(tmp_path: Path, make_lfw: Callable[..., Path]) -> None:
    seen: list[tuple[int, int]] = []
    splits = lfw(
        make_lfw(tmp_path / "lfw", PEOPLE),
        generator=seeded(),
        limit=15,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert splits.report.rows == 15
    assert set.union(*parts(splits)) == set(range(15))
    assert seen == [(i, 15) for i in range(1, 16)]


def test_celeba_has_the_official_parts(tmp_path: Path, make_celeba: Callable[..., Path]) -> None:
    splits = celeba(make_celeba(tmp_path), cache_dir=tmp_path / "cache")
    assert parts(splits) == (set(range(12)), set(range(12, 16)), set(range(16, 20)))
    assert splits.train.tasks == {"A": ("5_o_Clock_Shadow", "Bald"), "B": ("Young", "Male")}
    assert splits.train.labels[:2].tolist() == [[0, 0, 1, 1], [1, 0, 1, 0]]
    assert splits.train.input_size == (3, 72, 72)
    assert abs(int(splits.test.images[19, 0].mean()) - 190) <= 2


def test_celeba_without_official_parts_is_divided_at_random(tmp_path: Path, make_celeba: Callable[..., Path]) -> None:
    folder = make_celeba(tmp_path, partition=False)
    splits = celeba(folder, generator=seeded())
    assert [len(part) for part in parts(splits)] == [14, 2, 4]
    assert parts(splits) == parts(celeba(folder, generator=seeded()))
    with pytest.raises(PamergeError, match=r"There is no .*list_eval_partition\.txt.* or give a generator"):
        celeba(folder)


def test_a_limit_reads_evenly_spaced_rows_of_celeba(tmp_path: Path, make_celeba: Callable[..., Path]) -> None:
    splits = celeba(make_celeba(tmp_path), limit=7)
    assert [len(part) for part in parts(splits)] == [4, 2, 1]


def test_celeba_reports_what_is_missing(tmp_path: Path, make_celeba: Callable[..., Path]) -> None:
    folder = make_celeba(tmp_path)
    (folder / "img_align_celeba" / "000003.jpg").unlink()
    (folder / "img_align_celeba" / "000020.jpg").write_bytes(b"damaged")
    with pytest.warns(PamergeWarning, match="18 of 20 images loaded"):
        splits = celeba(folder)
    assert (splits.report.missing, splits.report.corrupt) == (("000003.jpg",), ("000020.jpg",))


def test_an_image_that_no_part_is_named_for_is_an_error(tmp_path: Path, make_celeba: Callable[..., Path]) -> None:
    folder = make_celeba(tmp_path)
    (folder / "list_eval_partition.txt").write_text("000001.jpg 0\n")
    with pytest.raises(PamergeError, match=r"does not say in which part 19 of the images are, such as 000002\.jpg"):
        celeba(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be an integer of at least 1, got 0"),
        ({"crop": 1.5}, r"crop must be an integer of at least 1, got 1\.5"),
        ({"limit": 0}, "limit must be an integer of at least 1, got 0"),
        ({"limit": 1}, "part has no images; read more rows"),
        ({"shares": (0.9, 0.2, 0.1)}, "shares must be three positive numbers that sum to 1"),
        ({"shares": (0.8, 0.0, 0.2)}, "shares must be three positive numbers that sum to 1"),
        ({"quantile": 1.0}, r"quantile must be between 0 and 1, such as 0\.5 for the median, got 1\.0"),
        ({"tasks": {"A": ["Smiling"]}}, r"Task 'A' has unknown label\(s\) 'Smiling'"),
    ],
)
def test_a_bad_parameter_is_named(
    tmp_path: Path, make_lfw: Callable[..., Path], options: dict[str, object], message: str
) -> None:
    with pytest.raises(PamergeError, match=message):
        lfw(make_lfw(tmp_path / "lfw", PEOPLE), generator=seeded(), **options)


def test_a_folder_without_images_is_an_error(
    tmp_path: Path, make_lfw: Callable[..., Path], make_celeba: Callable[..., Path]
) -> None:
    (make_lfw(tmp_path / "lfw", PEOPLE) / "lfw-deepfunneled.tgz").unlink()
    with pytest.raises(PamergeError, match=r"no images in .*lfw: expected the folder lfw-deepfunneled or"):
        lfw(tmp_path / "lfw", generator=seeded())
    make_celeba(tmp_path / "celeba")
    (tmp_path / "celeba" / "img_align_celeba").rename(tmp_path / "celeba" / "images")
    with pytest.raises(PamergeError, match="expected the folder img_align_celeba"):
        celeba(tmp_path / "celeba")


def test_images_of_another_data_set_are_an_error(tmp_path: Path, make_lfw: Callable[..., Path]) -> None:
    folder = make_lfw(tmp_path / "lfw", PEOPLE)
    make_lfw(tmp_path / "other", {"Somebody Else": 3})
    (tmp_path / "other" / "lfw-deepfunneled.tgz").replace(folder / "lfw-deepfunneled.tgz")
    with pytest.raises(PamergeError, match=r"None of the 24 rows has a readable image in .*lfw-deepfunneled\.tgz"):
        lfw(folder, generator=seeded())


def test_the_first_rows_of_the_real_lfw_are_read(real_data: Callable[[str], Path]) -> None:
    splits = lfw(real_data("lfw"), generator=seeded(), quantile=0.5, limit=200)
    assert splits.report.skipped == 0
    assert len(splits.train.names) == 40
    x, targets = next(iter(splits.train.loader(32)))
    assert x.shape == (32, 3, 72, 72)
    assert targets["A"].shape == targets["B"].shape == (32, 20)
    assert 0.45 < splits.train.labels.mean() <= 0.5


@pytest.mark.slow
def test_the_whole_real_lfw_is_read_and_cached(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    folder, decoded = real_data("lfw"), []
    for _ in range(2):
        splits = lfw(
            folder,
            generator=seeded(),
            quantile=0.5,
            cache_dir=tmp_path,
            on_progress=lambda done, _: decoded.append(done),
        )
    assert len(decoded) == splits.report.rows == 12_949
    assert splits.report.skipped == 0
    people = read_lfw_attributes(folder / "lfw_attributes.txt").people
    train, validation, test = ({people[row] for row in rows} for rows in parts(splits))
    assert not train & validation
    assert not train & test
    assert not validation & test
