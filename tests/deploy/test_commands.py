"""The commands that export and time a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.architectures import material

import pamerge
import pamerge.deploy
from pamerge import Separate
from pamerge.cli import main


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    pamerge.save(Separate().merge(material("lenet5", 2)), tmp_path / "network.pam")
    return tmp_path / "network.pam"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


def test_a_saved_network_is_exported_and_timed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, results, picture = saved.with_name("bundle"), saved.with_name("times.json"), saved.with_name("times.svg")
    assert run("export", saved, folder) == 0
    assert run("export", saved, saved.with_name("other"), "--subset", "A", "--subset", "A+B", "--fuse", "never") == 0
    options = ["--against", f"other={saved.with_name('other')}", "--repeats", 3, "--warm-up", 1]
    capsys.readouterr()
    assert run("bench", folder, *options, "--no-memory", "--json", results, "--chart", picture, "--quiet") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [
        ["bundle", "A"], ["bundle", "B"], ["bundle", "A+B"], ["other", "A"], ["other", "A+B"],
    ]  # fmt: skip
    measured = json.loads(results.read_text())
    assert {item["tasks"] for item in measured} == {"A", "B", "A+B"}
    assert all(0 < item["median"] <= item["p95"] for item in measured)
    assert picture.read_text().startswith("<?xml")


def test_peak_memory_is_that_of_a_process_of_its_own(saved: Path) -> None:
    folder = saved.with_name("bundle")
    pamerge.deploy.export_onnx(pamerge.load(saved), folder, ["A"])
    (found,) = pamerge.deploy.measure({"ours": folder}, repeats=1)
    assert found.weight_bytes < found.peak_bytes < 500 * 2**20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "missing.pam", "bundle"], "There is no file missing.pam"),
        (["bench", "missing"], "no bundle at"),
        (["bench", "missing", "--against", "nothing"], "expected a new label and a folder"),
        (["bench", "missing", "--chart", "picture.doc"], "cannot be drawn"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1


def test_unknown_tasks_are_named(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", saved, saved.with_name("bundle"), "--subset", "A+Z") == 2
    assert "Unknown task(s) 'Z'" in capsys.readouterr().err
