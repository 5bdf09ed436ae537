from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from training.small import INPUT, OBJECTIVES, ReadableOnce, batches, inputs, merged, original, same_weights, weights

from pamerge import PamergeError
from pamerge.training import Classification, DivergenceError, finetune

quietly = partial(finetune, progress=False)


def test_a_loss_that_is_not_a_number_stops_training_and_gives_back_the_weights():
    network = merged()
    start = weights(network)
    data = batches(4)
    data[2] = (torch.full((8, *INPUT), float("inf")), data[2][1])
    with pytest.raises(
        DivergenceError, match=r"Training diverged at step 3: the loss of task '\w+' is nan.*smaller lr"
    ):
        quietly(network, data, OBJECTIVES, epochs=1)
    assert same_weights(network, start)
    assert not network.training


def test_a_loss_that_explodes_stops_training_and_gives_back_the_best_weights():
    network, good, validation = merged(), batches(10), batches(4, seed=1)
    result = quietly(network, good, OBJECTIVES, epochs=1, lr=3e-3, validation=validation)
    start = weights(network)
    wild = partial(torch.optim.SGD, momentum=0.9)
    message = (
        r"Training diverged at step \d+: the loss of task '\w+' (is \S+; it began at .* for 10 steps|is nan|is inf)"
    )
    with pytest.raises(DivergenceError, match=message):
        quietly(
            network, good, OBJECTIVES, epochs=20, lr=2.0, optimizer=wild, validation=validation, validate_every=1000
        )
    assert same_weights(network, start)
    assert result.best_step == 10


def test_one_bad_batch_is_no_divergence():
    data = batches(20)
    data[5] = (data[5][0], {"size": torch.full((8, 1), 1e3)})
    assert quietly(merged(), data, OBJECTIVES, epochs=1).steps == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "epochs=None and steps=None; expected exactly one of them"),
        ({"epochs": 1, "steps": 1}, "epochs=1 and steps=1; expected exactly one of them"),
        ({"epochs": 0}, "epochs=0; expected a whole number above 0"),
        ({"steps": 2.5}, "steps=2.5; expected a whole number above 0"),
        ({"epochs": 1, "lr": -1.0}, "lr=-1.0; expected a number above 0"),
        ({"epochs": 1, "schedule": "linear"}, "schedule='linear'; expected 'cosine' or 'constant'"),
        ({"epochs": 1, "patience": 2}, "patience=2 needs validation data"),
        ({"epochs": 1, "distill": 0.5}, "distill=0.5 needs teachers"),
        ({"epochs": 1, "distill": 2, "teachers": {}}, "distill=2; expected a number from 0"),
        ({"epochs": 1, "teachers": {"age": original("shape")}, "distill": 1.0}, r"Unknown task\(s\) 'age'"),
        ({"epochs": 1, "teachers": {"size": 3}, "distill": 1.0}, "The teacher of task 'size' is a int"),
        ({"epochs": 1, "teachers": {"size": original("size")}}, "teachers were given, but with distill=0.0"),
        (
            {"epochs": 1, "teachers": {"size": original("shape")}, "distill": 1.0},
            r"the teacher of task 'size' gives \(4,\) for a sample; expected \(1,\)",
        ),
        ({"epochs": 1, "fabric": "cpu"}, "fabric is a str; expected a lightning_fabric.Fabric"),
        ({"epochs": 1, "checkpoint": "/no/such/folder/x"}, "the folder /no/such/folder does not exist"),
        ({"epochs": 1, "train": []}, "The training data is empty"),
        ({"epochs": 1, "train": (x for x in [])}, "The training data is a generator, which can be read only once"),
        (
            {"epochs": 1, "train": batches(2, tasks=("shape", "size"))},
            "no labels for task 'parts', and there is no teacher",
        ),
        ({"epochs": 1, "validation": []}, "The validation data is empty"),
        (
            {"epochs": 1, "validation": batches(1, tasks=("size",))},
            r"The validation data has no labels for task\(s\) 'shape', 'parts'",
        ),
        ({"epochs": 1, "objectives": {"shape": Classification()}}, r"objectives lacks task\(s\) 'parts', 'size'"),
        ({"epochs": 1, "network": nn.Linear(2, 2)}, "network is a Linear; expected a MultitaskNetwork"),
        (
            {"epochs": 1, "train": [*batches(2), (inputs(8), {"shape": torch.full((8,), 7)})]},
            r"Batch 3 of the training data: Task 'shape' \(Classification\): labels go up to 7",
        ),
        (
            {"epochs": 1, "validation": [(inputs(8), {"parts": torch.zeros(8, 2)})]},
            r"Batch 1 of the validation data: Task 'parts' \(MultiLabel\): labels have shape \(8, 2\)",
        ),
    ],
)
def test_mistakes_are_said_before_any_training_starts(arguments, message):
    given = {"network": merged(), "train": batches(2), "objectives": OBJECTIVES, **arguments}
    network = given.pop("network")
    start = weights(network)
    with pytest.raises(PamergeError, match=message):
        quietly(network, given.pop("train"), given.pop("objectives"), **given)
    assert same_weights(network, start)


def test_data_that_is_empty_at_the_second_reading_is_refused():
    with pytest.raises(
        PamergeError, match="gave no batches in epoch 1; expected data that can be read again and again"
    ):
        quietly(merged(), ReadableOnce(), OBJECTIVES, epochs=1)
