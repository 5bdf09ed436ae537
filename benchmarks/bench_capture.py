"""What capturing and merging two networks takes, against one forward pass of one of them.

    python benchmarks/bench_capture.py [--quick]

Two DenseNet-121 of pytorchcv are captured, aligned and merged (``Separate``; the time includes the comparison with the
originals that ``merge`` makes). A forward pass is of one of them, with 32 images, before and after in the same process.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from pytorchcv.models.densenet import densenet121

import pamerge
from pamerge.network.files import write_atomically

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks" / "capture.json"
LIMIT = 60.0


@torch.no_grad()
def main(quick: bool) -> None:
    torch.manual_seed(0)
    networks = {"A": densenet121(num_classes=10).eval(), "B": densenet121(num_classes=20).eval()}
    images = torch.randn(32, 3, 224, 224)

    def forward() -> float:
        start = time.perf_counter()
        networks["A"](images)
        return time.perf_counter() - start

    def merge() -> float:
        start = time.perf_counter()
        pamerge.merge(networks, [images], pamerge.Separate())
        return time.perf_counter() - start

    forward()  # the first pass and the first export pay for what torch loads on demand
    merge()
    forwards, merges = [], []
    for _ in range(1 if quick else 3):
        forwards.append(forward())
        merges.append(merge())
    forwards.append(forward())
    found = {
        "what": "capture + merge of two DenseNet-121 / one forward pass at batch 32, 224×224",
        "seconds": {"forward": statistics.median(forwards), "capture and merge": statistics.median(merges)},
        "ratio": statistics.median(merges) / statistics.median(forwards),
        "limit": LIMIT,
        "environment": {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
    }
    print(f"{found['what']}: {found['ratio']:.2f} (limit {LIMIT:.0f})")
    for name, seconds in found["seconds"].items():
        print(f"  {name}: {seconds:.2f} s")
    if not quick:
        write_atomically(RESULTS, (json.dumps(found, indent=1) + "\n").encode())
    if found["ratio"] >= LIMIT:
        raise SystemExit("the limit is exceeded")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one measurement; writes nothing")
    main(parser.parse_args().quick)
