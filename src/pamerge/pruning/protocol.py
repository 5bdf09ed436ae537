"""What a pruner is: how to bring your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from pamerge.network.network import MultitaskNetwork
from pamerge.network.program import JunctionHook
from pamerge.pruning.gates import Places
from pamerge.training.data import Batch
from pamerge.training.protocol import Objective
from pamerge.training.steps import Distillation

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Scores = dict[str, dict[int, float]]
"""For each junction, a number for each of some neurons."""

Remove = Literal["neuron", "task"]
"""What a task's turn removes: a neuron from all tasks, or the task from the tasks that the neuron serves."""


class Pruner(Protocol):
    """A way to find unimportant neurons: a description with one method, which begins to prune a network.

    What it returns needs only ``importance``; :class:`QuietSession` has the rest. This one removes neurons at random::

        @dataclass(frozen=True)
        class AtRandom:
            def start(self, surroundings):
                return AtRandomSession(surroundings)

        class AtRandomSession(QuietSession):
            def __init__(self, surroundings):
                self.places, self.generator = surroundings.places, surroundings.generator

            def importance(self, task):
                return {
                    junction: {neuron: float(torch.rand((), generator=self.generator)) for neuron in neurons}
                    for junction, neurons in self.places.served(task).items()
                }

        pamerge.prune(network, train, validation, objectives, pruner=AtRandom(), max_drop=0.01)

    :class:`~pamerge.pruning.magnitude.Magnitude` looks at weights, :class:`~pamerge.pruning.taylor.Taylor` at
    batches, and :class:`~pamerge.pruning.vib.VIB` trains gates along with the network.
    """

    def start(self, surroundings: Surroundings) -> Session:
        """Begin to prune a network."""
        ...


@dataclass(frozen=True)
class Surroundings:
    """What a pruner may look at.

    Attributes:
        network: The network that is being pruned; its blocks change from round to round.
        objectives: The loss of each task.
        places: Where the network's neurons stand in the pruner's arrays; kept up to date by the loop.
        fabric: Device, precision and processes.
        generator: For whatever a pruner leaves to chance; the same in all processes, and kept in checkpoints.
        distillation: Who teaches which task.
        remove: What a removal is.
        rescale: Multiply weights of the network in place. Pruners that change weights do it with this, because the loop
            keeps averages of them.
    """

    network: MultitaskNetwork
    objectives: Mapping[str, Objective]
    places: Places
    fabric: Fabric
    generator: torch.Generator
    distillation: Distillation = field(default_factory=Distillation)
    remove: Remove = "neuron"
    rescale: Callable[[Tensor, Tensor], object] = Tensor.mul_


class Session(Protocol):
    """A pruner at work on one network."""

    @property
    def idle_laps(self) -> int:
        """After how many laps of all tasks in a row without any removal there is nothing left to remove.

        More than one lets a lap wait, for up to eight rounds, until there is something to remove.
        """
        ...

    def hook(self) -> JunctionHook | None:
        """What to do with junctions while the network is trained; None for nothing."""
        ...

    def penalty(self, task: str) -> Tensor | None:
        """What to add to the loss while it is the task's turn; None for nothing."""
        ...

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """What to train along with the network, as parameter groups of an optimiser: ``{"params": …, "lr": …}``."""
        ...

    def alone(self, task: str) -> AbstractContextManager[None]:
        """While it lasts, the network is trained for this task alone, and what other tasks need must not change."""
        ...

    def measure(self, task: str, batches: Iterator[Batch]) -> int:
        """Look at the network at the end of the task's round; returns how many batches were used for losses."""
        ...

    def importance(self, task: str) -> Scores:
        """How much each neuron of the task's subgraph matters; the least important are removed first."""
        ...

    def quota(self, task: str, fraction: float, scores: Scores) -> int:
        """How many of the scored neurons to remove now, when the loop suggests a fraction of them."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint has to keep."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave."""
        ...


class QuietSession:
    """The parts of a session that most pruners leave empty; inherit to leave them out."""

    idle_laps = 1

    def hook(self) -> JunctionHook | None:
        """Nothing."""
        return None

    def penalty(self, task: str) -> Tensor | None:
        """Nothing."""
        return None

    def parameters(self) -> Sequence[Mapping[str, Any]]:
        """Nothing."""
        return ()

    def alone(self, task: str) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def measure(self, task: str, batches: Iterator[Batch]) -> int:
        """Nothing."""
        return 0

    def quota(self, task: str, fraction: float, scores: Scores) -> int:
        """The fraction, but at least one neuron."""
        neurons = sum(map(len, scores.values()))
        return min(neurons, max(1, round(fraction * neurons)))

    def tensors(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Nothing."""
