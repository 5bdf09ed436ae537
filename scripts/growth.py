"""How time, memory and cost grow with the number of tasks: 2 to 10 tasks of four face attributes each.

    python scripts/growth.py --data FOLDER [--out runs/growth]   # measures: results/growth.json, then the chart
    python scripts/growth.py --chart                             # only draws the chart again

Ten VGG-16 at an eighth of their width, from one common training; the first K of them are merged with PAM, zipped, and
pruned, with an effort that is the same for each task; beside it, the same without merging. Each merged network has a
process of its own, and so have the separate ones, which are pruned one after the other; a process's peak of memory and
time of computing are recorded; with one thread, the latter does not depend on what else the machine does. Networks and
finished measurements are kept in ``--out``, so that a run that was killed goes on.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from study import arguments, say, svg

import pamerge
from pamerge.data import Splits
from pamerge.experiments import Choice, Config, Pretraining, original_networks
from pamerge.experiments.stages import one_process
from pamerge.network.files import write_atomically
from pamerge.pruning.parts import independent_parts
from pamerge.training.lessons import Remembered

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "growth.json"
CHART = ROOT / "docs" / "images" / "growth.svg"
SIZES = (2, 4, 7, 10)
SCHEMES: dict[str, Any] = {
    "separate": pamerge.Separate(),
    "pam": pamerge.PAM(alpha=0.5, trunk=0.87, zip=2.0, levels=1, steps=10, lr=1e-3),
}
BATCH, EFFORT_PER_TASK, MAX_DROP, SEED = 32, 2000, 0.01, 0
CONFIG = Config(
    name="growth",
    data=Choice("lfw", {"tasks": max(SIZES), "quantile": 0.5, "shares": [0.6, 0.2, 0.2], "mirror": True}),
    network=Choice("vgg16", {"width": 0.125, "fc": 128, "batch_norm": True, "dropout": 0.0}),
    schemes=(),
    pruners=(),
    pretraining=Pretraining(common_epochs=12, common_lr=2e-3, epochs=2, lr=5e-4),
    batch_size=BATCH,
    precision="bf16-mixed",
)


def main() -> None:
    """Measure what is missing, then draw."""
    given = arguments(__doc__, "growth")
    if not given.chart:
        original_networks(CONFIG, given.out, data=given.data, watch=say)
        found = [in_own_process(size, scheme, given.data, given.out) for size in SIZES for scheme in SCHEMES]
        environment = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        content = {"effort_per_task": EFFORT_PER_TASK, "environment": environment, "runs": found}
        write_atomically(RESULTS, (json.dumps(content, indent=1) + "\n").encode())
    CHART.write_text(chart(json.loads(RESULTS.read_text())["runs"]))


def in_own_process(size: int, scheme: str, data: Path, out: Path) -> dict[str, Any]:
    """The measurement of one cell, from the folder if it is there."""
    path = stored(out, scheme, size)
    if not path.exists():
        most = max(SIZES) if scheme == "separate" else size
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(most, scheme, data, out))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{scheme} with {size} tasks ended with code {process.exitcode}")
    found: dict[str, Any] = json.loads(path.read_text())
    print(json.dumps(found), flush=True)
    return found


def stored(out: Path, scheme: str, size: int) -> Path:
    """Where a measurement is kept."""
    return out / f"{scheme}-{size}-{EFFORT_PER_TASK}.json"


def measure(size: int, scheme: str, data: Path, out: Path) -> None:
    """Merge the first networks and prune them; time, memory and cost.

    Networks without a common neuron are pruned one after the other, so that the first of them are a measurement of
    their own as soon as they are done.
    """
    everything, splits = original_networks(CONFIG, out, data=data)
    networks = dict(list(everything.items())[:size])
    splits = splits.with_tasks({task: splits.train.tasks[task] for task in networks})
    objectives: dict[str, pamerge.Objective] = {task: pamerge.MultiLabel() for task in networks}
    reference = pamerge.evaluate(networks, splits.validation.loader(100), objectives)
    start = time.process_time()
    network = pamerge.merge(
        networks, splits.train.loader(500), SCHEMES[scheme], objectives=objectives, train=batches(splits)
    )
    merged = time.process_time()
    unpruned = copy.deepcopy(network)
    paths: list[pamerge.PruningPath] = []
    done: list[str] = []
    for part in independent_parts(network):
        done += part
        teachers = {task: Remembered(networks[task], splits.train.loader(500)) for task in part}
        paths.append(shrink(network, part, splits, objectives, reference, teachers))
        if len(done) not in SIZES:
            continue
        content = {
            "tasks": len(done),
            "scheme": scheme,
            "seconds": {"merging": merged - start, "pruning": time.process_time() - merged},
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "merged": costs(unpruned, done),
            "pruned": costs(network, done),
            "stopped": "; ".join(dict.fromkeys(path.stopped for path in paths)),
            "task_batches": sum(path.task_batches for path in paths),
            "reference": {task: reference[task] for task in done},
            "validation": {task: value for path in paths for task, value in path.final.items()},
            "test": pamerge.evaluate(network, splits.test.loader(500), {task: objectives[task] for task in done}),
        }
        write_atomically(stored(out, scheme, len(done)), (json.dumps(content, indent=1) + "\n").encode())


def shrink(
    network: pamerge.MultitaskNetwork,
    part: Sequence[str],
    splits: Splits,
    objectives: Mapping[str, pamerge.Objective],
    reference: Mapping[str, float],
    teachers: Mapping[str, Remembered],
) -> pamerge.PruningPath:
    """Prune some tasks, which trains them first until they are within their budget.

    Singles and all tasks together count alike, because 1,023 combinations are no mix.
    """
    mix = {task: 0.5 / len(objectives) for task in objectives} | {"+".join(objectives): 0.5}
    return pamerge.prune(
        network,
        batches(splits),
        splits.validation.loader(100),
        objectives,
        pruner=pamerge.Taylor(),
        tasks=part,
        max_drop=MAX_DROP,
        reference=reference,
        mix=mix,
        effort=EFFORT_PER_TASK * len(part),
        fraction=0.15,
        rounds=6,
        together=False,
        recovery=200,
        patience=4,
        lr=3e-3,
        teachers=teachers,
        distill=0.9,
        seed=SEED,
        fabric=one_process(CONFIG.precision),
        progress=False,
    )


def batches(splits: Splits) -> Any:
    """Training batches in an order that depends on the seed alone."""
    return splits.train.loader(BATCH, shuffle=torch.Generator().manual_seed(SEED))


def costs(network: pamerge.MultitaskNetwork, tasks: Sequence[str]) -> dict[str, float]:
    """FLOPs of one of some tasks, on average, and of all of them."""
    return {"single": mean(network.flops(task) for task in tasks), "all": network.flops(tasks)}


def chart(runs: list[dict[str, Any]]) -> str:
    """An SVG with three panels over the number of tasks: cost per task, time per task, memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    panels = figure.subplots(1, 3)
    for scheme, colour in (("separate", "0.55"), ("pam", "tab:blue")):
        rows = [run for run in runs if run["scheme"] == scheme]
        sizes = [run["tasks"] for run in rows]
        look = {"color": colour, "marker": "o"}
        panels[0].plot(sizes, [r["pruned"]["all"] / r["tasks"] / 1e6 for r in rows], label=f"{scheme}, all", **look)
        panels[0].plot(sizes, [r["pruned"]["single"] / 1e6 for r in rows], label=f"{scheme}, single", ls=":", **look)
        panels[1].plot(sizes, [sum(r["seconds"].values()) / r["tasks"] / 60 for r in rows], label=scheme, **look)
        panels[2].plot(sizes, [r["peak_gib"] for r in rows], label=scheme, **look)
    for axes, title in zip(
        panels, ("MFLOPs per task", "minutes of computing per task", "peak memory, GiB"), strict=True
    ):
        axes.set(title=title, xlabel="tasks", xticks=SIZES)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8)
    return svg(figure)


if __name__ == "__main__":
    main()
