"""A running average of a network's weights: what a short training at a high rate has reached, without its noise.

The averages are kept beside what the optimiser remembers of each parameter, so they follow the weights through every
removal and into every checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pamerge.training.optimizer import AVERAGE

LONGEST = 50.0
"""At most about so many of the last steps count."""


@torch.no_grad()
def update_averages(optimizer: Optimizer, network: nn.Module, steps: int, steps_each: float = 1.0) -> None:
    """Take the weights after a step into the average.

    Args:
        optimizer: keeps the averages.
        network: has the weights.
        steps: how many there have been since the average was last used, this one among them: about the latter half of
            them count, since an average over more of them would take back what they have learnt.
        steps_each: how many of them it takes until a weight was trained once, on average.
    """
    fresh = 1 / max(1.0, min(LONGEST * steps_each, steps / 2))
    for parameter in network.parameters():
        remembered = optimizer.state.get(parameter)
        if not remembered:
            continue
        if AVERAGE in remembered:
            remembered[AVERAGE].lerp_(parameter, fresh)
        else:
            remembered[AVERAGE] = parameter.detach().clone()


@torch.no_grad()
def take_averages(optimizer: Optimizer, network: nn.Module) -> None:
    """Put the averages in the place of the weights."""
    for parameter in network.parameters():
        remembered = optimizer.state.get(parameter, {})
        if AVERAGE in remembered:
            parameter.copy_(remembered[AVERAGE])


def forget_averages(optimizer: Optimizer) -> None:
    """Begin anew: weights that were trained in another way must not be drawn back."""
    for remembered in optimizer.state.values():
        remembered.pop(AVERAGE, None)


@torch.no_grad()
def rescale(optimizer: Optimizer, parameter: Tensor, factors: Tensor) -> None:
    """Multiply weights, and their average with them."""
    parameter.mul_(factors)
    average = optimizer.state.get(parameter, {}).get(AVERAGE)
    if average is not None:
        average.mul_(factors)
