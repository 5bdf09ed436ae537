"""Merging a user's own networks, as a TOML file describes it.

.. code-block:: toml

    out = "faces.pam"                   # paths are relative to this file
    scheme = {name = "pam", alpha = "tune"}
    pruner = "taylor"
    max_drop = 0.01                     # the budget of every task, in the units of its metric

    [networks.age]
    factory = "models:age_network"      # module and function, found beside this file or installed
    args = {width = 0.5}
    weights = "age.safetensors"         # or a .pt or .pth file with a state dict
    objective = "regression"            # or "classification" or "multilabel"; read off the labels if left out

    [networks.gender]
    factory = "models:gender_network"

    [data]
    factory = "data:loaders"            # gives {"train": …, "validation": …}

The data factory returns a dictionary (or an object with such attributes) of iterables of ``(inputs, {task: labels})``,
such as DataLoaders: ``train``, ``validation`` (which the budget is checked on), and if you like ``calibration`` (which
information is measured on; the training data by default) and ``test``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from pamerge.errors import PamergeError
from pamerge.experiments.config import Choice, check_numbers, parse_choice, read_toml
from pamerge.experiments.options import check_table
from pamerge.experiments.own_code import load_loaders, load_network, modules_of, where
from pamerge.experiments.registry import make_pruner, make_scheme
from pamerge.experiments.stages import Setting, check_mix, check_stage_options, pruned
from pamerge.experiments.store import Store, Watch, digest
from pamerge.merging import Material, prepare
from pamerge.network.files import describe, save
from pamerge.network.network import MultitaskNetwork
from pamerge.tasks import all_subsets, check_task_names
from pamerge.training import Classification, MultiLabel, Objective, Regression, evaluate, infer_objectives
from pamerge.training.checkpoint import fingerprint
from pamerge.training.finetune import seeded
from pamerge.training.random_state import generators_of

OBJECTIVES: Mapping[str, Callable[[], Objective]] = {
    "multilabel": MultiLabel,
    "classification": Classification,
    "regression": Regression,
}


@dataclass(frozen=True)
class OwnNetwork:
    """One of the networks to merge.

    Attributes:
        factory: ``"module:function"`` that gives the network.
        args: what the function is called with.
        weights: a file with its state dict, if the function does not load it.
        objective: what the task is trained for; read off the labels if it is left out.
    """

    factory: str
    args: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    objective: Literal["multilabel", "classification", "regression"] | None = None


@dataclass(frozen=True)
class OwnData:
    """Where batches come from.

    Attributes:
        factory: ``"module:function"`` that gives the loaders.
        args: what the function is called with.
    """

    factory: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MergeConfig:
    """What to merge, and how.

    Attributes:
        networks: the network of each task.
        data: the batches.
        out: the file to write.
        scheme: the way of merging.
        pruner: the pruner.
        max_drop: the budget: how much each task's validation metric may get worse than its original network's.
        effort: a limit of task-batches (a batch used for one task's loss) for all stages together, or None.
        finetune: training steps between merging and pruning.
        distill: from 0 to 1, the original networks' share, as teachers, in the loss of fine-tuning and pruning; labels
            have the rest.
        prune: further options of :func:`pamerge.prune`.
        tune: options of :func:`pamerge.compare_alphas`, for ``alpha = "tune"``.
        mix: how often each combination of tasks is executed, such as ``{"age": 0.5, "age+gender": 0.5}``; all alike if
            it is left out.
        seed: for all that is left to chance.
    """

    networks: Mapping[str, OwnNetwork]
    data: OwnData
    out: str
    scheme: Choice = field(default_factory=lambda: Choice("pam"))
    pruner: Choice = field(default_factory=lambda: Choice("taylor"))
    max_drop: float = 0.01
    effort: int | None = None
    finetune: int = 200
    distill: float = 0.0
    prune: Mapping[str, Any] = field(default_factory=dict)
    tune: Mapping[str, Any] = field(default_factory=dict)
    mix: Mapping[str, float] | None = None
    seed: int = 0


def read_merge_config(path: str | Path) -> MergeConfig:
    """Read what to merge from a TOML file; errors name the key."""
    content = read_toml(path)
    try:
        return _parse(content)
    except PamergeError as error:
        raise PamergeError(f"{path}: {error}") from None


def merge_own_networks(
    config: MergeConfig,
    folder: str | Path,
    *,
    out: Path | None = None,
    watch: Watch | None = None,
    progress: bool = False,
) -> tuple[MultitaskNetwork, dict[str, Any]]:
    """Merge, fine-tune, prune and save; the same call goes on after a crash.

    Args:
        config: what to merge.
        folder: what paths are relative to, and where modules are looked for first.
        out: the file to write instead of ``config.out``. Finished stages are kept beside it, in ``<out>.stages``.
        watch: is told which stage begins, was done before, or ends.
        progress: show how fine-tuning and pruning get on.

    Returns:
        The network, and what it costs and achieves.
    """
    folder = Path(folder).resolve()
    out = folder / config.out if out is None else out
    if not out.parent.is_dir():
        raise PamergeError(f"out = {str(out)!r}; the folder {out.parent} does not exist.")
    if out.is_dir():
        raise PamergeError(f"out = {str(out)!r} is a folder; expected the name of a file.")
    check_mix(config.mix, config.networks)
    try:
        with modules_of(folder):
            return _merge(config, folder, out, watch, progress)
    except PamergeError:
        raise
    except Exception as error:  # such as a data set that cannot read one of its files
        places = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
        if any(place.is_relative_to(folder) for place in places):
            raise PamergeError(f"{config.data.factory!r} or a network failed ({where(error, folder)}).") from error
        raise


def _merge(
    config: MergeConfig, folder: Path, out: Path, watch: Watch | None, progress: bool
) -> tuple[MultitaskNetwork, dict[str, Any]]:
    with seeded(config.seed):
        networks = {
            task: load_network(
                f"networks.{task}", spec.factory, spec.args, None if spec.weights is None else folder / spec.weights
            )
            for task, spec in config.networks.items()
        }
        loaders = OwnLoaders(load_loaders(config.data.factory, config.data.args))
    objectives = _objectives(config, loaders)
    with seeded(config.seed):
        material = prepare(networks, loaders.calibration(), objectives=objectives, train=loaders.train())
        basis = _basis(config, material, loaders)
        reference = evaluate(dict(networks), loaders.validation(), objectives)
    setting = Setting(
        networks=networks,
        objectives=objectives,
        reference=reference,
        loaders=loaders,
        pruner=config.pruner,
        max_drop=config.max_drop,
        effort=config.effort,
        finetune=config.finetune,
        distill=config.distill,
        teachers=lambda: networks,  # own data may be augmented, so that no input comes up twice
        prune=config.prune,
        tune=config.tune,
        mix=config.mix,
        seed=config.seed,
        store=Store(out.with_name(out.name + ".stages"), watch),
        basis=basis,
        progress=progress,
    )
    network, notes = pruned(setting, material, config.scheme)
    save(network, out)
    return network, _summary(setting, material, network, notes, out)


@dataclass(frozen=True)
class OwnLoaders:
    """A user's loaders; each time one is asked for, the generators of all of them are set back."""

    parts: Mapping[str, Iterable[Any]]
    states: list[tuple[torch.Generator, torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        found = [(generator, generator.get_state()) for generator in generators_of(*self.parts.values())]
        object.__setattr__(self, "states", found)

    def get(self, part: str) -> Any:
        """The batches of a part."""
        for generator, state in self.states:
            generator.set_state(state)
        return self.parts[part]

    def train(self) -> Any:
        """Training batches."""
        return self.get("train")

    def validation(self) -> Any:
        """Batches that the budget is checked on."""
        return self.get("validation")

    def calibration(self) -> Any:
        """Batches that information is measured on."""
        return self.get("calibration" if "calibration" in self.parts else "train")


# -- reading -----------------------------------------------------------------------------------------------------------


def _parse(content: Mapping[str, Any]) -> MergeConfig:
    values = dict(content)
    if "networks" in values:
        if not isinstance(values["networks"], Mapping) or not values["networks"]:
            raise PamergeError("networks must be tables, one for each task, as [networks.age].")
        check_task_names(values["networks"])
        for task, table in values["networks"].items():
            check_table(table, OwnNetwork, f"networks.{task}")
        values["networks"] = {task: OwnNetwork(**table) for task, table in values["networks"].items()}
    if "data" in values:
        check_table(values["data"], OwnData, "data")
        values["data"] = OwnData(**values["data"])
    for key in ("scheme", "pruner"):
        if key in values:
            values[key] = parse_choice(values[key], key)
    check_table(values, MergeConfig)
    config = MergeConfig(**values)
    check_numbers(config)
    make_scheme(config.scheme, "scheme")
    make_pruner(config.pruner, "pruner")
    check_stage_options(config.prune, config.tune)
    return config


# -- before and after --------------------------------------------------------------------------------------------------


def _objectives(config: MergeConfig, loaders: OwnLoaders) -> dict[str, Objective]:
    chosen = {task: OBJECTIVES[spec.objective]() for task, spec in config.networks.items() if spec.objective}
    missing = [task for task in config.networks if task not in chosen]
    if missing:
        _, targets = _first_batch(config, loaders)
        unlabelled = [task for task in missing if task not in targets]
        if unlabelled:
            raise PamergeError(
                f"networks.{unlabelled[0]}.objective is missing, and the first validation batch has no labels of "
                f"{unlabelled[0]!r} to read it off; expected one of: {', '.join(OBJECTIVES)}."
            )
        chosen |= infer_objectives({task: targets[task] for task in missing})
    return {task: chosen[task] for task in config.networks}


def _first_batch(config: MergeConfig, loaders: OwnLoaders) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    try:
        with seeded(config.seed):
            batch = next(iter(loaders.validation()), None)
    except Exception as error:
        raise PamergeError(
            f"data.factory = {config.data.factory!r}: reading the validation data failed ({where(error)})."
        ) from error
    if (
        not isinstance(batch, (tuple, list))
        or len(batch) != 2
        or not isinstance(batch[0], torch.Tensor)
        or not isinstance(batch[1], Mapping)
        or not all(isinstance(labels, torch.Tensor) for labels in batch[1].values())
    ):
        raise PamergeError(
            f"data.factory = {config.data.factory!r}: a validation batch is {type(batch).__name__}; expected "
            "(inputs, {task: labels}) of tensors."
        )
    return batch[0], batch[1]


def _basis(config: MergeConfig, material: Material, loaders: OwnLoaders) -> dict[str, Any]:
    """What results depend on: what the networks compute, and a look at the data."""
    network = material.side_by_side()
    inputs, targets = _first_batch(config, loaders)
    return {
        "networks": {task: fingerprint(original.state_dict()) for task, original in material.networks.items()},
        "structure": digest(describe(network.structure)),
        "objectives": {task: spec.objective for task, spec in config.networks.items()},
        "data": asdict(config.data),
        "first_batch": fingerprint({"inputs": inputs, **{f"labels.{task}": value for task, value in targets.items()}}),
        "seed": config.seed,
    }


def _summary(
    setting: Setting, material: Material, network: MultitaskNetwork, notes: Mapping[str, Any], out: Path
) -> dict[str, Any]:
    originals = material.side_by_side()
    subsets = list(all_subsets(network.tasks))
    loaders = setting.loaders
    assert isinstance(loaders, OwnLoaders)
    found: dict[str, Any] = {
        "out": str(out),
        "tasks": list(network.tasks),
        "metric": {task: objective.metric_name for task, objective in setting.objectives.items()},
        "flops": {str(tasks): network.flops(tasks) for tasks in subsets},
        "original_flops": {str(tasks): originals.flops(tasks) for tasks in subsets},
        "parameters": {str(tasks): network.parameter_count(tasks) for tasks in subsets},
        "original_parameters": {str(tasks): originals.parameter_count(tasks) for tasks in subsets},
        "validation": notes["validation"],
        "original_validation": dict(setting.reference),
        **{name: value for name, value in notes.items() if name not in ("validation", "path")},
    }
    if "test" in loaders.parts:
        found["test"] = evaluate(network, loaders.get("test"), setting.objectives)
        found["original_test"] = evaluate(dict(setting.networks), loaders.get("test"), setting.objectives)
    return found
