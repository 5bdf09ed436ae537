"""Gains and expected costs, against the paper's own tables."""

from __future__ import annotations

import pytest
from support.architectures import material

from pamerge import Assigned, PamergeError
from pamerge.experiments.metrics import combination_metric, expected_cost, gain, sharing_ratios
from pamerge.experiments.tables import combination_rows, gain_rows, markdown

SEPARATE = {"A": 28.34, "B": 28.34, "A+B": 56.69}
MTZ = {"A": 52.58, "B": 52.58, "A+B": 52.58}
PAM = {"A": 28.49, "B": 26.16, "A+B": 48.68}


def test_gains_of_the_papers_table_of_lenet_with_vib() -> None:
    over_separate, over_mtz = gain(SEPARATE, PAM), gain(MTZ, PAM)
    assert (round(over_separate.average, 2), round(over_separate.peak, 2)) == (1.08, 1.16)
    assert (round(over_mtz.average, 2), round(over_mtz.peak, 2)) == (1.65, 2.01)


def test_costs_of_different_combinations_cannot_be_compared() -> None:
    with pytest.raises(PamergeError, match="different combinations"):
        gain(SEPARATE, {"A": 1.0})


def test_expected_cost_under_a_mix() -> None:
    assert expected_cost({"A": 1.0, "B": 2.0, "A+B": 3.0}) == 2.0
    assert expected_cost({"A": 1.0, "B": 2.0, "A+B": 3.0}, {"A": 3, "A+B": 1}) == 1.5


def test_the_metric_of_a_combination_is_the_mean_of_its_tasks() -> None:
    assert combination_metric({"A": 0.9, "B": 0.8}, "A+B") == pytest.approx(0.85)


def test_sharing_ratio_counts_neurons_of_more_than_one_task() -> None:
    def half(junction):
        return {n: ("AB" if i % 2 else t) for i, (n, t) in enumerate(junction.task_sets().items())}

    network = Assigned(half).merge(material("lenet5", 2))
    assert sharing_ratios(network) == {"conv1": 0.5, "conv2": 0.5, "fc3": 0.5, "fc4": 0.5}


def test_tables_show_every_combination_and_the_spread_over_seeds() -> None:
    def result(metric: float) -> dict[str, object]:
        pam = {"flops": PAM, "metric": {"A": 0.9, "B": 0.8}}
        return {"schemes": {"separate": {"flops": SEPARATE, "metric": {"A": 0.9, "B": metric}}, "pam": pam}}

    results = [result(0.80), result(0.82)]
    rows = combination_rows(results)
    assert [row[0] for row in rows] == ["tasks", "A", "B", "A+B"]
    assert rows[2][1] == "81.00 ± 1.4 %"
    assert gain_rows(results, "pam")[1] == ["over separate", "1.08 ± 0", "1.16 ± 0"]
    assert markdown(rows).startswith("| tasks | metric separate |")
