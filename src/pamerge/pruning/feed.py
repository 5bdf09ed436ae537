"""Training batches without end, from which a killed run can go on exactly where it was."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import torch

from pamerge.errors import PamergeError
from pamerge.training.data import Batch, Batches
from pamerge.training.processes import start_epoch, sums_of
from pamerge.training.random_state import RandomState, capture_random_state, restore_random_state

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Feed:
    """Goes through the training data again and again.

    Several processes go together: when one has come to the end of its share, all of them begin again.

    Attributes:
        epoch: Passes completed.
        used: Batches used of this pass.
        epoch_start: The random states at its start; with them the order of its batches can be drawn again.
    """

    def __init__(self, batches: Batches, fabric: Fabric) -> None:
        self.batches = batches
        self.fabric = fabric
        self.epoch = self.used = 0
        self.epoch_start: RandomState | None = None
        self._iterator: Iterator[Batch] = iter(())

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._iterator, None)
        if self._anyone_lacks(batch):
            if self.epoch_start is not None:
                self.epoch, self.used = self.epoch + 1, 0
            self._start()
            batch = next(self._iterator, None)
            if self._anyone_lacks(batch):
                raise PamergeError(
                    f"{self.batches.name[:1].upper()}{self.batches.name[1:]} gave no batches in pass "
                    f"{self.epoch + 1}; expected data that can be read again and again, such as a DataLoader."
                )
        assert batch is not None
        self.used += 1
        return batch

    def go_on(self, epoch: int, used: int, epoch_start: RandomState | None) -> None:
        """Take over the position of a run that was killed; the random states are to be restored after this."""
        self.epoch = epoch
        if epoch_start is not None:
            restore_random_state(epoch_start, self.batches.data, fabric=self.fabric)
            self._start()
            for _ in range(used):
                next(self._iterator)
        self.used = used

    def _start(self) -> None:
        """Draw the order of a pass: alike in all processes, since each takes its share of the same order."""
        data, several = self.batches.data, self.fabric.world_size > 1
        if several:
            restore_random_state(self.fabric.broadcast(capture_random_state(data)), data)
        self.epoch_start = capture_random_state(data, fabric=self.fabric)
        start_epoch(data, self.epoch)
        batches = iter(self.batches)
        first = next(batches, None)  # loaders draw the order when they are asked for the first batch
        self._iterator = batches if first is None else chain([first], batches)
        if several:  # dropout and noise must not be alike
            seed = int(torch.randint(2**62, ()))
            if self.fabric.global_rank:
                torch.manual_seed(seed + self.fabric.global_rank)

    def _anyone_lacks(self, batch: Batch | None) -> bool:
        return bool(sums_of([float(batch is None)], self.fabric)[0])
