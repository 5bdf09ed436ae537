"""One step of optimisation, which fine-tuning and pruning share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.network.program import JunctionHook
from pamerge.tasks import TaskSet, resolve_tasks
from pamerge.training.data import Batch
from pamerge.training.processes import sum_over_processes, sums_of
from pamerge.training.protocol import Objective

if TYPE_CHECKING:
    from lightning_fabric import Fabric

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Distillation:
    """Who teaches which task, and how much of its loss comes from the teacher.

    The loss of a task is ``(1 − share) · loss from labels + share · loss from the teacher``; where a batch has no
    labels of it, the first part is left out.

    Attributes:
        teachers: A frozen network in eval mode for each task that has one.
        shares: From 0 to 1 for each task; 0 for tasks that are not named.
    """

    teachers: Mapping[str, nn.Module] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)

    def share(self, task: str) -> float:
        """The teacher's share in the loss of a task."""
        return self.shares.get(task, 0.0)

    def teaches(self, task: str) -> bool:
        """Whether a task learns from every batch, with or without labels."""
        return self.share(task) > 0 and task in self.teachers


@dataclass(frozen=True)
class StepResult:
    """What a step did.

    Attributes:
        losses: The loss of each task that took part, over the batches of all processes.
        samples: How many samples all processes used together; 0 if none had a batch.
    """

    losses: Mapping[str, float]
    samples: int


def train_step(
    network: MultitaskNetwork,
    batch: Batch | None,
    objectives: Mapping[str, Objective],
    optimizer: Optimizer,
    *,
    fabric: Fabric,
    tasks: Iterable[str] | str | None = None,
    distillation: Distillation | None = None,
    at_junction: JunctionHook | None = None,
    penalty: Callable[[], Tensor] | None = None,
) -> StepResult:
    """Compute gradients and let the optimiser take a step; see :func:`compute_gradients` for the arguments."""
    optimizer.zero_grad(set_to_none=True)
    result = compute_gradients(
        network,
        batch,
        objectives,
        fabric=fabric,
        tasks=tasks,
        distillation=distillation,
        at_junction=at_junction,
        penalty=penalty,
    )
    if result.losses:
        fabric.strategy.optimizer_step(optimizer)
    return result


def compute_gradients(
    network: MultitaskNetwork,
    batch: Batch | None,
    objectives: Mapping[str, Objective],
    *,
    fabric: Fabric,
    tasks: Iterable[str] | str | None = None,
    distillation: Distillation | None = None,
    at_junction: JunctionHook | None = None,
    penalty: Callable[[], Tensor] | None = None,
    weights: Mapping[str, float] | None = None,
) -> StepResult:
    """Add the gradients of a batch to the parameters, those of shared blocks averaged over the tasks that share them.

    Only the tasks that the batch has labels of (or a teacher for) are run. One backward pass of the summed losses
    gives the sum of the tasks' gradients, which is then divided by the number of tasks in the batch that need the
    block, or by the sum of their weights. Under several processes the gradients are those of the combined batch.

    Args:
        network: The network, in training mode.
        batch: This process's batch; None if it has run out of data while others go on.
        objectives: The loss of each task.
        fabric: Device, precision and processes.
        tasks: Train only these.
        distillation: Teachers.
        at_junction: A hook for gates; see :meth:`MultitaskNetwork.forward`. Gates' gradients are *not* averaged over
            tasks, nor over processes.
        penalty: Called after the forward pass; added to the loss. For parameters of a hook.
        weights: How much each task counts where it shares neurons, compared with the others; alike by default.
    """
    distillation = distillation or Distillation()
    plan = _plan(network, batch, tasks, distillation, fabric)
    ordered = [task for task in network.tasks if task in plan.active]
    shares = _with_mean_one({task: (weights or {}).get(task, 1.0) for task in ordered})
    values: dict[str, Tensor] = {}
    if batch is not None and plan.local:
        values = _losses(network, batch.to(fabric.device), objectives, plan, distillation, fabric, at_junction)
    total = sum(shares[task] * value for task, value in values.items()) if values else None
    if penalty is not None and plan.active:
        total = penalty() / fabric.world_size + (total if total is not None else 0.0)
    if isinstance(total, Tensor):
        fabric.backward(total)
    if not plan.active:
        return StepResult({}, plan.samples)
    average_gradients(network, shares, fabric)
    numbers = torch.stack([value.detach().double() for value in values.values()]).tolist() if values else []
    local = dict(zip(values, numbers, strict=True))
    sums = sums_of([local.get(task, 0.0) for task in ordered], fabric)
    return StepResult(dict(zip(ordered, sums, strict=True)), plan.samples)


