"""The paper's figures: gains, pruning path, sharing ratios and information, as SVG and PNG."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamerge.errors import PamergeError
from pamerge.experiments.metrics import combination_metric
from pamerge.network.files import write_atomically
from pamerge.report.palette import SCHEMES, TASKS
from pamerge.report.results import Result
from pamerge.report.summary import Run, Spread, runs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "os^DvP"
_DASHES = ("-", "--", ":", "-.", (0, (1, 2)), (0, (8, 2)))


def write_figures(results: Sequence[Result], folder: str | os.PathLike[str]) -> list[Path]:
    """Write the figures of every experiment and pruner as SVG and PNG; one that the results do not hold is left out.

    Args:
        results: one for each experiment, pruner and seed, as the runner returns and writes them.
        folder: where to write; it is made if it does not exist.

    Returns:
        The files, named ``EXPERIMENT-NETWORK-PRUNER-FIGURE``, for the figures ``gains``, ``path``, ``sharing`` and
        ``information``.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise PamergeError(f"{folder} is a file; expected a folder for the figures.")
    folder.mkdir(parents=True, exist_ok=True)
    drawings: Mapping[str, Callable[[Run], Figure | None]] = {
        "gains": gains_figure,
        "path": path_figure,
        "sharing": sharing_figure,
        "information": information_figure,
    }
    written = []
    for run in runs_of(results):
        stem = "-".join(map(_file_name, (run.experiment, str(run.results[0]["network"]), run.pruner)))
        for name, draw in drawings.items():
            figure = draw(run)
            if figure is not None:
                written += _save(figure, folder / f"{stem}-{name}")
    return written


def gains_figure(run: Run) -> Figure | None:
    """How many times less the main scheme costs than each other one, for every task combination."""
    baselines = [scheme for scheme in run.schemes if scheme != run.main]
    if not baselines:
        return None
    rows = run.combinations
    figure, axes = _rows_figure(len(rows))
    for baseline in baselines:
        _dots(axes, run, baseline, run.gains(run.main, baseline)["each"], rows, f"over {baseline}")
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_xlabel(_text(f"FLOPs of the other scheme / FLOPs of {run.main}"))
    _finish_rows(figure, axes, rows)
    return figure


def sharing_figure(run: Run) -> Figure | None:
    """The share of each layer's neurons that serve more than one task."""
    found = {scheme: run.sharing(scheme) for scheme in run.schemes}
    rows = list(dict.fromkeys(layer for sharing in found.values() for layer in sharing))
    if not rows:
        return None
    figure, axes = _rows_figure(len(rows))
    for scheme, sharing in found.items():
        _dots(axes, run, scheme, sharing, rows, scheme)
    axes.set(xlim=(-0.03, 1.03), xlabel="sharing ratio")
    _finish_rows(figure, axes, rows)
    return figure


