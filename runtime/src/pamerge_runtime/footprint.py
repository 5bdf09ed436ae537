"""How much memory one subset of a bundle takes: ``python -m pamerge_runtime.footprint FOLDER BATCH THREADS TASK ...``.

Prints JSON. The peak is that of this process above what it had when it had imported the runtime.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from pamerge_runtime.runtime import Runtime


def memory(field: str) -> int:
    """Memory of this process in bytes: ``VmRSS`` is what it has, ``VmHWM`` the most that it had."""
    status = Path("/proc/self/status")
    if not status.exists():  # no Linux
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def main(arguments: list[str]) -> None:
    """Run some tasks a few times and print the peak."""
    folder, batch, threads, *tasks = arguments
    before = memory("VmRSS")
    runtime = Runtime(folder, threads=int(threads))
    x = np.zeros((int(batch), *runtime.manifest.input_shape), np.float32)
    for _ in range(3):
        runtime.run(x, tasks)
    print(json.dumps({"peak_bytes": max(0, memory("VmHWM") - before)}))


if __name__ == "__main__":
    main(sys.argv[1:])
