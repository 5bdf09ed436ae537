"""Tables of results, for a terminal and for Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pamerge.experiments.metrics import combination_metric, gain


def combination_rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row for each task combination: metric and MFLOPs of every scheme, as in the paper's tables.

    Args:
        results: of one experiment and pruner; several seeds give mean ± spread (the standard deviation).
    """
    schemes = list(results[0]["schemes"])
    rows = [["tasks", *(f"metric {s}" for s in schemes), *(f"MFLOPs {s}" for s in schemes)]]
    for tasks in results[0]["schemes"][schemes[0]]["flops"]:
        metrics = [[combination_metric(r["schemes"][s]["metric"], tasks) for r in results] for s in schemes]
        costs = [[r["schemes"][s]["flops"][tasks] / 1e6 for r in results] for s in schemes]
        rows.append([tasks, *(_cell(values, 100, "%") for values in metrics), *(_cell(values) for values in costs)])
    return rows


def gain_rows(results: Sequence[Mapping[str, Any]], scheme: str) -> list[list[str]]:
    """Average and peak gain of a scheme over each other one."""
    rows = [["gain of " + scheme, "average", "peak"]]
    for baseline in results[0]["schemes"]:
        if baseline == scheme:
            continue
        found = [gain(r["schemes"][baseline]["flops"], r["schemes"][scheme]["flops"]) for r in results]
        rows.append([f"over {baseline}", _cell([g.average for g in found]), _cell([g.peak for g in found])])
    return rows


def problem1_rows(result: Mapping[str, Any], scheme: str) -> list[list[str]]:
    """A row for each removal from one task's subgraph: what that task costs, and what each task still achieves."""
    found = result["schemes"][scheme]["problem1"]
    tasks = result["tasks"]
    rows = [[f"MFLOPs {found['task']}", *(f"metric {task}" for task in tasks)]]
    for step in found["series"]:
        cost = step["flops"][found["task"]] / 1e6
        rows.append([f"{cost:.3g}", *(f"{100 * step['metrics'][task]:.2f} %" for task in tasks)])
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table; the first is the head."""
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])


def _cell(values: Sequence[float], factor: float = 1.0, unit: str = "") -> str:
    scaled = [factor * value for value in values]
    text = f"{statistics.fmean(scaled):.3g}" if not unit else f"{statistics.fmean(scaled):.2f}"
    spread = f" ± {statistics.stdev(scaled):.2g}" if len(scaled) > 1 else ""
    return f"{text}{spread}{' ' + unit if unit else ''}"
