"""P2: the squared first-order effect of removing a neuron on a task's loss (Molchanov et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.pruning.gates import Reader, gate_hook
from pamerge.pruning.protocol import QuietSession, Scores, Session, Surroundings
from pamerge.pruning.ranking import Shared, balanced, check_shared, combine
from pamerge.training.data import Batch
from pamerge.training.evaluation import in_eval_mode
from pamerge.training.processes import sum_over_processes, sums_of
from pamerge.training.steps import in_full_precision

_ALL = ""
"""Stands for a neuron as a whole, where the name of a task stands for what that task's turn would cut."""

_MOST_READ = 50
"""Give up when this many batches for each one that is wanted had no labels of the task."""


@dataclass(frozen=True)
class Taylor:
    """Importance = (gate · ∂L/∂gate)², with L the mean loss of one task over a batch and all gates at one.

    Averaged over the batches of a round, with a moving average across rounds.

    Where only the task whose turn it is leaves a neuron (``remove="task"``), the other tasks lose the connections from
    the neuron to outputs that they share with that task. What these carry is ``Σ w · ∂L/∂w`` over their weights: the
    sum over all connections of a neuron is exactly ``∂L/∂gate``, so both are in the same unit.

    Attributes:
        batches: How many batches to look at in a round.
        momentum: How much of the earlier rounds' score stays.
        shared: How what the other tasks lose counts; see :data:`~pamerge.pruning.ranking.Shared`.
        balance: How far a neuron is compared with those of its own layer: a score is divided by this power of its
            layer's mean. 0 compares all neurons of a network, 1 those of a layer only. The few filters of a narrow
            first layer look indispensable to a first-order estimate, all of them, though training could do with less.
    """

    batches: int = 10
    momentum: float = 0.9
    shared: Shared = "sum"
    balance: float = 0.0

    def start(self, surroundings: Surroundings) -> Session:
        """Begin to prune a network."""
        if not isinstance(self.batches, int) or self.batches < 1:
            raise PamergeError(f"batches={self.batches!r}; expected a whole number from 1.")
        if not 0 <= self.momentum < 1:
            raise PamergeError(f"momentum={self.momentum!r}; expected a number from 0 to below 1.")
        if not 0 <= self.balance <= 1:
            raise PamergeError(f"balance={self.balance!r}; expected a number from 0 to 1.")
        check_shared(self.shared)
        return _TaylorSession(self, surroundings)


