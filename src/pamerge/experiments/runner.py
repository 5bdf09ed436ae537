"""Runs an experiment: pre-train → merge → fine-tune → prune → evaluate, each stage once.

All schemes get the same data, the same budget (counted from the original networks' validation metrics) and the same
effort, counted in task-batches from the original networks on; what each used is recorded.
"""

from __future__ import annotations

import json
import platform
import resource
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pamerge.data import MultitaskDataset, Splits
from pamerge.errors import PamergeError
from pamerge.experiments.config import Choice, Config
from pamerge.experiments.metrics import sharing_ratios
from pamerge.experiments.registry import TUNE, make_data, make_network, make_pruner, make_scheme
from pamerge.experiments.store import Store
from pamerge.merging import PAM, Material, prepare
from pamerge.network.files import write_atomically
from pamerge.network.network import MultitaskNetwork
from pamerge.pruning import prune
from pamerge.tasks import all_subsets
from pamerge.training import MultiLabel, Objective, evaluate, finetune
from pamerge.tuning import compare_alphas


@dataclass(frozen=True)
class Cell:
    """One seed of an experiment with one pruner."""

    config: Config
    pruner: Choice
    seed: int
    store: Store
    splits: Splits
    networks: Mapping[str, nn.Module]
    objectives: Mapping[str, Objective]
    reference: Mapping[str, float]
    basis: Mapping[str, Any]
    """What all results of the cell depend on."""

    def train(self) -> Any:
        """Training batches in an order that depends on the seed alone."""
        return self.splits.train.loader(self.config.batch_size, shuffle=torch.Generator().manual_seed(self.seed))

    def validation(self) -> Any:
        """Validation batches."""
        return self.splits.validation.loader(500)

    def calibration(self) -> Any:
        """Batches to measure information on: the training data in its own order."""
        return self.splits.train.loader(500)


def run(config: Config, folder: str | Path, *, data: Path | None = None) -> list[dict[str, Any]]:
    """Run an experiment and return a result for every pruner and seed.

    Args:
        config: the experiment.
        folder: where stages and results are kept; a run that was killed goes on from there.
        data: the folder with downloaded data, for data sets that need one.
    """
    folder = Path(folder)
    for choice in config.schemes:  # mistakes come to light before anything is trained
        make_scheme(choice)
    results = []
    for seed in config.seeds:
        for pruner in config.pruners:
            make_pruner(pruner)
            cell = _cell(config, pruner, seed, Store(folder / "stages"), data)
            result = _result(cell)
            (folder / "results").mkdir(parents=True, exist_ok=True)
            path = folder / "results" / f"{config.name}-{pruner.name}-seed{seed}.json"
            write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
            results.append(result)
    return results


def _cell(config: Config, pruner: Choice, seed: int, store: Store, data: Path | None) -> Cell:
    splits = make_data(config.data, seed, data)
    basis = {
        "data": asdict(config.data),
        "network": asdict(config.network),
        "pretraining": asdict(config.pretraining),
        "batch_size": config.batch_size,
        "seed": seed,
    }
    networks = _pretrained(config, splits, store, basis, seed)
    objectives: dict[str, Objective] = {task: MultiLabel() for task in networks}
    reference = store.json(
        "reference", basis, lambda: evaluate(dict(networks), splits.validation.loader(500), objectives)
    )
    return Cell(config, pruner, seed, store, splits, networks, objectives, reference, basis)


def _pretrained(
    config: Config, splits: Splits, store: Store, basis: Mapping[str, Any], seed: int
) -> dict[str, nn.Module]:
    """The original network of each task; they may start from a common training on all labels."""
    tasks = splits.train.tasks
    start: Mapping[str, torch.Tensor] | None = None
    settings = config.pretraining
    if settings.common_epochs:
        everything = splits.train.with_tasks({"all": tuple(label for labels in tasks.values() for label in labels)})
        start = store.tensors(
            "common", basis, lambda: _train(config, everything, "all", None, settings.common_epochs, seed)
        )
    networks: dict[str, nn.Module] = {}
    for number, task in enumerate(tasks):
        weights = store.tensors(
            f"pretrain-{task}",
            {**basis, "task": task},
            lambda task=task, number=number: _train(  # type: ignore[misc]
                config, splits.train, task, start, settings.epochs, 1000 * (number + 1) + seed
            ),
        )
        network = _untrained(config, splits.train, task, seed)
        network.load_state_dict(dict(weights))
        networks[task] = network.eval()
    return networks


