"""What each choice of PAM and of pruning is worth: the same experiment with one choice changed at a time.

    python scripts/levers.py --data FOLDER [--out runs/levers]   # measures: results/levers.json

Faces and two tasks as in ``configs/vgg16-lfw-quarter.toml``, with networks of an eighth of the width and two thirds of
the effort. In networks with many channels costs fall in small steps, so that a choice shows sooner than in LeNet-5. The
first row is PAM with a trunk of two thirds, with separate networks and MTZ beside it. Finished stages are kept in
``--out``, so that a run that was killed goes on. ``python scripts/result_tables.py`` makes the table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from study import arguments, say

from pamerge.experiments import Choice, read_config, run
from pamerge.experiments.metrics import expected_cost
from pamerge.network.files import write_atomically

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "levers.json"
EXPERIMENT = read_config(ROOT / "configs" / "vgg16-lfw-quarter.toml")
NETWORK = replace(EXPERIMENT.network, options={**EXPERIMENT.network.options, "width": 0.125, "fc": 128})
ZIPPING = {"steps": 10, "lr": 1e-3}
SCHEMES: dict[str, dict[str, Any]] = {
    "separate": {},
    "mtz": {**ZIPPING, "share": 1.0},
    "pam": {**ZIPPING, "zip": 2.0, "trunk": 0.67, "alpha": 0.2},
}
CONFIG = replace(EXPERIMENT, name="levers", network=NETWORK, effort=8000)


def scheme(name: str, **changes: Any) -> dict[str, Any]:
    """A scheme of the experiment with other options; None takes one away."""
    options = {key: value for key, value in {**SCHEMES[name], **changes}.items() if value is not None}
    return {"schemes": (Choice(name, options),)}


def taylor(**changes: Any) -> dict[str, Any]:
    """PAM with another way to rank neurons."""
    return {**scheme("pam"), "pruners": (Choice("taylor", changes),)}


def prune(**changes: Any) -> dict[str, Any]:
    """PAM with other options of pruning."""
    return {**scheme("pam"), "prune": {**CONFIG.prune, **changes}}


VARIANTS: dict[str, dict[str, Any]] = {
    "PAM, the first two thirds of the layers shared": scheme("pam"),
    "separate": scheme("separate"),
    "MTZ, all shared": scheme("mtz"),
    "a quarter of all layers exclusive": scheme("pam", trunk=None, alpha=None, exclusive=0.25),
    "α = 0.2 in all layers": scheme("pam", trunk=None),
    "layers behind the trunk apart (α = 1)": scheme("pam", alpha=1.0),
    "no training while zipping": scheme("pam", steps=0),
    'remove = "neuron"': prune(remove="neuron"),
    "importance not per FLOP": prune(per_flop=False),
    'shared = "own", as in the paper': taylor(shared="own"),
    'shared = "max"': taylor(shared="max"),
    "balance = 0.5": taylor(balance=0.5),
    "rate of pruning 1e-3": prune(lr=1e-3),
    "shorter laps at first (rounds = 2)": prune(rounds=2),
    "shorter recoveries (100 steps)": prune(recovery=100),
    "all tasks on every batch": prune(together=True),
    "teachers for half of the loss (distill = 0.5)": {**scheme("pam"), "distill": 0.5},
    "no distillation": {**scheme("pam"), "distill": 0.0},
}


def main() -> None:
    """Measure every variant that is missing."""
    given = arguments(__doc__, "levers", chart=False)
    found = {}
    for name, changes in VARIANTS.items():
        print(name, flush=True)
        (result,) = run(replace(CONFIG, **changes), given.out, data=given.data, watch=say)
        (of_scheme,) = result["schemes"].values()
        kept = ("flops", "metric", "validation", "task_batches", "stopped")
        found[name] = {key: of_scheme[key] for key in kept}
        found[name]["expected"] = expected_cost(of_scheme["flops"])
        print(json.dumps(found[name]), flush=True)
    content = {"effort": CONFIG.effort, "reference": result["reference"], "torch": torch.__version__, "variants": found}
    write_atomically(RESULTS, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
