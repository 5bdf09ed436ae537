"""Laps of one task alone: first where little is shared, and after a lap of all tasks has failed."""

from __future__ import annotations

import pytest
import torch
from pruning.around import plainly, scripted_metrics, together_first
from training.small import OBJECTIVES, batches, inputs, merged

from pamerge import PamergeWarning
from pamerge.pruning import VIB, Magnitude, QuietSession, Taylor, loop, prune
from pamerge.pruning.alone import can_learn_alone, could_save_alone, others_untouched
from pamerge.pruning.gates import Places
from pamerge.pruning.loop import Loop
from pamerge.pruning.ranking import resolve_mix
from pamerge.tasks import TaskSet

TRAIN, VALIDATION = batches(6), batches(4, seed=1)
X = inputs(5, seed=2)
FINE = {"shape": 1.0, "parts": 1.0, "size": 0.0}
BAD = {**FINE, "shape": 0.5}


def watched_laps(monkeypatch) -> list[dict]:
    """What happens in every lap: who is alone, and what the network says before and after it."""
    seen: list[dict] = []
    original = Loop._lap

    def outputs(loop: Loop) -> dict[str, torch.Tensor]:
        loop.network.eval()
        with torch.no_grad():
            return {task: value.clone() for task, value in loop.network(X).items()}

    def lap(self: Loop) -> None:
        alone, before, batches = self.state.at.alone[:1], outputs(self), self.state.at.task_batches
        original(self)
        used = self.state.at.task_batches - batches
        seen.append({"alone": alone, "before": before, "after": outputs(self), "used": used})

    monkeypatch.setattr(Loop, "_lap", lap)
    return seen


def pruned(monkeypatch, metrics, *, pruner=None, network=None, laps=6, **options):
    scripted_metrics(monkeypatch, metrics)
    network = network or merged(shared=0.3, batch_norm=True)
    given = {
        "steps": 6,
        "recovery": 0,
        "final": 0,
        "lr": 1e-3,
        "seed": 0,
        "progress": False,
        "max_drop": 0.1,
        **options,
    }
    path = prune(network, TRAIN, VALIDATION, OBJECTIVES, pruner=pruner or Taylor(batches=2), laps=laps, **given)
    return network, path


@pytest.mark.parametrize("remove", [{}, plainly])
@pytest.mark.parametrize("pruner", [Taylor(batches=2), Magnitude(), VIB(gamma=1.0, lr=1.0)])
def test_the_other_tasks_stay_as_they_are(monkeypatch, pruner, remove):
    seen = watched_laps(monkeypatch)
    _, path = pruned(monkeypatch, [FINE, BAD, FINE], pruner=pruner, **remove)
    alone = [lap for lap in seen if lap["alone"]]
    assert {task for lap in alone for task in lap["alone"]} == {"shape", "size"}  # the third has nothing of its own
    for lap in alone:
        (task,) = lap["alone"]
        assert not torch.allclose(lap["after"][task], lap["before"][task], atol=1e-4)
        for other in set(OBJECTIVES) - {task}:
            torch.testing.assert_close(lap["after"][other], lap["before"][other], rtol=0, atol=1e-6)
    assert any(path[number + 1].removed.get(lap["alone"][0]) for number, lap in enumerate(seen) if lap["alone"])


def test_only_that_task_is_trained_and_paid_for(monkeypatch):
    seen = watched_laps(monkeypatch)
    monkeypatch.setattr(loop, "MOST_ROUNDS", 1)
    together_first(monkeypatch)
    pruned(monkeypatch, [FINE, BAD, FINE], pruner=Magnitude(), network=merged(seed=None))
    assert [lap["used"] for lap in seen[:4]] == [6 * 3, 6, 6, 6]


def test_a_task_goes_on_alone_as_long_as_that_goes_well_then_all_go_together(monkeypatch):
    seen = watched_laps(monkeypatch)
    together_first(monkeypatch)
    worse = [{**FINE, task: 0.5} for task in ("parts", "size", "shape")]
    pruned(monkeypatch, [FINE, BAD, FINE, *worse, FINE], network=merged(seed=None), patience=9)
    assert [lap["alone"] for lap in seen] == [[], ["shape"], ["parts"], ["size"], ["shape"], []]


def test_tasks_that_share_little_go_alone_first_until_each_has_failed_and_again_after_a_lap_of_all(monkeypatch):
    seen = watched_laps(monkeypatch)
    worse = [{**FINE, "parts": 0.5}, {**FINE, "size": 9.0}, {**FINE, "shape": 0.5}]
    pruned(monkeypatch, [FINE, FINE, *worse, FINE], network=merged(seed=None), laps=7, patience=9)
    alone = [["shape"], ["parts"], ["size"], ["shape"]]
    assert [lap["alone"] for lap in seen] == [*alone, [], ["shape"], ["parts"]]


