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


def fuzz(good: Path, scratch: Path, seed: int, count: int) -> None:
    script = Path(__file__).with_name("fuzz.py")
    command = [sys.executable, str(script), str(good), str(scratch), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    accepted = json.loads(done.stdout.splitlines()[-1])  # onnxruntime prints complaints before
    never = ("any_file_as_it_is", "graph_references", "header_numbers", "header_length", "weights_size")
    assert not any(accepted[kind] for kind in never), accepted


def test_hundreds_of_damaged_bundles_are_refused_or_run(good: Path, tmp_path: Path) -> None:
    fuzz(good, tmp_path, seed=0, count=400)


@pytest.mark.slow
def test_ten_thousand_damaged_bundles_are_refused_or_run(good: Path, tmp_path: Path) -> None:
    fuzz(good, tmp_path, seed=1, count=10_500)
