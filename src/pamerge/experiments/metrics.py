"""Single numbers for a trade-off over many task combinations, as the paper defines them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork

Costs = Mapping[str, float]
"""FLOPs of every task combination, by its name such as ``"A+B"``."""


@dataclass(frozen=True)
class Gain:
    """How many times less a scheme costs than a baseline.

    Attributes:
        average: the mean of baseline / scheme over all task combinations.
        peak: the largest.
        each: for each combination.
    """

    average: float
    peak: float
    each: Mapping[str, float]


def gain(baseline: Costs, scheme: Costs) -> Gain:
    """Average and peak gain of a scheme over a baseline, over all task combinations.

    >>> gain({"A": 2, "B": 2, "A+B": 4}, {"A": 2, "B": 1, "A+B": 2}).average
    1.6666666666666667
    """
    if set(baseline) != set(scheme):
        raise PamergeError(f"Costs of different combinations: {sorted(baseline)} and {sorted(scheme)}.")
    each = {tasks: baseline[tasks] / scheme[tasks] for tasks in baseline}
    return Gain(sum(each.values()) / len(each), max(each.values()), each)


def expected_cost(costs: Costs, mix: Mapping[str, float] | None = None) -> float:
    """The mean cost of an execution; all combinations are alike by default."""
    if mix is None:
        return sum(costs.values()) / len(costs)
    return sum(share * costs[tasks] for tasks, share in mix.items()) / sum(mix.values())


def combination_metric(metrics: Mapping[str, float], tasks: str) -> float:
    """The metric of a combination is the mean of its tasks'."""
    members = tasks.split("+")
    return sum(metrics[task] for task in members) / len(members)


def sharing_ratios(network: MultitaskNetwork) -> dict[str, float]:
    """For each junction, the share of its neurons that serve more than one task."""
    found = {}
    for name, junction in network.junctions.items():
        if not junction.fixed:
            sizes = {tasks: len(neurons) for tasks, neurons in junction.groups.items()}
            found[name] = sum(n for tasks, n in sizes.items() if len(tasks) > 1) / sum(sizes.values())
    return found
