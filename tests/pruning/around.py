"""What a pruner sees, for tests that look at one without the loop; and pruning without much training."""

from __future__ import annotations

from functools import partial

import torch
from lightning_fabric import Fabric
from torch import Tensor
from training.small import INPUT, OBJECTIVES

from pamerge import MultitaskNetwork
from pamerge.pruning import Surroundings, prune
from pamerge.pruning.gates import Places
from pamerge.pruning.loop import Loop
from pamerge.training.data import Batch, Batches

plainly = {"remove": "neuron", "per_flop": False}
quickly = partial(prune, steps=1, recovery=2, final=2, lr=1e-3, seed=0, progress=False, **plainly)


def surroundings(network: MultitaskNetwork, **options) -> Surroundings:
    return Surroundings(
        network=network,
        objectives={task: OBJECTIVES[task] for task in network.tasks},
        places=Places(network),
        fabric=Fabric(accelerator="cpu", devices=1),
        generator=torch.Generator().manual_seed(0),
        **options,
    )


def read(data: list, *tasks: str) -> list[Batch]:
    """Batches as the loop hands them to a pruner."""
    shapes = {"shape": (4,), "parts": (3,), "size": (1,)}
    objectives = {task: OBJECTIVES[task] for task in tasks or OBJECTIVES}
    return list(Batches(data, "data", objectives, None, lambda x: shapes))


def neurons(network: MultitaskNetwork) -> dict[str, dict[int, str]]:
    return {
        name: {n: str(tasks) for n, tasks in junction.task_sets().items()}
        for name, junction in network.junctions.items()
        if not junction.fixed
    }


def sample(count: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, *INPUT, generator=torch.Generator().manual_seed(5)).to(dtype)


def scripted_metrics(monkeypatch, values):
    """Lets the loop see these metrics, one after the other, the last one for ever."""
    seen = iter(values)
    last = {}

    def evaluate(self):
        last.update(next(seen, last))
        return dict(last)

    monkeypatch.setattr(Loop, "_evaluate", evaluate)


def together_first(monkeypatch):
    """The first lap is one of all tasks, whatever they share."""
    monkeypatch.setattr(Loop, "_apart", lambda self: [])
