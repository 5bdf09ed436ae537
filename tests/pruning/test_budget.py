from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from pruning.around import neurons, quickly, scripted_metrics, together_first
from training.small import OBJECTIVES, batches, merged

from pamerge import PamergeWarning
from pamerge.pruning import Magnitude, QuietSession, Taylor, prune
from pamerge.pruning.budget import Budget, worst_excess
from pamerge.pruning.loop import Loop
from pamerge.pruning.trainer import Trainer
from pamerge.training import evaluate

TRAIN, VALIDATION = batches(6), batches(4, seed=1)


def good_network():
    """The originals side by side: everything they say is right."""
    return merged(seed=None)


def prune_within(drop, **options):
    network = good_network()
    given = {"pruner": Taylor(batches=2), "steps": 5, "recovery": 10, "final": 10, "max_drop": drop, **options}
    path = quickly(network, TRAIN, VALIDATION, OBJECTIVES, **given)
    return network, path


REFERENCE = {"shape": 0.9, "parts": 0.8, "size": 0.4}


def test_the_network_ends_within_its_budget_on_validation_data():
    network, path = prune_within(0.05, reference=REFERENCE)
    found = evaluate(network, VALIDATION, OBJECTIVES)
    assert found == pytest.approx(dict(path.final))
    assert found["shape"] >= 0.85
    assert found["parts"] >= 0.75
    assert found["size"] <= 0.45  # lower is better
    assert not all(step.within for step in path)
    assert path.gain("shape") > 1.1
    assert path[path.kept].within
    assert network.flops("size") == path.flops["size"]


def test_the_drop_counts_from_the_metrics_at_entry_unless_there_is_a_reference():
    _, path = prune_within(5.0, laps=1)
    assert dict(path.reference) == dict(path[0].metrics) == evaluate(good_network(), VALIDATION, OBJECTIVES)
    _, path = prune_within(5.0, laps=1, reference=REFERENCE)
    assert dict(path.reference) == REFERENCE


FINE = {"shape": 1.0, "parts": 1.0, "size": 0.0}


@pytest.mark.parametrize(
    ("task", "value", "within"),
    [("shape", 0.91, True), ("shape", 0.89, False), ("size", 0.09, True), ("size", 0.11, False), ("size", -1.0, True)],
)
def test_every_task_may_lose_as_much_as_the_budget_in_its_own_direction(monkeypatch, task, value, within):
    scripted_metrics(monkeypatch, [FINE, {**FINE, task: value}])
    _, path = prune_within(0.1, laps=1) if within else _warned(0.1, laps=1)
    assert path[1].within == within


def _warned(*arguments, **options):
    with pytest.warns(PamergeWarning, match="Nothing could be removed"):
        return prune_within(*arguments, **options)


def test_a_point_is_judged_after_recovery(monkeypatch):
    bad = {**FINE, "parts": 0.2}
    scripted_metrics(monkeypatch, [FINE, bad, FINE, FINE])
    together_first(monkeypatch)
    trained = []
    whole = Trainer.train

    def train(self, steps, stage, *rest, schedule="constant", **options):
        trained.append((stage, steps, schedule))
        return whole(self, steps, stage, *rest, schedule=schedule, **options)

    monkeypatch.setattr(Trainer, "train", train)
    _, path = prune_within(0.1, laps=1, recovery=7)
    assert path[1].within
    assert path[1].recovered
    falling = [("recovering", 7, "cosine"), ("final fine-tuning", 10, "cosine")]
    assert trained == [("pruning", 2, "constant")] * 3 + falling


