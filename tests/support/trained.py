"""Small networks that really were trained, on canvases of scikit-learn's digits."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional

from pamerge import zoo
from pamerge.data import Splits, digit_canvases


@functools.cache
def digits(**tasks: tuple[str, ...]) -> Splits:
    """Canvases of four digits; by default task A asks for 0 to 4 and task B for 5 to 9."""
    splits = digit_canvases(train=2000, validation=500, test=500, generator=torch.Generator().manual_seed(0))
    return splits.with_tasks(tasks) if tasks else splits


@functools.cache
def digit_networks(epochs: int = 6, **tasks: tuple[str, ...]) -> dict[str, nn.Module]:
    """A LeNet-5 for each task, trained for a few epochs."""
    train = digits(**tasks).train
    networks = {}
    for number, (task, labels) in enumerate(train.tasks.items()):
        network = zoo.lenet5(len(labels), train.input_size, generator=torch.Generator().manual_seed(number))
        optimizer = torch.optim.Adam(network.parameters(), 2e-3)
        loader = train.loader(64, shuffle=torch.Generator().manual_seed(number))
        for _ in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                functional.binary_cross_entropy_with_logits(network(inputs), targets[task]).backward()
                optimizer.step()
        networks[task] = network.eval()
    return networks
