"""What running a multitask network costs beyond its layers, as ratios measured side by side.

    python benchmarks/bench_network.py [--quick]

Every pair is timed alternately in one process, and the ratio is that of the medians, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import pamerge
from pamerge import zoo
from pamerge.network.files import write_atomically
from pamerge.network.network import Junction
from pamerge.tasks import all_subsets

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks" / "network.json"


def medians(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each function, called in turn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 3):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat >= 3:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def convolutions_alone(subnet: nn.Module, x: Tensor) -> Callable[[], None]:
    """Runs a subnet's weighted blocks, each on the input that it saw, and nothing else."""
    seen: list[tuple[nn.Module, Tensor]] = []
    hooks = [
        block.register_forward_pre_hook(lambda module, args: seen.append((module, args[0])))
        for block in subnet.blocks.values()
        if isinstance(block, (nn.Conv2d, nn.Linear))
    ]
    subnet(x)
    for hook in hooks:
        hook.remove()

    def run() -> None:
        for module, z in seen:
            module(z)

    return run


def random_task_sets(tasks: list[str], seed: int) -> pamerge.Assigned:
    rng = np.random.default_rng(seed)
    subsets = list(all_subsets(tasks))

    def choose(junction: Junction) -> dict[int, pamerge.TaskSet]:
        return {neuron: subsets[rng.integers(len(subsets))] for neuron in junction.task_sets()}

    return pamerge.Assigned(choose)


def compare(
    name: str, networks: dict[str, nn.Module], x: Tensor, repeats: int
) -> list[tuple[str, str, str, float, float]]:
    separate = pamerge.merge(networks, [x], pamerge.Separate()).subnet("A")
    mixed = pamerge.merge(networks, [x], random_task_sets(["A", "B"], seed=0))
    found = medians({"subnet": lambda: separate(x), "original": lambda: networks["A"](x)}, repeats)
    rows = [(name, "Separate subnet / original network", "A", found["subnet"] / found["original"], 1.15)]
    for tasks in all_subsets("AB"):
        subnet = mixed.subnet(tasks)
        runs = {
            "network": partial(mixed, x, tasks=tasks),
            "subnet": partial(subnet, x),
            "layers": convolutions_alone(subnet, x),
        }
        found = medians(runs, repeats)
        rows.append((name, "network(x, tasks) / subnet", str(tasks), found["network"] / found["subnet"], 1.15))
        what = "subnet with random task sets / its weighted layers alone"
        rows.append((name, what, str(tasks), found["subnet"] / found["layers"], 1.3))
    return rows


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, an eighth of the width")
    arguments = parser.parse_args()
    width, repeats = (0.125, 5) if arguments.quick else (1.0, 31)
    factories = {"vgg16": zoo.vgg16, "resnet18": zoo.resnet18}
    x = torch.randn(1, 3, 72, 72)
    rows = []
    for name, factory in factories.items():
        networks = {task: factory(20, width=width).eval() for task in "AB"}
        rows += compare(name, networks, x, repeats)
    for row in rows:
        print(f"{row[0]:<10} {row[1]:<58} {row[2]:<5} {row[3]:5.2f}  (at most {row[4]})")
    if not arguments.quick:
        fields = ("network", "what", "tasks", "ratio", "bound")
        content = {
            "batch": 1,
            "input": [3, 72, 72],
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "ratios": [dict(zip(fields, row, strict=True)) for row in rows],
        }
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(RESULTS, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