class _TaylorSession(QuietSession):
    def __init__(self, settings: Taylor, surroundings: Surroundings) -> None:
        self.settings = settings
        self.around = surroundings
        # for each task and what is removed (a neuron as a whole, or some task from it), what the task loses
        self.scores: dict[str, dict[str, dict[str, Tensor]]] = {}

    def measure(self, task: str, batches: Iterator[Batch]) -> int:
        """What the task loses; at first also what those lose that share neurons with it and had no turn yet."""
        others = [other for other in self._sharing(task) if other not in self.scores]
        return sum(self._measure(name, batches) for name in [task, *others])

    def _sharing(self, task: str) -> list[str]:
        """The other tasks that have a say in what the task's turn removes."""
        if self.settings.shared == "own":
            return []
        sets = {tasks for found in self.around.places.sets.values() for tasks in found.values() if task in tasks}
        return [name for name in self.around.network.tasks if name != task and any(name in found for found in sets)]

    def _measure(self, task: str, batches: Iterator[Batch]) -> int:
        removers = self.around.network.tasks if self.around.remove == "task" and self.settings.shared != "own" else ()
        totals: dict[str, dict[str, Tensor]] = {}
        used = 0
        with in_eval_mode(self.around.network):
            for _ in range(_MOST_READ * self.settings.batches):
                found = gate_gradients(self.around, task, next(batches), [name for name in removers if name != task])
                for removed, gradients in found.items():
                    arrays = totals.setdefault(removed, self.around.places.new_arrays(torch.zeros))
                    for junction, gradient in gradients.items():
                        arrays[junction] += gradient.square()
                used += bool(found)
                if used == self.settings.batches:
                    break
        if used:
            old = self.scores.get(task, {})
            self.scores[task] = {removed: self._averaged(old.get(removed), totals[removed], used) for removed in totals}
        return used

    def _averaged(self, old: Mapping[str, Tensor] | None, totals: Mapping[str, Tensor], used: int) -> dict[str, Tensor]:
        if old is None:
            return {name: total / used for name, total in totals.items()}
        momentum = self.settings.momentum
        return {name: momentum * old[name] + (1 - momentum) * total / used for name, total in totals.items()}

    def importance(self, task: str) -> Scores:
        """The squared effect of a removal on the task's loss, and on those of the tasks that share the neuron."""
        if task not in self.scores:
            return {}
        removed = task if self.around.remove == "task" else _ALL
        lost = {task: self.scores[task][_ALL]}
        lost |= {name: self.scores[name][removed] for name in self._sharing(task) if name in self.scores}
        units = {name: self._unit(name) for name in lost}
        scores = combine(lost, units, task, self.around.places, self.settings.shared)
        return balanced(self.around.places.by_neuron(task, scores), self.settings.balance)

    def _unit(self, task: str) -> float:
        """The mean score of the task's subgraph, so that tasks with losses of different sizes count alike."""
        places, arrays = self.around.places, self.scores[task][_ALL]
        values = torch.cat([arrays[name][index] for name, index in places.served_index(task).items()])
        return max(float(values.mean()), 1e-30)

    def tensors(self) -> dict[str, Tensor]:
        """The moving averages."""
        return {
            f"{task}/{removed}/{name}": array
            for task, kinds in self.scores.items()
            for removed, arrays in kinds.items()
            for name, array in arrays.items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the moving averages."""
        self.scores = {}
        for key, array in tensors.items():
            task, removed, name = key.split("/", 2)
            arrays = self.scores.setdefault(task, {}).setdefault(removed, {})
            arrays[name] = array.to(self.around.places.device).clone()


def gate_gradients(
    around: Surroundings, task: str, batch: Batch, removers: Iterable[str] = ()
) -> dict[str, dict[str, Tensor]]:
    """∂L/∂gate of every neuron of a task's subgraph, for the batch's mean loss; zero for all others.

    With several processes the gradients are averaged before anyone squares them, so that scores are those of the
    combined batch. Scores need digits, so mixed precision is not used.

    Args:
        around: The network and its tasks.
        task: Whose loss it is.
        batch: This process's batch.
        removers: Other tasks; for each of them also that part of ∂L/∂gate that comes through outputs which the task
            shares with it.

    Returns:
        The gradients under ``""`` and those parts under the names of the tasks, by junction. Nothing if the batch has
        no labels of the task (and the task no teacher) in any process.
    """
    places = around.places
    gates = {name: gate.requires_grad_(True) for name, gate in places.new_arrays(torch.ones).items()}
    readers = [
        reader for reader in (places.readers(around.network) if removers else ())
        if task in reader.layout.group and any(name in reader.layout.group for name in removers)
    ]  # fmt: skip
    frozen = [reader.weight for reader in readers if not reader.weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        with torch.enable_grad():
            loss, anyone = _loss(around, task, batch.to(around.fabric.device), gates)
            wanted = [*gates.values(), *(reader.weight for reader in readers)]
            if loss is None:
                gradients: tuple[Tensor | None, ...] = (None,) * len(wanted)
            else:
                gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
    if not anyone:
        return {}
    whole = zip(gates.items(), gradients, strict=False)
    found = {_ALL: {n: torch.zeros_like(gate) if grad is None else grad for (n, gate), grad in whole}}
    for name in removers:
        found[name] = _through(readers, gradients[len(gates) :], name, places.new_arrays(torch.zeros))
    sum_over_processes([gradient for kind in found.values() for gradient in kind.values()], around.fabric)
    return found


def _loss(around: Surroundings, task: str, batch: Batch, gates: Mapping[str, Tensor]) -> tuple[Tensor | None, bool]:
    """This process's part of the loss that the task is trained with, and whether any process has one."""
    share = around.distillation.share(task) if task in around.distillation.teachers else 0.0
    labels, taught = batch.counts.get(task, 0) if share < 1 else 0, len(batch.inputs) if share > 0 else 0
    all_labels, all_taught = sums_of([labels, taught], around.fabric)
    if not labels and not taught:
        return None, bool(all_labels or all_taught)
    outputs = around.network(batch.inputs, {task}, at_junction=gate_hook(around.places, gates))
    output = in_full_precision(outputs[task])
    loss, objective = output.new_zeros(()), around.objectives[task]
    if labels:
        own = objective.loss(batch.matching(output, task), batch.targets[task])
        loss = loss + (1 - share) * labels / all_labels * own
    if taught:
        with torch.no_grad():
            lesson = around.distillation.teachers[task](batch.inputs)
        loss = loss + share * taught / all_taught * objective.distillation(output, in_full_precision(lesson))
    return loss, True


@torch.no_grad()
def _through(
    readers: Iterable[Reader], gradients: Iterable[Tensor | None], remover: str, arrays: dict[str, Tensor]
) -> dict[str, Tensor]:
    """∂L/∂gate as far as it comes through outputs that ``remover`` needs, too: Σ w · ∂L/∂w over their weights."""
    for reader, gradient in zip(readers, gradients, strict=True):
        if gradient is not None and remover in reader.layout.group:
            arrays[reader.junction][reader.index] += reader.by_neuron(reader.weight * gradient).sum(1)
    return arrays