@pytest.mark.parametrize("better", [True, False])
def test_effort_that_is_left_when_all_have_failed_is_used_to_train_and_try_again(monkeypatch, better):
    bad, trained = {**FINE, "parts": 0.2}, {**FINE, "size": -0.1, "shape": 1.1, "parts": 1.1}
    scripted_metrics(monkeypatch, [FINE, bad, trained if better else bad, *[FINE] * 50])
    stages, weights = [], []
    whole = Trainer.train

    def train(self, steps, stage, *rest, **options):
        stages.append(stage)
        whole(self, steps, stage, *rest, **options)
        if stage == "training":
            weights.append({name: tensor.clone() for name, tensor in self.network.state_dict().items()})

    monkeypatch.setattr(Trainer, "train", train)
    monkeypatch.setattr(Budget, "over", lambda self, metrics: list(FINE) if metrics["parts"] < 0.5 else [])
    good = []
    monkeypatch.setattr(
        "pamerge.pruning.run_state.RunState.save",
        lambda self, *_: good.append({k: v.clone() for k, v in self.of.network.state_dict().items()}),
    )
    network, path = prune_within(0.1, effort=300, patience=0, recovery=0)
    assert stages.count("training") == 1
    first = stages.index("training")
    assert "pruning" in stages[first:]
    assert path.stopped == "the effort is spent"
    assert network.flops() < good_network().flops()
    kept = weights[0] if better else good[0]
    assert all(torch.equal(good[1][name], tensor) for name, tensor in kept.items())
    assert [step.lap for step in path] == list(range(len(path)))
    assert dict(path[2].metrics) == (trained if better else FINE)


def test_without_a_limit_of_effort_pruning_ends_when_all_have_failed(monkeypatch):
    scripted_metrics(monkeypatch, [FINE, {**FINE, "parts": 0.2}])
    monkeypatch.setattr(Budget, "over", lambda self, metrics: list(FINE) if metrics["parts"] < 0.5 else [])
    _, path = _warned(0.1, patience=0, recovery=0)
    assert path.stopped == "the budget is spent"
    assert len(path) == 2


def test_after_a_failure_everything_is_as_it_was_at_the_last_good_point(monkeypatch):
    bad = {**FINE, "parts": 0.2}
    scripted_metrics(monkeypatch, [FINE, FINE, bad, bad, bad])
    states = []
    monkeypatch.setattr(
        "pamerge.pruning.run_state.RunState.save",
        lambda self, *_: states.append(
            (
                neurons(self.of.network),
                {k: v.clone() for k, v in self.of.network.state_dict().items()},
                {k: v.clone() for k, v in self.session.tensors().items()},
                [dict(s) for s in self.optimizer.state.values()],
            )
        ),
    )
    network, path = prune_within(0.1, laps=2, final=0)
    good, after = states[1], states[2]
    assert good[0] == after[0] == neurons(network)
    for kept, found in zip(good[1:3], after[1:3], strict=True):
        assert set(kept) == set(found)
        assert all(torch.equal(kept[name], found[name]) for name in kept)
    assert not after[3]  # a fresh optimiser
    assert path.kept == 1
    assert [step.within for step in path] == [True, True, False]


def test_whoever_is_over_goes_in_smaller_steps_and_then_stops_while_the_others_go_on(monkeypatch):
    monkeypatch.setattr(Loop, "_has_use_alone", lambda self, task: False)
    bad = {**FINE, "parts": 0.2}
    scripted_metrics(monkeypatch, [FINE, bad, bad, bad, bad, FINE])
    fractions, turns = [], []

    class Watching:
        def start(self, surroundings):
            class Session(QuietSession):
                def importance(self, task):
                    served = surroundings.places.served(task)
                    turns.append((task, dict(surroundings.places.sets)))
                    return {name: {n: float(n) for n in found} for name, found in served.items()}

                def quota(self, task, fraction, scores):
                    fractions.append((task, fraction))
                    spared = [surroundings.places.sets[name][n] for name, found in scores.items() for n in found]
                    turns[-1] += (any("parts" in tasks for tasks in spared),)
                    return super().quota(task, fraction, scores)

            return Session()

    network = merged()
    path = quickly(network, TRAIN, VALIDATION, OBJECTIVES, pruner=Watching(), max_drop=0.1, patience=1, fraction=0.2,
                   laps=4)  # fmt: skip
    last = max(number for number, (task, _, _) in enumerate(turns) if task == "parts")
    first, second = sorted({f for task, f in fractions if task == "parts"}, reverse=True)
    assert second == pytest.approx(first / 2)
    assert len({task for task, _, _ in turns[last + 2 :]}) == 2
    assert not any(touches for _, _, touches in turns[last + 2 :])  # what parts needs is spared
    assert path.kept == 4


