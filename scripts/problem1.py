"""The paper's Problem 1: what task A loses when only the subgraph of task B is pruned, without any training.

    python scripts/problem1.py --data FOLDER [--out runs/problem1]   # measures: results/problem1.json

LeNet-5 on Fashion-MNIST canvases as in ``configs/lenet5-fashion-vib.toml``, all of its seeds, but with Taylor; the
networks that pruning begins with: apart, zipped as a whole, and regrouped by PAM. With the ``--out`` of the experiment,
what they have in common is not done again. ``python scripts/result_tables.py`` makes the table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from study import arguments, say

from pamerge.experiments import Choice, Problem1, read_config, run
from pamerge.network.files import write_atomically

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "problem1.json"
EXPERIMENT = read_config(ROOT / "configs" / "lenet5-fashion-vib.toml")
CONFIG = replace(
    EXPERIMENT,
    name="problem1",
    schemes=tuple(
        Choice(choice.name, {**choice.tries()[0].options, "label": choice.name}) for choice in EXPERIMENT.schemes
    ),
    pruners=(Choice("taylor", {"balance": 0.65}),),
    problem1=Problem1(task="B", laps=10, fraction=0.1),
)


def main() -> None:
    """Measure every scheme and seed that is missing."""
    given = arguments(__doc__, "problem1", chart=False)
    results = run(CONFIG, given.out, data=given.data, watch=say)
    found = {
        choice.name: {result["seed"]: result["schemes"][choice.name]["problem1"]["series"] for result in results}
        for choice in CONFIG.schemes
    }
    content = {"torch": torch.__version__, "task": "B", "schemes": found}
    write_atomically(RESULTS, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
