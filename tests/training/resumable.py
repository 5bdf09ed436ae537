"""A run that can be killed: ``python resumable.py <checkpoint> <weights> <seconds to wait before each batch>``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader
from training.small import OBJECTIVES, Labelled, batches, merged

from pamerge import MultitaskNetwork
from pamerge.training import FinetuneResult, finetune


class Slow(Labelled):
    """Takes its time, and changes samples at random as augmentations do."""

    wait = 0.0

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.wait / 8)
        x, y = super().__getitem__(index)
        return x + 0.01 * torch.randn(x.shape), y


def run(checkpoint: str, wait: float = 0.0) -> tuple[MultitaskNetwork, FinetuneResult]:
    data = Slow(56)
    data.wait = wait
    train = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(5))
    network = merged(dropout=0.3)
    result = finetune(
        network,
        train,
        OBJECTIVES,
        epochs=3,
        validation=batches(2, seed=1),
        checkpoint=checkpoint,
        checkpoint_seconds=3 * wait,
        lr=3e-3,
        seed=7,
        progress=False,
    )
    return network, result


def batches_used(lines: Iterator[str]) -> int:
    return sum('"event":"step"' in line for line in lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    end, _ = run(sys.argv[1], float(sys.argv[3]))
    save_file(end.state_dict(), sys.argv[2])
