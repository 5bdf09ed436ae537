"""What all networks of the zoo share: checks of their parameters and the initialisation of their weights."""

from __future__ import annotations

import math

import torch
from torch import nn

from pamerge.errors import PamergeError


def check_count(name: str, value: object) -> int:
    """``value`` if it can be a number of channels or outputs."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PamergeError(f"{name} must be an integer of at least 1, got {value!r}.")
    return value


def check_width(width: object) -> float:
    """``width`` if it can multiply a number of channels."""
    if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width < math.inf:
        raise PamergeError(f"width must be a positive number that scales the channels, such as 0.25, got {width!r}.")
    return float(width)


def check_input_size(input_size: object, halvings: int) -> tuple[int, int, int]:
    """``input_size`` if it is (channels, height, width) and leaves a pixel after ``halvings`` poolings."""
    smallest = 2**halvings
    if not isinstance(input_size, tuple | list) or len(input_size) != 3:
        raise PamergeError(f"input_size must be (channels, height, width), got {input_size!r}.")
    channels, height, width = (check_count("input_size: each entry", entry) for entry in input_size)
    if min(height, width) < smallest:
        raise PamergeError(
            f"input_size {tuple(input_size)} is too small: the network halves the image {halvings} times, "
            f"so height and width must be at least {smallest}."
        )
    return channels, height, width


def scaled(channels: int, width: float) -> int:
    """The number of channels at a width factor; at least one is left."""
    return max(1, round(channels * width))


def initialise(module: nn.Module, output: nn.Linear, generator: torch.Generator | None) -> None:
    """Initialise weights after He et al. 2015, so that a deep plain network trains from scratch.

    Biases are zero. ``output`` is followed by no ReLU and therefore gets half of the variance.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(
                layer.weight, nonlinearity="linear" if layer is output else "relu", generator=generator
            )
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
