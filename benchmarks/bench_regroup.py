"""How long it takes to regroup whole networks, beside forward passes of the same networks in the same run.

    python benchmarks/bench_regroup.py [--quick]

The data are random images and labels: the time of the greedy does not depend on what the neurons say.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from pathlib import Path

import torch

import pamerge
from pamerge import PAM, zoo
from pamerge.network.files import write_atomically

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks" / "regroup.json"


def batches(
    images: int, size: tuple[int, int, int], tasks: str, labels: int
) -> list[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, *size, generator=generator)
    y = {task: (torch.rand(images, labels, generator=generator) < 0.5).float() for task in tasks}
    return [(x[i : i + 50], {task: found[i : i + 50] for task, found in y.items()}) for i in range(0, images, 50)]


def one_pass(networks: dict[str, torch.nn.Module], data: list, images: int) -> float:
    """Seconds for a forward pass of all networks over all images, from a part of them."""
    part = data[: max(1, len(data) // 5)]
    start = time.perf_counter()
    with torch.no_grad():
        for x, _ in part:
            for network in networks.values():
                network(x)
    return (time.perf_counter() - start) * images / sum(len(x) for x, _ in part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an eighth of the width, 200 images")
    arguments = parser.parse_args()
    rows = []
    full = [("vgg16, two tasks", 1.0, 2000, "AB"), ("half width", 0.5, 2000, "AB"), ("quarter width", 0.25, 2000, "AB")]
    full += [("quarter width, 1,000 images", 0.25, 1000, "AB"), ("quarter width, three tasks", 0.25, 2000, "ABC")]
    full += [("quarter width, five tasks", 0.25, 2000, "ABCDE")]
    cases = [("eighth of the width", 0.125, 200, "AB")] if arguments.quick else full
    for name, width, images, tasks in cases:
        networks = {task: zoo.vgg16(20, width=width).eval() for task in tasks}
        data = batches(images, (3, 72, 72), tasks, labels=20)
        forward = one_pass(networks, data, images)
        start = time.perf_counter()
        network = pamerge.merge(networks, data, PAM(alpha=0.05, levels=1))
        seconds = time.perf_counter() - start
        rows.append(
            {
                "case": name,
                "images": images,
                "layers": len(network.merging.layers),
                "neurons": max(len(layer.origins) for layer in network.merging.layers.values()),
                "merge_seconds": seconds,
                "forward_seconds": forward,
                "forward_passes": seconds / forward,
            }
        )
        print(
            f"{name:<30} {seconds:7.1f} s to capture, read {images} images, regroup {rows[-1]['layers']} layers; "
            f"{seconds / forward:.2f} forward passes of the networks over these images (at most 10)"
        )
    if not arguments.quick:
        content = {
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "rows": rows,
        }
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(RESULTS, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
