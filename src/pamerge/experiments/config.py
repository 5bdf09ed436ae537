"""An experiment is a TOML file; this reads and checks it. Errors name the key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from pamerge.errors import PamergeError


@dataclass(frozen=True)
class Choice:
    """Something chosen by name from a registry, with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pretraining:
    """How the original networks are trained.

    Attributes:
        epochs: passes over the training data for each network.
        lr: the largest learning rate of a one-cycle schedule.
        common_epochs: epochs of a common training on all labels, from which every network starts; 0 for none.
    """

    epochs: int = 10
    lr: float = 2e-3
    common_epochs: int = 0


@dataclass(frozen=True)
class Config:
    """An experiment.

    Attributes:
        name: what its results are called.
        data: where inputs and labels come from.
        network: the architecture of the original networks.
        schemes: the ways of merging to compare.
        pruners: the pruners to compare them with.
        pretraining: how the original networks are trained.
        max_drop: the budget: how much each task's validation metric may fall below its original network's.
        effort: how many task-batches (a batch used for one task's loss) every scheme may use, from the original
            networks on, for merging, tuning, fine-tuning and pruning together.
        finetune: training steps between merging and pruning.
        prune: options of :func:`pamerge.prune`, the same for all schemes.
        batch_size: of all training.
        seeds: one run for each.
    """

    name: str
    data: Choice
    network: Choice
    schemes: tuple[Choice, ...]
    pruners: tuple[Choice, ...]
    pretraining: Pretraining = field(default_factory=Pretraining)
    max_drop: float = 0.01
    effort: int = 10_000
    finetune: int = 200
    prune: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 64
    seeds: tuple[int, ...] = (0,)


def read_config(path: str | Path) -> Config:
    """Read an experiment from a TOML file.

    Raises:
        PamergeError: the file is missing or malformed, or a key is unknown, missing or of the wrong type.
    """
    path = Path(path)
    if not path.is_file():
        raise PamergeError(f"There is no file {path}.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PamergeError(f"{path} is not valid TOML: {error}.") from None
    try:
        return parse_config(content)
    except PamergeError as error:
        raise PamergeError(f"{path}: {error}") from None


def parse_config(content: Mapping[str, Any]) -> Config:
    """Check the content of a TOML file."""
    _check_keys(content, Config, "")
    values = dict(content)
    for key in ("data", "network"):
        values[key] = _choice(values[key], key)
    for key in ("schemes", "pruners"):
        values[key] = _choices(values[key], key)
    if "pretraining" in values:
        section = values["pretraining"]
        if not isinstance(section, Mapping):
            raise PamergeError(f"pretraining is {section!r}; expected a table.")
        _check_keys(section, Pretraining, "pretraining.")
        values["pretraining"] = Pretraining(**section)
    if "seeds" in values:
        values["seeds"] = tuple(values["seeds"])
    config = Config(**values)
    _check_numbers(config)
    return config


def _check_keys(content: Mapping[str, Any], of: type, prefix: str) -> None:
    hints = get_type_hints(of)
    known = {item.name: item for item in fields(of)}
    for key, value in content.items():
        if key not in known:
            raise PamergeError(f"unknown key {prefix + key!r}; expected some of: {', '.join(known)}.")
        expected = hints[key]
        plain: Any = {int: int, float: (int, float), str: str}.get(expected)
        if plain is not None and (not isinstance(value, plain) or isinstance(value, bool)):
            raise PamergeError(f"{prefix}{key} = {value!r}; expected {expected.__name__}.")
    required = [name for name, item in known.items() if item.default is item.default_factory]
    missing = [name for name in required if name not in content]
    if missing:
        raise PamergeError(f"the key {prefix + missing[0]!r} is missing.")


def _choice(value: Any, key: str) -> Choice:
    if isinstance(value, str):
        return Choice(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise PamergeError(f"{key} = {value!r}; expected a name, or a table with a name and options.")
    return Choice(value["name"], {name: option for name, option in value.items() if name != "name"})


def _choices(value: Any, key: str) -> tuple[Choice, ...]:
    if not isinstance(value, list) or not value:
        raise PamergeError(f"{key} = {value!r}; expected a list of names or tables.")
    return tuple(_choice(item, f"{key}[{index}]") for index, item in enumerate(value))


def _check_numbers(config: Config) -> None:
    for name in ("max_drop", "effort", "batch_size"):
        if not getattr(config, name) > 0:
            raise PamergeError(f"{name} = {getattr(config, name)!r}; expected a number above 0.")
    if config.finetune < 0:
        raise PamergeError(f"finetune = {config.finetune!r}; expected a whole number from 0.")
    if not config.seeds or not all(isinstance(seed, int) for seed in config.seeds):
        raise PamergeError(f"seeds = {list(config.seeds)!r}; expected a list of whole numbers.")