def test_a_task_that_stopped_goes_on_once_it_is_well_within_its_budget(monkeypatch):
    bad = {**FINE, "parts": 0.2}
    barely = {**FINE, "parts": FINE["parts"] - 0.08}
    scripted_metrics(monkeypatch, [FINE, bad, bad, barely, barely, barely, FINE, FINE, FINE, FINE])
    turns = []

    class Watching:
        def start(self, surroundings):
            class Session(QuietSession):
                def importance(self, task):
                    return {name: dict.fromkeys(found, 1.0) for name, found in surroundings.places.served(task).items()}

                def quota(self, task, fraction, scores):
                    turns.append((task, fraction))
                    return 1

            return Session()

    quickly(merged(), TRAIN, VALIDATION, OBJECTIVES, pruner=Watching(), max_drop=0.1, patience=0, fraction=0.2,
            recovery=1, laps=20)  # fmt: skip
    first, second = [number for number, (task, _) in enumerate(turns) if task == "parts"][:2]
    assert second - first > 6  # not in the laps in which it is barely within its budget
    assert turns[second][1] > turns[first][1] / 2


def test_laps_of_another_task_alone_say_nothing_about_a_task(monkeypatch):
    scripted_metrics(monkeypatch, [FINE, {**FINE, "parts": 0.2}, FINE])
    together_first(monkeypatch)
    seen = []
    original = Loop._lap

    def lap(self):
        alone = self.state.at.alone[:1]
        before = dict(self.state.at.calm)
        original(self)
        seen.append((alone, before, dict(self.state.at.calm)))

    monkeypatch.setattr(Loop, "_lap", lap)
    quickly(merged(seed=None), TRAIN, VALIDATION, OBJECTIVES, pruner=Magnitude(), max_drop=0.1, fraction=0.02,
            recovery=0, laps=8)  # fmt: skip
    assert any(alone for alone, _, _ in seen)
    for alone, before, after in seen:
        for task in OBJECTIVES:
            if alone and task not in alone:
                assert after.get(task) == before.get(task)


def test_tasks_that_only_failed_too_often_get_another_start_when_nothing_is_left_for_the_others(monkeypatch):
    """All is shared: once a task has stopped, no other task may take anything from it."""
    network, tasks = merged("shape", "parts", shared=1.0), ("shape", "parts")
    whole = network.flops("shape")

    def evaluate(self):
        return {"shape": 1.0 if self.network.flops("shape") == whole else 0.5, "parts": 1.0}

    monkeypatch.setattr(Loop, "_evaluate", evaluate)
    path = prune(network, batches(6, tasks=tasks), batches(4, seed=1, tasks=tasks), {t: OBJECTIVES[t] for t in tasks},
                 pruner=Magnitude(), max_drop=0.1, steps=2, recovery=2, final=5, lr=1e-3, effort=1500, seed=0,
                 progress=False)  # fmt: skip
    assert path.stopped == "the effort is spent" or path.task_batches > 1400


@pytest.mark.parametrize("lost", [{"A": 0.0, "B": float("nan")}, {"A": float("nan"), "B": 0.3}, {"A": float("nan")}])
def test_what_is_not_a_number_is_over_the_budget_wherever_it_stands(lost):
    assert math.isnan(worst_excess(lost, 0.1))


def test_the_worst_task_counts():
    assert worst_excess({"A": 0.05, "B": 0.3}, 0.1) == pytest.approx(0.2)
    assert worst_excess({"A": 0.05, "B": 0.1}, 0.1) == 0.0
    assert worst_excess({"A": 9.0}, None) == 0.0


@pytest.mark.filterwarnings("ignore:Nothing could be removed")
@pytest.mark.parametrize("effort", [1, 200, 900])
def test_effort_is_a_limit(monkeypatch, effort):
    bad = {**FINE, "parts": 0.2}
    scripted_metrics(monkeypatch, [FINE, *[bad, bad, FINE] * 50])
    path = prune(merged(), TRAIN, VALIDATION, OBJECTIVES, pruner=Magnitude(), max_drop=0.1, steps=3, recovery=2,
                 final=20, patience=1, lr=1e-3, effort=effort, seed=0, progress=False)  # fmt: skip
    final = 20 * len(OBJECTIVES)
    assert path.task_batches <= max(effort, final)  # the last training is done in any case


