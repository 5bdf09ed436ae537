"""Results as the runner writes them, from networks that were really merged and cut, but never trained."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from pamerge import MTZ, PAM, Separate, zoo
from pamerge.experiments.describe import information_record, network_record
from pamerge.experiments.metrics import sharing_ratios
from pamerge.merging import Material, prepare
from pamerge.network.network import MultitaskNetwork
from pamerge.tasks import all_subsets

NAMES = ("age", "gender", "emotion", "glasses", "smile")
INPUT = (1, 12, 12)


@functools.cache
def sample(tasks: int = 2, seed: int = 0, pruner: str = "taylor") -> dict[str, Any]:
    """A plausible result of some tasks; treat it as frozen."""
    rng = np.random.default_rng(seed)
    material = merging_material(tasks, seed)
    names = list(material.networks)
    reference = {task: 0.9 + 0.06 * float(rng.random()) for task in names}
    schemes = {
        "separate": _scheme(Separate().merge(material), reference, 0.55, rng),
        "mtz": _scheme(MTZ(steps=0, samples=50).merge(material), reference, 0.12, rng),
    }
    pam = PAM(alpha=0.1, levels=2).merge(material)
    information = information_record(pam.merging)
    schemes["pam"] = _scheme(pam, reference, 0.6, rng) | {"alpha": 0.1, "information": information}
    return {
        "experiment": f"faces-{tasks}-tasks",
        "network": "lenet5",
        "pruner": pruner,
        "seed": seed,
        "tasks": names,
        "budget": 0.01,
        "reference": reference,
        "original_flops": {task: material.side_by_side().flops(task) for task in names},
        "schemes": schemes,
        "environment": {"torch": torch.__version__, "threads": 1, "machine": "x86_64", "peak_gib": 1.234567},
    }


@functools.cache
def merging_material(tasks: int, seed: int) -> Material:
    """Untrained networks; images are mixtures of patterns, and each task asks for a pattern and a bit of another."""
    generator = torch.Generator().manual_seed(seed)
    names = NAMES[:tasks]
    networks = {name: zoo.lenet5(2, INPUT, generator=generator).eval() for name in names}
    patterns = torch.randn(tasks, *INPUT, generator=generator)
    strengths = torch.randn(1000, tasks, generator=generator)
    x = torch.einsum("nt,tchw->nchw", strengths, patterns) + 0.5 * torch.randn(1000, *INPUT, generator=generator)
    labels = {name: (strengths[:, i] + 0.5 * strengths[:, i - 1] > 0).long() for i, name in enumerate(names)}
    return prepare(networks, [(x, labels)])


def _scheme(
    network: MultitaskNetwork, reference: dict[str, float], goal: float, rng: np.random.Generator
) -> dict[str, Any]:
    """Remove neurons at random in several steps; the metric falls a little."""
    path = []
    for step in range(9):
        if step:
            _remove_some(network, goal / 8, rng)
        metrics = {t: value + 0.002 - 0.0012 * step + 0.002 * rng.normal() for t, value in reference.items()}
        path.append({"flops": _costs(network), "metrics": metrics})
    return {
        "flops": _costs(network),
        "metric": {task: value - 0.008 * float(rng.random()) for task, value in reference.items()},
        "sharing": sharing_ratios(network),
        **network_record(network),
        "validation": path[-1]["metrics"],
        "task_batches": 9000,
        "seconds": 300.0 + 60 * float(rng.random()),
        "stopped": "a task would leave its budget",
        "path": path,
    }


def _costs(network: MultitaskNetwork) -> dict[str, int]:
    return {str(tasks): network.flops(tasks) for tasks in all_subsets(network.tasks)}


def _remove_some(network: MultitaskNetwork, share: float, rng: np.random.Generator) -> None:
    neurons = {j.name: list(j.task_sets()) for j in network.junctions.values() if not j.fixed}
    network.remove({name: [n for n in numbers if rng.random() < share] for name, numbers in neurons.items()})
