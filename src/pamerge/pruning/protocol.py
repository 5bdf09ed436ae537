"""What a pruner is: how to bring your own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from pamerge.network.network import MultitaskNetwork
from pamerge.network.program import JunctionHook
from pamerge.pruning.gates import Places
from pamerge.training.data import Batch
from pamerge.training.protocol import Objective

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Scores = dict[str, dict[int, float]]
"""For each junction, a number for each of some neurons."""


@dataclass
class Surroundings:
    """What a pruner may look at.

    Attributes:
        network: the network that is being pruned; its blocks change from round to round.
        objectives: the loss of each task.
        places: where the network's neurons stand in the pruner's arrays; kept up to date by the loop.
        fabric: device, precision and processes.
        generator: for whatever a pruner leaves to chance.
    """

    network: MultitaskNetwork
    objectives: Mapping[str, Objective]
    places: Places
    fabric: Fabric
    generator: torch.Generator


class Session(Protocol):
    """A pruner at work on one network."""

    def hook(self) -> JunctionHook | None:
        """What to do with junctions while the network is trained; None for nothing."""
        ...

    def penalty(self, task: str) -> Tensor | None:
        """What to add to the loss while it is the task's turn; None for nothing."""
        ...

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """What to train along with the network, as parameter groups of a torch optimiser: ``{"params": …, "lr": …}``."""
        ...

    def measure(self, task: str, batches: Iterator[Batch]) -> int:
        """Look at the network at the end of the task's round; returns how many batches were used."""
        ...

    def importance(self, task: str) -> Scores:
        """How much each neuron of the task's subgraph matters; the least important are removed first."""
        ...

    def quota(self, task: str, fraction: float, neurons: int) -> int:
        """How many of ``neurons`` to remove now, when the loop suggests a fraction of them."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint has to keep."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave."""
        ...


class Pruner(Protocol):
    """A way to find unimportant neurons: a frozen description with one method.

    :class:`~pamerge.pruning.magnitude.Magnitude` is the shortest example.
    """

    def start(self, surroundings: Surroundings) -> Session:
        """Begin to prune a network."""
        ...


class QuietSession:
    """The parts of a session that most pruners leave empty; inherit to leave them out."""

    def hook(self) -> JunctionHook | None:
        """Nothing."""
        return None

    def penalty(self, task: str) -> Tensor | None:
        """Nothing."""
        return None

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """Nothing."""
        return ()

    def measure(self, task: str, batches: Iterator[Batch]) -> int:
        """Nothing."""
        return 0

    def quota(self, task: str, fraction: float, neurons: int) -> int:
        """The fraction, but at least one neuron."""
        return min(neurons, max(1, round(fraction * neurons)))

    def tensors(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Nothing."""
