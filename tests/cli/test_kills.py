"""A command that is killed, given again, ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

SCRIPT = Path(__file__).parent / "killed.py"


def killed(what: str, folder: Path, *lines: str) -> tuple[Any, Any]:
    """What the killed and the undisturbed command print, without times and places."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, str(SCRIPT), what, str(folder), *lines]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found, expected = (json.loads((folder / f"{name}.json").read_text()) for name in ("killed", "whole"))
    return _timeless(found), _timeless(expected)


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        hidden = ("seconds", "peak_gib", "environment", "out")
        return {name: _timeless(item) for name, item in value.items() if name not in hidden}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def same_networks(folder: Path, pattern: str) -> bool:
    pairs = [
        (path, folder / "whole" / path.relative_to(folder / "killed")) for path in (folder / "killed").glob(pattern)
    ]
    return bool(pairs) and all(_checksum(one) == _checksum(other) for one, other in pairs)


def _checksum(path: Path) -> str:
    with safe_open(path, framework="pt") as file:
        return str(file.metadata()["sha256"])


def test_a_merge_that_is_killed_while_it_prunes_goes_on(tmp_path: Path) -> None:
    found, expected = killed("merge", tmp_path, "pruning step 1")
    assert found == expected
    assert same_networks(tmp_path, "small.pam")
    lines = (tmp_path / "killed.err").read_text()
    assert "stored            pam: fine-tune" in lines
    assert "going on from" in lines
    assert not list((tmp_path / "killed" / "small.pam.stages").glob("*.checkpoint"))


@pytest.mark.slow
def test_a_merge_that_is_killed_in_every_stage_goes_on(tmp_path: Path) -> None:
    stages = ("started           pam: merge", "started           pam: fine-tune", "started           pam: prune")
    found, expected = killed("merge", tmp_path, *stages, "pruning step 0", "pruning step 1")
    assert found == expected
    assert same_networks(tmp_path, "small.pam")


@pytest.mark.slow
def test_an_experiment_that_is_killed_in_every_stage_goes_on(tmp_path: Path) -> None:
    stages = (
        "train the network of A@0.05",
        "train the network of B@0.05",
        "mtz: merge@0.1",
        "mtz: fine-tune@0.05",
        "mtz: prune@0.1",
        "mtz: evaluate",
        "pam: tune@0.1",
        "pam: merge",
        "pam: fine-tune",
        "pam: prune",
    )
    found, expected = killed("run", tmp_path, *stages, "pruning step 1")
    assert found == expected
    assert same_networks(tmp_path, "networks/*.pam")


@pytest.mark.slow
def test_an_experiment_in_several_processes_that_is_killed_goes_on(tmp_path: Path) -> None:
    stages = ("train the network of A@0.05", "separate: prune@0.1", "pam: merge", "pam: prune@0.1")
    found, expected = killed("run in processes", tmp_path, *stages)
    assert found == expected
    assert same_networks(tmp_path, "networks/*.pam")
