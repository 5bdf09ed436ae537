"""Teachers whose outputs are known beforehand, for data that comes up unchanged in every epoch."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from pamerge.errors import PamergeError
from pamerge.training.evaluation import in_eval_mode


class Remembered(nn.Module):
    """A frozen network that looks up its outputs for the inputs of some batches, and computes those for all others.

    A teacher sees the same images in every epoch; to run it each time takes as long as to train a small student. All
    outputs are computed here and at once, so that they do not depend on which of them are asked for, or when.

    Args:
        network: The network; it is used in eval mode and not changed.
        batches: Batches, of which the inputs are ``batch`` or ``batch[0]``.
    """

    outputs: Tensor

    def __init__(self, network: nn.Module, batches: Iterable[Any]) -> None:
        super().__init__()
        self.network = network
        self._rows: dict[bytes, int] = {}
        known: list[Tensor] = []
        count = 0
        with in_eval_mode(network), torch.no_grad():
            for batch in batches:
                inputs = batch if isinstance(batch, Tensor) else batch[0]
                known.append(network(inputs))
                self._rows |= {key: count + row for row, key in enumerate(_keys(inputs))}
                count += len(inputs)
        if not known:
            raise PamergeError("There are no batches to remember outputs for.")
        self.register_buffer("outputs", torch.cat(known), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """The network's outputs."""
        rows = [self._rows.get(key) for key in _keys(inputs)]
        found: Tensor = self.network(inputs) if None in rows else self.outputs[rows]
        return found


def _keys(inputs: Tensor) -> list[bytes]:
    """For each row of inputs something that only the same row has."""
    rows = inputs.detach().cpu().contiguous().flatten(1).view(torch.uint8).numpy()
    return [blake2b(row, digest_size=16).digest() for row in rows]
