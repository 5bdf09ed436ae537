from __future__ import annotations

import pytest
import torch
from torch import nn
from training.small import INPUT, OBJECTIVES, ReadableOnce, batches, inputs, merged, original, same_weights, weights

from pamerge import PamergeError
from pamerge.pruning import Magnitude, Taylor, prune
from pamerge.training import Classification, DivergenceError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_drop": -0.1}, "max_drop=-0.1; expected a number from 0"),
        ({"max_drop": float("nan")}, "max_drop=nan; expected a number from 0"),
        ({"max_drop": None}, "prune needs to know when to stop; expected max_drop=, target=, laps= or effort="),
        ({"target": -5.0}, "target=-5.0; expected a number from 0"),
        ({"fraction": 0.0}, "fraction=0.0; expected a share between 0 and 1"),
        ({"fraction": 3}, "fraction=3; expected a share between 0 and 1"),
        ({"steps": -1}, "steps=-1; expected a whole number from 0"),
        ({"recovery": 1.5}, "recovery=1.5; expected a whole number from 0"),
        ({"laps": 0}, "laps=0; expected a whole number from 1"),
        ({"patience": True}, "patience=True; expected a whole number from 0"),
        ({"rounds": 0}, "rounds=0; expected a whole number from 1"),
        ({"lr": 0.0}, "lr=0.0; expected a number above 0"),
        ({"remove": "layer"}, "remove='layer'; expected 'neuron' or 'task'"),
        ({"pruner": Taylor}, r"pruner is the class Taylor; expected a pruner such as Taylor\(\)"),
        ({"pruner": "taylor"}, "pruner is a str; expected a pruner"),
        ({"pruner": Taylor(batches=0)}, "batches=0; expected a whole number from 1"),
        (
            {"reference": {"shape": 0.9}},
            "reference has metrics of 'shape'; expected one for each of shape, parts, size",
        ),
        ({"reference": dict.fromkeys(OBJECTIVES, float("nan"))}, r"reference\['shape'\]=nan; expected a number"),
        ({"mix": {"age": 1.0}}, "mix names 'age'; the tasks are shape, parts, size"),
        ({"mix": {"shape": -1.0}}, "expected probabilities that are not negative"),
        ({"checkpoint": "/no/such/folder/x"}, "the folder /no/such/folder does not exist"),
        ({"distill": 0.5}, "distill=0.5 needs teachers"),
        ({"teachers": {"age": original("shape")}, "distill": 1.0}, r"Unknown task\(s\) 'age'"),
        ({"teachers": {"size": original("size")}}, "teachers were given, but with distill=0.0"),
        ({"teachers": {"size": original("shape")}, "distill": 1.0}, r"the teacher of task 'size' gives \(4,\)"),
        ({"network": nn.Linear(2, 2)}, "network is a Linear; expected a MultitaskNetwork"),
        ({"objectives": {"shape": Classification()}}, r"objectives lacks task\(s\) 'parts', 'size'"),
        ({"train": []}, "The training data is empty"),
        ({"train": iter(())}, "which can be read only once"),
        ({"validation": []}, "The validation data is empty"),
        ({"train": batches(2, tasks=("shape", "size"))}, "no labels for task 'parts', and there is no teacher"),
        (
            {"validation": batches(1, tasks=("size",))},
            r"The validation data has no labels for task\(s\) 'parts', 'shape'",
        ),
        (
            {"train": [*batches(2), (inputs(8), {"shape": torch.full((8,), 7)})]},
            r"Batch 3 of the training data: Task 'shape' \(Classification\): labels go up to 7",
        ),
        (
            {"validation": [(inputs(8), {"parts": torch.zeros(8, 2)})]},
            r"Batch 1 of the validation data: Task 'parts' \(MultiLabel\): labels have shape \(8, 2\)",
        ),
        ({"train": [(inputs(8), {"age": torch.zeros(8)})]}, r"labels of unknown task\(s\) 'age'"),
        ({"fabric": "cpu"}, "fabric is a str; expected a lightning_fabric.Fabric"),
        ({"optimizer": lambda parameters, lr: "adam"}, "optimizer made a str; expected a function"),
    ],
)
def test_mistakes_are_said_before_any_training_starts(arguments, message):
    given = {
        "network": merged(), "train": batches(2), "validation": batches(1), "objectives": OBJECTIVES,
        "pruner": Magnitude(), "max_drop": 0.1, **arguments,
    }  # fmt: skip
    network = given["network"]
    start = weights(network)
    with pytest.raises(PamergeError, match=message):
        prune(**given, progress=False)
    assert same_weights(network, start)


def test_a_network_without_parameters_to_train_is_refused():
    network = merged()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(PamergeError, match="no parameter that could be trained"):
        prune(network, batches(1), batches(1), OBJECTIVES, pruner=Magnitude(), laps=1, progress=False)


def test_a_loss_that_is_not_a_number_gives_back_the_last_good_point():
    network = merged()
    start = weights(network)
    data = batches(4)
    data[2] = (torch.full((8, *INPUT), float("inf")), data[2][1])
    with pytest.raises(DivergenceError, match="Training diverged"):
        prune(network, data, batches(1), OBJECTIVES, pruner=Magnitude(), laps=2, steps=2, progress=False)
    assert same_weights(network, start)
    assert not network.training


def test_data_that_can_be_read_only_once_is_noticed():
    with pytest.raises(
        PamergeError, match="The training data gave no batches in pass 1; expected data that can be read"
    ):
        prune(merged(), ReadableOnce(), batches(1), OBJECTIVES, pruner=Magnitude(), laps=1, progress=False)
