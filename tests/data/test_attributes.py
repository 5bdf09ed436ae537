from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pamerge import FileFormatError, PamergeError
from pamerge.data.attributes import read_celeba_attributes, read_celeba_partition, read_lfw_attributes

LFW = "# comment\n#\tperson\timagenum\tMale\t5 o Clock Shadow\nA B\t1\t1.5\t-2\nA B\t12\t-0.5\t3e-2\n"
CELEBA = "2\nMale Young \n000001.jpg -1  1\n000002.jpg  1 -1\n"


def test_an_lfw_row_is_an_image_a_person_and_values(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LFW)
    table = read_lfw_attributes(tmp_path / "a.txt")
    assert table.names == ("Male", "5 o Clock Shadow")
    assert table.images == ("A_B/A_B_0001.jpg", "A_B/A_B_0012.jpg")
    assert table.people == ("A B", "A B")
    assert table.values.tolist() == [[1.5, -2.0], [-0.5, 0.03]]


def test_a_celeba_row_is_an_image_and_values(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(CELEBA)
    table = read_celeba_attributes(tmp_path / "a.txt")
    assert table.names == ("Male", "Young")
    assert table.images == ("000001.jpg", "000002.jpg")
    assert table.values.tolist() == [[-1, 1], [1, -1]]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_lfw_attributes, "", "is no LFW attribute file: expected a comment line"),
        (read_lfw_attributes, LFW.replace("imagenum", "number"), "is no LFW attribute file.*line 2 is"),
        (read_lfw_attributes, LFW.split("\n", 1)[1], "is no LFW attribute file"),
        (
            read_lfw_attributes,
            LFW[:-8],
            "Line 4 of .* is damaged: it has 1 values, but there are 2 attributes",
        ),
        (read_lfw_attributes, LFW + "C D", "Line 5 of .* is damaged: the image number is ''"),
        (read_lfw_attributes, LFW.replace("1.5", "high"), "Line 3 of .* is damaged: .*'high'"),
        (read_lfw_attributes, LFW.replace("1.5", "nan"), "Line 3 of .* is damaged: a value is not finite"),
        (
            read_lfw_attributes,
            LFW.replace("\t12\t", "\t1\t"),
            "has the image 'A_B/A_B_0001.jpg' more than once",
        ),
        (
            read_lfw_attributes,
            LFW.replace("5 o Clock Shadow", "Male"),
            "has the attribute 'Male' more than once",
        ),
        (read_lfw_attributes, "\n".join(LFW.split("\n")[:2]), "has no rows"),
        (read_celeba_attributes, "", "is no CelebA attribute file"),
        (
            read_celeba_attributes,
            "image,Male\n1.jpg,-1\n",
            "is no CelebA attribute file.*starts with 'image,Male'",
        ),
        (read_celeba_attributes, CELEBA[:-18], "promises 2 images but has 1 rows. Download it again"),
        (read_celeba_attributes, CELEBA[:-4], "Line 4 of .* is damaged: it has 1 values"),
        (read_celeba_partition, "000001.jpg 3\n", "Line 1 of .* expected an image and 0, 1 or 2"),
        (read_celeba_partition, "000001.jpg\n", "Line 1 of .* expected an image and 0, 1 or 2"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(
    tmp_path: Path, read: Callable[[Path], object], text: str, message: str
) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(FileFormatError, match=message):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize("read", [read_lfw_attributes, read_celeba_attributes, read_celeba_partition])
def test_a_missing_or_binary_file_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(PamergeError, match=r"There is no file .*a\.txt"):
        read(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"\xff\xd8\xff\xe0 not text")
    with pytest.raises(FileFormatError, match=r"a\.txt is not a text file"):
        read(tmp_path / "a.txt")
