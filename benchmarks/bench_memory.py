"""Memory and time while two full-width VGG-16 are pruned that share everything, the largest network there is to prune.

    python benchmarks/bench_memory.py [--quick]

Random labels: what is measured is memory (the highest resident set of the process) and the time of a training step
before and after pruning, not accuracy.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch

import pamerge
from pamerge import zoo
from pamerge.network.files import write_atomically
from pamerge.pruning import Taylor, prune
from pamerge.training import MultiLabel, finetune

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks" / "memory.json"
LIMIT = 12.0
TASKS = {"A": 20, "B": 15}


def peak() -> float:
    """The highest resident set so far, in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an eighth of the width; nothing is kept")
    arguments = parser.parse_args()
    width = 0.125 if arguments.quick else 1.0
    torch.manual_seed(0)
    networks = {task: zoo.vgg16(outputs, width=width).eval() for task, outputs in TASKS.items()}

    def batch(size: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        labels = {task: torch.randint(2, (size, outputs)).float() for task, outputs in TASKS.items()}
        return torch.randn(size, 3, 72, 72), labels

    everyone = pamerge.TaskSet(TASKS)  # what PAM(alpha=-1) does, without the time to measure information
    shared = pamerge.Assigned(lambda junction: dict.fromkeys(junction.task_sets(), everyone))
    network = pamerge.merge(networks, [batch(2)], shared)
    objectives = {task: MultiLabel() for task in TASKS}
    train, validation = [batch(32)], [batch(4)]

    def step_seconds() -> float:
        """One training step on all tasks."""
        finetune(network, [batch(1)], objectives, steps=1, lr=1e-5, progress=False)  # imports and compiles
        start = time.perf_counter()
        finetune(network, train, objectives, steps=1, lr=1e-5, progress=False)
        return time.perf_counter() - start

    def size() -> dict[str, float]:
        neurons = sum(len(found.task_sets()) for found in network.junctions.values() if not found.fixed)
        return {"neurons": neurons, "GFLOPs": network.flops() / 1e9, "parameters": network.parameter_count()}

    print("merged", size(), f"peak {peak():.2f} GiB", flush=True)
    found = {"before": {**size(), "step seconds": round(step_seconds(), 2), "peak GiB": round(peak(), 2)}}
    print("one step", found["before"], flush=True)
    start = time.perf_counter()
    path = prune(
        network, train, validation, objectives, pruner=Taylor(batches=1, shared="own"), laps=2, steps=1, final=0,
        fraction=0.2, lr=1e-5, progress=True, seed=0,
    )  # fmt: skip
    found["pruning seconds"] = round(time.perf_counter() - start, 1)
    found["after"] = {**size(), "step seconds": round(step_seconds(), 2), "peak GiB": round(peak(), 2)}
    found["step time ratio"] = round(found["after"]["step seconds"] / found["before"]["step seconds"], 3)
    found["neurons left"] = round(found["after"]["neurons"] / found["before"]["neurons"], 3)
    found["peak GiB"], found["limit GiB"] = round(peak(), 2), LIMIT
    found |= {"laps": len(path) - 1, "batch": 32, "threads": torch.get_num_threads(), "torch": torch.__version__}
    found["machine"] = platform.machine()
    print(json.dumps(found, indent=1))
    assert peak() < LIMIT, f"{peak():.2f} GiB"
    if not arguments.quick:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(RESULTS, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