def path_figure(run: Run) -> Figure | None:
    """The metric against FLOPs while pruning: a panel for each task and one for all, a line for each seed."""
    schemes = [scheme for scheme in run.schemes if any(r["schemes"][scheme].get("path") for r in run.results)]
    if not schemes:
        return None
    everything = max(run.combinations, key=lambda name: name.count("+"))
    names = list(dict.fromkeys([*run.tasks, everything]))
    columns = min(3, len(names))
    figure = _figure(3.4 * columns, 2.9 * -(-len(names) // columns))
    panels = figure.subplots(-(-len(names) // columns), columns, squeeze=False)
    for axes, name in zip(panels.flat, names, strict=False):
        for scheme in schemes:
            look = _look(run, scheme)
            for number, result in enumerate(run.results):
                points = _path_points(result["schemes"][scheme], name)
                axes.plot(*zip(*points, strict=True), **look, linewidth=1.2, label=None if number else _text(scheme))
        title = "all tasks" if name == everything and len(names) > 1 else _text(name)
        axes.set(title=title, xlabel="MFLOPs", ylabel="validation metric")
    for axes in list(panels.flat)[len(names) :]:
        axes.remove()
    _legend(figure, panels.flat[0])
    return figure


def information_figure(run: Run) -> Figure | None:
    """Information against iteration, both as shares: a panel for each task, a line for each layer; first seed."""
    schemes = run.results[0]["schemes"]
    found = next((s["information"]["layers"] for s in schemes.values() if s.get("information", {}).get("layers")), None)
    if found is None:
        return None
    import matplotlib

    columns = min(3, len(run.tasks))
    figure = _figure(3.4 * columns, 2.9 * -(-len(run.tasks) // columns))
    panels = figure.subplots(-(-len(run.tasks) // columns), columns, squeeze=False, sharey=True)
    shades = matplotlib.colormaps["viridis"]
    for number, (axes, task) in enumerate(zip(panels.flat, run.tasks, strict=False)):
        for place, (name, layer) in enumerate(found.items()):
            trace = layer["traces"].get(task)
            if trace is not None and trace["total"] > 0:
                taken = [count / trace["taken"][-1] for count in trace["taken"]]
                share = [bits / trace["total"] for bits in trace["bits"]]
                shade = shades(0.9 * place / max(1, len(found) - 1))
                axes.plot(taken, share, color=shade, linewidth=1.2, label=_text(name))
        for alpha in sorted({layer["alpha"] for layer in found.values()}):
            axes.axhline(alpha, color="#888888", linestyle="--", linewidth=0.8)
        axes.set_title(_text(f"exclusive to {task}"), color=TASKS[number % len(TASKS)])
        axes.set(xlabel="share of neurons taken", xlim=(0, 1), ylim=(0, 1.02))
    for axes in panels[:, 0]:
        axes.set_ylabel("share of the information\nabout the other tasks")
    for axes in list(panels.flat)[len(run.tasks) :]:
        axes.remove()
    _legend(figure, panels.flat[0])
    return figure


def _path_points(scheme: Mapping[str, Any], name: str) -> list[tuple[float, float]]:
    """FLOPs in millions and metric; a place outside of every plot if there are none, so that the legend is complete."""
    steps = [step for step in scheme.get("path", []) if name in step["flops"]]
    points = [(step["flops"][name] / 1e6, combination_metric(step["metrics"], name)) for step in steps]
    return points or [(float("nan"), float("nan"))]


def _dots(axes: Axes, run: Run, scheme: str, values: Mapping[str, Spread], rows: Sequence[str], label: str) -> None:
    look = _look(run, scheme) | {"linestyle": "none"}
    known = [(place, *values[row]) for place, row in enumerate(rows) if row in values]
    places, means, deviations = zip(*known, strict=True)
    spreads = [deviation or 0.0 for deviation in deviations] if any(deviations) else None
    axes.errorbar(means, places, xerr=spreads, **look, elinewidth=1, label=_text(label))


def _look(run: Run, scheme: str) -> dict[str, Any]:
    """The same colour and marker for a scheme in every figure and on the page."""
    number = [run.main, *(other for other in run.schemes if other != run.main)].index(scheme) % len(SCHEMES)
    return {"color": SCHEMES[number], "marker": _MARKERS[number], "linestyle": _DASHES[number], "markersize": 4}


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _rows_figure(rows: int) -> tuple[Figure, Axes]:
    figure = _figure(6.0, 1.2 + 0.24 * rows)
    return figure, figure.subplots()


def _finish_rows(figure: Figure, axes: Axes, rows: Sequence[str]) -> None:
    axes.set_yticks(range(len(rows)), [_text(row) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    _legend(figure, axes)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, max(1, len(labels))), frameon=False)


def _save(figure: Figure, stem: Path) -> list[Path]:
    import matplotlib

    written = []
    # text stays text in an SVG, and the same results give the same file
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pamerge"}):
        for kind, settings in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 200})):
            content = io.BytesIO()
            figure.savefig(content, format=kind, **settings)
            path = stem.with_name(f"{stem.name}.{kind}")
            write_atomically(path, content.getvalue())
            written.append(path)
    return written


def _text(name: str) -> str:
    """A name as it is: dollars would start a formula."""
    return name.replace("$", r"\$")


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "_"
