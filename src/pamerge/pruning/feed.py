"""Training batches without end, from which a killed run can go on exactly where it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pamerge.errors import PamergeError
from pamerge.training.data import Batch, Batches
from pamerge.training.processes import start_epoch
from pamerge.training.random_state import RandomState, capture_random_state, restore_random_state

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Feed:
    """Goes through the training data again and again.

    Attributes:
        epoch: passes completed.
        used: batches used of this pass.
        epoch_start: the random states at its start; with them the order of its batches can be drawn again.
    """

    def __init__(self, batches: Batches, fabric: Fabric) -> None:
        self.batches = batches
        self.fabric = fabric
        self.epoch = self.used = 0
        self.epoch_start: RandomState | None = None
        self._iterator: Iterator[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._start()
        assert self._iterator is not None
        batch = next(self._iterator, None)
        if batch is None:
            if not self.used:
                raise PamergeError("The training data gave no batches; expected data that can be read again and again.")
            self.epoch, self.used = self.epoch + 1, 0
            self._start()
            batch = next(self._iterator)
        self.used += 1
        return batch

    def _start(self) -> None:
        self.epoch_start = capture_random_state(self.batches.data, fabric=self.fabric)
        start_epoch(self.batches.data, self.epoch)
        self._iterator = iter(self.batches)

    def go_on(self, epoch: int, used: int, epoch_start: RandomState | None, now: RandomState) -> None:
        """Take over the position of a run that was killed."""
        self.epoch = epoch
        if epoch_start is not None:
            restore_random_state(epoch_start, self.batches.data, fabric=self.fabric)
            self._start()
            for _ in range(used):
                next(self)
        self.used = used
        restore_random_state(now, fabric=self.fabric)
