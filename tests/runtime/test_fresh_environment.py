"""The runtime needs numpy and onnxruntime and nothing else: the program of the docs runs in a new environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support.architectures import material

from pamerge import Separate
from pamerge.deploy import export_onnx

ROOT = Path(__file__).parents[2]


def program() -> str:
    """The ten lines of the docs."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    found = re.search(r"<!-- device -->\n```python\n(.*?)```\n<!-- /device -->", page, re.S)
    assert found is not None
    return found[1]


def test_the_program_of_the_docs_is_short() -> None:
    assert len([line for line in program().splitlines() if line.strip()]) <= 10


def test_the_runtime_imports_nothing_else() -> None:
    code = "import sys, pamerge_runtime; print({'torch', 'onnx', 'pamerge', 'safetensors'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_a_fresh_environment_with_only_the_runtime_runs_a_bundle(tmp_path: Path) -> None:
    export_onnx(Separate().merge(material("lenet5", 2)), tmp_path / "faces-onnx")
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    install = [python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(ROOT / "runtime")]
    subprocess.run(install, check=True, env=environment)
    listed = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert "torch" not in listed
    done = subprocess.run([python, "-c", program()], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "tasks: A, B" in done.stdout
    assert "['A', 'B'] B (2, 4)" in done.stdout
