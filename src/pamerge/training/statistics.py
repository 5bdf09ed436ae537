"""Statistics of batch norms, measured anew for weights that were not trained with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import torch

from pamerge.network.network import MultitaskNetwork
from pamerge.training.data import Batch
from pamerge.training.processes import average_statistics
from pamerge.training.steps import NORMS

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ENOUGH = 20
"""Batches that statistics are measured on: about as many as count in the running statistics of training."""


@torch.no_grad()
def refresh_statistics(
    network: MultitaskNetwork,
    batches: Iterator[Batch],
    tasks: Collection[str],
    fabric: Fabric,
    taught: Collection[str] = (),
) -> None:
    """Measure the statistics of the tasks' batch norms in training mode on some batches; labels are not used.

    Those that training has gathered are of other weights, if weights were averaged since, and of other activations, if
    a pruner has added noise to them.

    Args:
        network: The network, in training mode.
        batches: Training batches.
        tasks: Tasks that were trained.
        fabric: Device, precision and processes.
        taught: Tasks that see all batches; the others see those with labels of theirs, as in training.
    """
    used = [network.blocks[key] for key, layout in network.layouts.items() if layout.group & set(tasks)]
    norms = [module for block in used for module in block.modules() if isinstance(module, NORMS) and module.training]
    norms = [norm for norm in norms if norm.track_running_stats]
    if not norms:
        return
    before = [(norm.momentum, {name: tensor.clone() for name, tensor in norm.named_buffers()}) for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches
        for batch in islice(batches, ENOUGH):
            present = [task for task in tasks if task in batch.labelled or task in taught]
            if present:
                with fabric.autocast():
                    network(batch.to(fabric.device).inputs, present)
    finally:
        for norm, (momentum, buffers) in zip(norms, before, strict=True):
            norm.momentum = momentum
            if not norm.num_batches_tracked:  # it has seen nothing
                for name, tensor in norm.named_buffers():
                    tensor.copy_(buffers[name])
    average_statistics(network, fabric)