def test_tasks_that_share_much_go_together_first(monkeypatch):
    seen = watched_laps(monkeypatch)
    pruned(monkeypatch, [FINE], network=merged(shared=0.5), laps=3)
    assert [lap["alone"] for lap in seen] == [[], [], []]


def test_without_a_budget_all_go_together(monkeypatch):
    seen = watched_laps(monkeypatch)
    pruned(monkeypatch, [FINE], network=merged(seed=None), laps=3, max_drop=None)
    assert [lap["alone"] for lap in seen] == [[], [], []]


def test_a_task_that_fails_alone_keeps_nobody_back(monkeypatch):
    """Whoever shares with it has lost nothing."""
    laps: list[tuple[list[str], dict[str, float]]] = []
    original = Loop._lap

    def lap(self: Loop) -> None:
        alone, before = list(self.state.at.alone), dict(self.state.at.reach)
        original(self)
        after = self.state.at.reach
        laps.append((alone[:1], {task: after[task] / before[task] for task in before}))

    monkeypatch.setattr(Loop, "_lap", lap)
    monkeypatch.setattr(loop, "sharing_most", lambda network, task, others: [o for o in others if o != task])
    worse = [{**FINE, task: bad} for task, bad in (("parts", 0.5), ("size", 9.0), ("shape", 0.5))]
    pruned(monkeypatch, [FINE, BAD, FINE, *worse, FINE], network=merged(seed=None), patience=9)
    failed = [(task, changes) for (task, *_), changes in (lap for lap in laps if lap[0]) if changes[task] < 1]
    assert failed
    for task, changes in failed:
        assert all(change == 1 for other, change in changes.items() if other != task)


def test_a_lap_alone_that_removes_nothing_is_not_the_end(monkeypatch):
    class Reluctant:
        def start(self, surroundings):
            class Session(QuietSession):
                def importance(self, task):
                    served = surroundings.places.served(task)
                    return {name: dict.fromkeys(found, 1.0) for name, found in served.items()}

                def quota(self, task, fraction, scores):
                    alone = sum(map(len, scores.values())) < sum(map(len, surroundings.places.served(task).values()))
                    return 0 if alone else super().quota(task, fraction, scores)

            return Session()

    seen = watched_laps(monkeypatch)
    _, path = pruned(monkeypatch, [FINE, BAD, FINE], pruner=Reluctant(), laps=5, remove="neuron", per_flop=False)
    assert [bool(lap["alone"]) for lap in seen] == [False, True, True, False, False]
    assert [bool(any(step.removed.values())) for step in path[1:]] == [True, False, False, True, True]


def test_laps_alone_without_a_removal_do_not_count_as_idle_laps_of_all(monkeypatch):
    class Waits:
        def start(self, surroundings):
            class Session(QuietSession):
                idle_laps = 3
                turns = 0

                def importance(self, task):
                    served = surroundings.places.served(task)
                    return {name: dict.fromkeys(found, 1.0) for name, found in served.items()}

                def quota(self, task, fraction, scores):
                    self.turns += 1
                    return int(self.turns == 1)

            return Session()

    seen = watched_laps(monkeypatch)
    with pytest.warns(PamergeWarning, match="Nothing could be removed"):
        _, path = pruned(monkeypatch, [FINE, BAD, FINE], pruner=Waits(), laps=20)
    assert [bool(lap["alone"]) for lap in seen] == [False, True, True, False, False, False]
    assert path.stopped == "nothing is left that could be removed"


def test_who_shares_everything_never_goes_alone(monkeypatch):
    seen = watched_laps(monkeypatch)
    with pytest.warns(PamergeWarning, match="Nothing could be removed"):
        pruned(monkeypatch, [FINE, BAD], network=merged(shared=1.0), laps=4)
    assert not any(lap["alone"] for lap in seen)


def test_networks_side_by_side_could_save_all_of_themselves_alone():
    network = merged(seed=None)
    mix = resolve_mix(None, network.tasks)
    for task in network.tasks:
        own = sum(share for tasks, share in mix.items() if task in tasks) * network.flops(task)
        assert could_save_alone(network, Places(network), task, mix, "task") > 0.5 * own
    shared = merged(shared=1.0)
    assert could_save_alone(shared, Places(shared), "shape", mix, "neuron") == 0


def test_a_task_whose_own_weights_are_frozen_cannot_learn_alone():
    network = merged(seed=None)
    assert can_learn_alone(network, "parts")
    for key, layout in network.layouts.items():
        network.blocks[key].requires_grad_("parts" not in layout.group)
    assert not can_learn_alone(network, "parts")
    assert can_learn_alone(network, "shape")
    assert not can_learn_alone(network, "a task that has nothing of its own")


def test_parameters_are_free_again_afterwards():
    network = merged(shared=0.3, batch_norm=True)
    own = {key for key, layout in network.layouts.items() if layout.group == TaskSet(["shape"])}
    with others_untouched(network.train(), "shape"):
        for key, block in network.blocks.items():
            assert block.training == (key in own)
            assert all(parameter.requires_grad == (key in own) for parameter in block.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())