def _untrained(config: Config, data: MultitaskDataset, task: str, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    return make_network(config.network, len(data.tasks[task]), data.input_size, generator)


def _train(
    config: Config,
    data: MultitaskDataset,
    task: str,
    start: Mapping[str, torch.Tensor] | None,
    epochs: int,
    seed: int,
) -> dict[str, torch.Tensor]:
    """Train one network; weights that fit (all but the output layer) come from ``start``."""
    torch.manual_seed(seed)
    network = _untrained(config, data, task, seed)
    if start is not None:
        own = network.state_dict()
        network.load_state_dict({n: start[n] if start[n].shape == w.shape else w for n, w in own.items()})
    loader = data.loader(config.batch_size, shuffle=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.Adam(network.parameters(), config.pretraining.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.pretraining.lr, total_steps=epochs * len(loader))
    network.train()
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(network(inputs), targets[task])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return network.state_dict()


def _result(cell: Cell) -> dict[str, Any]:
    material = prepare(cell.networks, cell.calibration(), objectives=cell.objectives, train=cell.train())
    test = cell.splits.test.loader(500)
    originals = cell.store.json("originals", cell.basis, lambda: evaluate(dict(cell.networks), test, cell.objectives))
    schemes = {}
    for choice in cell.config.schemes:
        network, notes = _pruned(cell, material, choice)
        schemes[choice.options.get("label", choice.name)] = {
            "flops": {str(tasks): network.flops(tasks) for tasks in all_subsets(network.tasks)},
            "metric": evaluate(network, test, cell.objectives),
            "sharing": sharing_ratios(network),
            **notes,
        }
    return {
        "experiment": cell.config.name,
        "network": cell.config.network.name,
        "pruner": cell.pruner.name,
        "seed": cell.seed,
        "tasks": list(cell.networks),
        "budget": cell.config.max_drop,
        "reference": originals,
        "original_flops": {task: material.side_by_side().flops(task) for task in cell.networks},
        "schemes": schemes,
        "environment": {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        },
    }


def _pruned(cell: Cell, material: Material, choice: Choice) -> tuple[MultitaskNetwork, dict[str, Any]]:
    """Merge, fine-tune and prune with one scheme; kept under a hash of all that it depends on."""
    config = cell.config
    depends_on = {
        **cell.basis,
        "scheme": asdict(choice),
        "pruner": asdict(cell.pruner),
        "max_drop": config.max_drop,
        "effort": config.effort,
        "finetune": config.finetune,
        "prune": dict(config.prune),
    }

    def make() -> tuple[MultitaskNetwork, dict[str, Any]]:
        start = time.perf_counter()
        scheme, spent, notes = _tuned(cell, choice)
        network = scheme.merge(material)
        spent += network.merging.task_batches if network.merging is not None else 0
        if config.finetune:
            spent += finetune(
                network, cell.train(), cell.objectives, steps=config.finetune, seed=cell.seed, progress=False
            ).task_batches
        if spent >= config.effort:
            raise PamergeError(f"effort = {config.effort}; {choice.name} used {spent} task-batches before pruning.")
        path = prune(
            network,
            cell.train(),
            cell.validation(),
            cell.objectives,
            pruner=make_pruner(cell.pruner),
            max_drop=config.max_drop,
            reference=cell.reference,
            effort=config.effort - spent,
            checkpoint=cell.store.path("pruning", depends_on, ".checkpoint"),
            seed=cell.seed,
            progress=False,
            **config.prune,
        )
        notes |= {
            "validation": dict(path.final),
            "task_batches": spent + path.task_batches,
            "seconds": time.perf_counter() - start,
            "stopped": path.stopped,
            "path": [{"flops": dict(step.flops), "metrics": dict(step.metrics)} for step in path.steps],
        }
        return network, notes

    return cell.store.network("pruned", depends_on, make)


def _tuned(cell: Cell, choice: Choice) -> tuple[Any, int, dict[str, Any]]:
    """The scheme, with α tuned if the configuration asks for it; the effort that this took; and what to record."""
    scheme = make_scheme(choice)
    if choice.options.get("alpha") != TUNE or not isinstance(scheme, PAM):
        alpha = scheme.alpha if isinstance(scheme, PAM) else None
        return scheme, 0, {} if alpha is None else {"alpha": alpha}
    tuning = compare_alphas(
        cell.networks,
        cell.calibration(),
        cell.train(),
        cell.validation(),
        cell.objectives,
        pruner=make_pruner(cell.pruner),
        max_drop=cell.config.max_drop,
        scheme=replace(scheme, alpha=0.05),
        progress=False,
        seed=cell.seed,
    )
    probes = {probe.name: probe.cost for probe in tuning.probes}
    spent = sum(probe.task_batches for probe in tuning.probes)
    return tuning.best, spent, {"alpha": tuning.best.alpha, "probes": probes}
