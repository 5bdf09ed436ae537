from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from pruning.around import neurons, quickly, sample
from training.small import OBJECTIVES, batches, merged, original

import pamerge
from pamerge import PamergeWarning, TaskSet
from pamerge.pruning import VIB, Magnitude, PruningPath, QuietSession, Taylor, prune
from pamerge.pruning.loop import Loop
from pamerge.training import Classification, evaluate

PRUNERS = [Taylor(batches=2), VIB(gamma=0.1, lr=0.6), Magnitude()]


class Scripted:
    """Ranks neurons by their numbers, and notes what the loop asks for."""

    def __init__(self, fraction: float | None = None) -> None:
        self.turns: list[tuple[str, dict]] = []
        self.fraction = fraction

    def start(self, surroundings):
        outer = self

        class Session(QuietSession):
            def importance(self, task):
                found = surroundings.places.served(task)
                outer.turns.append((task, neurons(surroundings.network)))
                return {name: {n: float(n) for n in numbers} for name, numbers in found.items()}

        return Session()


@pytest.mark.parametrize("pruner", PRUNERS, ids=lambda p: type(p).__name__)
def test_every_pruner_makes_the_network_smaller_and_leaves_it_sound(pruner):
    network, x = merged(), sample()
    before = {str(s): network.flops(s) for s in [{"shape"}, {"parts"}, {"size"}, None]}
    count = network.parameter_count()
    path = quickly(network, batches(4), batches(2, seed=1), OBJECTIVES, pruner=pruner, laps=4, fraction=0.1, steps=6)
    network.check()
    assert not network.training
    assert all(network.flops(s) < before[str(s)] for s in [{"shape"}, {"parts"}, {"size"}, None])
    assert network.parameter_count() < count == path[0].lap + count
    assert sum(p.numel() for p in network.parameters()) == network.parameter_count()
    assert path.flops["shape"] == network.flops("shape")
    assert set(network(x)) == set(OBJECTIVES)
    for subset in ({"shape"}, {"parts", "size"}):
        outputs, whole = network(x, subset), network(x)
        assert all(torch.allclose(outputs[task], whole[task], atol=1e-5) for task in subset)


def test_tasks_take_turns_and_each_removes_only_neurons_of_its_own_subgraph():
    network, pruner = merged(), Scripted()
    start = neurons(network)
    path = quickly(network, batches(2), batches(1), OBJECTIVES, pruner=pruner, laps=3)
    assert [task for task, _ in pruner.turns] == ["shape", "parts", "size"] * 3
    states = [state for _, state in pruner.turns] + [neurons(network)]
    assert states[0] == start
    for (task, before), after in zip(pruner.turns, states[1:], strict=True):
        gone = {(name, n) for name, found in before.items() for n in found} - {
            (name, n) for name, found in after.items() for n in found
        }
        touched = {task in before[name][n].split("+") for name, n in gone}
        assert gone
        # what dies with the removed neurons had served some of their tasks only
        assert True in touched
        chosen = min(
            (n, name) for name, found in before.items() for n, tasks in found.items() if task in tasks.split("+")
        )
        assert (chosen[1], chosen[0]) in gone
    assert [step.lap for step in path] == [0, 1, 2, 3]
    assert all(set(step.removed) == {"shape", "parts", "size"} for step in path.steps[1:])


def test_where_the_lowest_ranked_neurons_have_to_stay_the_next_ones_go():
    """In this ranking the last suppliers of the first junction come first again and again."""

    class FirstJunctionFirst:
        def start(self, surroundings):
            class Session(QuietSession):
                def importance(self, task):
                    served = surroundings.places.served(task)
                    return {name: dict.fromkeys(found, float(i)) for i, (name, found) in enumerate(served.items())}

            return Session()

    network = merged("shape", "size")
    objectives = {task: OBJECTIVES[task] for task in ("shape", "size")}
    data = batches(2, tasks=("shape", "size"))
    path = quickly(network, data, data, objectives, pruner=FirstJunctionFirst(), laps=500, fraction=0.2)
    assert path.stopped == "nothing is left that could be removed"
    assert any(step.refused for step in path)
    assert all(any(step.removed.values()) for step in path.steps[1:-1])
    network.check()
    left = [len(found) for found in neurons(network).values()]
    assert max(left) <= 3  # a supplier for each group that is still there


