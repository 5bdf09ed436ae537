"""The original networks: one for each task, which may start from a common training on many labels.

Every epoch leaves a checkpoint, so that a killed run trains the rest of its epochs and ends with the same weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from pamerge.data import MultitaskDataset, Splits
from pamerge.experiments.config import Config
from pamerge.experiments.registry import make_network
from pamerge.experiments.store import Store
from pamerge.training.checkpoint import (
    load_state,
    optimizer_state_to_tensors,
    prefixed,
    restore_optimizer_state,
    save_state,
    under,
)
from pamerge.training.finetune import seeded
from pamerge.training.random_state import RandomState, capture_random_state, restore_random_state


def pretrained(
    config: Config, splits: Splits, store: Store, basis: Mapping[str, Any], seed: int
) -> dict[str, nn.Module]:
    """The original network of each task, in evaluation mode."""
    settings, data = config.pretraining, splits.train
    networks = {task: _untrained(config, data, task, seed) for task in data.tasks}  # or mistakes in options
    common = None
    if settings.common_epochs:
        everything = data.with_tasks({"all": settings.common_labels or data.names})
        rate = settings.lr if settings.common_lr is None else settings.common_lr
        make = partial(_weights, config, everything, "all", settings.common_epochs, rate, seed)
        common = _stored(store, "common", _common_basis(config, basis), make, "train a common network")
    for number, (task, network) in enumerate(networks.items()):
        own_seed = 1000 * (number + 1) + seed
        make = partial(_weights, config, data, task, settings.epochs, settings.lr, own_seed, start=common)
        depends_on = {**basis, "task": task}
        network.load_state_dict(_stored(store, f"pretrain-{task}", depends_on, make, f"train the network of {task}"))
        network.eval()
    return networks


def train(
    network: nn.Module,
    loader: DataLoader[Any],
    task: str,
    *,
    epochs: int,
    lr: float,
    seed: int,
    checkpoint: str | os.PathLike[str],
    mixed: bool = False,
) -> None:
    """Train a network on one task's labels, with a one-cycle schedule, going on from the checkpoint if there is one.

    With ``mixed``, the network computes with bfloat16 where that does no harm.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader))
    network.train()
    with seeded(seed):
        done = _restore(checkpoint, network, optimizer, loader)
        schedule.last_epoch = done * len(loader)  # in steps; the optimiser has its rates
        for epoch in range(done, epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                    outputs = network(inputs)
                loss = functional.binary_cross_entropy_with_logits(outputs.float(), targets[task])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
            _save(checkpoint, network, optimizer, loader, epoch + 1)


def _common_basis(config: Config, basis: Mapping[str, Any]) -> dict[str, Any]:
    """The common training does not depend on what comes after it, nor on how labels are divided among tasks."""
    options = {name: value for name, value in config.data.options.items() if name != "tasks"}
    used = config.pretraining
    pretraining = replace(used, epochs=0, lr=used.lr if used.common_lr is None else used.common_lr, common_lr=None)
    return {**basis, "data": asdict(replace(config.data, options=options)), "pretraining": pretraining.identity()}


def _untrained(config: Config, data: MultitaskDataset, task: str, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    return make_network(config.network, len(data.tasks[task]), data.input_size, generator)


def _weights(
    config: Config,
    data: MultitaskDataset,
    task: str,
    epochs: int,
    lr: float,
    seed: int,
    checkpoint: Path,
    start: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """A trained network's weights; those that fit (all but the output layer's) begin as in ``start``."""
    network = _untrained(config, data, task, seed)
    if start is not None:
        own = network.state_dict()
        network.load_state_dict({n: start[n] if start[n].shape == w.shape else w for n, w in own.items()})
    loader = data.loader(config.batch_size, shuffle=torch.Generator().manual_seed(seed))
    mixed = config.precision != "32-true"
    train(network, loader, task, epochs=epochs, lr=lr, seed=seed, checkpoint=checkpoint, mixed=mixed)
    return network.state_dict()


def _stored(
    store: Store, stage: str, depends_on: Mapping[str, Any], make: Callable[[Path], dict[str, Tensor]], title: str
) -> dict[str, Tensor]:
    checkpoint = store.path(stage, depends_on, ".checkpoint")
    found = store.tensors(stage, depends_on, lambda: make(checkpoint), title)
    checkpoint.unlink(missing_ok=True)  # the stage itself is kept
    return found


def _save(
    path: str | os.PathLike[str], network: nn.Module, optimizer: Optimizer, loader: DataLoader[Any], epochs: int
) -> None:
    tensors, optimizer_meta = optimizer_state_to_tensors(optimizer)
    random = capture_random_state(loader)
    parts = {"weights": network.state_dict(), "optimizer": tensors, "random": random.tensors}
    content = {name: tensor for part, tensors in parts.items() for name, tensor in prefixed(part, tensors).items()}
    save_state(path, content, {"epochs": epochs, "optimizer": optimizer_meta, "random": random.numbers})


def _restore(path: str | os.PathLike[str], network: nn.Module, optimizer: Optimizer, loader: DataLoader[Any]) -> int:
    """The number of epochs that were done."""
    found = load_state(path)
    if found is None:
        return 0
    tensors, meta = found
    network.load_state_dict(under("weights", tensors))
    restore_optimizer_state(optimizer, under("optimizer", tensors), meta["optimizer"])
    restore_random_state(RandomState(under("random", tensors), meta["random"]), loader)
    return int(meta["epochs"])
