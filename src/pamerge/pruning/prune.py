"""``prune``: remove what no task needs, task by task, within an accuracy budget."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pamerge.errors import PamergeError, PamergeWarning
from pamerge.network.network import MultitaskNetwork
from pamerge.pruning.loop import Loop
from pamerge.pruning.parts import chosen_tasks
from pamerge.pruning.path import PruningPath
from pamerge.pruning.protocol import Pruner, Remove
from pamerge.pruning.ranking import resolve_mix
from pamerge.pruning.run_state import Ingredients
from pamerge.pruning.settings import Settings, check_arguments, identity_of
from pamerge.training.checkpoint import fingerprint
from pamerge.training.data import Batches
from pamerge.training.evaluation import prober, runner
from pamerge.training.finetune import frozen, look_at, seeded, teacher_shares
from pamerge.training.optimizer import OptimizerFactory
from pamerge.training.processes import resolve_fabric, shard, share_weights
from pamerge.training.progress import Display, Log
from pamerge.training.protocol import Objective
from pamerge.training.run_state import STARTING_WEIGHTS
from pamerge.training.steps import Distillation

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def prune(
    network: MultitaskNetwork,
    train: Iterable[Any],
    validation: Iterable[Any],
    objectives: Mapping[str, Objective],
    *,
    pruner: Pruner,
    tasks: Iterable[str] | str | None = None,
    max_drop: float | None = None,
    reference: Mapping[str, float] | None = None,
    mix: Mapping[Any, float] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    target: float | None = None,
    fraction: float = 0.05,
    rounds: int = 1,
    together: bool = True,
    steps: int = 20,
    recovery: int = 100,
    final: int = 200,
    patience: int = 2,
    laps: int | None = None,
    effort: int | None = None,
    remove: Remove = "task",
    per_flop: bool = True,
    round_to: int = 1,
    teachers: Mapping[str, nn.Module] | None = None,
    distill: float = 0.0,
    lr: float = 5e-4,
    optimizer: OptimizerFactory | None = None,
    freeze_batch_norm: bool = False,
    fabric: Fabric | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> PruningPath:
    """Prune a multitask network in place; tensors shrink, the rest of the run gets faster.

    In a lap every task has its turn (A → B → C): some training steps on all tasks, then the least important neurons of
    that task's subgraph are removed; and again, if that saved next to nothing. After a lap the validation metrics
    are compared with the budget. A network that is over it is trained a little more and judged again; if it is still
    over, everything goes back to the last good point, and the tasks that were over go on in steps of half the size,
    until they have failed too often. The less a task has left of its budget, the more it counts in training where
    neurons are shared. The others go on, sparing what finished tasks need. After a lap that failed, each
    task goes on alone for as long as that goes well: only what no other task needs is trained and removed. Tasks that
    have more to themselves than they share begin so, and have a lap together when none can go on. A lap that
    went well is followed by a larger one. If all have failed too often and there is effort left, the
    network is trained, and they begin again. A network that is over its budget at entry, as merges may be, gets up to
    15 times ``recovery`` steps after its first lap, or without any removal if that does not suffice.

    Args:
        network: The network, trained; left in eval mode.
        train: Batches of ``(inputs, targets)``.
        validation: Batches to judge by, with labels of every task that is pruned; never trained on.
        objectives: The loss and metric of each task.
        pruner: ``Taylor()``, ``VIB()``, ``Magnitude()`` or your own; see :class:`~pamerge.pruning.protocol.Pruner`.
        tasks: Prune these alone: only they are trained, judged and pruned. They must share no neurons with the others.
            Tasks that share nothing end smaller one by one, since none of them has to go back when another one fails.
        max_drop: How much of its metric each task may lose, in the metric's own units; 0.01 is one point of accuracy.
        reference: The metric of each task that the drop counts from; by default that of the network at entry. In a
            comparison of merging schemes it is that of the original networks.
        mix: How often each subset of tasks is executed, as in ``{"age": 0.5, "age+gender": 0.5}``; all alike by
            default.
        checkpoint: A file. The same call after a crash goes on from it and ends as if nothing had happened; after the
            end it returns the path at once. A log of JSON lines is written beside it, at ``<checkpoint>.log.jsonl``.
        target: Stop when the expected cost under the mix is at most this many FLOPs.
        fraction: The share of the expected cost, and of each subgraph's neurons (with VIB: all closed gates), that a
            round removes at most. What several tasks share loses no more: their turns take so much less each.
        rounds: How often every task has its turn in the first lap; later laps have fewer rounds after failures and
            long recoveries, and, with a budget, more after laps that went well. Where much can go, some rounds and a
            long ``recovery`` take less effort than many short laps, because what is trained is small by then.
        together: Train all tasks on every batch at once. Otherwise each has batches of its own, one task after the
            other, and those that have the least of their budgets left have more of them. What is shared learns from
            all of them, so that the more is shared, the fewer batches of each task ``steps``, ``recovery`` and
            ``final`` take: as many as give the average neuron so many steps.
        steps: Training steps of a round, divided among the turns of the tasks: before every removal there are some.
        recovery: Training steps, with a falling rate, before a network that is over its budget is judged again.
        final: Training steps at the point that was kept.
        patience: How often a task may be over its budget before its subgraph is left alone, until it has recovered.
        laps: Stop after so many laps.
        effort: Stop before more than this many task-batches (batches used for one task's loss) are used, those of the
            last fine-tuning included.
        remove: ``"neuron"`` removes a neuron from all tasks. ``"task"`` only takes it out of the subgraph whose turn it
            is: the other tasks keep it, but not its connections to neurons that they share with that task.
        per_flop: Rank by importance per operation that a removal saves under the mix, instead of plain importance.
        round_to: Remove neurons of a group in blocks, so that its size becomes a multiple of this, as long as it has
            that many. CPUs compute channels in blocks of 8 or 16, so that other sizes save operations but no time.
            With ``remove="task"``, neurons that only one task leaves may make the group that they join uneven.
        teachers: The original networks, to learn from while pruning.
        distill: From 0 to 1, the teachers' share in the loss.
        lr: The learning rate.
        optimizer: ``optimizer(parameters, lr=lr)``; by default Adam.
        freeze_batch_norm: Keep the statistics of batch norms as they are.
        fabric: Device, precision and processes; by default one process where the network is.
        seed: Seeds the global random states for this call, and puts them back after it.
        progress: Show progress, as a table in a terminal and as plain lines elsewhere.

    Warns:
        PamergeWarning: Nothing could be removed, or the network never was within its budget.

    Raises:
        PamergeError: Something is wrong with the data or the arguments; said before any training starts.
        DivergenceError: A loss is not a number or exploded; the network is at its last good point.
    """
    settings = Settings(
        max_drop,
        target,
        fraction,
        steps,
        recovery,
        final,
        patience,
        laps,
        effort,
        remove,
        per_flop,
        lr,
        freeze_batch_norm,
        round_to,
        rounds,
        together,
    )
    path = None if checkpoint is None else Path(checkpoint)
    teachers = dict(teachers or {})
    check_arguments(network, objectives, settings, pruner, reference, path, distill, teachers)
    shares = resolve_mix(mix, network.tasks)
    chosen = chosen_tasks(network, tasks)
    objectives = {task: objectives[task] for task in network.tasks if task in chosen}
    teachers = {task: teacher for task, teacher in teachers.items() if task in chosen}
    fabric = resolve_fabric(fabric, network)
    network.to(fabric.device)
    share_weights(network, fabric)
    run = runner(network, objectives)
    probe = prober(network, run, objectives, fabric)
    training = Batches(shard(train, fabric), "the training data", objectives, network.tasks, probe)
    judging = Batches(shard(validation, fabric), "the validation data", objectives, network.tasks, probe)
    with frozen(teachers, fabric.device), seeded(seed):
        taught = teacher_shares(objectives, teachers, distill, look_at(training, teachers, probe, fabric).labelled)
        missing = chosen - look_at(judging, {}, probe, fabric).labelled
        if missing:
            raise PamergeError(
                f"The validation data has no labels for task(s) {', '.join(map(repr, sorted(missing)))}; "
                "expected some, to judge them by."
            )
        identity = identity_of(
            settings,
            pruner=pruner,
            optimizer=optimizer or torch.optim.Adam,
            objectives=objectives,
            reference=reference,
            mix=shares,
            distill=taught,
            seed=seed,
            processes=fabric.world_size,
            **{STARTING_WEIGHTS: fingerprint(network.state_dict())},
        )
        ingredients = Ingredients(
            network=network,
            run_network=run,
            train=training,
            validation=judging,
            pruner=pruner,
            optimizer=optimizer,
            distillation=Distillation(teachers, taught),
            reference=reference,
            mix=shares,
            settings=settings,
            fabric=fabric,
            seed=seed or 0,
            identity=identity,
            checkpoint=path,
        )
        names = {task: objective.metric_name for task, objective in objectives.items()}
        main = fabric.is_global_zero
        log = Log(f"{path}.log.jsonl" if path is not None and main else None)
        with Display("pruning", list(objectives), metric_names=names, enabled=progress and main) as display:
            try:
                result = Loop(ingredients, display, log).run()
            finally:
                network.eval()
    nothing = result.flops == result.steps[0].flops and "target was reached" not in result.stopped
    if nothing or not result[result.kept].within:
        problem = "Nothing could be removed" if nothing else "The network is over its budget"
        warnings.warn(
            f"{problem}: {result.stopped}. Allow a larger max_drop, fine-tune the network first, or "
            "train for longer between removals (steps=, recovery=).",
            PamergeWarning,
            stacklevel=2,
        )
    return result