@pytest.mark.parametrize("remove", ["neuron", "task"])
def test_no_rows_or_columns_of_zeros_are_left_and_tensors_are_really_smaller(remove):
    network = merged()
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    quickly(
        network, batches(4), batches(1), OBJECTIVES, pruner=Taylor(batches=1), laps=4, fraction=0.1, steps=10,
        remove=remove,
    )  # fmt: skip
    assert {name: tuple(p.shape) for name, p in network.named_parameters()} != shapes
    for name, parameter in network.named_parameters():
        if parameter.dim() > 1:
            assert parameter.detach().flatten(1).abs().sum(1).min() > 0, name
            assert parameter.detach().transpose(0, 1).flatten(1).abs().sum(1).min() > 0, name


def test_removing_a_task_makes_shared_neurons_exclusive_and_keeps_them():
    network = merged()
    before = neurons(network)
    quickly(network, batches(2), batches(1), OBJECTIVES, pruner=Taylor(batches=1), laps=2, fraction=0.05, remove="task")
    network.check()
    after = neurons(network)
    shrunk = [
        (name, n) for name, found in after.items() for n, tasks in found.items() if len(tasks) < len(before[name][n])
    ]
    assert shrunk
    assert all(set(after[name][n].split("+")) < set(before[name][n].split("+")) for name, n in shrunk)


def test_training_between_removals_goes_on_with_what_the_optimiser_knew():
    optimizers = []

    def factory(parameters, lr):
        optimizers.append(torch.optim.Adam(parameters, lr))
        return optimizers[-1]

    network = merged()
    quickly(network, batches(3), batches(1), OBJECTIVES, pruner=Magnitude(), laps=3, steps=6, final=0, fraction=0.005,
            optimizer=factory)  # fmt: skip
    (optimizer,) = optimizers
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in network.parameters()}
    steps = {float(optimizer.state[p]["step"]) for p in held}
    assert steps == {18.0}  # three laps of three turns of two steps, though blocks were replaced nine times


def test_frozen_parameters_stay_frozen_and_as_they_are():
    network = merged(seed=None)
    values = {}
    for key, layout in network.layouts.items():
        if "parts" in layout.group:
            for parameter in network.blocks[key].parameters():
                parameter.requires_grad_(False)
                values[key] = set(network.blocks[key].weight.flatten().tolist())
    quickly(
        network, batches(2), batches(1, seed=1), OBJECTIVES, pruner=Magnitude(), laps=3, max_drop=0.0, recovery=1,
        patience=1, reference=dict.fromkeys(OBJECTIVES, 0.5) | {"size": 1e9},
    )  # fmt: skip
    for key in values:
        assert not network.blocks[key].weight.requires_grad
        assert set(network.blocks[key].weight.flatten().tolist()) <= values[key]


def test_one_task_alone_can_be_pruned():
    network = pamerge.merge({"shape": original("shape")}, [sample(2)], pamerge.Separate())
    data = batches(4, tasks=("shape",))
    before = network.flops()
    path = quickly(network, data, data, {"shape": Classification()}, pruner=Taylor(batches=1), target=0.5 * before)
    assert path.stopped == "the target was reached"
    assert network.flops() <= 0.5 * before
    assert list(path.flops) == ["shape"]


@pytest.mark.parametrize("mix", [{"shape": 1.0}, {"shape+parts+size": 1.0}, {"parts": 0.5, "size": 0.5}])
def test_the_target_counts_for_the_users_mix_and_is_not_missed_by_much(mix):
    network = merged()
    sets = {TaskSet.parse(name): share for name, share in mix.items()}

    def cost():
        return sum(share * network.flops(tasks) for tasks, share in sets.items())

    target = 0.6 * cost()
    path = quickly(network, batches(3), batches(1), OBJECTIVES, pruner=Taylor(batches=1), mix=mix, target=target)
    assert path.stopped == "the target was reached"
    assert 0.8 * target < cost() <= target


def test_a_target_that_is_met_already_needs_no_pruning():
    network = merged()
    path = quickly(network, batches(2), batches(1), OBJECTIVES, pruner=Magnitude(), target=1e12)
    assert len(path) == 1
    assert path.stopped == "the target was reached before anything was removed"


def test_per_flop_frees_more_operations_a_neuron():
    saved = []
    for per_flop in (False, True):
        path = quickly(
            merged(),
            batches(2),
            batches(1),
            OBJECTIVES,
            pruner=Taylor(batches=1),
            laps=2,
            fraction=0.2,
            per_flop=per_flop,
        )
        removed = sum(count for step in path for turn in step.removed.values() for count in turn.values())
        saved.append((sum(path[0].flops.values()) - sum(path.flops.values())) / removed)
    assert saved[1] > saved[0]


