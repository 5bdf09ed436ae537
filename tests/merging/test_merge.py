"""``merge``: what it accepts and what it says when it cannot."""

from __future__ import annotations

import pytest
import torch
from support.architectures import inputs, make_networks
from torch import nn

import pamerge
from pamerge import CaptureError, PamergeError, PamergeWarning, Separate, zoo


def lenet(size: tuple[int, int, int] = (1, 28, 112)) -> nn.Module:
    return zoo.lenet5(5, size).eval()


X = torch.zeros(2, 1, 28, 112)


@pytest.mark.parametrize(
    ("networks", "calibration", "message"),
    [
        ({}, [X], "No tasks were given"),
        ([lenet()], [X], "networks must map the name of each task"),
        ({"a+b": lenet()}, [X], r"'a\+b' cannot be the name of a task"),
        ({"": lenet()}, [X], "cannot be the name of a task"),
        ({"A": "lenet"}, [X], "The network of task 'A' is a str; expected an nn.Module"),
        (
            {"A": lenet(), "B": lenet().train()},
            [X],
            "The network of task 'B' is in training mode; call .eval()",
        ),
        (
            {"A": lenet(), "B": lenet().double()},
            [X],
            "must be on one device and of one type; found A: cpu float32; B: cpu float64",
        ),
        ({"A": lenet(), "B": lenet().to("meta")}, [X], "must be on one device"),
        ({"A": lenet()}, [], "calibration is empty"),
        ({"A": lenet()}, None, "calibration is empty or not iterable"),
        ({"A": lenet()}, [("x", {})], "inputs a tensor of shape"),
    ],
)
def test_bad_input_gets_a_clear_error(networks, calibration, message: str) -> None:
    with pytest.raises(PamergeError, match=message):
        pamerge.merge(networks, calibration, Separate())


def test_networks_that_do_not_take_the_same_input_get_an_error_that_names_the_task() -> None:
    with pytest.raises(
        CaptureError, match=r"Task 'B': The network LeNet5 cannot run on an input of shape \(2, 1, 28, 112\)"
    ):
        pamerge.merge({"A": lenet(), "B": lenet((1, 28, 28))}, [X], Separate())


def test_networks_with_only_the_input_in_common_stay_separate_with_a_warning() -> None:
    other = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 110, 3)).eval()
    with pytest.warns(
        PamergeWarning, match=r"only their input in common and stay separate: 'A' has conv1 .*kernel \[5, 5\]"
    ):
        network = pamerge.merge({"A": lenet(), "B": other}, [X], Separate())
    assert network.flops() == network.flops("A") + network.flops("B")


def test_a_network_that_depends_on_the_batch_size_is_noticed() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) * len(x)

    with pytest.raises(CaptureError, match="does not compute what the original computes"):
        pamerge.merge({"A": Odd().eval()}, [torch.randn(2, 4)], Separate())


def test_batches_of_inputs_and_targets_or_of_inputs_alone_will_do() -> None:
    networks = make_networks("lenet5", 2)
    x = inputs("lenet5")
    one = pamerge.merge(networks, [(x, {"A": torch.zeros(3)})], Separate())
    other = pamerge.merge(networks, [x], Separate())
    assert torch.equal(one(x)["A"], other(x)["A"])


def test_a_task_that_would_have_no_neuron_gets_its_own_back() -> None:
    networks = make_networks("lenet5", 2)
    scheme = pamerge.Assigned(lambda junction: dict.fromkeys(junction.task_sets(), "A"))
    network = pamerge.merge(networks, [inputs("lenet5")], scheme)
    network.check()
    assert len(network.junctions["conv2"].groups[pamerge.TaskSet("B")]) == 16


def test_every_merged_network_says_how_far_its_networks_match() -> None:
    for scheme in (Separate(), pamerge.Assigned(lambda junction: dict.fromkeys(junction.task_sets(), "AB"))):
        network = pamerge.merge(make_networks("lenet5", 2), [inputs("lenet5")], scheme)
        assert network.merging.alignment.matched_layers() == ["conv1", "conv2", "fc3", "fc4"]
