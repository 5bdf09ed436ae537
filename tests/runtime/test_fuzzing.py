"""Damaged bundles go through the whole runtime: they are refused, or run; nothing crashes, hangs or reads elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.architectures import material

from pamerge import Separate
from pamerge.deploy import export_onnx


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "bundle"
    export_onnx(Separate().merge(material("small_resnet", 2)), folder, ["B", "A+B"])
    return folder


NEVER = ("any_file_as_it_is", "graph_references", "header_numbers", "header_length", "weights_size")
"""Kinds of damage that no bundle survives."""


def accepted(good: Path, scratch: Path, seed: int, count: int) -> dict[str, int]:
    """How many bundles ran, by kind of damage. A crash, a hang or a read elsewhere ends the script with an error."""
    script = Path(__file__).with_name("fuzz.py")
    command = [sys.executable, str(script), str(good), str(scratch), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    if done.returncode:
        raise AssertionError(done.stderr[-3000:])
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])  # onnxruntime prints complaints before
    return found


def test_hundreds_of_damaged_bundles_are_refused_or_run(good: Path, tmp_path: Path) -> None:
    found = accepted(good, tmp_path, seed=0, count=400)
    assert {kind: found[kind] for kind in NEVER} == dict.fromkeys(NEVER, 0)


@pytest.mark.slow
def test_ten_thousand_damaged_bundles_are_refused_or_run(good: Path, tmp_path: Path) -> None:
    found = accepted(good, tmp_path, seed=1, count=10_500)
    assert {kind: found[kind] for kind in NEVER} == dict.fromkeys(NEVER, 0)
