"""Training of the original networks survives being interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pamerge.experiments.config import Choice
from pamerge.experiments.pretraining import train
from pamerge.experiments.registry import make_data

EPOCHS = 3


class InterruptError(Exception):
    pass


class Interrupting(torch.utils.data.DataLoader):
    """Batches that end with an exception after a while."""

    left = -1

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            if self.left == 0:
                raise InterruptError
            self.left -= 1
            yield batch


def trained(checkpoint: Path, batches: int = -1) -> dict[str, Tensor]:
    data = make_data(Choice("digits", {"train": 200, "validation": 50, "test": 50}), 0, None).train
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
    network = nn.Sequential(features, nn.LazyLinear(len(data.tasks["A"])))
    network.eval()(data[[0]][0])
    loader = Interrupting(data, batch_size=50, shuffle=True, generator=torch.Generator().manual_seed(1))
    loader.left = batches
    train(network, loader, "A", epochs=EPOCHS, lr=0.01, seed=5, checkpoint=checkpoint)
    return network.state_dict()


@pytest.mark.parametrize("batches", [2, 4, 7, 8])
def test_an_interrupted_training_goes_on_and_ends_with_the_same_weights(tmp_path: Path, batches: int) -> None:
    whole = trained(tmp_path / "whole")
    with pytest.raises(InterruptError):
        trained(tmp_path / "parts", batches)
    assert (tmp_path / "parts").exists() == (batches >= 4)
    resumed = trained(tmp_path / "parts")
    assert whole.keys() == resumed.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


def test_the_epochs_that_were_done_are_not_done_again(tmp_path: Path) -> None:
    trained(tmp_path / "checkpoint")
    trained(tmp_path / "checkpoint", batches=0)