def test_the_path_is_a_sequence_of_frozen_steps_that_survives_json():
    path = quickly(merged(), batches(2), batches(1), OBJECTIVES, pruner=Magnitude(), laps=2, fraction=0.01)
    assert len(path) == len(list(path)) == 3
    assert path[0] == path.steps[0]
    assert path[-1].lap == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        path[0].lap = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        path.kept = 5
    assert PruningPath.from_json(json.loads(json.dumps(path.to_json()))) == path
    assert path.gain("shape") == path[0].flops["shape"] / path.flops["shape"] > 1
    assert path.task_batches == 3 * 3 * 2 + 3 * 2 == path[-1].task_batches + 3 * 2
    assert "2 laps, kept lap 2: 2 laps done" in str(path)


def test_nothing_could_be_removed_is_said_loudly():
    class Nothing:
        def start(self, surroundings):
            class Session(QuietSession):
                def importance(self, task):
                    return {}

            return Session()

    network = merged()
    with pytest.warns(PamergeWarning, match="Nothing could be removed: nothing is left that could be removed"):
        path = quickly(network, batches(2), batches(1), OBJECTIVES, pruner=Nothing(), max_drop=0.5)
    assert path.stopped == "nothing is left that could be removed"
    assert network.flops() == path[0].flops[str(TaskSet(OBJECTIVES))]


def test_a_pruner_that_waits_may_have_idle_laps_but_not_for_ever():
    with pytest.warns(PamergeWarning, match="Nothing could be removed"):
        path = quickly(merged(), batches(2), batches(1), OBJECTIVES, pruner=VIB(gamma=1e-12), max_drop=9.0, final=0)
    assert path.stopped == "nothing is left that could be removed"
    assert len(path) == 4


def test_the_same_seed_gives_the_same_network_and_leaves_no_trace():
    ends = []
    for seed in (1, 1, 2):
        network = merged(dropout=0.3)
        state = torch.get_rng_state(), np.random.get_state()[1].tolist()
        quickly(
            network,
            batches(3),
            batches(1),
            OBJECTIVES,
            pruner=VIB(gamma=0.1, lr=0.6),
            laps=2,
            steps=6,
            fraction=0.2,
            seed=seed,
        )
        assert torch.equal(torch.get_rng_state(), state[0])
        assert np.random.get_state()[1].tolist() == state[1]
        ends.append(torch.cat([p.flatten() for p in network.parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2]) if ends[0].shape == ends[2].shape else True


def test_batch_norms_can_be_frozen_and_otherwise_follow_their_channels():
    for freeze in (True, False):
        network = merged(batch_norm=True)
        before = torch.cat([b.flatten() for n, b in network.named_buffers() if "running_mean" in n])
        quickly(network, batches(2), batches(1), OBJECTIVES, pruner=Magnitude(), laps=1, freeze_batch_norm=freeze)
        after = torch.cat([b.flatten() for n, b in network.named_buffers() if "running_mean" in n])
        assert set(after.tolist()).issubset(before.tolist()) == freeze


def test_tasks_may_be_taught_by_their_original_networks_without_any_labels():
    network = merged()
    data = [(x, {}) for x, _ in batches(4)]
    teachers = {task: original(task) for task in OBJECTIVES}
    path = quickly(
        network, data, batches(1, seed=1), OBJECTIVES, pruner=Taylor(batches=1), laps=2, teachers=teachers, distill=1.0
    )
    assert network.flops() < path[0].flops[str(TaskSet(OBJECTIVES))]


def test_progress_shows_stage_metric_flops_and_time_left(capsys):
    prune(merged(), batches(2), batches(1), OBJECTIVES, pruner=Magnitude(), laps=2, steps=1, final=1, lr=1e-3)
    said = capsys.readouterr().err
    assert "pruning step 1/2" in said
    assert "left" in said
    assert "MFLOPs" in said
    assert "accuracy" in said


def test_an_interrupted_run_leaves_the_network_at_its_last_good_point(monkeypatch):
    network = merged()
    laps = []
    whole = Loop._lap

    def lap(self):
        whole(self)
        laps.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
        if len(laps) == 2:
            self.trainer.train(3, "pruning", "shape")
            raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "_lap", lap)
    with pytest.raises(KeyboardInterrupt):
        quickly(network, batches(2), batches(1), OBJECTIVES, pruner=Magnitude(), laps=4)
    assert not network.training
    assert all(torch.equal(tensor, laps[1][name]) for name, tensor in network.state_dict().items())
    evaluate(network, batches(1), OBJECTIVES)
