"""Measures the theory's conditions on two LeNet-5, merged in three ways, and writes the tables of docs/theory.md.

Two networks are trained on canvases of digits, one for each task, and merged three times: kept separate, with PAM, and
with every neuron shared. The conditions of Theorem 1 are measured at every junction, on canvases that nobody trained
on, before and after the merged network is fine-tuned; all of it for several seeds.

    python scripts/theory_table.py           # measures: results/theory.json, then the tables in the page
    python scripts/theory_table.py --table   # only writes the tables again
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from study import CONDITIONS
from torch import nn

import pamerge
from pamerge.data import Splits, digit_canvases
from pamerge.information import layer_redundancy
from pamerge.information.activations import junction_activations
from pamerge.merging import prepare
from pamerge.network.files import write_atomically
from pamerge.tasks import TaskSet
from pamerge.zoo import lenet5

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "theory.json"
PAGE = ROOT / "docs" / "theory.md"
MARKS = "<!-- {name}: made by scripts/theory_table.py -->", "<!-- end of {name} -->"

TASKS = ("A", "B")
SCHEMES = {
    "separate": pamerge.Separate(),
    "PAM, α = 0.2": pamerge.PAM(alpha=0.2),
    "all shared": pamerge.PAM(alpha=-1.0),
}
SEEDS = (0, 1, 2)
SETTINGS = {"train": 4000, "measure": 8000, "test": 2000, "epochs": 15, "batch": 64, "lr": 1e-3, "finetune_epochs": 5}
OBJECTIVES = {task: pamerge.MultiLabel() for task in TASKS}


def main() -> None:
    """Measure every seed and write the results."""
    runs = [measure_seed(seed) for seed in SEEDS]
    found = {
        "settings": SETTINGS,
        "seeds": list(SEEDS),
        "runs": runs,
        "environment": {"torch": torch.__version__, "device": "cpu"},
    }
    write_atomically(RESULTS, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())


def measure_seed(seed: int) -> dict[str, Any]:
    """Train, merge in three ways, and measure."""
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    data = digit_canvases(
        train=SETTINGS["train"], validation=SETTINGS["measure"], test=SETTINGS["test"], generator=generator
    )
    networks = {task: trained(task, data, generator) for task in TASKS}
    unseen, test = data.validation.loader(500), data.test.loader(500)
    run: dict[str, Any] = {"seed": seed, "reference": pamerge.evaluate(networks, test, OBJECTIVES), "schemes": {}}
    material = prepare(networks, data.train.loader(500))
    for name, scheme in SCHEMES.items():
        network = scheme.merge(material)
        merged = {"accuracy": pamerge.evaluate(network, test, OBJECTIVES), "layers": measured(network, unseen)}
        if isinstance(scheme, pamerge.PAM) and scheme.alpha == 0.2:
            run["traces"] = traces(network)
        pamerge.finetune(
            network,
            data.train.loader(SETTINGS["batch"], shuffle=generator),
            OBJECTIVES,
            epochs=SETTINGS["finetune_epochs"],
            lr=SETTINGS["lr"] / 2,
            progress=False,
        )
        tuned = {"accuracy": pamerge.evaluate(network, test, OBJECTIVES), "layers": measured(network, unseen)}
        run["schemes"][name] = {"merged": merged, "fine-tuned": tuned}
        print(f"seed {seed}, {name}: {tuned['accuracy']}, {time.perf_counter() - start:.0f} s", flush=True)
    return run


def trained(task: str, data: Splits, generator: torch.Generator) -> nn.Module:
    """A network for one task."""
    network = lenet5(5, data.train.input_size, generator=generator).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=SETTINGS["lr"])
    for _ in range(SETTINGS["epochs"]):
        for inputs, targets in data.train.loader(SETTINGS["batch"], shuffle=generator):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(network(inputs), targets[task]).backward()
            optimizer.step()
    return network.eval()


def measured(network: pamerge.MultitaskNetwork, batches: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """For each junction the conditions, and the redundancy of each subset's neurons, all in bits."""
    found = {}
    seen = list(junction_activations(network, batches))
    labels = {task: torch.cat([targets[task] for _, targets in seen]) for task in TASKS}
    for name, layer in pamerge.network_conditions(network, batches, OBJECTIVES).items():
        pair = layer.pair({"A"}, {"B"})
        values = torch.cat([activations[name] for activations, _ in seen])
        sets = list(network.junctions[name].task_sets().values())
        redundancy = {}
        for subset in (TaskSet("A"), TaskSet("B"), TaskSet("AB")):
            active = [place for place, tasks in enumerate(sets) if tasks & subset]
            bits = layer_redundancy(values[:, active], {task: labels[task] for task in sorted(subset)})
            redundancy[str(subset)] = bits.bits
        found[name] = {
            "neurons": dict(zip(("A", "B", "A+B"), pair.neurons, strict=True)),
            **{condition: getattr(pair, condition) for condition in CONDITIONS},
            "redundancy": redundancy,
        }
    return found


