"""Whether FLOPs that are saved are time that is saved, as ratios measured side by side.

    python benchmarks/bench_latency.py [--quick]

Two-task VGG-16 and ResNet-18 with the widths that pruning leaves (3 to 10 times fewer FLOPs, uneven from layer to
layer), as separate networks, as one that shares everything, and as one that shares a part. All are exported and take
turns in one process: an inference of every subset of every bundle a turn. Gains are ratios of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from pamerge_runtime import Runtime
from torch import nn

import pamerge
from pamerge import zoo
from pamerge.deploy import export_onnx, measure
from pamerge.network.files import write_atomically
from pamerge.network.network import Junction
from pamerge.tasks import all_subsets

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks" / "latency.json"
A, B, BOTH = pamerge.TaskSet("A"), pamerge.TaskSet("B"), pamerge.TaskSet("AB")
# Neurons that are left of each layer, as a share of one original network's width.
SHARES = {
    "separate": {A: 0.48, B: 0.48},
    "all shared": {BOTH: 0.62},
    "part shared": {A: 0.14, B: 0.14, BOTH: 0.34},
}


def left_over(shares: dict[pamerge.TaskSet, float], seed: int, round_to: int) -> pamerge.Assigned:
    """Task sets as a pruned network has them: the groups of a layer are larger or smaller by up to a third."""
    rng = np.random.default_rng(seed)
    stream: dict[int, pamerge.TaskSet | None] = {}  # a channel of a residual stream has one task set

    def choose(junction: Junction) -> dict[int, pamerge.TaskSet]:
        neurons = list(junction.task_sets())
        new = [neuron for neuron in neurons if neuron not in stream]
        places = rng.permutation(len(new))
        start = 0
        for group, share in shares.items():
            count = max(1, round(share * len(new) / 2 * rng.uniform(0.67, 1.33) / round_to)) * round_to
            stream.update({new[i]: group for i in places[start : start + count]})
            start += count
        stream.update({new[i]: None for i in places[start:]})
        return {neuron: group for neuron in neurons if (group := stream[neuron]) is not None}

    return pamerge.Assigned(choose)


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
    name: str, networks: dict[str, nn.Module], x: torch.Tensor, repeats: int, fuse: str, round_to: int
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = {}
        for number, (scheme, shares) in enumerate(SHARES.items()):
            network = pamerge.merge(networks, [x], left_over(shares, number, round_to))
            folders[scheme] = Path(scratch) / scheme.replace(" ", "-")
            export_onnx(network, folders[scheme], fuse=fuse)
        for threads in (1, 2):
            found = measure(folders, threads=threads, repeats=repeats, memory=False)
            costs = {(item.bundle, item.tasks): item for item in found}
            for tasks in map(str, all_subsets("AB")):
                ours = costs["part shared", tasks]
                for rival in ("separate", "all shared"):
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
        rows.append({"network": name, "switch": round(switch_cost(folders["part shared"], repeats), 4), "bound": 0.05})
    return rows


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, an eighth of the width")
    parser.add_argument("--fuse", default="auto", help="auto, never or always")
    parser.add_argument("--round-to", type=int, default=16, help="group sizes are multiples of this, as pruning leaves")
    arguments = parser.parse_args()
    width, repeats = (0.125, 5) if arguments.quick else (1.0, 41)
    makers = {"vgg16": lambda: zoo.vgg16(20, width), "resnet18": lambda: zoo.resnet18(20, width)}
    sizes = {"vgg16": 72, "resnet18": 112}
    rows = []
    for name, make in makers.items():
        x = torch.randn(1, 3, sizes[name], sizes[name])
        rows += compare(name, {task: make().eval() for task in "AB"}, x, repeats, arguments.fuse, arguments.round_to)
    for row in rows:
        if "switch" in row:
            print(f"{row['network']:<10} switching subsets adds {row['switch']:.1%}  (at most 5%)")
        else:
            print(
                f"{row['network']:<10} {row['tasks']:<4} over {row['rival']:<11} {row['threads']} thread(s)  "
                f"MFLOPs {row['mflops']}  ms {row['ms']}  FLOP gain {row['flop_gain']:.2f}  "
                f"time gain {row['time_gain']:.2f}  ratio {row['ratio']:.2f}  (at least 0.8)"
            )
    if not arguments.quick:
        content = {
            "batch": 1,
            "fuse": arguments.fuse,
            "round_to": arguments.round_to,
            "onnxruntime": onnxruntime.__version__,
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "rows": rows,
        }
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(RESULTS, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
