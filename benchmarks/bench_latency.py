"""Whether FLOPs that are saved are time that is saved, as ratios measured side by side.

    python benchmarks/bench_latency.py [--quick] [--fuse auto] [--round-to 8]

Two-task VGG-16 and ResNet-18, merged as separate networks, by MTZ and by PAM, then pruned to 3 to 6 times fewer
operations. Weights are untrained and the neurons to remove are drawn by chance, since neither changes how long a layer
takes: this measures time against FLOPs, not accuracy. All are exported and take turns in one process: an inference of
every subset of every bundle a turn. Gains are ratios of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from pamerge_runtime import Runtime
from torch import nn

import pamerge
from pamerge import zoo
from pamerge.deploy import export_onnx, measure
from pamerge.network.files import write_atomically
from pamerge.pruning import QuietSession, Surroundings
from pamerge.pruning.protocol import Scores, Session
from pamerge.tasks import all_subsets

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks" / "latency.json"
# The schemes, and what pruning leaves of each: a share of what the original networks cost, in the mean of all subsets.
SCHEMES = {
    "separate": (pamerge.Separate(), 1 / 3.5),
    "mtz": (pamerge.MTZ(steps=0, samples=32), 1 / 4),
    "pam": (pamerge.PAM(alpha=0.2, streams="tied"), 1 / 5.5),
}
LEAST = 20.0  # MFLOPs of a subset; below, overheads are what one measures


@dataclass(frozen=True)
class Chance:
    """A pruner that ranks neurons at random."""

    seed: int = 0

    def start(self, surroundings: Surroundings) -> Session:
        """Begin to prune a network."""
        rng = np.random.default_rng(self.seed)
        places = surroundings.places
        scores = {name: dict(zip(neurons, rng.random(len(neurons)).tolist(), strict=True))
                  for name, neurons in places.neurons.items()}  # fmt: skip

        class Random(QuietSession):
            def importance(self, task: str) -> Scores:
                return {name: {n: scores[name][n] for n in found} for name, found in places.served(task).items()}

        return Random()


def pruned(
    networks: dict[str, nn.Module], data: list[Any], scheme: str, target: float, round_to: int
) -> pamerge.MultitaskNetwork:
    network = pamerge.merge(networks, data, SCHEMES[scheme][0])
    objectives = dict.fromkeys(networks, pamerge.Classification())
    one = [(data[0][0][:2], {task: labels[:2] for task, labels in data[0][1].items()})]
    pamerge.prune(
        network, one, one, objectives, pruner=Chance(), target=target, fraction=0.1, steps=0, recovery=0, final=0,
        per_flop=False, round_to=round_to, seed=0, progress=False,
    )  # fmt: skip
    return network


def expected(network: pamerge.MultitaskNetwork) -> float:
    return statistics.mean(network.flops(tasks) for tasks in all_subsets(network.tasks))


def switch_cost(folder: Path, repeats: int) -> float:
    """What running another subset than the time before adds to an inference, as a share of it."""
    runtime = Runtime(folder)
    x = np.zeros((1, *runtime.manifest.input_shape), np.float32)
    subsets = list(runtime.subsets)
    same: list[float] = []
    other: list[float] = []
    for turn in range(repeats + 3):
        for tasks in subsets:
            times = []
            for _ in range(3):  # the first comes after another subset, the last does not
                start = time.perf_counter()
                runtime.run(x, tasks)
                times.append(time.perf_counter() - start)
            if turn >= 3:
                other.append(times[0])
                same.append(times[2])
    return statistics.median(np.array(other) / np.array(same)) - 1


def compare(
    name: str, networks: dict[str, nn.Module], data: list[Any], repeats: int, fuse: str, round_to: int
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    whole = expected(pamerge.merge(networks, data, pamerge.Separate()))
    with tempfile.TemporaryDirectory() as scratch:
        folders = {}
        for scheme, (_, share) in SCHEMES.items():
            network = pruned(networks, data, scheme, share * whole, round_to)
            least, reduced = min(network.flops(tasks) for tasks in "AB"), whole / expected(network)
            print(f"{name} {scheme}: {reduced:.1f} times fewer operations, at least {least / 1e6:.1f} MFLOPs a subset")
            rows.append({"network": name, "scheme": scheme, "reduced": round(reduced, 2), "least_mflops": least / 1e6})
            folders[scheme] = Path(scratch) / scheme
            export_onnx(network, folders[scheme], fuse=fuse)
        for threads in (1, 2):
            found = measure(folders, threads=threads, repeats=repeats, memory=False)
            costs = {(item.bundle, item.tasks): item for item in found}
            for tasks in map(str, all_subsets("AB")):
                ours = costs["pam", tasks]
                for rival in ("separate", "mtz"):
                    theirs = costs[rival, tasks]
                    flop_gain, time_gain = theirs.flops / ours.flops, theirs.median / ours.median
                    rows.append(
                        {
                            "network": name, "rival": rival, "tasks": tasks, "threads": threads,
                            "mflops": [round(theirs.flops / 1e6, 1), round(ours.flops / 1e6, 1)],
                            "ms": [round(theirs.median, 3), round(ours.median, 3)],
                            "flop_gain": round(flop_gain, 3), "time_gain": round(time_gain, 3),
                            "ratio": round(time_gain / flop_gain, 3), "bound": 0.8,
                        }
                    )  # fmt: skip
        rows.append({"network": name, "switch": round(switch_cost(folders["pam"], repeats), 4), "bound": 0.05})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, an eighth of the width")
    parser.add_argument("--fuse", default="auto", help="auto, never or always")
    parser.add_argument("--round-to", type=int, help="group sizes are multiples of this (default: 8, quick: 2)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go; not written if quick")
    arguments = parser.parse_args()
    width, repeats, samples = (0.125, 5, 16) if arguments.quick else (1.0, 201, 64)
    round_to = arguments.round_to or (2 if arguments.quick else 8)
    makers = {"vgg16": lambda: zoo.vgg16(20, width), "resnet18": lambda: zoo.resnet18(20, width)}
    sizes = {"vgg16": 72, "resnet18": 112}
    rows = []
    for name, make in makers.items():
        torch.manual_seed(0)
        x = torch.randn(samples, 3, sizes[name], sizes[name])
        data = [(x, {task: torch.randint(20, (samples,)) for task in "AB"})]
        rows += compare(name, {task: make().eval() for task in "AB"}, data, repeats, arguments.fuse, round_to)
    for row in rows:
        if "switch" in row:
            print(f"{row['network']:<10} switching subsets adds {row['switch']:.1%}  (at most 5%)")
        elif "ratio" in row:
            print(
                f"{row['network']:<10} {row['tasks']:<4} over {row['rival']:<8} {row['threads']} thread(s)  "
                f"MFLOPs {row['mflops']}  ms {row['ms']}  FLOP gain {row['flop_gain']:.2f}  "
                f"time gain {row['time_gain']:.2f}  ratio {row['ratio']:.2f}  (at least 0.8)"
            )
    if not arguments.quick:
        small = [row for row in rows if row.get("least_mflops", LEAST) < LEAST]
        assert not small, f"too small to be measured: {small}"
        content = {
            "batch": 1,
            "fuse": arguments.fuse,
            "round_to": round_to,
            "onnxruntime": onnxruntime.__version__,
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "rows": rows,
        }
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.out, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
