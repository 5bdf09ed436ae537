"""Tables of the studies that are no experiments: what each choice is worth, Problem 1, and the ablations."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from ablations import by_relatedness, shared_shares
from study import CONDITIONS, spread

from pamerge.experiments.tables import markdown

RESULTS = Path(__file__).parents[1] / "results"


def levers_table() -> str:
    """A row for each choice that was changed: what every combination costs then, and how that compares."""
    variants = json.loads((RESULTS / "levers.json").read_text())["variants"]
    first = next(iter(variants.values()))
    rows = [["", *(f"MFLOPs {tasks}" for tasks in first["flops"]), "expected", "÷ first row"]]
    for name, found in variants.items():
        rows.append(
            [
                name,
                *(f"{cost / 1e6:.3f}" for cost in [*found["flops"].values(), found["expected"]]),
                f"{found['expected'] / first['expected']:.2f}",
            ]
        )
    return markdown(rows)


def problem1_table() -> str:
    """A row for each removal from task B's subgraph: what it still costs, and what task A has lost; over the seeds."""
    schemes = json.loads((RESULTS / "problem1.json").read_text())["schemes"]
    rows = [["removals", *(f"{name}: {what}" for name in schemes for what in ("MFLOPs B", "points A lost"))]]
    for number in range(min(len(series) for seeds in schemes.values() for series in seeds.values())):
        row = [str(number)]
        for seeds in schemes.values():
            costs = [series[number]["flops"]["B"] / 1e6 for series in seeds.values()]
            lost = [100 * (series[0]["metrics"]["A"] - series[number]["metrics"]["A"]) for series in seeds.values()]
            row += [spread(costs, "{:.2f}"), spread(lost, "{:.1f}")]
        rows.append(row)
    return markdown(rows)


def relatedness_table() -> str:
    """Which share of the last hidden layer serves both tasks, for α in bits and for α as in PAM."""
    levels = by_relatedness(json.loads((RESULTS / "ablations.json").read_text()))
    tables = []
    for of, unit in (("shared_by_bits", " bits"), ("shared_by_share", "")):
        rows = [["attributes", "bits in common", *(f"α = {alpha}{unit}" for alpha in shared_shares(levels[0], of))]]
        for alike in levels:
            names = "; ".join(" and ".join(pair["attributes"]) for pair in alike)
            bits = statistics.fmean(pair["bits"] for pair in alike)
            rows.append([names, f"{bits:.3f}", *(f"{share:.1%}" for share in shared_shares(alike, of).values())])
        tables.append(markdown(rows))
    return "\n\n".join(tables)


def inclusion_table() -> str:
    """A row for each α: how many neurons of all layers serve the larger task only, the smaller one only, and both."""
    rows = [["α", "only A", "only B", "both"]]
    for alpha, layers in json.loads((RESULTS / "ablations.json").read_text())["inclusion"]["counts"].items():
        rows.append([alpha, *(str(sum(layer[group] for layer in layers.values())) for group in ("A", "B", "A+B"))])
    return markdown(rows)


def conditions_table() -> str:
    """A row for each scheme: the conditions of Theorem 1 and what Theorem 2 is about, as means over the layers."""
    head = ["I(A; B; Yᴬ; Yᴮ)", "I(M; Yᴬ \\| A, Yᴮ)", "I(M; Yᴮ \\| B, Yᴬ)"]
    rows = [["scheme", *head, "I(A; Yᴮ)", "I(B; Yᴬ)", "I(A; Yᴬ)", "I(B; Yᴮ)"]]
    for scheme, layers in json.loads((RESULTS / "ablations.json").read_text())["conditions"].items():
        means = [statistics.fmean(layer[name] for layer in layers.values()) for name in CONDITIONS]
        rows.append([scheme, *(f"{value:.2f}" for value in means)])
    return markdown(rows)
