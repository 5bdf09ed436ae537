"""How a network that is over its budget is trained to come back."""

from __future__ import annotations

import math

import pytest
from pruning.around import scripted_metrics
from pruning.test_budget import FINE, prune_within
from training.small import OBJECTIVES

from pamerge import PamergeWarning
from pamerge.pruning.budget import Budget
from pamerge.pruning.loop import FIRST_RECOVERIES
from pamerge.pruning.trainer import Trainer


def test_every_recovery_takes_twice_as_long_as_the_one_before(monkeypatch):
    over = [{**FINE, "shape": value} for value in (0.4, 0.6, 0.8)]
    scripted_metrics(monkeypatch, [FINE, *over, *[FINE] * 9])
    lengths, train = [], Trainer.train

    def watched(self, steps, stage, *rest, **options):
        lengths.extend([steps] * (stage == "recovering"))
        train(self, steps, stage, *rest, **options)

    monkeypatch.setattr(Trainer, "train", watched)
    _, path = prune_within(0.05, reference=FINE, laps=1)
    assert lengths == [10, 20, 40]
    assert path.kept == 1


def recoveries(monkeypatch, values):
    """The lengths of the recoveries of one lap whose shape metric is this after it and after each of them."""
    scripted_metrics(monkeypatch, [FINE, *[{**FINE, "shape": value} for value in values], *[FINE] * 9])
    lengths, train = [], Trainer.train

    def watched(self, steps, stage, *rest, **options):
        lengths.extend([steps] * (stage == "recovering"))
        train(self, steps, stage, *rest, **options)

    monkeypatch.setattr(Trainer, "train", watched)
    prune_within(0.05, reference=FINE, laps=1)
    return lengths


def test_a_near_miss_is_trained_on_as_long_as_one_more_time_should_do(monkeypatch):
    assert recoveries(monkeypatch, [0.5, 0.7, 0.83, 0.9, 0.95]) == [10, 20, 40, 40]


def test_a_miss_that_one_more_time_would_not_mend_goes_back(monkeypatch):
    with pytest.warns(PamergeWarning, match="Nothing could be removed"):
        assert recoveries(monkeypatch, [0.5, 0.7, 0.83, 0.86, 0.95]) == [10, 20, 40]


def test_the_less_a_task_has_left_of_its_budget_the_more_it_counts_in_training(monkeypatch):
    after = {"shape": 1.0, "parts": 0.9, "size": 0.4}  # nothing, half of its budget and twice its budget lost
    scripted_metrics(monkeypatch, [FINE, after, FINE, FINE])
    weights, step = [], Trainer._step

    def watched(self, batch, tasks, task, stage):
        weights.append((stage, dict(self.weights)))
        step(self, batch, tasks, task, stage)

    monkeypatch.setattr(Trainer, "_step", watched)
    prune_within(0.2, reference=FINE, laps=1)
    recovering = [found for stage, found in weights if stage == "recovering"]
    assert recovering == [pytest.approx({"shape": 1.0, "parts": 2.0, "size": 16.0})] * 10
    assert all(set(found.values()) == {1.0} for stage, found in weights if stage != "recovering")


def test_without_a_budget_and_where_a_metric_is_lost_weights_stay_finite():
    assert Budget(None, FINE, OBJECTIVES).weights(FINE) == {}
    assert Budget(0.0, FINE, OBJECTIVES).weights(FINE) == {}
    lost = Budget(0.1, FINE, OBJECTIVES).weights({"shape": math.nan, "parts": -9.0, "size": -math.inf})
    assert lost == {"shape": 16.0, "parts": 16.0, "size": 1.0}


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_metric_that_is_lost_is_trained_for_as_long_as_a_merge_may_be_and_no_longer(monkeypatch, lost):
    scripted_metrics(monkeypatch, [{**FINE, "size": lost}])
    stages, train = [], Trainer.train

    def watched(self, steps, stage, *rest, **options):
        stages.append(stage)
        train(self, steps, stage, *rest, **options)

    monkeypatch.setattr(Trainer, "train", watched)
    with pytest.warns(PamergeWarning):
        _, path = prune_within(0.1, reference=FINE, effort=2000)
    assert 0 < stages.count("recovering") <= 2 * FIRST_RECOVERIES
    assert "did not come within its budget" in path.stopped
