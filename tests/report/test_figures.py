"""The paper's figures as files."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from report.samples import sample

from pamerge import PamergeError
from pamerge.report import write_figures

BARE = {"flops", "metric"}


def test_every_figure_is_written_as_svg_and_png(tmp_path: Path) -> None:
    written = write_figures([sample(2), sample(2, 1)], tmp_path / "new" / "figures")
    names = {f"faces-2-tasks-lenet5-taylor-{what}" for what in ("gains", "path", "sharing", "information")}
    assert {path.stem for path in written} == names
    assert len(written) == 8
    for path in written:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_a_figure_shows_every_combination_by_name(tmp_path: Path) -> None:
    write_figures([sample(5)], tmp_path)
    text = (tmp_path / "faces-5-tasks-lenet5-taylor-gains.svg").read_text()
    for combination in sample(5)["schemes"]["pam"]["flops"]:
        assert f">{combination}<" in text


def test_what_the_results_do_not_hold_is_left_out(tmp_path: Path) -> None:
    schemes = {name: {key: s[key] for key in BARE} for name, s in sample(2)["schemes"].items()}
    assert {path.suffix for path in write_figures([sample(2) | {"schemes": schemes}], tmp_path)} == {".svg", ".png"}
    assert {path.stem.rpartition("-")[2] for path in tmp_path.iterdir()} == {"gains"}


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    one, other = (write_figures([sample(2)], tmp_path / name) for name in ("one", "other"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_names_are_drawn_as_they_are_and_make_plain_file_names(tmp_path: Path) -> None:
    odd = sample(2) | {"experiment": "../$a_b$ & c"}
    assert write_figures([odd], tmp_path)[0].name == "a_b_c-lenet5-taylor-gains.svg"


def test_a_file_is_no_folder_for_figures(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PamergeError, match="is a file; expected a folder"):
        write_figures([sample(2)], tmp_path / "file")
