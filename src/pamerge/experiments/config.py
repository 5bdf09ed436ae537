"""An experiment is a TOML file; this reads and checks it. Errors name the key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pamerge.errors import PamergeError
from pamerge.experiments.options import check_table

PRECISIONS = ("32-true", "bf16-mixed")


@dataclass(frozen=True)
class Choice:
    """Something chosen by name from a registry, with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What it is called in results: the option ``label``, or its name."""
        return str(self.options.get("label", self.name))

    def identity(self) -> dict[str, Any]:
        """What its results depend on: all but the label."""
        return {"name": self.name, "options": {key: self.options[key] for key in self.options if key != "label"}}

    def tries(self) -> tuple[Choice, ...]:
        """What is tried, each in full: the option ``tries`` lists tables of options; without it, this one alone.

        A try with a name is another choice, with its own options only: the end of PAM where nothing is shared is
        ``{name = "separate"}``.

        >>> tries = [{"alpha": 0.2}, {"name": "separate"}]
        >>> [(each.name, each.label) for each in Choice("pam", {"zip": 0.5, "tries": tries}).tries()]
        [('pam', 'pam (alpha 0.2)'), ('separate', 'pam (separate)')]
        """
        if "tries" not in self.options:
            return (self,)
        common = {key: value for key, value in self.options.items() if key != "tries"}
        found = []
        for each in self.options["tries"]:
            options = each if "name" in each else {**common, **each}
            named = parse_choice({"name": self.name, **options, "label": f"{self.label} ({_in_words(each)})"}, "tries")
            found.append(named)
        return tuple(found)


def _in_words(options: Mapping[str, Any]) -> str:
    return ", ".join(str(value) if key == "name" else f"{key} {value}" for key, value in options.items())


@dataclass(frozen=True)
class Pretraining:
    """How the original networks are trained.

    Attributes:
        epochs: passes over the training data for each network.
        lr: the largest learning rate of a one-cycle schedule.
        common_epochs: epochs of a common training, from which every network starts; 0 for none.
        common_lr: the largest learning rate of the common training; that of the networks if it is left out.
        common_labels: the labels of the common training; none stands for all.
    """

    epochs: int = 10
    lr: float = 2e-3
    common_epochs: int = 0
    common_lr: float | None = None
    common_labels: tuple[str, ...] = ()

    def identity(self) -> dict[str, Any]:
        """What stages depend on."""
        return {name: value for name, value in asdict(self).items() if value or not name.startswith("common_l")}


@dataclass(frozen=True)
class Problem1:
    """What the other tasks lose when only one task's subgraph is pruned; see :mod:`pamerge.experiments.problem1`.

    Attributes:
        task: the task whose subgraph is pruned; the last one if it is left out.
        laps: how often to remove something and look at the other tasks.
        fraction: the share of the subgraph's neurons that a round of a lap removes.
        steps: training steps on all tasks before each round; none shows the effect of pruning alone.
    """

    task: str | None = None
    laps: int = 10
    fraction: float = 0.1
    steps: int = 0


@dataclass(frozen=True)
class First:
    """A budget and an effort that networks are pruned with before they go on to those of the experiment.

    With the same ``--out`` as an experiment that has this budget and effort, its networks are not pruned again. To go
    on begins with small steps, whatever ``prune.rounds``.

    Attributes:
        max_drop: the budget; not above that of the experiment.
        effort: how much of the effort it may use, from the original networks on.
    """

    max_drop: float = 0.01
    effort: int = 10_000


@dataclass(frozen=True)
class Config:
    """An experiment.

    Attributes:
        name: what its results are called.
        data: where inputs and labels come from.
        network: the architecture of the original networks.
        schemes: the ways of merging to compare. A scheme with ``tries = [{alpha = 0.2}, {alpha = 1.0}]`` is done in
            full with each of these options, and ends with the cheapest of the networks that keep the budget.
        pruners: the pruners to compare them with.
        pretraining: how the original networks are trained.
        max_drop: the budget: how much each task's validation metric may fall below its original network's.
        effort: how many task-batches (a batch used for one task's loss) every scheme may use, from the original
            networks on, for merging, tuning, fine-tuning and pruning together.
        finetune: training steps between merging and pruning.
        finetune_lr: their learning rate at the start; that of :func:`pamerge.finetune` if it is left out.
        distill: from 0 to 1, the original networks' share, as teachers, in the loss of fine-tuning and pruning; labels
            have the rest.
        prune: options of :func:`pamerge.prune`, the same for all schemes.
        tune: options of :func:`pamerge.compare_alphas`, for ``alpha = "tune"``.
        mix: how often each combination of tasks is executed, such as ``{"A": 0.5, "A+B": 0.5}``; all alike if it is
            left out.
        batch_size: of all training.
        precision: of training and of validation while pruning, as in lightning-fabric: ``"32-true"``, or
            ``"bf16-mixed"``, which is faster where the processor computes with such numbers. Tests are in full
            precision.
        seeds: one run for each.
        problem1: also measure what the other tasks lose when one task alone is pruned.
        first: prune with a smaller budget or effort before.
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
    finetune_lr: float | None = None
    distill: float = 0.0
    prune: Mapping[str, Any] = field(default_factory=dict)
    tune: Mapping[str, Any] = field(default_factory=dict)
    mix: Mapping[str, float] | None = None
    batch_size: int = 64
    precision: str = "32-true"
    seeds: tuple[int, ...] = (0,)
    problem1: Problem1 | None = None
    first: First | None = None


def read_config(path: str | Path) -> Config:
    """Read an experiment from a TOML file.

    Raises:
        PamergeError: the file is missing or malformed, or a key is unknown, missing or of the wrong type.
    """
    content = read_toml(path)
    try:
        return parse_config(content)
    except PamergeError as error:
        raise PamergeError(f"{path}: {error}") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file."""
    path = Path(path)
    if not path.is_file():
        raise PamergeError(f"There is no file {path}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PamergeError(f"{path} is not valid TOML: {error}.") from None


def parse_config(content: Mapping[str, Any]) -> Config:
    """Check the content of a TOML file."""
    values = dict(content)
    for key in ("data", "network"):
        if key in values:
            values[key] = parse_choice(values[key], key)
    for key in ("schemes", "pruners"):
        if key in values:
            values[key] = _choices(values[key], key)
    for choice in values.get("schemes", ()):
        _check_tries(choice)
    for key, kind in (("pretraining", Pretraining), ("problem1", Problem1), ("first", First)):
        if key in values:
            check_table(values[key], kind, key)
            values[key] = kind(**values[key])
    check_table(values, Config)
    if "seeds" in values:
        values["seeds"] = tuple(values["seeds"])
    config = Config(**values)
    check_numbers(config)
    if config.finetune_lr is not None and not config.finetune_lr > 0:
        raise PamergeError(f"finetune_lr = {config.finetune_lr!r}; expected a number above 0.")
    if config.batch_size < 1:
        raise PamergeError(f"batch_size = {config.batch_size!r}; expected a whole number from 1.")
    if config.precision not in PRECISIONS:
        raise PamergeError(f"precision = {config.precision!r}; expected one of: {', '.join(PRECISIONS)}.")
    if not config.seeds or len(set(config.seeds)) < len(config.seeds):
        raise PamergeError(f"seeds = {list(config.seeds)}; expected a list of different whole numbers.")
    choices = (*config.schemes, *config.pruners)
    for key, name in [("name", config.name), *((f"label of {choice.name}", choice.label) for choice in choices)]:
        if "/" in name or not name.strip():
            raise PamergeError(f"{key} = {name!r}; expected something that a file can be called.")
    if config.pretraining.epochs < 1:
        raise PamergeError(f"pretraining.epochs = {config.pretraining.epochs!r}; expected a whole number from 1.")
    common_lr = config.pretraining.common_lr
    if common_lr is not None and not common_lr > 0:
        raise PamergeError(f"pretraining.common_lr = {common_lr!r}; expected a number above 0.")
    if config.problem1 is not None:
        _check_problem1(config.problem1)
    if config.first is not None:
        _check_first(config.first, config)
    return config


def _check_first(first: First, config: Config) -> None:
    if not 0 < first.max_drop <= config.max_drop:
        raise PamergeError(
            f"first.max_drop = {first.max_drop!r}; expected a number above 0, at most max_drop = {config.max_drop!r}."
        )
    if not 0 < first.effort < config.effort:
        raise PamergeError(
            f"first.effort = {first.effort!r}; expected a number above 0 and below effort = {config.effort!r}."
        )


def _check_problem1(options: Problem1) -> None:
    if options.laps < 1:
        raise PamergeError(f"problem1.laps = {options.laps!r}; expected a whole number from 1.")
    if not 0 < options.fraction < 1:
        raise PamergeError(f"problem1.fraction = {options.fraction!r}; expected a share between 0 and 1.")
    if options.steps < 0:
        raise PamergeError(f"problem1.steps = {options.steps!r}; expected a whole number from 0.")


def parse_choice(value: Any, key: str) -> Choice:
    """A name, or a table with a name and options."""
    if isinstance(value, str):
        return Choice(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise PamergeError(f"{key} = {value!r}; expected a name, or a table with a name and options.")
    return Choice(value["name"], {name: option for name, option in value.items() if name != "name"})


def check_numbers(config: Any) -> None:
    """Limits that an experiment and a merge have in common."""
    for name in ("max_drop", "effort"):
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise PamergeError(f"{name} = {value!r}; expected a number above 0.")
    if config.finetune < 0:
        raise PamergeError(f"finetune = {config.finetune!r}; expected a whole number from 0.")
    if not 0 <= config.distill <= 1:
        raise PamergeError(f"distill = {config.distill!r}; expected a number from 0 to 1.")


def _choices(value: Any, key: str) -> tuple[Choice, ...]:
    if not isinstance(value, list) or not value:
        raise PamergeError(f"{key} = {value!r}; expected a list of names or tables.")
    choices = tuple(parse_choice(item, f"{key}[{index}]") for index, item in enumerate(value))
    labels = [choice.label for choice in choices]
    for label in labels:
        if labels.count(label) > 1:
            raise PamergeError(f"{key} has two called {label!r}; expected a label of its own for each, as label = …")
    return choices


def _check_tries(choice: Choice) -> None:
    """Tries are tables that differ, of options that the scheme does not have already."""
    if "tries" not in choice.options:
        return
    tries, key = choice.options["tries"], f"schemes.{choice.label}.tries"
    if not isinstance(tries, list) or not tries or not all(isinstance(each, Mapping) and each for each in tries):
        raise PamergeError(f"{key} = {tries!r}; expected a list of tables, such as [{{alpha = 0.2}}, {{alpha = 1.0}}].")
    for index, each in enumerate(tries):
        if each in tries[:index]:
            raise PamergeError(f"{key} has {_in_words(each)} twice.")
        for name in each:
            if name == "label" or (name in choice.options and "name" not in each):
                raise PamergeError(f"{key}: {name} = {each[name]!r}; expected an option that the scheme has not.")
