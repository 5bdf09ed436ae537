"""``finetune``: train a multitask network on labels, on the outputs of teachers, or on both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.tasks import TaskSet
from pamerge.training.data import Batches, Shapes, Survey, capital, survey
from pamerge.training.evaluation import in_eval_mode, prober, runner
from pamerge.training.loop import Ingredients, Loop
from pamerge.training.optimizer import OptimizerFactory, Schedule, make_optimizer
from pamerge.training.processes import resolve_fabric, shard, share_weights, sums_of
from pamerge.training.progress import Display, Log
from pamerge.training.protocol import Objective
from pamerge.training.random_state import (
    capture_random_state,
    restore_random_state,
    seed_everything,
    unchanged_random_state,
)
from pamerge.training.results import FinetuneResult
from pamerge.training.settings import Settings, check_arguments, identity_of
from pamerge.training.steps import Distillation

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def finetune(
    network: MultitaskNetwork,
    train: Iterable[Any],
    objectives: Mapping[str, Objective],
    *,
    epochs: int | None = None,
    steps: int | None = None,
    validation: Iterable[Any] | None = None,
    teachers: Mapping[str, nn.Module] | None = None,
    distill: float = 0.0,
    fabric: Fabric | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    lr: float = 5e-4,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule = "cosine",
    patience: int | None = None,
    validate_every: int | None = None,
    freeze_batch_norm: bool = False,
    seed: int | None = None,
    checkpoint_seconds: float = 60.0,
    progress: bool = True,
) -> FinetuneResult:
    """Train a multitask network in place.

    Gradients of a shared block are averaged over the tasks in the batch that share it. With validation data the
    network ends with the weights that were best on it (which may be those that it came with): by the change of the
    metrics relative to those before training, averaged over the tasks.

    Args:
        network: The network; it is left in the mode (training or eval) that it came in.
        train: An iterable of ``(inputs, targets)`` batches, such as a DataLoader; ``targets`` maps a task to its
            labels, and a batch may have labels of only some tasks. With teachers, batches without labels or just
            ``inputs`` do. Under several processes a DataLoader is divided among them, batch by batch; other iterables
            are taken as each process gives them.
        objectives: The loss and metric of each task.
        epochs: How many passes over the data; or:
        steps: How many batches.
        validation: Batches to judge by, with labels of every task.
        teachers: For some or all tasks the original network. They are not changed.
        distill: From 0 to 1, the teachers' share in the loss of a task; the rest comes from labels. A task that has a
            teacher and no labels in ``train`` learns from its teacher alone, one that has no teacher from its labels
            alone.
        fabric: A ``lightning_fabric.Fabric`` for device, precision and processes; by default one process where the
            network is.
        checkpoint: A file. The same call after a crash goes on from it, and ends as if nothing had happened; after
            the end it returns the result at once. A log of JSON lines is written beside it, at
            ``<checkpoint>.log.jsonl``.
        lr: The learning rate at the start.
        optimizer: ``optimizer(parameters, lr=lr)``, such as ``partial(torch.optim.SGD, momentum=0.9)`` or a class of
            ``torch.optim``; by default Adam.
        schedule: "cosine" lets the learning rate fall to zero, "constant" does not.
        patience: Stop when this many validations in a row brought nothing better.
        validate_every: Steps between validations; by default an epoch.
        freeze_batch_norm: Keep the statistics of batch norms as they are.
        seed: Seeds the global random states for this call, and puts them back after it; None uses them as they are.
        checkpoint_seconds: Time between checkpoints.
        progress: Show progress, as a table in a terminal and as plain lines elsewhere.

    Raises:
        PamergeError: Something is wrong with the data or the arguments; said before any training starts.
        DivergenceError: A loss is not a number or exploded; the network has its last good weights.
    """
    settings = Settings(epochs, steps, lr, schedule, patience, validate_every, freeze_batch_norm, checkpoint_seconds)
    path = None if checkpoint is None else Path(checkpoint)
    check_arguments(network, objectives, settings, validation, path, distill, teachers)
    teachers = dict(teachers or {})
    fabric = resolve_fabric(fabric, network)
    network.to(fabric.device)
    share_weights(network, fabric)
    run = runner(network, objectives)
    probe = prober(network, run, objectives, fabric)
    training_data = Batches(shard(train, fabric), "the training data", objectives, network.tasks, probe)
    validation_data = None
    if validation is not None:
        validation_data = Batches(shard(validation, fabric), "the validation data", objectives, network.tasks, probe)
    with modes_kept(network), frozen(teachers, fabric.device), seeded(seed):
        found = look_at(training_data, teachers, probe, fabric, most=steps, count=epochs is not None)
        distillation = Distillation(teachers, teacher_shares(objectives, teachers, distill, found.labelled))
        total = steps or (found.batches * epochs if found.batches and epochs else None)
        names = {task: objective.metric_name for task, objective in objectives.items()}
        main = fabric.is_global_zero
        with Display(
            "fine-tuning", network.tasks, total=total, metric_names=names, enabled=progress and main
        ) as display:
            implied = [task for task in network.tasks if distillation.share(task) == 1.0 > distill]
            if implied:
                display.note(f"no labels of {', '.join(implied)} in the training data: learning from the teacher alone")
            identity: dict[str, Any] = {}
            if path is not None:
                judged = validation is not None
                identity = identity_of(network, objectives, settings, optimizer, distillation, judged, seed, fabric)
            made_of = Ingredients(
                network=network,
                run_network=run,
                optimizer=make_optimizer(network, optimizer, lr),
                train=training_data,
                validation=validation_data,
                distillation=distillation,
                settings=settings,
                fabric=fabric,
                total=total,
                identity=identity,
                checkpoint=path,
            )
            return Loop(made_of, display, Log(f"{path}.log.jsonl" if path is not None and main else None)).run()


def look_at(
    batches: Batches,
    teachers: Mapping[str, nn.Module],
    probe: Callable[[Tensor], Shapes],
    fabric: Fabric,
    *,
    most: int | None = None,
    count: bool = False,
) -> Survey:
    """What the data of all processes holds; mistakes in it, or teachers that do not fit, are errors.

    See :func:`pamerge.training.data.survey` for ``most`` and ``count``.
    """

    def probe_with_teachers(x: Tensor) -> Shapes:
        shapes = probe(x)
        for task, teacher in teachers.items():
            with torch.no_grad():
                output = teacher(x.to(fabric.device))
            got = tuple(output.shape[1:]) if isinstance(output, Tensor) else type(output).__name__
            if got != shapes[task]:
                raise PamergeError(
                    f"the teacher of task {task!r} gives {got} for a sample; expected {shapes[task]}, as the network."
                )
        return shapes

    first = Batches(batches.data, batches.name, batches.objectives, batches.known, probe_with_teachers)
    with unchanged_random_state(batches.data):
        found = survey(first, most=most, count=count, allow_empty=fabric.world_size > 1)
    if fabric.world_size == 1:
        return found
    tasks = list(batches.objectives)
    used, *seen = sums_of([float(found.used), *(float(task in found.labelled) for task in tasks)], fabric)
    if not used:
        raise PamergeError(f"{capital(batches.name)} is empty in every process; expected at least one batch.")
    lengths = fabric.all_gather(torch.tensor(found.batches or 0))
    assert isinstance(lengths, Tensor)
    labelled = TaskSet(task for task, number in zip(tasks, seen, strict=True) if number)
    return Survey(labelled, int(lengths.max()) or None, int(used))


def teacher_shares(
    objectives: Mapping[str, Objective], teachers: Mapping[str, nn.Module], distill: float, labelled: TaskSet
) -> dict[str, float]:
    """How much of each task's loss comes from its teacher."""
    shares = {}
    for task in objectives:
        if task in teachers:
            shares[task] = distill if task in labelled else 1.0
        elif task not in labelled:
            raise PamergeError(
                f"The training data has no labels for task {task!r}, and there is no teacher for it; expected either. "
                "Give its original network as teachers={…} to train without labels."
            )
    if teachers and not any(shares.values()):
        raise PamergeError(
            "teachers were given, but with distill=0.0 they have no effect; set distill between 0 and 1."
        )
    return shares


@contextmanager
def modes_kept(network: nn.Module) -> Iterator[None]:
    """Afterwards every part of the network is in the mode, training or eval, that it was in."""
    modes = [(part, part.training) for part in network.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def frozen(teachers: Mapping[str, nn.Module], device: torch.device) -> Iterator[None]:
    """Teachers in eval mode on the device; afterwards as they were."""
    homes = {t: next((p.device for p in module.parameters()), device) for t, module in teachers.items()}
    with in_eval_mode(*teachers.values()):
        try:
            for teacher in teachers.values():
                teacher.to(device)
            yield
        finally:
            for task, teacher in teachers.items():
                teacher.to(homes[task])


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seeded global random states inside, and the caller's own afterwards; None changes nothing."""
    if seed is None:
        yield
        return
    before = capture_random_state()
    seed_everything(seed)
    try:
        yield
    finally:
        restore_random_state(before)
