"""α for the mix of task combinations that a user runs, by short pruning probes."""

from __future__ import annotations

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
from pamerge.merging.pam import ALL_SHARED
from pamerge.merging.regroup import check_share
from pamerge.pruning import Pruner, prune
from pamerge.pruning.budget import losses, worst_excess
from pamerge.pruning.ranking import expected_flops, resolve_mix
from pamerge.tasks import TaskSet
from pamerge.training import Objective, evaluate, finetune

LADDER = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Shares of a layer's information that exclusive neurons may carry, from mostly shared to mostly exclusive."""

SEPARATE = 1.0
"""An α at which nothing is shared."""

ALL_PAIRS = 2.0
"""A zip that makes all pairs of shared neurons one, however different."""


@dataclass(frozen=True)
class Probe:
    """What one candidate gave, pruned to the same expected cost as the others.

    Attributes:
        scheme: the candidate.
        excess: by how much the worst task is over its budget; 0 if all are within it.
        drop: how much of its metric a task lost on average, counted from the original networks.
        cost: expected FLOPs under the mix after the probe.
        metrics: validation metrics after the probe.
        flops: the cost of every subset after the probe.
        task_batches: effort, in batches used for one task's loss.
        seconds: how long the probe took.
    """

    scheme: PAM
    excess: float
    drop: float
    cost: float
    metrics: Mapping[str, float]
    flops: Mapping[str, int]
    task_batches: int
    seconds: float

    @property
    def name(self) -> str:
        """The candidate in a word or two."""
        return name_of(self.scheme)


def name_of(scheme: PAM) -> str:
    """A candidate in a word or two."""
    zipped = "" if scheme.zip is None else f", zip {scheme.zip:g}"
    if scheme.exclusive is not None:
        return f"exclusive {scheme.exclusive:g}{zipped}"
    if scheme.alpha == ALL_SHARED:
        return f"all shared{zipped}"
    name = "separate" if scheme.alpha == SEPARATE else f"α = {scheme.alpha:g}, {scheme.overlap}"
    if scheme.trunk:
        return f"trunk {scheme.trunk:g}, then {name}{zipped}"
    return name if scheme.alpha == SEPARATE else name + zipped


@dataclass(frozen=True)
class Tuning:
    """All probes, the best first."""

    probes: tuple[Probe, ...]
    mix: Mapping[TaskSet, float]

    @property
    def best(self) -> PAM:
        """The scheme that lost least at the same expected cost."""
        return self.probes[0].scheme

    def table(self) -> Table:
        """What each candidate gave, for a terminal."""
        table = Table("candidate", title="metrics and MFLOPs of every candidate, pruned to the same expected cost")
        metrics = [f"metric {task}" for task in self.probes[0].metrics]
        for column in ("mean loss", *metrics, "expected", *self.probes[0].flops):
            table.add_column(column, justify="right")
        for probe in self.probes:
            flops = [f"{value / 1e6:.3f}" for value in (probe.cost, *probe.flops.values())]
            table.add_row(
                probe.name, f"{probe.drop:.4f}", *(f"{value:.4f}" for value in probe.metrics.values()), *flops
            )
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
    """The PAM scheme whose pruned network is best for a mix of task combinations.

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
    trunks: Sequence[float] = (0.5,),
    exclusives: Sequence[float] = (0.4,),
    overlaps: Sequence[str] = ("origin",),
    zips: Sequence[float | None] = (None, 0.5),
    share: float = 0.4,
    finetune_steps: int = 100,
    prune_options: Mapping[str, Any] | None = None,
    progress: bool = True,
    seed: int | None = 0,
) -> Tuning:
    """Prune each candidate for a little while to the same expected cost, and compare what it lost.

    Keeping the networks separate (α = 1) and sharing everything (α < 0) are always among the candidates, so that the
    best is never worse than either, as far as the probes can tell. The data is read for information once.

    Args:
        networks: the original networks.
        calibration: batches that information is measured on.
        train: training batches.
        validation: batches that the budget is checked on.
        objectives: the loss and metric of each task.
        pruner: the pruner that will be used.
        max_drop: the budget, counted from the original networks' validation metrics. The candidate that is over it by
            least wins; among those within it, the one that lost least on average.
        mix: how often each subset of tasks is executed; all alike by default.
        scheme: settings that all candidates have in common (estimator, levels, streams, samples).
        alphas: the ladder of α between the two ends.
        trunks: networks that share the first layers, so large a share of them, and nothing after that; each is tried.
        exclusives: the share of every layer's neurons that is exclusive, those that say most about their own labels
            alone, while all others are made one with a neuron of every other network; each is tried.
        overlaps: what to do with neurons in several exclusive sets; every choice is tried.
        zips: whether to make similar shared neurons one, and how similar; every choice is tried with every α.
        share: the expected cost to prune to, as a share of that of the original networks side by side.
        finetune_steps: training steps between merging and pruning.
        prune_options: for :func:`pamerge.prune`; by default short and in large steps.
        progress: print the table of candidates.
        seed: seeds every probe.
    """
    if bool(alphas) != bool(overlaps):
        raise PamergeError(
            f"alphas={tuple(alphas)!r}, overlaps={tuple(overlaps)!r}; expected both, or neither for the ends."
        )
    for part in exclusives:
        check_share(part)
    if not zips or not 0 < share < 1:
        raise PamergeError(f"zips={tuple(zips)!r}, share={share!r}; expected at least one zip, a share from 0 to 1.")
    base = replace(scheme or PAM(), trunk=0.0, exclusive=None)
    candidates = [replace(base, alpha=SEPARATE, overlap="origin", zip=None)]
    candidates += [replace(base, alpha=ALL_SHARED, overlap="origin", zip=zip) for zip in zips]
    candidates += [
        replace(base, alpha=SEPARATE, trunk=trunk, overlap="origin", zip=zip) for trunk in trunks for zip in zips
    ]
    candidates += [
        replace(base, alpha=SEPARATE, exclusive=part, overlap="origin", zip=ALL_PAIRS) for part in exclusives
    ]
    candidates += [
        replace(base, alpha=alpha, overlap=overlap, zip=zip)  # type: ignore[arg-type]
        for alpha in alphas
        for overlap in overlaps
        for zip in zips
    ]
    material = prepare(networks, calibration, objectives=objectives)
    shares = resolve_mix(mix, material.alignment.tasks)
    reference = evaluate(dict(networks), validation, objectives)
    options: dict[str, Any] = {"fraction": 0.12, "steps": 10, "final": 100, "laps": 40, "recovery": 0}
    options |= {"target": share * expected_flops(material.side_by_side(), shares), **(prune_options or {})}
    probes = []
    for candidate in candidates:
        start = time.perf_counter()
        network = candidate.merge(material)
        tuned = finetune(network, train, objectives, steps=finetune_steps, seed=seed, progress=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Nothing could be removed", PamergeWarning)  # the table says so
            path = prune(
                network, train, validation, objectives, pruner=pruner, mix=mix, seed=seed, progress=False, **options
            )
        lost = losses(path.final, reference, objectives)
        probes.append(
            Probe(
                scheme=candidate,
                excess=worst_excess(lost, max_drop),
                drop=sum(lost.values()) / len(lost),
                cost=expected_flops(network, shares),
                metrics=path.final,
                flops=path.flops,
                task_batches=tuned.task_batches + path.task_batches,
                seconds=time.perf_counter() - start,
            )
        )
    tuning = Tuning(tuple(sorted(probes, key=lambda probe: (probe.excess, probe.drop))), shares)
    if progress:
        Console(stderr=True).print(tuning.table())
    return tuning
