"""What one of several processes does: ``python two_processes.py <processes> <folder>``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from training.small import OBJECTIVES, inputs, labels, merged, original

from pamerge.training import evaluate, finetune

SAMPLES = 44  # with batches of 8 the last one of an epoch exists in one process only, and is not full


class Recording(TensorDataset):
    """Remembers which samples were read."""

    def __init__(self, *columns: Tensor) -> None:
        super().__init__(*columns)
        self.read: list[int] = []

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        self.read.append(index)
        return super().__getitem__(index)


def gathered(samples: list[tuple[Tensor, ...]]) -> tuple[Tensor, dict[str, Tensor]]:
    x, *y = (torch.stack(column) for column in zip(*samples, strict=True))
    return x, dict(zip(OBJECTIVES, y, strict=True))


def data(size: int, shuffle: bool = False) -> DataLoader:
    """Labels are missing here and there, so that processes have different numbers of them, and some have none."""
    x = inputs(SAMPLES)
    y = labels(x)
    y["shape"][::3] = -1
    y["shape"][8:16] = -1
    y["parts"][5:20, 1:] = torch.nan
    return DataLoader(Recording(x, *y.values()), size, shuffle, collate_fn=gathered)


def run(fabric: Fabric, folder: Path) -> None:
    size = 16 // fabric.world_size
    found = {}
    for name, arguments in {
        "labels": {},
        "teachers": {"teachers": {task: original(task) for task in ("shape", "size")}, "distill": 0.5},
    }.items():
        network = merged()
        if fabric.global_rank:  # all processes train the first one's weights
            for parameter in network.parameters():
                parameter.data.fill_(7.0)
        result = finetune(
            network,
            data(size),
            OBJECTIVES,
            epochs=2,
            lr=3e-3,
            validation=data(size),
            fabric=fabric,
            checkpoint=folder / f"{name}.ckpt",
            checkpoint_seconds=0.0,
            progress=False,
            **arguments,
        )
        found[name] = {"metrics": dict(result.metrics), "steps": result.steps, "task_batches": result.task_batches}
        found[name]["evaluated"] = evaluate(network, data(size), OBJECTIVES, fabric=fabric)
        if fabric.global_rank == fabric.world_size - 1:
            save_file(network.state_dict(), folder / f"{name}.weights")
    torch.manual_seed(fabric.global_rank)
    network = merged(dropout=0.3, batch_norm=True)
    train = data(size, shuffle=True)
    finetune(network, train, OBJECTIVES, epochs=1, fabric=fabric, progress=False)
    save_file(network.state_dict(), folder / f"shuffled.{fabric.global_rank}")
    read = train.dataset.read
    trained_on = read[len(read) // 2 :]  # after it was looked at once
    (folder / f"samples.{fabric.global_rank}").write_text(json.dumps(trained_on))
    if fabric.global_rank == fabric.world_size - 1:
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=int(sys.argv[1]), strategy="ddp")
    fabric.launch()
    run(fabric, Path(sys.argv[2]))