def _with_mean_one(weights: Mapping[str, float]) -> dict[str, float]:
    """The same proportions; what is not averaged afterwards, such as gates, keeps its scale beside a penalty."""
    mean = sum(weights.values()) / max(1, len(weights))
    return {task: weight / mean for task, weight in weights.items()}


def average_gradients(network: MultitaskNetwork, weights: Mapping[str, float], fabric: Fabric) -> None:
    """Turn weighted sums of gradients into averages over the tasks that need a block, summed over the processes.

    Args:
        network: The network, with gradients of ``Σ weight · loss``.
        weights: The weight of each task that took part.
        fabric: The processes.
    """
    by_weight: dict[float, list[Tensor]] = {}
    for key, layout in network.layouts.items():
        whole = sum(weight for task, weight in weights.items() if task in layout.group)
        if not whole:
            continue
        for parameter in network.blocks[key].parameters():
            if parameter.grad is None:
                if fabric.world_size == 1 or not parameter.requires_grad:
                    continue
                parameter.grad = torch.zeros_like(parameter)  # other processes ran tasks that this one did not
            by_weight.setdefault(whole, []).append(parameter.grad)
    sum_over_processes([gradient for gradients in by_weight.values() for gradient in gradients], fabric)
    for whole, gradients in by_weight.items():
        if whole != 1:
            torch._foreach_div_(gradients, whole)


def set_training_mode(network: nn.Module, freeze_batch_norm: bool = False) -> None:
    """Training mode, optionally with batch norms that use their statistics and leave them as they are."""
    network.train()
    if freeze_batch_norm:
        for module in network.modules():
            if isinstance(module, NORMS):
                module.eval()


@dataclass(frozen=True)
class _Plan:
    """Which tasks a step trains, here and in all processes, and the weights that make all losses one mean."""

    local: TaskSet
    active: TaskSet
    samples: int
    label_weights: Mapping[str, float]
    teacher_weights: Mapping[str, float]


def _plan(
    network: MultitaskNetwork,
    batch: Batch | None,
    tasks: Iterable[str] | str | None,
    distillation: Distillation,
    fabric: Fabric,
) -> _Plan:
    chosen = [task for task in network.tasks if task in resolve_tasks(tasks, network.tasks)]
    size = len(batch.inputs) if batch is not None else 0
    counts = batch.counts if batch is not None else {}
    labels = [counts.get(task, 0) if distillation.share(task) < 1 else 0 for task in chosen]
    taught = [size if distillation.teaches(task) else 0 for task in chosen]
    samples, *sums = sums_of([size, *labels, *taught], fabric)
    all_labels, all_taught = sums[: len(chosen)], sums[len(chosen) :]
    label_weights, teacher_weights = {}, {}
    for task, here, everywhere in zip(chosen, labels, all_labels, strict=True):
        if here:
            label_weights[task] = (1 - distillation.share(task)) * here / everywhere
    for task, here, everywhere in zip(chosen, taught, all_taught, strict=True):
        if here:
            teacher_weights[task] = distillation.share(task) * here / everywhere
    active = TaskSet(t for t, a, b in zip(chosen, all_labels, all_taught, strict=True) if a or b)
    return _Plan(TaskSet({*label_weights, *teacher_weights}), active, int(samples), label_weights, teacher_weights)


def _losses(
    network: MultitaskNetwork,
    batch: Batch,
    objectives: Mapping[str, Objective],
    plan: _Plan,
    distillation: Distillation,
    fabric: Fabric,
    at_junction: JunctionHook | None,
) -> dict[str, Tensor]:
    with fabric.autocast():
        outputs = network(batch.inputs, plan.local, at_junction=at_junction)
        with torch.no_grad():
            lessons = {task: distillation.teachers[task](batch.inputs) for task in plan.teacher_weights}
    losses: dict[str, Tensor] = {}
    for task in [task for task in network.tasks if task in plan.local]:  # sums must not depend on the order of a set
        parts, output = [], in_full_precision(outputs[task])
        if task in plan.label_weights:
            loss = objectives[task].loss(batch.matching(output, task), batch.targets[task])
            parts.append(plan.label_weights[task] * _scalar(loss, task))
        if task in plan.teacher_weights:
            loss = objectives[task].distillation(output, in_full_precision(lessons[task]))
            parts.append(plan.teacher_weights[task] * _scalar(loss, task))
        losses[task] = sum(parts[1:], start=parts[0])
    return losses


def in_full_precision(outputs: Tensor) -> Tensor:
    """Outputs of mixed precision as ordinary floats: losses and metrics need the digits."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def _scalar(loss: Tensor, task: str) -> Tensor:
    if not isinstance(loss, Tensor) or loss.dim():
        shown = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise PamergeError(f"Task {task!r}: the loss is {shown}; expected a scalar tensor, the mean over the batch.")
    return loss
