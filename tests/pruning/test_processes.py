from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lightning_fabric import Fabric
from pruning.around import neurons
from pruning.two_processes import run

import pamerge

SCRIPT = Path(__file__).parent / "two_processes.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes did."""
    folder = tmp_path_factory.mktemp("two")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, str(SCRIPT), str(folder)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["taylor", "one after the other"])
def test_two_processes_prune_like_one_with_the_combined_batch(pruner, folder, tmp_path):
    run(Fabric(accelerator="cpu", devices=1), pruner, tmp_path / "one")
    assert neurons(pamerge.load(tmp_path / "one")) == neurons(pamerge.load(folder / pruner))
    one, two = (json.loads(Path(f"{path}.json").read_text()) for path in (tmp_path / "one", folder / pruner))
    assert len(one["metrics"]) == 4
    for a, b in zip([*one["metrics"], one["final"]], [*two["metrics"], two["final"]], strict=True):
        assert a == pytest.approx(b, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["taylor", "vib", "one after the other"])
def test_all_processes_end_with_the_same_network(pruner, folder):
    assert json.loads((folder / f"{pruner}.json").read_text())["same"]
