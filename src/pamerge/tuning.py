"""α for the mix of task combinations that a user runs, by short pruning probes."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import nn

from pamerge.errors import PamergeError, PamergeWarning
from pamerge.merging import PAM, prepare
from pamerge.pruning import Pruner, prune
from pamerge.pruning.ranking import expected_flops, resolve_mix
from pamerge.tasks import TaskSet
from pamerge.training import Objective, evaluate, finetune

LADDER = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Shares of a layer's information that exclusive neurons may carry, from mostly shared to mostly exclusive."""

ALL_SHARED, SEPARATE = -1.0, 1.0


@dataclass(frozen=True)
class Probe:
    """What one candidate gave.

    Attributes:
        scheme: the candidate.
        cost: expected FLOPs under the mix after the probe; infinite if it could not keep the budget.
        metrics: validation metrics after the probe.
        flops: the cost of every subset after the probe.
        task_batches: effort, in batches used for one task's loss.
        seconds: how long the probe took.
    """

    scheme: PAM
    cost: float
    metrics: Mapping[str, float]
    flops: Mapping[str, int]
    task_batches: int
    seconds: float

    @property
    def name(self) -> str:
        """The candidate in a word or two."""
        alpha = self.scheme.alpha
        if alpha == SEPARATE:
            return "separate"
        return "all shared" if alpha == ALL_SHARED else f"α = {alpha:g}, {self.scheme.overlap}"


@dataclass(frozen=True)
class Tuning:
    """All probes, the cheapest first."""

    probes: tuple[Probe, ...]
    mix: Mapping[TaskSet, float]

    @property
    def best(self) -> PAM:
        """The scheme with the least expected cost."""
        return self.probes[0].scheme

    def table(self) -> Table:
        """What each candidate gave, for a terminal."""
        table = Table("candidate", title="expected MFLOPs under the mix after a short pruning probe")
        for column in ("expected", *self.probes[0].flops, *(f"metric {task}" for task in self.probes[0].metrics)):
            table.add_column(column, justify="right")
        for probe in self.probes:
            cost = f"{probe.cost / 1e6:.3f}" if math.isfinite(probe.cost) else "over budget"
            flops = [f"{value / 1e6:.3f}" for value in probe.flops.values()]
            table.add_row(probe.name, cost, *flops, *(f"{value:.4f}" for value in probe.metrics.values()))
        return table


def tune_alpha(
    networks: Mapping[str, nn.Module],
    calibration: Iterable[Any],
    train: Iterable[Any],
    validation: Iterable[Any],
    objectives: Mapping[str, Objective],
    *,
    pruner: Pruner,
    max_drop: float,
    mix: Mapping[Any, float] | None = None,
    **options: Any,
) -> PAM:
    """The PAM scheme whose pruned network costs least under a mix of task combinations.

    Takes the options of :func:`compare_alphas`, which also tells what every candidate gave.
    """
    return compare_alphas(
        networks, calibration, train, validation, objectives, pruner=pruner, max_drop=max_drop, mix=mix, **options
    ).best


def compare_alphas(
    networks: Mapping[str, nn.Module],
    calibration: Iterable[Any],
    train: Iterable[Any],
    validation: Iterable[Any],
    objectives: Mapping[str, Objective],
    *,
    pruner: Pruner,
    max_drop: float,
    mix: Mapping[Any, float] | None = None,
    scheme: PAM | None = None,
    alphas: Sequence[float] = LADDER,
    overlaps: Sequence[str] = ("origin",),
    finetune_steps: int = 100,
    prune_options: Mapping[str, Any] | None = None,
    progress: bool = True,
    seed: int | None = 0,
) -> Tuning:
    """Merge, fine-tune and prune each candidate for a little while, and compare what it would cost to run.

    Keeping the networks separate (α = 1) and sharing everything (α < 0) are always among the candidates, so that the
    best is never worse than either, as far as the probes can tell. The data is read for information once.

    Args:
        networks: the original networks.
        calibration: batches that information is measured on.
        train: training batches.
        validation: batches that the budget is checked on.
        objectives: the loss and metric of each task.
        pruner: the pruner that will be used.
        max_drop: the budget, counted from the original networks' validation metrics.
        mix: how often each subset of tasks is executed; all alike by default.
        scheme: settings that all candidates share (estimator, levels, streams, samples).
        alphas: the ladder of α between the two ends.
        overlaps: what to do with neurons in several exclusive sets; every choice is tried.
        finetune_steps: training steps between merging and pruning.
        prune_options: for :func:`pamerge.prune`; by default short and in large steps.
        progress: print the table of candidates.
        seed: seeds every probe.
    """
    if bool(alphas) != bool(overlaps):
        raise PamergeError(
            f"alphas={tuple(alphas)!r}, overlaps={tuple(overlaps)!r}; expected both, or neither for the ends."
        )
    base = scheme or PAM()
    candidates = [replace(base, alpha=SEPARATE, overlap="origin"), replace(base, alpha=ALL_SHARED, overlap="origin")]
    candidates += [replace(base, alpha=alpha, overlap=overlap) for alpha in alphas for overlap in overlaps]  # type: ignore[arg-type]
    material = prepare(networks, calibration, objectives=objectives)
    shares = resolve_mix(mix, material.alignment.tasks)
    reference = evaluate(dict(networks), validation, objectives)
    options: dict[str, Any] = {"laps": 15, "fraction": 0.08, "steps": 15, "recovery": 40, "final": 0, "patience": 1}
    options |= dict(prune_options or {})
    probes = []
    for candidate in candidates:
        start = time.perf_counter()
        network = candidate.merge(material)
        tuned = finetune(network, train, objectives, steps=finetune_steps, seed=seed, progress=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Nothing could be removed", PamergeWarning)  # the table says so
            path = prune(
                network,
                train,
                validation,
                objectives,
                pruner=pruner,
                max_drop=max_drop,
                reference=reference,
                mix=mix,
                seed=seed,
                progress=False,
                **options,
            )
        within = path.steps[path.kept].within
        probes.append(
            Probe(
                scheme=candidate,
                cost=expected_flops(network, shares) if within else math.inf,
                metrics=path.final,
                flops=path.flops,
                task_batches=tuned.task_batches + path.task_batches,
                seconds=time.perf_counter() - start,
            )
        )
    tuning = Tuning(tuple(sorted(probes, key=lambda probe: probe.cost)), shares)
    if progress:
        Console(stderr=True).print(tuning.table())
    return tuning
