from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from training.small import (
    OBJECTIVES,
    batches,
    inputs,
    loader,
    merged,
    original,
    same_weights,
    weights,
)

from pamerge.training import Classification, Custom, evaluate, finetune

quietly = partial(finetune, progress=False)


@pytest.fixture
def originals() -> dict[str, nn.Module]:
    return {task: original(task) for task in OBJECTIVES}


# -- learning ----------------------------------------------------------------------------------------------------------


def test_fine_tuning_makes_every_task_better():
    network, data = merged(), batches(10)
    before = evaluate(network, data, OBJECTIVES)
    result = quietly(network, data, OBJECTIVES, epochs=10, lr=1e-2, validation=data)
    after = evaluate(network, data, OBJECTIVES)
    assert after == pytest.approx(result.metrics)
    assert after["shape"] > before["shape"] + 0.2
    assert after["parts"] > before["parts"] + 0.1
    assert after["size"] < 0.7 * before["size"]


def test_the_result_tells_what_was_done():
    data = [*batches(3), *batches(2, tasks=("shape",), seed=2)]
    result = quietly(merged(), data, OBJECTIVES, epochs=2, validation=batches(1, seed=1))
    assert (result.steps, result.task_batches, result.stopped) == (10, 2 * (3 * 3 + 2), "finished")
    assert [(record.step, record.epoch) for record in result.history] == [(0, 0), (5, 1), (10, 2)]
    assert not result.history[0].losses
    assert set(result.history[1].losses) == set(OBJECTIVES)
    assert result.history[2].lr < result.history[1].lr < 5e-4
    assert result.seconds > 0


def test_steps_can_be_fewer_or_more_than_an_epoch():
    for steps in (3, 11):
        result = quietly(merged(), batches(4), OBJECTIVES, steps=steps)
        assert result.steps == result.best_step == result.history[-1].step == steps
        assert result.metrics == {}


def test_validations_come_after_every_epoch_or_as_often_as_asked():
    result = quietly(merged(), batches(4), OBJECTIVES, steps=7, validation=batches(1), validate_every=3)
    assert [record.step for record in result.history] == [0, 3, 6, 7]


def test_different_tasks_may_come_in_different_batches():
    data = [batch for task in OBJECTIVES for batch in batches(4, tasks=(task,))]
    network = merged()
    before = evaluate(network, data, OBJECTIVES)
    quietly(network, data, OBJECTIVES, epochs=8, lr=1e-2)
    after = evaluate(network, data, OBJECTIVES)
    assert after["shape"] > before["shape"]
    assert after["parts"] > before["parts"]
    assert after["size"] < before["size"]


def test_a_network_keeps_its_mode_and_its_frozen_parameters():
    network = merged(dropout=0.5)
    frozen = next(iter(network.blocks.values())).weight.requires_grad_(False)
    value = frozen.clone()
    quietly(network, batches(2), OBJECTIVES, epochs=1, lr=0.1)
    assert not network.training
    assert torch.equal(frozen, value)
    quietly(network.train(), batches(2), OBJECTIVES, epochs=1, validation=batches(1))
    assert all(part.training for part in network.modules())


def test_any_optimiser_of_torch_does():
    ends = []
    for optimizer in (torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9), torch.optim.RMSprop):
        network = merged()
        quietly(network, batches(3), OBJECTIVES, epochs=1, optimizer=optimizer, lr=1e-3)
        ends.append(weights(network))
    assert all(not same_weights(merged(), end) for end in ends)
    assert not torch.equal(*(next(iter(end.values())) for end in ends[:2]))


def test_one_task_alone_can_be_fine_tuned():
    network = merged("shape")
    data = [[x, y["shape"]] for x, y in batches(3)]
    assert quietly(network, data, {"shape": Classification()}, epochs=1, validation=data).task_batches == 3


def test_a_loss_and_metric_of_the_user_are_used():
    objective = Custom(nn.functional.l1_loss, nn.functional.l1_loss, "MAE", higher_is_better=False)
    network, data = merged("size"), [(x, {"size": y["size"] + 1}) for x, y in batches(4)]
    result = quietly(network, data, {"size": objective}, epochs=4, lr=1e-2, validation=data)
    assert result.metrics["size"] < 0.8 * result.history[0].metrics["size"]


# -- judging -----------------------------------------------------------------------------------------------------------


