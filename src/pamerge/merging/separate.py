"""Baseline 1: no merging. Every neuron belongs to the task whose network it came from."""

from __future__ import annotations

from dataclasses import dataclass

from pamerge.merging.material import Material
from pamerge.network.network import MultitaskNetwork


@dataclass(frozen=True)
class Separate:
    """Keep the networks apart; they have only the input in common. Needs no labels."""

    def merge(self, material: Material) -> MultitaskNetwork:
        """The networks side by side."""
        return material.side_by_side()
