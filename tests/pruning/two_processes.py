"""Pruning in two processes: ``python two_processes.py FOLDER``."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from lightning_fabric import Fabric
from torch.utils.data import DataLoader
from training.small import OBJECTIVES, Labelled, merged

import pamerge
from pamerge.pruning import VIB, Taylor, prune

PRUNERS = {"taylor": Taylor(batches=2), "vib": VIB(gamma=0.1, lr=0.6), "one after the other": Taylor(batches=2)}


OPTIMIZERS = {"taylor": torch.optim.SGD, "vib": torch.optim.Adam, "one after the other": torch.optim.SGD}


def run(fabric: Fabric, pruner: str, output: Path) -> None:
    network = merged()
    path = prune(
        network, DataLoader(Labelled(96), 16 // fabric.world_size), DataLoader(Labelled(30, seed=1), 5), OBJECTIVES,
        pruner=PRUNERS[pruner], laps=3, steps=3, final=2, fraction=0.08, max_drop=9.0, optimizer=OPTIMIZERS[pruner],
        lr=1e-2, together=pruner != "one after the other", fabric=fabric, seed=0, progress=False,
        checkpoint=f"{output}.checkpoint",
    )  # fmt: skip
    sums = torch.stack([parameter.detach().double().sum() for parameter in network.parameters()])
    everywhere = fabric.all_gather(sums).reshape(-1, len(sums))
    if fabric.is_global_zero:
        pamerge.save(network, output)
        found = {"metrics": [dict(step.metrics) for step in path], "final": dict(path.final)}
        found["same"] = bool((everywhere == everywhere[0]).all())
        Path(f"{output}.json").write_text(json.dumps(found))


def both(fabric: Fabric) -> None:
    for pruner in PRUNERS:
        run(fabric, pruner, Path(sys.argv[1]) / pruner)


if __name__ == "__main__":
    torch.set_num_threads(1)
    Fabric(accelerator="cpu", devices=2, strategy="ddp_fork").launch(both)
