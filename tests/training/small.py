"""Small networks and data that the tests of training share."""

from __future__ import annotations

import copy
import functools

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import pamerge
from pamerge import Assigned, MultitaskNetwork, TaskSet
from pamerge.network.network import Junction
from pamerge.tasks import all_subsets
from pamerge.training import Classification, MultiLabel, Regression

INPUT = (2, 8, 8)
OBJECTIVES = {"shape": Classification(), "parts": MultiLabel(), "size": Regression()}
OUTPUTS = {"shape": 4, "parts": 3, "size": 1}


def original(task: str, dropout: float = 0.0, batch_norm: bool = False) -> nn.Module:
    """A network for one task with random weights that are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(list(OUTPUTS).index(task))
        layers = [
            nn.Conv2d(2, 6, 3, padding=1),
            *([nn.BatchNorm2d(6)] if batch_norm else []),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        layers += [
            nn.Conv2d(6, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 12),
            nn.ReLU(),
        ]
        layers += [nn.Dropout(dropout)] if dropout else []
        network = nn.Sequential(*layers, nn.Linear(12, OUTPUTS[task])).eval()
        for parameter in network.parameters():
            if parameter.dim() > 1:  # livelier than torch's own, so that outputs differ from input to input
                parameter.data = torch.randn(parameter.shape) * (2 / parameter[0].numel()) ** 0.5
        return network


@functools.cache
def _merged(
    tasks: tuple[str, ...], seed: int | None, shared: float, dropout: float, batch_norm: bool
) -> MultitaskNetwork:
    rng = np.random.default_rng(seed)
    subsets = list(all_subsets(tasks))

    def choose(junction: Junction) -> dict[int, TaskSet]:
        if seed is None:
            return dict(junction.task_sets())
        picks = {neuron: subsets[rng.integers(len(subsets))] for neuron in junction.task_sets()}
        return {neuron: subsets[-1] if rng.random() < shared else pick for neuron, pick in picks.items()}

    networks = {task: original(task, dropout, batch_norm) for task in tasks}
    return pamerge.merge(networks, [torch.zeros(2, *INPUT)], Assigned(choose))


def merged(
    *tasks: str, seed: int | None = 0, shared: float = 0.0, dropout: float = 0.0, batch_norm: bool = False
) -> MultitaskNetwork:
    """The originals of some tasks (all by default), merged with random task sets; a share of neurons serves all tasks.

    With ``seed=None`` every neuron keeps its own task.
    """
    return copy.deepcopy(_merged(tasks or tuple(OBJECTIVES), seed, shared, dropout, batch_norm))


def inputs(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *INPUT, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def labels(x: Tensor, *tasks: str) -> dict[str, Tensor]:
    """What the originals say about inputs."""
    outputs = {task: original(task)(x) for task in tasks or OBJECTIVES}
    found = {"shape": lambda y: y.argmax(1), "parts": lambda y: (y > 0).float(), "size": lambda y: y}
    return {task: found[task](output) for task, output in outputs.items()}


def batches(
    count: int, size: int = 8, *, seed: int = 0, tasks: tuple[str, ...] = ()
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Batches with labels of some tasks (all by default)."""
    return [(x, labels(x, *tasks)) for x in inputs(count * size, seed).split(size)]


class Labelled(Dataset[tuple[Tensor, dict[str, Tensor]]]):
    """The same as a data set."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.x = inputs(count, seed)
        self.y = labels(self.x)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        return self.x[index], {task: values[index] for task, values in self.y.items()}


def loader(count: int, size: int = 8, *, shuffle: int | None = None) -> DataLoader[tuple[Tensor, dict[str, Tensor]]]:
    """A DataLoader, shuffled with a generator of its own if there is a seed for it."""
    generator = None if shuffle is None else torch.Generator().manual_seed(shuffle)
    return DataLoader(Labelled(count), size, shuffle=shuffle is not None, generator=generator)


def weights(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def same_weights(network: nn.Module, expected: dict[str, Tensor]) -> bool:
    found = network.state_dict()
    return set(found) == set(expected) and all(torch.equal(found[name], tensor) for name, tensor in expected.items())


class ReadableOnce:
    """Data that is empty at the second reading."""

    def __init__(self) -> None:
        self.data = iter(batches(2))

    def __iter__(self):
        return self.data
