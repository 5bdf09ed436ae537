"""How long the subsets of exported bundles take, measured side by side."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pamerge_runtime import BundleError, Runtime

from pamerge.errors import PamergeError
from pamerge.tasks import TaskSet


@dataclass(frozen=True)
class Latency:
    """What one inference of a subset costs.

    Attributes:
        bundle: the label of the bundle.
        tasks: the subset, as in ``"age+gender"``.
        threads: threads of the inference.
        batch: samples of the inference.
        median: milliseconds.
        p95: milliseconds that 95 of 100 inferences stay below.
        flops: operations of one sample.
        weight_bytes: bytes of weights that the subset reads.
        peak_bytes: memory of a process that runs this subset only, above that of one that has only imported the
            runtime; 0 if it was not measured.
    """

    bundle: str
    tasks: str
    threads: int
    batch: int
    median: float
    p95: float
    flops: int
    weight_bytes: int
    peak_bytes: int = 0


def measure(
    bundles: Mapping[str, str | Path],
    *,
    threads: int = 1,
    batch: int = 1,
    repeats: int = 50,
    warm_up: int = 5,
    memory: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Latency]:
    """Time every subset of some bundles in one run.

    The subsets take turns, so that whatever else the machine does slows all of them alike.

    Args:
        bundles: folders by label.
        threads: threads of one inference.
        batch: samples of one inference.
        repeats: timed inferences of each subset.
        warm_up: inferences of each subset before that.
        memory: whether the peak memory of each subset is measured, in a process of its own.
        progress: is told what is going on.
    """
    if min(threads, batch, repeats) < 1 or warm_up < 0:
        raise PamergeError("threads, batch and repeats must be at least 1, and warm_up at least 0.")
    try:
        runtimes = {label: Runtime(folder, threads=threads, max_sessions=2**16) for label, folder in bundles.items()}
    except BundleError as error:
        raise PamergeError(str(error)) from error
    runs: dict[tuple[str, frozenset[str]], list[float]] = {
        (label, tasks): [] for label, runtime in runtimes.items() for tasks in runtime.subsets
    }
    rng = np.random.default_rng(0)
    inputs = {
        label: rng.standard_normal((batch, *runtime.manifest.input_shape), dtype=np.float32)
        for label, runtime in runtimes.items()
    }
    for turn in range(warm_up + repeats):
        if turn in (0, warm_up):
            progress("warming up" if turn < warm_up else f"{repeats} inferences of {len(runs)} subsets")
        for (label, tasks), times in runs.items():
            start = time.perf_counter()
            runtimes[label].run(inputs[label], tasks)
            if turn >= warm_up:
                times.append(1e3 * (time.perf_counter() - start))
    found = []
    for (label, tasks), times in runs.items():
        subset = runtimes[label].manifest.subsets[tasks]
        if memory:
            progress(f"memory of {TaskSet(tasks)} ({label})")
        found.append(
            Latency(
                label, str(TaskSet(tasks)), threads, batch, statistics.median(times),
                float(np.quantile(times, 0.95)), subset.flops, subset.weight_bytes,
                _peak(Path(bundles[label]), tasks, batch, threads) if memory else 0,
            )
        )  # fmt: skip
    return found


def _peak(folder: Path, tasks: frozenset[str], batch: int, threads: int) -> int:
    """Peak memory of a fresh process; within one, memory of one subset cannot be told from that of the others."""
    command = [sys.executable, "-m", "pamerge_runtime.footprint", str(folder.absolute()), str(batch), str(threads)]
    done = subprocess.run([*command, *sorted(tasks)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PamergeError(f"Measuring the memory of {TaskSet(tasks)} failed: {done.stderr.strip()[-300:]}")
    return int(json.loads(done.stdout)["peak_bytes"])


def table(found: Sequence[Latency]) -> str:
    """The measurements as text."""
    head = ["bundle", "tasks", "median ms", "p95 ms", "MFLOPs", "weights KiB", "peak MiB"]
    rows = [
        [
            item.bundle, item.tasks, f"{item.median:.3f}", f"{item.p95:.3f}", f"{item.flops / 1e6:.2f}",
            f"{item.weight_bytes / 1024:.0f}", f"{item.peak_bytes / 2**20:.1f}" if item.peak_bytes else "–",
        ]
        for item in found
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = []
    for row in [head, *rows]:
        words = [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(words).rstrip())
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def chart(found: Sequence[Latency], path: str | Path) -> None:
    """The measurements as a picture: a group of bars for each subset, a bar for each bundle."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    subsets = list(dict.fromkeys(item.tasks for item in found))
    bundles = list(dict.fromkeys(item.bundle for item in found))
    figure = Figure(figsize=(max(4.0, 1.2 + 0.5 * len(subsets) * len(bundles)), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.8 / len(bundles)
    for number, bundle in enumerate(bundles):
        own = {item.tasks: item for item in found if item.bundle == bundle}
        places = [subsets.index(tasks) + (number - (len(bundles) - 1) / 2) * width for tasks in own]
        medians = [item.median for item in own.values()]
        above = [max(0.0, item.p95 - item.median) for item in own.values()]
        axes.bar(places, medians, width * 0.92, yerr=[[0.0] * len(above), above], capsize=2, label=bundle)
    axes.set_xticks(range(len(subsets)), subsets, rotation=30 if len(subsets) > 6 else 0)
    axes.set_ylabel("ms an inference (median, p95)")
    axes.set_title(f"batch {found[0].batch}, {found[0].threads} thread(s)", fontsize="medium")
    if len(bundles) > 1:
        axes.legend(frameon=False)
    figure.savefig(path)