def test_the_network_ends_with_the_weights_that_were_best_on_validation_data():
    network, validation = merged(seed=None), batches(4, seed=1)
    start = weights(network)
    shuffled = [
        (x, {"shape": y["shape"].flip(0), "parts": 1 - y["parts"], "size": y["size"] + 9}) for x, y in batches(6)
    ]
    result = quietly(network, shuffled, OBJECTIVES, epochs=2, lr=1e-2, validation=validation)
    assert result.best_step == 0
    assert same_weights(network, start)
    assert result.metrics["shape"] == 1.0


def test_training_stops_when_nothing_gets_better():
    wrong = [(x, {"shape": y["shape"].flip(0), "parts": 1 - y["parts"], "size": y["size"] + 9}) for x, y in batches(4)]
    result = quietly(merged(seed=None), wrong, OBJECTIVES, epochs=9, lr=1e-2, validation=batches(2), patience=2)
    assert (result.stopped, result.history[-1].epoch) == ("patience", 2)


def test_of_equally_good_weights_those_trained_for_longer_stay():
    network = merged("shape", seed=None)
    data = batches(2, tasks=("shape",))
    result = quietly(network, data, {"shape": Classification()}, epochs=2, lr=1e-6, validation=data)
    assert [record.metrics["shape"] for record in result.history] == [1.0] * 3
    assert result.best_step == 4


# -- distillation ------------------------------------------------------------------------------------------------------


def distance(network, originals) -> float:
    x = inputs(64, seed=77)
    with torch.no_grad():
        outputs = network(x)
        return float(sum(((outputs[t] - originals[t](x)).square().mean() / originals[t](x).var()) for t in outputs))


@pytest.mark.parametrize(("start", "left"), [("random task sets", 0.3), ("noise on the weights", 0.1)])
def test_distillation_without_labels_recovers_a_disturbed_network(start, left, originals):
    network = merged(shared=0.7) if start == "random task sets" else merged(seed=None)
    if start == "noise on the weights":
        generator = torch.Generator().manual_seed(0)
        for parameter in network.parameters():
            parameter.data += 0.5 * parameter.abs().mean() * torch.randn(parameter.shape, generator=generator)
    before = distance(network, originals)
    data = list(inputs(1024).split(32))
    quietly(network, data, OBJECTIVES, epochs=4, lr=1e-2, teachers=originals, distill=1.0)
    assert before > 3
    assert distance(network, originals) < left * before


def test_without_any_labels_distillation_is_implied_and_said(originals, capsys):
    network = merged()
    data = [(x, {}) for x in inputs(32).split(8)]
    result = finetune(network, data, OBJECTIVES, epochs=1, teachers=originals)
    assert result.task_batches == 12
    said = capsys.readouterr().err
    assert "no labels of shape, parts, size in the training data: learning from the teacher alone" in said


def test_a_task_without_labels_learns_from_its_teacher_and_the_others_from_labels(originals):
    network = merged()
    data = batches(6, tasks=("shape", "parts"))
    before = evaluate(network, batches(6), OBJECTIVES)
    quietly(network, data, OBJECTIVES, epochs=8, lr=1e-2, teachers={"size": originals["size"]})
    after = evaluate(network, batches(6), OBJECTIVES)
    assert after["size"] < 0.8 * before["size"]
    assert after["shape"] > before["shape"]


def test_teachers_are_left_as_they_are(originals):
    originals["shape"].train()
    before = {task: weights(teacher) for task, teacher in originals.items()}
    quietly(merged(), batches(2), OBJECTIVES, epochs=1, teachers=originals, distill=0.5)
    assert originals["shape"].training
    assert not originals["size"].training
    assert all(same_weights(teacher, before[task]) for task, teacher in originals.items())
    assert all(p.grad is None and p.requires_grad for t in originals.values() for p in t.parameters())


# -- chance ------------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_weights_and_leaves_no_trace():
    ends = []
    for seed in (1, 1, 2):
        network = merged(dropout=0.3)
        state = torch.get_rng_state()
        quietly(
            network, torch.utils.data.DataLoader(loader(32).dataset, 8, shuffle=True), OBJECTIVES, epochs=2, seed=seed
        )
        assert torch.equal(torch.get_rng_state(), state)
        ends.append(weights(network))
    network = merged(dropout=0.3)
    network.load_state_dict(ends[0])
    assert same_weights(network, ends[1])
    assert not same_weights(network, ends[2])
