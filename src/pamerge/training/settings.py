"""The arguments of fine-tuning: whether they make sense, and whether another call has the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Adam

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.tasks import resolve_tasks
from pamerge.training.checkpoint import fingerprint
from pamerge.training.optimizer import OptimizerFactory, Schedule
from pamerge.training.protocol import Objective, check_objectives
from pamerge.training.run_state import STARTING_WEIGHTS
from pamerge.training.steps import Distillation

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Settings:
    """How long and how to train; see :func:`pamerge.training.finetune`."""

    epochs: int | None
    steps: int | None
    lr: float
    schedule: Schedule
    patience: int | None
    validate_every: int | None
    freeze_batch_norm: bool
    checkpoint_seconds: float


def check_arguments(
    network: MultitaskNetwork,
    objectives: Mapping[str, Objective],
    settings: Settings,
    validation: Iterable[Any] | None,
    checkpoint: Path | None,
    distill: float,
    teachers: Mapping[str, nn.Module] | None,
) -> None:
    """Raises for every argument of fine-tuning that cannot be right, whatever the data."""
    check_network(network, objectives)
    if (settings.epochs is None) == (settings.steps is None):
        raise PamergeError(f"epochs={settings.epochs} and steps={settings.steps}; expected exactly one of them.")
    for name in ("epochs", "steps", "patience", "validate_every"):
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise PamergeError(f"{name}={value!r}; expected a whole number above 0.")
    if not (isinstance(settings.lr, (int, float)) and 0 < settings.lr < math.inf):
        raise PamergeError(f"lr={settings.lr!r}; expected a number above 0.")
    if settings.schedule not in ("cosine", "constant"):
        raise PamergeError(f"schedule={settings.schedule!r}; expected 'cosine' or 'constant'.")
    if settings.patience is not None and validation is None:
        raise PamergeError(f"patience={settings.patience} needs validation data to judge by; expected validation=….")
    check_surroundings(network, checkpoint, distill, teachers or {})


def check_network(network: MultitaskNetwork, objectives: Mapping[str, Objective]) -> None:
    """Raises if this is no network to train, or some task of it has no objective."""
    if not isinstance(network, MultitaskNetwork):
        raise PamergeError(
            f"network is a {type(network).__name__}; expected a MultitaskNetwork, as pamerge.merge makes it."
        )
    check_objectives(objectives, network.tasks, complete=True)


def check_surroundings(
    network: MultitaskNetwork, checkpoint: Path | None, distill: float, teachers: Mapping[str, nn.Module]
) -> None:
    """Raises if there is no place for the checkpoint, or the teachers cannot be right."""
    if checkpoint is not None and not checkpoint.parent.is_dir():
        raise PamergeError(f"Cannot write the checkpoint {checkpoint}: the folder {checkpoint.parent} does not exist.")
    if not (isinstance(distill, (int, float)) and 0 <= distill <= 1):
        raise PamergeError(f"distill={distill!r}; expected a number from 0 (labels alone) to 1 (teachers alone).")
    if distill and not teachers:
        raise PamergeError(f"distill={distill} needs teachers; expected teachers={{task: network}}.")
    if teachers:
        resolve_tasks(teachers, network.tasks)
        for task, teacher in teachers.items():
            if not isinstance(teacher, nn.Module):
                raise PamergeError(
                    f"The teacher of task {task!r} is a {type(teacher).__name__}; expected an nn.Module."
                )


def identity_of(
    network: MultitaskNetwork,
    objectives: Mapping[str, Objective],
    settings: Settings,
    optimizer: OptimizerFactory | None,
    distillation: Distillation,
    validated: bool,
    seed: int | None,
    fabric: Fabric,
) -> dict[str, Any]:
    """What must be the same for a checkpoint to be of the same call, as plain JSON."""
    described = asdict(settings)
    del described["checkpoint_seconds"]
    factory = getattr(optimizer, "func", optimizer or Adam)  # of functools.partial
    return {
        **described,
        "objectives": {
            task: _described(type(objective), getattr(objective, "__dict__", {}))
            for task, objective in objectives.items()
        },
        "optimizer": _described(factory, getattr(optimizer, "keywords", {})),
        "distill": dict(distillation.shares),
        "validation": validated,
        "seed": seed,
        "processes": fabric.world_size,
        STARTING_WEIGHTS: fingerprint(network.state_dict()),
    }


def _described(made_by: Any, values: Mapping[str, Any]) -> str:
    """A name and plain values: unlike a ``repr``, the same in every process."""
    plain = [f"{name}={value!r}" for name, value in values.items() if isinstance(value, (bool, int, float, str))]
    return f"{getattr(made_by, '__name__', type(made_by).__name__)}({', '.join(plain)})"
