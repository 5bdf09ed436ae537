"""Runs of pruning that are killed again and again: ``python killed.py FOLDER``.

Every run is a process of its own, forked from this one, so that importing torch takes its seconds only once.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from training.small import OBJECTIVES, batches, loader, merged

import pamerge
from pamerge.pruning import VIB, Taylor, prune

PRUNERS = {"taylor": Taylor(batches=2), "vib": VIB(gamma=0.1, lr=0.6)}
KILLS = 3


def run(checkpoint: Path, pruner: str, output: Path) -> None:
    network = merged(dropout=0.2)
    path = prune(
        network, loader(72, shuffle=3), batches(2, seed=1), OBJECTIVES, pruner=PRUNERS[pruner], laps=7, steps=4,
        max_drop=0.35, reference={"shape": 0.8, "parts": 0.8, "size": 1.0}, recovery=4, final=5, fraction=0.06, lr=3e-3,
        patience=3, seed=0, checkpoint=checkpoint, progress=False,
    )  # fmt: skip
    pamerge.save(network, output)
    Path(f"{output}.path").write_text(str([step.metrics for step in path]) + str(path.final))


def fork(function: Callable[..., None], *arguments: object) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function(*arguments)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(folder: Path) -> None:
    merged(dropout=0.2)
    chance = random.Random(0)
    for pruner in PRUNERS:
        (folder / pruner).mkdir()
        start = time.monotonic()
        _, status = os.waitpid(fork(run, folder / f"{pruner} undisturbed", pruner, folder / f"{pruner} whole.pam"), 0)
        duration = time.monotonic() - start
        assert status == 0
        arguments = folder / pruner / "checkpoint", pruner, folder / f"{pruner} killed.pam"
        kills = 0
        for _ in range(KILLS):
            pid = fork(run, *arguments)
            time.sleep(chance.uniform(0.15, 0.5) * duration)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            kills += os.WIFSIGNALED(status)
        assert kills > 1, "it was never killed"
        (folder / pruner / ".checkpoint.12345.tmp").write_bytes(b"left behind by a process killed while it wrote")
        _, status = os.waitpid(fork(run, *arguments), 0)
        assert status == 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
