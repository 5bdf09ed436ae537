"""``prune``: remove what no task needs, task by task, within an accuracy budget."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from pamerge.errors import PamergeError, PamergeWarning
from pamerge.network.network import MultitaskNetwork
from pamerge.pruning.loop import Ingredients, Loop, Settings
from pamerge.pruning.path import PruningPath
from pamerge.pruning.protocol import Pruner
from pamerge.pruning.ranking import resolve_mix
from pamerge.training.checkpoint import fingerprint
from pamerge.training.data import Batches, survey
from pamerge.training.evaluation import prober, runner
from pamerge.training.finetune import frozen, modes_kept, seeded, teacher_shares
from pamerge.training.optimizer import OptimizerFactory
from pamerge.training.processes import resolve_fabric, shard, share_weights
from pamerge.training.progress import Display, Log
from pamerge.training.protocol import Objective, check_objectives
from pamerge.training.random_state import unchanged_random_state
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
    max_drop: float | None = None,
    reference: Mapping[str, float] | None = None,
    mix: Mapping[Any, float] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    target: float | None = None,
    fraction: float = 0.03,
    steps: int = 20,
    recovery: int = 60,
    final: int = 200,
    patience: int = 2,
    laps: int | None = None,
    remove: Literal["neuron", "task"] = "neuron",
    per_flop: bool = False,
    teachers: Mapping[str, nn.Module] | None = None,
    distill: float = 0.0,
    lr: float = 5e-4,
    optimizer: OptimizerFactory = torch.optim.Adam,
    freeze_batch_norm: bool = False,
    fabric: Fabric | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> PruningPath:
    """Prune a multitask network in place; tensors shrink, the rest of the run gets faster.

    In a lap every task has its turn (A → B → C): some training steps on all tasks, then the least important neurons of that task's
    subgraph are removed. After a lap the validation metrics are compared with the budget. A network that is over it is trained a
    little more and judged again; if it is still over, everything goes back to the last good point, and the tasks that were over
    go on in steps of half the size, until they have failed too often. The others go on, sparing what finished tasks need.

    Args:
        network: the network, trained; left in eval mode.
        train: batches of ``(inputs, targets)``.
        validation: batches to judge by, with labels of every task; never trained on.
        objectives: the loss and metric of each task.
        pruner: ``Taylor()``, ``VIB()``, ``Magnitude()`` or your own.
        max_drop: how much of its metric each task may lose, in the metric's own units; 0.01 is one point of accuracy.
        reference: the metric of each task that the drop counts from; by default that of the network at entry. In a comparison of
            merging schemes it is that of the original networks.
        mix: how often each subset of tasks is executed, as in ``{"age": 0.5, "age+gender": 0.5}``; all alike by default.
        checkpoint: a file. The same call after a crash goes on from it and ends as if nothing had happened. A log of JSON lines
            is written beside it.
        target: stop when the expected cost under the mix is at most this many FLOPs.
        fraction: the share of a subgraph's neurons that its turn removes.
        steps: training steps before every removal.
        recovery: training steps before a network that is over its budget is judged again.
        final: training steps at the point that was kept.
        patience: how often a task may be over its budget before its subgraph is left alone.
        laps: stop after so many laps.
        remove: ``"neuron"`` removes a neuron from all tasks, ``"task"`` only takes it out of the subgraph whose turn it is.
        per_flop: rank by importance per operation freed instead of plain importance.
        teachers: the original networks, to learn from while pruning.
        distill: from 0 to 1, the teachers' share in the loss.
        lr: learning rate.
        optimizer: ``optimizer(parameters, lr=lr)``.
        freeze_batch_norm: keep the statistics of batch norms as they are.
        fabric: device, precision and processes; one process where the network is by default.
        seed: seeds the global random states for this call, and puts them back after it.
        progress: show progress.

    Raises:
        PamergeError: something is wrong with the data or the arguments; said before any training starts.
        DivergenceError: a loss is not a number or exploded.
    """
    settings = Settings(
        max_drop, target, fraction, steps, recovery, final, patience, laps, remove, per_flop, lr, freeze_batch_norm
    )
    _check(network, objectives, settings, reference, checkpoint)
    shares = resolve_mix(mix, network.tasks)
    teachers = dict(teachers or {})
    fabric = resolve_fabric(fabric, network)
    network.to(fabric.device)
    share_weights(network, fabric)
    run = runner(network, objectives)
    probe = prober(network, run, objectives, fabric)
    training = Batches(shard(train, fabric), "the training data", objectives, network.tasks, probe)
    judging = Batches(shard(validation, fabric), "the validation data", objectives, network.tasks, probe)
    path = None if checkpoint is None else Path(checkpoint)
    with modes_kept(network), frozen(teachers, fabric.device), seeded(seed):
        with unchanged_random_state(training.data, judging.data):
            found = survey(training)
            missing = set(network.tasks) - set(survey(judging).labelled)
        if missing:
            raise PamergeError(
                f"The validation data has no labels for task(s) {', '.join(map(repr, sorted(missing)))}."
            )
        identity = {
            **{name: value for name, value in vars(settings).items()},
            "pruner": repr(pruner),
            "reference": dict(reference or {}),
            "mix": {str(tasks): share for tasks, share in shares.items()},
            "distill": distill,
            "seed": seed,
            "processes": fabric.world_size,
            STARTING_WEIGHTS: fingerprint(network.state_dict()),
        }
        ingredients = Ingredients(
            network=network,
            run_network=run,
            train=training,
            validation=judging,
            pruner=pruner,
            optimizer=optimizer,
            distillation=Distillation(teachers, teacher_shares(objectives, teachers, distill, found.labelled)),
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
        with Display("pruning", network.tasks, metric_names=names, enabled=progress and main) as display:
            result = Loop(ingredients, display, log).run()
    network.eval()
    if result.kept == 0:
        warnings.warn(
            f"Nothing could be removed: {result.stopped}. Allow a larger max_drop, fine-tune the network first, or "
            "train for longer between removals (steps=, recovery=).",
            PamergeWarning,
            stacklevel=2,
        )
    return result


def _check(
    network: MultitaskNetwork,
    objectives: Mapping[str, Objective],
    settings: Settings,
    reference: Mapping[str, float] | None,
    checkpoint: str | os.PathLike[str] | None,
) -> None:
    if not isinstance(network, MultitaskNetwork):
        raise PamergeError(
            f"network is a {type(network).__name__}; expected a MultitaskNetwork, as pamerge.merge makes it."
        )
    check_objectives(objectives, network.tasks, complete=True)
    if settings.max_drop is None and settings.target is None and settings.laps is None:
        raise PamergeError("prune needs to know when to stop; expected max_drop=, target= or laps=.")
    for name in ("max_drop", "target"):
        value = getattr(settings, name)
        if value is not None and not (isinstance(value, (int, float)) and 0 <= value < math.inf):
            raise PamergeError(f"{name}={value!r}; expected a number from 0.")
    if not 0 < settings.fraction < 1:
        raise PamergeError(f"fraction={settings.fraction!r}; expected a share between 0 and 1, such as 0.03.")
    for name, least in (("steps", 0), ("recovery", 0), ("final", 0), ("patience", 0), ("laps", 1)):
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, int) or value < least):
            raise PamergeError(f"{name}={value!r}; expected a whole number from {least}.")
    if settings.remove not in ("neuron", "task"):
        raise PamergeError(f"remove={settings.remove!r}; expected 'neuron' or 'task'.")
    if reference is not None and set(reference) != set(network.tasks):
        raise PamergeError(
            f"reference has metrics of {', '.join(map(repr, reference))}; expected one for each of {', '.join(network.tasks)}."
        )
    if checkpoint is not None and not Path(checkpoint).parent.is_dir():
        raise PamergeError(f"Cannot write the checkpoint {checkpoint}: its folder does not exist.")
