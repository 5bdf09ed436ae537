"""The command ``pamerge report``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from report.samples import sample
from typer.testing import CliRunner

from pamerge import PamergeError
from pamerge.report.command import report


def call(*arguments: str | Path) -> str:
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(report)
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "run" / "results").mkdir(parents=True)
    for seed in range(2):
        (tmp_path / "run" / "results" / f"faces-taylor-seed{seed}.json").write_text(json.dumps(sample(2, seed)))
    return tmp_path / "run"


def test_files_and_folders_are_reported(runs: Path, tmp_path: Path) -> None:
    files = sorted((runs / "results").iterdir())
    assert "report.html: 2 result(s)" in call(*files, "--out", tmp_path / "report.html")
    for folder in (runs, runs / "results"):
        call(folder, "--out", tmp_path / "other.html")
        assert (tmp_path / "other.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_figures_are_written_on_request(runs: Path, tmp_path: Path) -> None:
    assert "8 file(s)" in call(runs, "--out", tmp_path / "report.html", "--figures", tmp_path / "figures")
    assert len(list((tmp_path / "figures").iterdir())) == 8


def test_the_help_has_examples() -> None:
    assert "  pamerge report run --out faces.html --figures figures/\n" in call("--help")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a result of an experiment: it is not JSON"),
        ("[]", "it holds a list"),
        ('{"experiment": "a"}', "it lacks network, pruner, seed, tasks, schemes"),
        ('{"experiment": "a", "network": "n", "pruner": "p", "seed": 0, "tasks": ["A"], "schemes": {}}', "no schemes"),
    ],
)
def test_a_file_that_is_no_result_is_said(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "wrong.json").write_text(content)
    with pytest.raises(PamergeError, match=message):
        call(tmp_path / "wrong.json", "--out", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_missing_file_and_an_empty_folder_are_said(tmp_path: Path) -> None:
    with pytest.raises(PamergeError, match=r"nowhere\.json does not exist; expected a result file"):
        call(tmp_path / "nowhere.json")
    with pytest.raises(PamergeError, match="holds no result files"):
        call(tmp_path)