def test_laps_grow_as_long_as_they_go_well(monkeypatch):
    scripted_metrics(monkeypatch, [*[FINE] * 4, {**FINE, "parts": 0.2}, FINE])
    together_first(monkeypatch)
    _, path = prune_within(0.1, laps=5, steps=1, recovery=1, final=0, fraction=0.01)
    laps = [after.task_batches - before.task_batches for before, after in pairwise(path)]
    assert [used // laps[0] for used in laps[:4]] == [1, 2, 3, 4]  # 1, 1.5, 2.25 and 3.4 rounds
    assert path[4].recovered
    assert laps[4] > 2 * laps[0]


def test_without_a_budget_laps_stay_as_they_are():
    path = quickly(merged(), TRAIN, VALIDATION, OBJECTIVES, pruner=Magnitude(), laps=4, final=0, fraction=0.01)
    laps = {after.task_batches - before.task_batches for before, after in pairwise(path)}
    assert len(laps) == 1


def test_a_neuron_that_could_not_be_spared_lets_others_go_first(monkeypatch):
    monkeypatch.setattr(Loop, "_has_use_alone", lambda self, task: False)
    bad = {**FINE, "parts": 0.2}
    scripted_metrics(monkeypatch, [FINE, bad, bad, FINE])

    class Ordered:
        def start(self, surroundings):
            class Session(QuietSession):
                def importance(self, task):
                    served = surroundings.places.served(task)
                    return {name: {n: 1 + 0.1 * n for n in found} for name, found in served.items()}

                def quota(self, task, fraction, scores):
                    return 1 if task == "parts" else 0

            return Session()

    network = merged()
    before = {name: set(junction.task_sets()) for name, junction in network.junctions.items()}
    path = quickly(network, TRAIN, VALIDATION, OBJECTIVES, pruner=Ordered(), max_drop=0.1, laps=2, recovery=1,
                   remove="neuron", per_flop=False)  # fmt: skip
    gone = {name: before[name] - set(junction.task_sets()) for name, junction in network.junctions.items()}
    assert [step.within for step in path] == [True, False, True]
    ((name, (neuron,)),) = [(name, tuple(neurons)) for name, neurons in gone.items() if neurons]
    first = next(iter(path[1].removed["parts"]))
    served = sorted(n for n, tasks in merged().junctions[first].task_sets().items() if "parts" in tasks)
    assert (name, neuron) != (first, served[0])


def test_if_a_finished_task_is_over_those_still_pruned_are_to_blame(monkeypatch):
    bad = {**FINE, "parts": 0.2}
    scripted_metrics(monkeypatch, [FINE, *[bad] * 9])
    network = good_network()
    with pytest.warns(PamergeWarning, match="the budget is spent"):
        path = quickly(network, TRAIN, VALIDATION, OBJECTIVES, pruner=Magnitude(), max_drop=0.1, patience=0)
    assert path.stopped == "the budget is spent"
    assert len(path) == 3  # parts stops after the first lap, the others after the second


def test_a_network_that_is_over_its_budget_at_entry_loses_neurons_before_it_is_trained(monkeypatch):
    over = {**FINE, "shape": 0.1}
    scripted_metrics(monkeypatch, [over, over, {**FINE, "shape": 0.7}, FINE, FINE])
    _, path = prune_within(0.05, reference=FINE, laps=1)
    assert [step.within for step in path] == [False, True]
    assert path[0].task_batches == 0
    assert path[1].recovered
    assert path[1].removed
    assert path.kept == 1


@pytest.mark.parametrize("patience", [0, 2])
def test_a_network_that_does_not_come_within_its_budget_without_some_neurons_is_trained_as_it_came(
    monkeypatch, patience
):
    over = {**FINE, "shape": 0.1}
    scripted_metrics(monkeypatch, [over, over, over, FINE, FINE])  # at entry, a lap, its recovery, the entry's recovery
    _, path = prune_within(0.05, reference=FINE, laps=2, patience=patience)
    assert [step.within for step in path] == [False, False, True, True]
    assert path[2].flops == path[0].flops
    assert not path[2].removed
    assert path[3].removed


def test_what_long_training_of_a_merge_has_reached_is_kept_even_if_it_was_not_enough(monkeypatch):
    over = {**FINE, "shape": 0.1}
    better = {**FINE, "shape": 0.9}
    scripted_metrics(monkeypatch, [over, over, over, *[better] * 20])
    with pytest.warns(PamergeWarning, match=r"did not come within its budget \(shape: 0.9000, not 1.0000"):
        _, path = prune_within(0.05, reference=FINE)
    assert path.kept == 2
    assert path[2].metrics == better
    assert path[2].flops == path[0].flops


def test_without_recoveries_the_nearest_to_the_budget_is_kept(monkeypatch):
    over = {**FINE, "shape": 0.1}
    better = {**FINE, "shape": 0.9}
    scripted_metrics(monkeypatch, [over, better, better])
    with pytest.warns(PamergeWarning, match="The network is over its budget: the network did not come"):
        _, path = prune_within(0.05, reference=FINE, recovery=0)
    assert path.kept == 1
    assert path[1].removed
    assert "did not come within its budget" in path.stopped


def test_a_target_that_is_reached_at_entry_does_not_excuse_from_the_budget(monkeypatch):
    scripted_metrics(monkeypatch, [{**FINE, "shape": 0.1}, {**FINE, "shape": 0.2}, FINE, FINE])
    _, path = prune_within(0.05, reference=FINE, target=1e12)
    assert [step.within for step in path] == [False, True]
    assert path[1].task_batches == (10 + 20) * 3
    assert path.stopped == "the target was reached before anything was removed"


def test_rounds_are_not_halved_because_a_merge_needed_long_training(monkeypatch):
    over = {**FINE, "shape": 0.1}
    scripted_metrics(monkeypatch, [over, over, {**FINE, "shape": 0.6}, FINE, FINE, FINE])
    together_first(monkeypatch)
    _, path = prune_within(0.05, reference=FINE, laps=2, rounds=2)
    rounds = path[2].task_batches - path[1].task_batches
    scripted_metrics(monkeypatch, [over, over, {**FINE, "shape": 0.6}, FINE])
    _, shortened = prune_within(0.05, reference=FINE, laps=2, rounds=1)
    assert rounds > shortened[2].task_batches - shortened[1].task_batches


def test_a_network_that_never_was_within_its_budget_is_said_so(monkeypatch):
    scripted_metrics(monkeypatch, [{**FINE, "shape": 0.1}])
    with pytest.warns(PamergeWarning, match=r"did not come within its budget \(shape: 0.1000, not 1.0000"):
        _, path = prune_within(0.05, reference=FINE)
    assert path.kept == 0
    assert not path[0].within


def test_a_last_fine_tuning_that_does_harm_is_undone(monkeypatch):
    scripted_metrics(monkeypatch, [FINE, FINE, {**FINE, "shape": 0.0}])
    kept = {}
    monkeypatch.setattr(
        "pamerge.pruning.run_state.RunState.save",
        lambda self, *_: kept.update({k: v.clone() for k, v in self.good.weights.items()}),
    )
    network, path = prune_within(0.1, laps=1)
    assert dict(path.final) == FINE
    assert all(torch.equal(tensor, kept[name]) for name, tensor in network.state_dict().items())


def test_a_metric_that_is_not_a_number_is_over_the_budget(monkeypatch):
    scripted_metrics(monkeypatch, [FINE, {**FINE, "shape": float("nan")}])
    with pytest.warns(PamergeWarning):
        _, path = prune_within(0.1, laps=1)
    assert not path[1].within


def test_no_more_effort_is_used_than_was_given():
    _, path = prune_within(None, effort=150)
    assert path.stopped == "the effort is spent"
    assert 75 < path.task_batches <= 150
