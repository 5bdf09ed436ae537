"""What the neurons of a network do on data: activations at junctions, a few numbers a neuron, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.tasks import TaskSet


@torch.no_grad()
def junction_activations(
    network: MultitaskNetwork, data: Iterable[Any], *, pool: int = 1, samples: int | None = None
) -> Iterator[tuple[dict[str, Tensor], Mapping[str, Tensor]]]:
    """The activations of all neurons, and the labels, for one batch after the other.

    Args:
        network: the network to watch, run in eval mode.
        data: batches of ``(inputs, targets)``.
        pool: a feature map is reduced to ``pool × pool`` mean values.
        samples: stop after so many samples.

    Yields:
        For each junction a tensor ``(N, neurons, P)`` with the neurons in the order of ``junction.task_sets()``, and
        the targets of the batch.
    """
    if pool < 1:
        raise PamergeError(f"pool={pool!r}; expected 1 (the mean over space) or a small number of cells a side.")
    junctions = network.junctions
    device = next(network.parameters()).device
    was_training, seen = network.training, 0
    network.eval()
    try:
        for batch in data:
            inputs, targets = _parts(batch)
            found: dict[str, dict[TaskSet, Tensor]] = {name: {} for name in junctions}

            def look(where: str, group: TaskSet, tensor: Tensor, found: Any = found) -> Tensor:
                found[where][group] = pooled(tensor, len(junctions[where].groups[group]), pool).cpu()
                return tensor

            if samples is not None:
                inputs = inputs[: samples - seen]
                targets = {task: labels[: len(inputs)] for task, labels in targets.items()}
            network(inputs.to(device), at_junction=look)
            seen += len(inputs)
            yield {name: torch.cat([found[name][g] for g in j.groups], 1) for name, j in junctions.items()}, targets
            if samples is not None and seen >= samples:
                return
    finally:
        network.train(was_training)


def pooled(tensor: Tensor, neurons: int, pool: int) -> Tensor:
    """``(N, neurons · width, *space)`` → ``(N, neurons, P)``: mean values over space, P = pool² for a feature map."""
    maps = tensor.reshape(len(tensor), neurons, -1, *tensor.shape[2:])
    if tensor.dim() == 4 and maps.shape[2] == 1 and pool > 1:
        return functional.adaptive_avg_pool2d(tensor, pool).flatten(2)
    flat = maps.flatten(2)
    cells = min(pool * pool, flat.shape[2])
    return functional.adaptive_avg_pool1d(flat, cells) if cells > 1 else flat.mean(2, keepdim=True)


def _parts(batch: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], Mapping):
        return batch[0], batch[1]
    raise PamergeError("A batch must be (inputs, targets), where targets maps the name of a task to its labels.")
