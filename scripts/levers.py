"""What each choice of PAM and of pruning is worth: the same experiment with one choice changed at a time.

    python scripts/levers.py --data FOLDER [--out runs/levers]   # measures: results/levers.json

LeNet-5 on Fashion-MNIST canvases as in ``configs/lenet5-fashion.toml``, with its effort and budget, Taylor, its first
seed. The first row is PAM as the experiment has it, with separate networks and MTZ beside it. Finished stages are kept
in ``--out``, so that a run that was killed goes on; with the ``--out`` of the experiment, what they have in common is
not done again. ``python scripts/result_tables.py`` makes the table.
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
EXPERIMENT = read_config(ROOT / "configs" / "lenet5-fashion.toml")
TAYLOR = EXPERIMENT.pruners[0]
SCHEMES = {choice.label: choice.options for choice in EXPERIMENT.schemes}
CONFIG = replace(EXPERIMENT, name="levers", pruners=(TAYLOR,), seeds=EXPERIMENT.seeds[:1])


def scheme(name: str, **changes: Any) -> dict[str, Any]:
    """A scheme of the experiment with other options; None takes one away."""
    options = {
        key: value for key, value in {**SCHEMES[name], **changes}.items() if value is not None and key != "label"
    }
    return {"schemes": (Choice(name, options),)}


def taylor(**changes: Any) -> dict[str, Any]:
    """PAM with another way to rank neurons."""
    return {**scheme("pam"), "pruners": (Choice("taylor", {**TAYLOR.options, **changes}),)}


def prune(**changes: Any) -> dict[str, Any]:
    """PAM with other options of pruning."""
    return {**scheme("pam"), "prune": {**CONFIG.prune, **changes}}


VARIANTS: dict[str, dict[str, Any]] = {
    "PAM": scheme("pam"),
    "separate": scheme("separate"),
    "MTZ": scheme("mtz"),
    "a quarter exclusive": scheme("pam", exclusive=0.25),
    "three fifths exclusive": scheme("pam", exclusive=0.6),
    "MTZ, all shared": scheme("mtz", share=1.0),
    "α = 0.2 decides what is exclusive": scheme("pam", exclusive=None, alpha=0.2),
    "α = 0.5 decides what is exclusive": scheme("pam", exclusive=None, alpha=0.5),
    "convolutions shared, the rest apart": scheme("pam", exclusive=None, alpha=1.0, trunk=0.5),
    "no zipping": scheme("pam", zip=None, steps=0),
    "no training while zipping": scheme("pam", steps=0),
    'remove = "neuron"': prune(remove="neuron"),
    "importance not per FLOP": prune(per_flop=False),
    'shared = "own", as in the paper': taylor(shared="own"),
    'shared = "max"': taylor(shared="max"),
    "balance = 0": taylor(balance=0.0),
    "rate of pruning 1e-3": prune(lr=1e-3),
    "all tasks on every batch": prune(together=True),
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
