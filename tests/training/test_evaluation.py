from __future__ import annotations

import pytest
import torch
from torch import nn
from training.small import OBJECTIVES, batches, inputs, labels, merged, original

from pamerge import PamergeError
from pamerge.training import Classification, Custom, Regression, evaluate

TASKS = tuple(OBJECTIVES)


def test_the_originals_labels_are_met_by_the_originals_side_by_side():
    found = evaluate(merged(seed=None), batches(3), OBJECTIVES)
    assert found["shape"] == found["parts"] == 1.0
    assert found["size"] < 1e-5


def test_a_metric_does_not_depend_on_how_samples_are_batched():
    network, x = merged(), inputs(30)
    y = labels(x)
    y["shape"][::3] = -1
    y["parts"][5:9, 1] = torch.nan
    whole = evaluate(network, [(x, y)], OBJECTIVES)
    parts = [(x[i : i + 7], {t: v[i : i + 7] for t, v in y.items() if i != 14 or t != "size"}) for i in range(0, 30, 7)]
    rest = (x[14:21], {"size": y["size"][14:21]})
    assert evaluate(network, [*parts, rest, inputs(2)], OBJECTIVES) == pytest.approx(whole, abs=1e-6)
    correct = network(x)["shape"].argmax(1) == y["shape"]
    assert whole["shape"] == pytest.approx(float(correct[y["shape"] >= 0].float().mean()))


def test_evaluation_runs_in_eval_mode_and_gives_back_the_mode_of_every_part():
    network = merged(dropout=0.5).train()
    next(iter(network.blocks.values())).eval()
    modes = [part.training for part in network.modules()]
    first, second = (evaluate(network, batches(2), OBJECTIVES) for _ in range(2))
    assert first == second
    assert [part.training for part in network.modules()] == modes


def test_a_batch_runs_the_network_once_and_only_for_the_tasks_that_it_has_labels_of():
    network = merged()
    data = batches(1, tasks=("shape",)) + batches(1)
    evaluate(network, data[1:], OBJECTIVES)
    calls = []
    for key, block in network.blocks.items():
        block.register_forward_hook(lambda *_, key=key: calls.append(key))
    evaluate(network, data, {t: OBJECTIVES[t] for t in ("shape", "parts")})
    for key, layout in network.layouts.items():
        probed = bool(layout.group & {"shape", "parts"})  # once to learn the shapes of the outputs
        expected = probed + ("shape" in layout.group) + bool(layout.group & {"shape", "parts"})
        assert calls.count(key) == expected, key


def test_plain_modules_can_be_evaluated_alone_together_and_as_subnets():
    network, data = merged(), batches(3)
    whole = evaluate(network, data, OBJECTIVES)
    for task in TASKS:
        assert evaluate(network.subnet(task), data, {task: OBJECTIVES[task]}) == {task: pytest.approx(whole[task])}
    originals = {task: original(task) for task in TASKS}
    assert evaluate(originals, data, OBJECTIVES)["shape"] == 1.0
    assert evaluate(originals["shape"], data, {"shape": Classification()}) == {"shape": 1.0}


def test_a_metric_of_the_user_is_used():
    objective = Custom(nn.functional.mse_loss, lambda y, t: (y - t).square().mean(), "MSE", higher_is_better=False)
    x = inputs(8)
    found = evaluate(merged(), [(x, {"size": torch.zeros(8, 1)})], {"size": objective})
    assert found["size"] == pytest.approx(float(merged()(x)["size"].detach().square().mean()))


def test_data_without_labels_of_a_task_cannot_judge_it():
    with pytest.raises(PamergeError, match=r"The data has no labels for task\(s\) 'parts'; expected some"):
        evaluate(merged(), batches(2, tasks=("shape", "size")), OBJECTIVES)
    with pytest.raises(PamergeError, match="The data is empty"):
        evaluate(merged(), [], OBJECTIVES)


def test_what_does_not_fit_the_network_is_said():
    data = batches(1)
    with pytest.raises(PamergeError, match=r"Unknown task\(s\) 'age'; this network has"):
        evaluate(merged(), data, {"age": Regression()})
    with pytest.raises(PamergeError, match=r"There is no network for task\(s\) 'parts', 'size'; got: shape"):
        evaluate({"shape": original("shape")}, data, OBJECTIVES)
    with pytest.raises(PamergeError, match="The network gives one output for 3 tasks"):
        evaluate(original("shape"), data, OBJECTIVES)
    with pytest.raises(PamergeError, match=r"Batch 1 of the data: .*expected batch×2×8×8"):
        evaluate(merged(), [(torch.zeros(2, 3, 8, 8), {})], OBJECTIVES)
