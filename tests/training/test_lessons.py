from __future__ import annotations

import pytest
import torch
from torch import nn

from pamerge import PamergeError
from pamerge.training.lessons import Remembered, outputs_of


class Counting(nn.Module):
    """Counts the rows that it was run on; its batch norm shows in which mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2))
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return self.layers(x)


@pytest.fixture
def images() -> torch.Tensor:
    x = torch.randn(10, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    x[3] = x[1]  # an image that the data has twice must not shift those after it
    return x


def test_outputs_are_looked_up_in_any_order_and_are_those_of_eval_mode(images):
    network = Counting()
    teacher = Remembered(network, [(images[:4], None), images[4:]])
    assert network.training
    assert network.seen == 10
    order = torch.tensor([9, 3, 1, 5, 5, 0])
    found = teacher(images[order])
    assert network.seen == 10
    assert not found.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(found, network.eval()(images[order]))
    assert all(
        torch.equal(buffer, fresh) for buffer, fresh in zip(network.buffers(), Counting().buffers(), strict=True)
    )


def test_a_batch_with_an_unknown_row_is_computed(images):
    network = Counting()
    teacher = Remembered(network, [images]).eval()
    changed = images[:3].clone()
    changed[1, 0, 0, 0] += 1
    assert torch.equal(teacher(changed), network(changed))
    assert network.seen == 16


def test_nothing_of_it_is_saved(images):
    assert set(Remembered(network := Counting(), [images]).state_dict()) == {
        f"network.{n}" for n in network.state_dict()
    }


def test_no_batches_are_an_error():
    with pytest.raises(PamergeError, match="no batches"):
        Remembered(Counting(), [])


def test_outputs_that_are_known_are_not_computed_again(images):
    network = Counting()
    outputs = outputs_of(network, [images])
    teacher = Remembered(network, [images], outputs)
    assert network.seen == 10
    assert torch.equal(teacher(images[2:5]), outputs[2:5])


def test_known_outputs_must_be_one_for_each_input(images):
    with pytest.raises(PamergeError, match="9 outputs for 10 inputs"):
        Remembered(Counting(), [images], torch.zeros(9, 2))
