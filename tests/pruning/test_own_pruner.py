from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass

import pytest
import torch
from pruning.around import quickly, surroundings
from training.small import OBJECTIVES, batches, merged

import pamerge
from pamerge import pruning
from pamerge.pruning import Magnitude, Pruner, QuietSession
from pamerge.pruning import magnitude as magnitude_module


def test_the_pruner_of_the_documentation_works():
    text = inspect.getdoc(Pruner)
    code = text[text.index("    @dataclass") : text.index("    pamerge.prune(")]
    names = {"dataclass": dataclass, "QuietSession": QuietSession, "torch": torch}
    exec(textwrap.dedent(code), names)
    network = merged()
    before = network.flops()
    path = quickly(network, batches(2), batches(1), OBJECTIVES, pruner=names["AtRandom"](), laps=2)
    assert len(path) == 3
    assert network.flops() < before
    network.check()


def test_a_pruner_is_small_to_add():
    source = inspect.getsource(magnitude_module)
    assert len(source.splitlines()) < 40


def test_magnitude_is_the_mean_square_of_the_weights_that_read_a_neuron_for_the_task():
    around = surroundings(merged())
    found = Magnitude().start(around).importance("shape")
    network = around.network
    for name, junction in network.junctions.items():
        for neuron in junction.task_sets() if not junction.fixed else ():
            values = []
            for key, layout in network.layouts.items():
                if layout.node.name in junction.feeds and "shape" in layout.group and neuron in layout.inputs:
                    at, width = layout.inputs.tolist().index(neuron), layout.input_width
                    values.append(network.blocks[key].weight.detach()[:, at * width : (at + 1) * width].flatten())
            if "shape" in junction.task_sets()[neuron]:
                assert found[name][neuron] == pytest.approx(float(torch.cat(values).square().mean()), rel=1e-5)
            else:
                assert neuron not in found.get(name, {})


def test_a_penalty_and_parameters_of_the_users_own_are_trained_on_the_tasks_turn():
    turns = []

    class Session(QuietSession):
        def __init__(self, surroundings):
            self.places = surroundings.places
            self.number = torch.nn.Parameter(torch.zeros(()))

        def parameters(self):
            return [{"params": [self.number], "lr": 0.1}]

        def penalty(self, task):
            turns.append(task)
            return (self.number - 3).square()

        def importance(self, task):
            return {name: dict.fromkeys(found, 0.0) for name, found in self.places.served(task).items()}

        def tensors(self):
            return {"number": self.number}

    class Mine:
        def start(self, surroundings):
            self.session = Session(surroundings)
            return self.session

    mine = Mine()
    quickly(merged(), batches(2), batches(1), OBJECTIVES, pruner=mine, laps=1, steps=12)
    assert turns == ["shape"] * 4 + ["parts"] * 4 + ["size"] * 4  # not in recovery, not at the end
    assert mine.session.number.item() > 0.5


def test_everything_that_a_pruner_needs_is_public():
    assert {"Pruner", "Session", "QuietSession", "Surroundings", "Scores"} <= set(pruning.__all__)
    assert pamerge.MultitaskNetwork