def traces(network: pamerge.MultitaskNetwork) -> dict[str, Any]:
    """The greedy's information after each neuron, and how many of them α keeps."""
    found = {}
    for name, layer in network.merging.layers.items():
        found[name] = {
            task: {"bits": list(trace.bits), "kept": trace.prefix(layer.alpha), "alpha": layer.alpha}
            for task, trace in layer.traces.items()
        }
    return found


# -- the page ----------------------------------------------------------------------------------------------------------


def tables(found: dict[str, Any]) -> dict[str, str]:
    """The tables of the page, by name: means over the seeds."""
    return {
        "conditions": _conditions(found, "fine-tuned"),
        "conditions before fine-tuning": _conditions(found, "merged"),
        "redundancy": _redundancy(found),
        "accuracy": _accuracy(found),
    }


def _conditions(found: dict[str, Any], stage: str) -> str:
    lines = [
        "| layer | scheme | neurons A, B, shared | I(A; B; Yᴬ; Yᴮ) | I(M; Yᴬ \\| A, Yᴮ) | I(M; Yᴮ \\| B, Yᴬ) "
        "| I(A; Yᴮ) | I(B; Yᴬ) | I(A; Yᴬ) | I(B; Yᴮ) |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for layer in _layers(found):
        for scheme in SCHEMES:
            rows = [run["schemes"][scheme][stage]["layers"][layer] for run in found["runs"]]
            sizes = ", ".join(f"{mean(row['neurons'][group] for row in rows):.0f}" for group in ("A", "B", "A+B"))
            bits = " | ".join(_number(mean(row[condition] for row in rows)) for condition in CONDITIONS)
            lines.append(f"| `{layer}` | {scheme} | {sizes} | {bits} |")
    return "\n".join(lines)


def _redundancy(found: dict[str, Any]) -> str:
    lines = ["| layer | scheme | R of A alone | R of B alone | R of A and B |", "|---|---|--:|--:|--:|"]
    for layer in _layers(found):
        for scheme in SCHEMES:
            rows = [run["schemes"][scheme]["fine-tuned"]["layers"][layer]["redundancy"] for run in found["runs"]]
            bits = " | ".join(f"{mean(row[subset] for row in rows):.0f}" for subset in ("A", "B", "A+B"))
            lines.append(f"| `{layer}` | {scheme} | {bits} |")
    return "\n".join(lines)


def _accuracy(found: dict[str, Any]) -> str:
    def percent(runs: Iterable[dict[str, float]]) -> str:
        values = list(runs)
        return " | ".join(f"{100 * mean(value[task] for value in values):.1f} %" for task in TASKS)

    original = percent(run["reference"] for run in found["runs"])
    lines = ["| network | task A | task B |", "|---|--:|--:|", f"| the two original networks | {original} |"]
    for scheme in SCHEMES:
        tuned = percent(run["schemes"][scheme]["fine-tuned"]["accuracy"] for run in found["runs"])
        lines.append(f"| {scheme}, fine-tuned | {tuned} |")
    return "\n".join(lines)


def _layers(found: dict[str, Any]) -> list[str]:
    return list(found["runs"][0]["schemes"]["separate"]["fine-tuned"]["layers"])


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−").replace("−0.00", "0.00")


def write_tables(found: dict[str, Any]) -> None:
    """Put the tables between their marks in the page."""
    text = PAGE.read_text()
    for name, table in tables(found).items():
        first, last = (mark.format(name=name) for mark in MARKS)
        before, rest = text.split(first)
        text = before + "\n".join([first, "", table, "", last]) + rest.split(last)[1]
    write_atomically(PAGE, text.encode())


if __name__ == "__main__":
    if "--table" not in sys.argv[1:]:
        main()
    write_tables(json.loads(RESULTS.read_text()))
