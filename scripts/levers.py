"""What each choice of PAM and of pruning is worth: the same experiment with one choice changed at a time, on faces.

    python scripts/levers.py --data FOLDER [--out runs/levers]   # measures: results/levers.json

VGG-16 at an eighth of its width, two tasks of 20 attributes, networks from one common training; Taylor, one point. The
first row is PAM as the experiments on faces have it. Separate networks and MTZ stand beside it; for these three also
what task A loses when only B is pruned (the paper's Problem 1). Finished stages are kept in ``--out``, so that a run
that was killed goes on. ``python scripts/result_tables.py`` makes the tables.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from study import arguments, say

from pamerge.experiments import Choice, Config, Pretraining, Problem1, run
from pamerge.experiments.metrics import expected_cost
from pamerge.network.files import write_atomically

RESULTS = Path(__file__).parents[1] / "results" / "levers.json"
ZIPPING = {"steps": 10, "lr": 1e-3}
PAM = {"alpha": 0.2, "zip": 0.5, **ZIPPING}
CONFIG = Config(
    name="levers",
    data=Choice("lfw", {"tasks": 2, "quantile": 0.5}),
    network=Choice("vgg16", {"width": 0.125, "fc": 128, "batch_norm": True, "dropout": 0.0}),
    schemes=(Choice("pam", PAM),),
    pruners=(Choice("taylor", {}),),
    max_drop=0.01,
    distill=0.5,
    effort=5000,
    finetune=100,
    pretraining=Pretraining(common_epochs=16, epochs=3, lr=1e-3),
    prune={"lr": 1e-3, "fraction": 0.15, "rounds": 2, "recovery": 200, "patience": 4},
    batch_size=32,
)


def pam(**changes: Any) -> dict[str, Any]:
    """PAM with other options."""
    options = {name: value for name, value in {**PAM, **changes}.items() if value is not None}
    return {"schemes": (Choice("pam", options),)}


PROBLEM1 = {"problem1": Problem1(task="B", laps=10, fraction=0.1)}
VARIANTS: dict[str, dict[str, Any]] = {
    "PAM": PROBLEM1,
    "separate": {"schemes": (Choice("separate", {}),), **PROBLEM1},
    "MTZ": {"schemes": (Choice("mtz", ZIPPING),), **PROBLEM1},
    "α = 0.05": pam(alpha=0.05),
    "α = 0.5": pam(alpha=0.5),
    "all shared": pam(alpha=-1),
    "no zipping": pam(zip=None),
    "zip = 2": pam(zip=2.0),
    'overlap = "share"': pam(overlap="share"),
    'overlap = "drop"': pam(overlap="drop"),
    'remove = "neuron"': {"prune": {**CONFIG.prune, "remove": "neuron"}},
    "importance not per FLOP": {"prune": {**CONFIG.prune, "per_flop": False}},
    'shared = "max"': {"pruners": (Choice("taylor", {"shared": "max"}),)},
    "5 % a round": {"prune": {**CONFIG.prune, "fraction": 0.05}},
    "short laps": {"prune": {**CONFIG.prune, "fraction": 0.1, "rounds": 1, "recovery": 100}},
    "long laps": {"prune": {**CONFIG.prune, "rounds": 4, "recovery": 400}},
    "no distillation": {"distill": 0.0},
}


def main() -> None:
    """Measure every variant that is missing."""
    given = arguments(__doc__, "levers", chart=False)
    found = {}
    for name, changes in VARIANTS.items():
        print(name, flush=True)
        (result,) = run(replace(CONFIG, **changes), given.out, data=given.data, watch=say)
        (scheme,) = result["schemes"].values()
        kept = ("flops", "metric", "validation", "task_batches", "stopped", "problem1")
        found[name] = {key: scheme[key] for key in kept if key in scheme}
        found[name]["expected"] = expected_cost(scheme["flops"])
        print(json.dumps(found[name]), flush=True)
    content = {"effort": CONFIG.effort, "reference": result["reference"], "torch": torch.__version__, "variants": found}
    write_atomically(RESULTS, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
