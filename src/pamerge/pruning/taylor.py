"""P2: the squared first-order effect of removing a neuron on a task's loss (Molchanov et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.pruning.gates import gate_hook
from pamerge.pruning.protocol import QuietSession, Scores, Session, Surroundings
from pamerge.pruning.ranking import Shared, check_shared, combine
from pamerge.training.data import Batch
from pamerge.training.evaluation import in_eval_mode
from pamerge.training.processes import sum_over_processes


@dataclass(frozen=True)
class Taylor:
    """Importance = (gate · ∂L/∂gate)², with L the mean loss of one task over a batch and all gates at one.

    Averaged over the batches of a round, with a moving average across rounds.

    Attributes:
        batches: how many batches to look at in a round.
        momentum: how much of the earlier rounds' score stays.
        shared: how a neuron that several tasks share is ranked; see :data:`~pamerge.pruning.ranking.Shared`.
    """

    batches: int = 10
    momentum: float = 0.9
    shared: Shared = "sum"

    def start(self, surroundings: Surroundings) -> Session:
        """Begin to prune a network."""
        if self.batches < 1:
            raise PamergeError(f"batches={self.batches!r}; expected at least 1.")
        if not 0 <= self.momentum < 1:
            raise PamergeError(f"momentum={self.momentum!r}; expected a number from 0 to below 1.")
        check_shared(self.shared)
        return _TaylorSession(self, surroundings)


class _TaylorSession(QuietSession):
    def __init__(self, settings: Taylor, surroundings: Surroundings) -> None:
        self.settings = settings
        self.around = surroundings
        self.scores: dict[str, dict[str, Tensor]] = {}

    def measure(self, task: str, batches: Iterator[Batch]) -> int:
        """The task's gradients at the gates, over some batches."""
        totals = self.around.places.new_arrays(torch.zeros)
        used = 0
        with in_eval_mode(self.around.network):
            for _ in range(self.settings.batches):
                batch = next(batches)
                if task not in batch.labelled:
                    continue
                for junction, gradient in gate_gradients(self.around, task, batch).items():
                    totals[junction] += gradient.square()
                used += 1
        if used:
            momentum = self.settings.momentum if task in self.scores else 0.0
            old = self.scores.get(task, totals)
            self.scores[task] = {
                name: momentum * old[name] + (1 - momentum) * total / used for name, total in totals.items()
            }
        return used

    def importance(self, task: str) -> Scores:
        """The squared effect on the task's loss, with the other tasks' where the neuron is shared."""
        places = self.around.places
        found: dict[str, Scores] = {}
        for other, arrays in self.scores.items():
            lists = {name: array.tolist() for name, array in arrays.items()}
            found[other] = {
                name: dict(zip(neurons, (lists[name][i] for i in places.positions(name, neurons)), strict=True))
                for name, neurons in places.served(other).items()
            }
        return combine(found, task, places.sets, self.settings.shared) if task in found else {}

    def tensors(self) -> dict[str, Tensor]:
        """The moving averages."""
        return {f"{task}/{name}": array for task, arrays in self.scores.items() for name, array in arrays.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the moving averages."""
        self.scores = {}
        for key, array in tensors.items():
            task, _, name = key.partition("/")
            self.scores.setdefault(task, {})[name] = array.to(self.around.places.device).clone()


def gate_gradients(around: Surroundings, task: str, batch: Batch) -> dict[str, Tensor]:
    """∂L/∂gate of every neuron of a task's subgraph, for the batch's mean loss; zero for all others.

    With several processes the gradients are averaged before anyone squares them, so that scores are those of the
    combined batch.
    """
    gates = around.places.new_arrays(lambda count: torch.ones(count))
    for gate in gates.values():
        gate.requires_grad_(True)
    batch = batch.to(around.fabric.device)
    with torch.enable_grad(), around.fabric.autocast():
        outputs = around.network(batch.inputs, {task}, at_junction=gate_hook(around.places, gates))
        loss = around.objectives[task].loss(batch.matching(outputs[task], task), batch.targets[task])
    names = list(gates)
    gradients = torch.autograd.grad(loss, [gates[name] for name in names], allow_unused=True)
    found = {
        name: torch.zeros_like(gates[name]) if gradient is None else gradient.detach()
        for name, gradient in zip(names, gradients, strict=True)
    }
    sum_over_processes(list(found.values()), around.fabric)
    return {name: gradient / around.fabric.world_size for name, gradient in found.items()}
