"""The arguments of pruning: whether they make sense, and whether another call has the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.pruning.protocol import Pruner, Remove
from pamerge.training.protocol import Objective
from pamerge.training.settings import check_network, check_surroundings


@dataclass(frozen=True)
class Settings:
    """How to prune; see :func:`pamerge.pruning.prune`."""

    max_drop: float | None
    target: float | None
    fraction: float
    steps: int
    recovery: int
    final: int
    patience: int
    laps: int | None
    effort: int | None
    remove: Remove
    per_flop: bool
    lr: float
    freeze_batch_norm: bool
    round_to: int = 1
    rounds: int = 1
    together: bool = True


def check_arguments(
    network: MultitaskNetwork,
    objectives: Mapping[str, Objective],
    settings: Settings,
    pruner: Pruner,
    reference: Mapping[str, float] | None,
    checkpoint: Path | None,
    distill: float,
    teachers: Mapping[str, nn.Module],
) -> None:
    """Raises for every argument of pruning that cannot be right, whatever the data."""
    check_network(network, objectives)
    if isinstance(pruner, type) or not callable(getattr(pruner, "start", None)):
        shown = f"the class {pruner.__name__}" if isinstance(pruner, type) else f"a {type(pruner).__name__}"
        raise PamergeError(f"pruner is {shown}; expected a pruner such as Taylor() or VIB().")
    if all(limit is None for limit in (settings.max_drop, settings.target, settings.laps, settings.effort)):
        raise PamergeError("prune needs to know when to stop; expected max_drop=, target=, laps= or effort=.")
    _check_numbers(settings)
    if reference is not None:
        if set(reference) != set(network.tasks):
            raise PamergeError(
                f"reference has metrics of {', '.join(map(repr, reference))}; "
                f"expected one for each of {', '.join(network.tasks)}."
            )
        for task, value in reference.items():
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise PamergeError(f"reference[{task!r}]={value!r}; expected a number.")
    check_surroundings(network, checkpoint, distill, teachers)


def _check_numbers(settings: Settings) -> None:
    for name in ("max_drop", "target"):
        value = getattr(settings, name)
        if value is not None and not (isinstance(value, (int, float)) and 0 <= value < math.inf):
            raise PamergeError(f"{name}={value!r}; expected a number from 0.")
    if not (isinstance(settings.fraction, float) and 0 < settings.fraction < 1):
        raise PamergeError(f"fraction={settings.fraction!r}; expected a share between 0 and 1, such as 0.03.")
    if not (isinstance(settings.lr, (int, float)) and 0 < settings.lr < math.inf):
        raise PamergeError(f"lr={settings.lr!r}; expected a number above 0.")
    counts = {"steps": 0, "recovery": 0, "final": 0, "patience": 0, "laps": 1, "effort": 1, "round_to": 1, "rounds": 1}
    for name, least in counts.items():
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise PamergeError(f"{name}={value!r}; expected a whole number from {least}.")
    if settings.remove not in ("neuron", "task"):
        raise PamergeError(f"remove={settings.remove!r}; expected 'neuron' or 'task'.")


def identity_of(settings: Settings, **parts: Any) -> dict[str, Any]:
    """What must be the same for a checkpoint to be of the same call, as plain JSON.

    Parts that are not JSON already (pruner, optimiser, objectives) are described by their names and plain values:
    unlike a ``repr``, that is the same in every process.
    """
    return {**asdict(settings), **{name: _plain(value) for name, value in parts.items()}}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    made_by = getattr(value, "func", value)  # of functools.partial
    values = getattr(value, "keywords", None) or getattr(value, "__dict__", {})
    if isinstance(made_by, type) or not hasattr(value, "__dict__"):
        values = getattr(value, "keywords", {})
    plain = [f"{k}={v!r}" for k, v in values.items() if isinstance(v, (bool, int, float, str))]
    return f"{getattr(made_by, '__name__', type(made_by).__name__)}({', '.join(plain)})"
