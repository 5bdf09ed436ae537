"""What a report says about results: seeds of the same experiment put together, with mean and spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pamerge.errors import PamergeError
from pamerge.experiments.metrics import combination_metric, gain
from pamerge.report.results import Result, check_result
from pamerge.tasks import SEPARATOR

Spread = tuple[float, float | None]
"""The mean over seeds, and the standard deviation if there are several."""


@dataclass(frozen=True)
class Run:
    """One experiment with one network and one pruner; a result for each seed, in the order of the seeds."""

    results: tuple[Result, ...]

    @property
    def experiment(self) -> str:
        """The name of the experiment."""
        return str(self.results[0]["experiment"])

    @property
    def pruner(self) -> str:
        """The name of the pruner."""
        return str(self.results[0]["pruner"])

    @property
    def tasks(self) -> list[str]:
        """The tasks, in the order of the results."""
        return list(self.results[0]["tasks"])

    @property
    def schemes(self) -> list[str]:
        """The schemes that every seed has."""
        return [s for s in self.results[0]["schemes"] if all(s in result["schemes"] for result in self.results)]

    @property
    def main(self) -> str:
        """The scheme that the others are compared with: PAM, which is the one with an α; else the last."""
        schemes = self.results[0]["schemes"]
        with_alpha = [s for s in self.schemes if "alpha" in schemes[s] or s.lower().startswith("pam")]
        return (with_alpha or self.schemes[-1:])[0]

    @property
    def combinations(self) -> list[str]:
        """The task combinations whose cost is known for every scheme and seed."""
        costs = [result["schemes"][s]["flops"] for result in self.results for s in self.schemes]
        return [name for name in costs[0] if all(name in cost for cost in costs)]

    @property
    def is_share(self) -> bool:
        """Whether all metrics lie between 0 and 1, so that they read best as percentages."""
        metrics = [result["schemes"][s]["metric"] for result in self.results for s in self.schemes]
        return not any(value < 0 or value > 1 for found in metrics for value in found.values())

    def costs(self, scheme: str) -> list[dict[str, float]]:
        """For each seed, the FLOPs of every combination."""
        found = [result["schemes"][scheme]["flops"] for result in self.results]
        return [{name: cost[name] for name in self.combinations} for cost in found]

    def flops(self, scheme: str) -> dict[str, Spread]:
        """The FLOPs of every combination."""
        costs = self.costs(scheme)
        return {name: spread([cost[name] for cost in costs]) for name in self.combinations}

    def metric(self, scheme: str) -> dict[str, Spread]:
        """The metric of every combination, the mean of its tasks'."""
        found = [result["schemes"][scheme]["metric"] for result in self.results]
        return {name: spread([combination_metric(m, name) for m in found]) for name in self.combinations}

    def gains(self, scheme: str, baseline: str) -> dict[str, Any]:
        """How many times less ``scheme`` costs: for each combination, and the average and peak over them."""
        found = [gain(*costs) for costs in zip(self.costs(baseline), self.costs(scheme), strict=True)]
        return {
            "each": {name: spread([one.each[name] for one in found]) for name in self.combinations},
            "average": spread([one.average for one in found]),
            "peak": spread([one.peak for one in found]),
        }

    def sharing(self, scheme: str) -> dict[str, Spread]:
        """The share of each layer's neurons that serve more than one task, where it was recorded."""
        found = [sharing_of(result["schemes"][scheme]) for result in self.results]
        return {layer: spread([one[layer] for one in found if layer in one]) for layer in found[0]}


def sharing_of(scheme: Mapping[str, Any]) -> dict[str, float]:
    """The sharing ratio of each layer, as recorded or from the group sizes; empty without both."""
    if scheme.get("sharing"):
        return dict(scheme["sharing"])
    return {
        layer: sum(count for tasks, count in sizes.items() if SEPARATOR in tasks) / max(1, sum(sizes.values()))
        for layer, sizes in scheme.get("groups", {}).items()
    }


def runs_of(results: Sequence[Result]) -> list[Run]:
    """Results of the same experiment, network, pruner and tasks together.

    Raises:
        PamergeError: there is no result, one is incomplete, or a seed is there twice.
    """
    if not results:
        raise PamergeError("There are no results to report; expected at least one.")
    found: dict[tuple[Any, ...], dict[Any, Result]] = {}
    for number, result in enumerate(results):
        check_result(result, f"Result {number + 1}")
        key = (result["experiment"], result["network"], result["pruner"], *result["tasks"])
        seeds = found.setdefault(key, {})
        if result["seed"] in seeds:
            raise PamergeError(
                f"Seed {result['seed']} of {result['experiment']} with {result['pruner']} is there twice; "
                "expected one result for each seed."
            )
        seeds[result["seed"]] = result
    runs = [Run(tuple(seeds[seed] for seed in sorted(seeds, key=_in_order))) for seeds in found.values()]
    for run in runs:
        if not run.schemes:
            raise PamergeError(f"The seeds of {run.experiment} have no scheme in common; report them one by one.")
    return runs


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation.

    >>> spread([1.0]), spread([1.0, 3.0])
    ((1.0, None), (2.0, 1.4142135623730951))
    """
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def _in_order(seed: Any) -> tuple[bool, Any]:
    return isinstance(seed, str), seed
