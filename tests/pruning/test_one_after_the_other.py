"""Training in which every task has batches of its own (``together=False``)."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from pruning.around import neurons, quickly, scripted_metrics, together_first
from training.small import OBJECTIVES, batches, loader, merged, same_weights, weights

from pamerge.pruning import VIB, Magnitude, Taylor
from pamerge.pruning.budget import Budget
from pamerge.pruning.loop import Loop
from pamerge.pruning.ranking import tasks_served
from pamerge.pruning.trainer import Trainer

FINE = {"shape": 1.0, "parts": 1.0, "size": 0.0}


@pytest.fixture
def learners(monkeypatch):
    """Which tasks learn in each step of the optimiser, and what for."""
    found, step = [], Trainer._step

    def watched(self, batch, tasks, task, stage):
        found.append((stage, *tasks))
        step(self, batch, tasks, task, stage)

    monkeypatch.setattr(Trainer, "_step", watched)
    return found


@pytest.fixture(autouse=True)
def _laps_of_all(monkeypatch):
    together_first(monkeypatch)


def apart():
    """A network in which nothing is shared, so that a step of every task takes as many steps as there are tasks."""
    return merged(seed=None)


def one_lap(train=None, network=None, **options):
    given = {
        "pruner": Magnitude(),
        "laps": 1,
        "steps": 6,
        "recovery": 7,
        "final": 4,
        "fraction": 0.005,
        "together": False,
        **options,
    }
    return quickly(network or apart(), train or batches(3), batches(1), OBJECTIVES, **given)


def test_as_many_task_batches_as_together_and_one_task_a_step(learners):
    one_by_one = one_lap()
    steps = [stage for stage, *_ in learners]
    assert all(len(tasks) == 1 for _, *tasks in learners)
    assert Counter(task for _, task in learners) == dict.fromkeys(OBJECTIVES, 6 + 4)
    assert Counter(steps) == {"pruning": 6 * 3, "final fine-tuning": 4 * 3}
    learners.clear()
    assert one_lap(together=True).task_batches == one_by_one.task_batches
    assert all(set(tasks) == set(OBJECTIVES) for _, *tasks in learners)


def test_the_more_is_shared_the_fewer_batches_a_neuron_needs_for_as_many_steps(learners):
    found = []
    for share in (0.0, 0.5, 1.0):
        network = merged(shared=share)
        learners.clear()
        one_lap(network=network, final=60)
        found.append(sum(stage == "final fine-tuning" for stage, *_ in learners))
        assert found[-1] == math.ceil(60 * 3 / tasks_served(network, list(OBJECTIVES)))
    assert found[0] > found[1] > found[2]


@pytest.mark.parametrize("effort", [61, 100, 150])
def test_effort_is_a_limit_whatever_is_shared(effort):
    for share in (0.0, 1.0):
        path = one_lap(network=merged(shared=share), laps=None, effort=effort, fraction=0.1, max_drop=9.0)
        assert path.task_batches <= effort


def test_who_has_less_of_its_budget_left_learns_more_often(learners, monkeypatch):
    half = {"shape": 1.0, "parts": 0.9, "size": 0.21}  # nothing, half of its budget and all of it lost
    scripted_metrics(monkeypatch, [FINE, half, FINE, FINE])
    one_lap(max_drop=0.2, reference=FINE)
    often = Counter(task for stage, task in learners if stage == "recovering")
    assert often == {"shape": 3, "parts": 6, "size": 12}  # of 7 × 3
    order = [task for stage, task in learners if stage == "recovering"]
    assert {"size", "parts"} <= set(order[:3])  # not one task's batches after all of another's


def test_tasks_wait_for_no_longer_than_a_lap_however_few_steps_a_turn_has(learners, monkeypatch):
    monkeypatch.setattr(Budget, "weights", lambda self, metrics: {"shape": 1.0, "parts": 1.0, "size": 4.0})
    one_lap(steps=3, final=0)  # three task-batches in each of three turns
    assert Counter(task for _, task in learners) == {"size": 6, "shape": 2, "parts": 1}


def test_data_in_a_fixed_order_is_seen_by_every_task(monkeypatch):
    data, seen, step = batches(3), set(), Trainer._step

    def watched(self, batch, tasks, task, stage):
        (number,) = [i for i, (inputs, _) in enumerate(data) if torch.equal(inputs, batch.inputs)]
        seen.add((number, *tasks))
        step(self, batch, tasks, task, stage)

    monkeypatch.setattr(Trainer, "_step", watched)
    one_lap(data, steps=9)
    assert len(seen) == 3 * 3


def test_a_batch_with_labels_of_one_task_serves_that_one(learners):
    data = [batch for task in OBJECTIVES for batch in batches(1, tasks=(task,))]
    path = one_lap(data)
    assert Counter(task for _, task in learners) == dict.fromkeys(OBJECTIVES, 6 + 4)
    assert path.task_batches == 3 * (6 + 4)


def test_a_batch_without_labels_of_any_task_that_is_pruned_is_passed_over(learners):
    data = [*batches(1, tasks=("size",)), *batches(2, tasks=("shape",)), *batches(2, tasks=("parts",))]
    path = one_lap(data, tasks=["shape", "parts"])
    assert path.task_batches == (6 + 4) * 2 * 4 // 5  # one batch of five has none


def test_a_step_of_one_task_leaves_what_only_others_need_as_it_is(monkeypatch):
    network, changed = merged(), []  # some neurons of one task, some of two, some of all
    step = Trainer._step

    def watched(self, batch, tasks, task, stage):
        before = weights(self.network)
        step(self, batch, tasks, task, stage)
        for key, layout in self.network.layouts.items():
            if not torch.equal(before[f"blocks.{key}.weight"], self.network.blocks[key].weight):
                changed.append(set(tasks) <= set(layout.group))

    monkeypatch.setattr(Trainer, "_step", watched)
    one_lap(network=network)
    assert changed
    assert all(changed)


@pytest.mark.parametrize("together", [True, False])
def test_the_penalty_of_a_pruner_counts_once_for_all_tasks(monkeypatch, together):
    counted, whole = Counter(), Counter()
    penalty = Trainer._penalty

    def watched(self, turn):
        found = penalty(self, turn)
        counted[turn] += float(found.detach())
        whole[turn] += float(self.state.session.penalty(turn).detach()) / (1 if together else 3)
        return found

    monkeypatch.setattr(Trainer, "_penalty", watched)
    one_lap(network=merged() if together else apart(), pruner=VIB(gamma=0.1), together=together, steps=6)
    assert set(counted) == set(OBJECTIVES)
    assert counted == pytest.approx(whole)


class InterruptedByTestError(Exception):
    pass


@pytest.mark.parametrize("pruner", [Taylor(batches=1), VIB(gamma=0.1, lr=1.0)], ids=["Taylor", "VIB"])
def test_an_interrupted_run_ends_as_if_nothing_had_happened(pruner, tmp_path, monkeypatch):
    def run(network, **options):
        data = loader(40, shuffle=3), batches(2, seed=1), OBJECTIVES
        return quickly(
            network, *data, pruner=pruner, laps=4, steps=2, fraction=0.08, together=False, max_drop=9.0, **options
        )

    whole, interrupted = merged(dropout=0.2), merged(dropout=0.2)
    expected = run(whole)
    lap, calls = Loop._lap, []

    def stop_in_the_third(self):
        calls.append(self)
        if len(calls) == 3:
            raise InterruptedByTestError
        lap(self)

    monkeypatch.setattr(Loop, "_lap", stop_in_the_third)
    with pytest.raises(InterruptedByTestError):
        run(interrupted, checkpoint=tmp_path / "checkpoint")
    path = run(interrupted, checkpoint=tmp_path / "checkpoint")
    assert neurons(interrupted) == neurons(whole)
    assert same_weights(interrupted, weights(whole))
    assert path.task_batches == expected.task_batches
