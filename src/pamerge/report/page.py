"""The report as one HTML file: style, script and results are inside, and nothing is loaded from anywhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pamerge.network.files import write_atomically
from pamerge.report.palette import TASKS, style_sheet
from pamerge.report.results import Result
from pamerge.report.summary import Run, runs_of
from pamerge.tasks import SEPARATOR


def write_report(results: Sequence[Result], path: str | os.PathLike[str]) -> None:
    """Write results as one HTML page that needs no network, to look at and to play with.

    Args:
        results: one for each experiment, pruner and seed, as the runner returns and writes them. What an older
            result lacks is left out of the page, and the page says so.
        path: the file to write.

    Raises:
        PamergeError: there is no result, one is incomplete, or a seed is there twice.
    """
    write_atomically(Path(path), page(results).encode())


def page(results: Sequence[Result]) -> str:
    """The HTML of the report."""
    runs = runs_of(results)
    names = list(dict.fromkeys(run.experiment for run in runs))
    script = f"{_part('charts.js')}\n{_part('page.js')}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    filled = {
        "TITLE": html.escape(", ".join(names)),
        "SCRIPT_HASH": digest,
        "STYLE": style_sheet() + _part("page.css"),
        "RESULTS": _embedded({"colours": len(TASKS), "runs": [_payload(run) for run in runs]}),
        "SCRIPT": script,
    }
    # in one pass, so that a result that happens to look like a place to fill stays as it is
    pieces = _part("page.html").split("@@")
    return "".join(filled[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _part(name: str) -> str:
    return (files("pamerge.report") / name).read_text(encoding="utf-8")


def _payload(run: Run) -> dict[str, Any]:
    first = run.results[0]
    others = {scheme: [other for other in run.schemes if other != scheme] for scheme in run.schemes}
    return {
        "experiment": run.experiment,
        "network": first["network"],
        "pruner": run.pruner,
        "budget": first.get("budget"),
        "tasks": run.tasks,
        "schemes": run.schemes,
        "main": run.main,
        "isShare": run.is_share,
        "combinations": [{"name": name, "tasks": _members(name, run.tasks)} for name in run.combinations],
        "flops": {scheme: run.flops(scheme) for scheme in run.schemes},
        "metric": {scheme: run.metric(scheme) for scheme in run.schemes},
        "gains": {scheme: {other: run.gains(scheme, other) for other in others[scheme]} for scheme in run.schemes},
        "sharing": {scheme: run.sharing(scheme) for scheme in run.schemes},
        "seeds": run.results,
    }


def _members(combination: str, tasks: Sequence[str]) -> list[int]:
    members = set(combination.split(SEPARATOR))
    return [number for number, task in enumerate(tasks) if task in members]


def _embedded(content: Any) -> str:
    """JSON that cannot end the script element that holds it, nor start a comment in it, whatever it says."""
    text = json.dumps(_finite(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(content: Any) -> Any:
    """Numbers that JSON does not know become null."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return content
