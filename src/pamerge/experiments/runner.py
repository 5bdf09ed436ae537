"""Runs an experiment: pre-train → merge → fine-tune → prune → evaluate, each stage once.

All schemes get the same data, the same budget (counted from the original networks' validation metrics) and the same
effort, counted in task-batches from the original networks on; what each used is recorded.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pamerge.data import Splits
from pamerge.errors import PamergeError
from pamerge.experiments.config import PRECISIONS, Choice, Config
from pamerge.experiments.describe import network_record
from pamerge.experiments.metrics import sharing_ratios
from pamerge.experiments.pretraining import pretrained
from pamerge.experiments.problem1 import prune_one_task, pruned_task
from pamerge.experiments.processes import in_processes
from pamerge.experiments.registry import (
    DATA,
    NETWORKS,
    PRUNE_FIRST,
    lookup,
    make_data,
    make_pruner,
    make_scheme,
)
from pamerge.experiments.stages import (
    Setting,
    at_first,
    before_pruning,
    check_mix,
    check_stage_options,
    one_process,
    pruned,
    pruned_apart,
    pruned_depends_on,
)
from pamerge.experiments.store import Event, Store, Watch, digest
from pamerge.merging import Material, prepare
from pamerge.network.files import save, write_atomically
from pamerge.network.network import MultitaskNetwork
from pamerge.pruning.budget import losses, worst_excess
from pamerge.pruning.ranking import expected_flops, resolve_mix
from pamerge.tasks import all_subsets
from pamerge.training import MultiLabel, Objective, evaluate
from pamerge.training.lessons import Remembered, outputs_of


@dataclass(frozen=True)
class SplitLoaders:
    """Batches of an experiment's data: new loaders for every stage, in an order that depends on the seed alone."""

    splits: Splits
    batch_size: int
    seed: int

    def train(self) -> Any:
        """Training batches in random order."""
        return self.splits.train.loader(self.batch_size, shuffle=torch.Generator().manual_seed(self.seed))

    def validation(self) -> Any:
        """Validation batches."""
        return self.splits.validation.loader(100)

    def calibration(self) -> Any:
        """Batches to measure information on: the training data in its own order."""
        return self.splits.train.loader(500)


def run(
    config: Config,
    folder: str | Path,
    *,
    data: Path | None = None,
    watch: Watch | None = None,
    progress: bool = False,
    jobs: int = 1,
) -> list[dict[str, Any]]:
    """Run an experiment and return a result for every pruner and seed.

    Args:
        config: the experiment.
        folder: where stages, results and pruned networks are kept; a run that was killed goes on from there.
        data: the folder with downloaded data, for data sets that need one.
        watch: is told which stage begins, was done before, or ends.
        progress: show how fine-tuning and pruning get on (with one job).
        jobs: how many schemes and seeds to work on at once, in processes that share the threads; the threads of each
            may show in the last digits of results.
    """
    folder = Path(folder)
    _check(config)
    if jobs < 1:
        raise PamergeError(f"jobs = {jobs}; give the number of processes, at least 1.")
    if jobs > 1:
        watch = _in_parallel(config, folder, data, jobs, watch or (lambda event: None))
    results = []
    for seed in config.seeds:
        splits = make_data(config.data, seed, data)
        for pruner in config.pruners:
            setting = _setting(config, splits, pruner, seed, _store(config, folder, seed, watch), progress)
            name = f"{pruner.label}-seed{seed}"
            result = _result(config, setting, splits, folder / "networks", name)
            (folder / "results").mkdir(parents=True, exist_ok=True)
            path = folder / "results" / f"{config.name}-{name}.json"
            write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
            results.append(result)
    return results


def _check(config: Config) -> None:
    """Mistakes come to light before anything is trained."""
    lookup(DATA, config.data, "data")
    lookup(NETWORKS, config.network, "network")
    for choice in config.schemes:
        for each in choice.tries():
            make_scheme(each)
    for choice in config.pruners:
        make_pruner(choice)
    check_stage_options(config.prune, config.tune)


def _in_parallel(config: Config, folder: Path, data: Path | None, jobs: int, watch: Watch) -> Watch:
    """Fill the store with several processes, so that everything is found there. Whom to tell about what is left."""
    in_processes(_pretrain_seed, [(config, folder, data, seed) for seed in config.seeds], jobs, watch)
    # the last scheme first: a merged network takes longer than the baselines, which are usually named before it
    schemes = [(config, folder, data, seed, choice) for seed in config.seeds for choice in reversed(config.schemes)]
    # two processes must not work on the same stage: a try of one scheme may be another scheme, and several tries may
    # start from the same networks that are pruned one by one first
    if any(PRUNE_FIRST in each.options for choice in config.schemes for each in choice.tries()):
        in_processes(_prune_apart, [(config, folder, data, seed) for seed in config.seeds], jobs, watch)
    tries = {
        digest({"seed": job[3], **each.identity()}): (*job[:4], each) for job in schemes for each in job[4].tries()
    }
    in_processes(_prune_try, list(tries.values()), jobs, watch)
    in_processes(_finish_scheme, schemes, jobs, watch)
    return lambda event: None if event.state == "stored" else watch(event)


def _pretrain_seed(config: Config, folder: Path, data: Path | None, seed: int, watch: Watch) -> None:
    splits = make_data(config.data, seed, data)
    setting = _setting(config, splits, config.pruners[0], seed, _store(config, folder, seed, watch), progress=False)
    setting.lessons()  # now, and not in every process that needs them


def _prune_apart(config: Config, folder: Path, data: Path | None, seed: int, watch: Watch) -> None:
    """Whatever schemes start from if networks are pruned one by one first."""
    tries = [each for choice in config.schemes for each in choice.tries() if PRUNE_FIRST in each.options]
    for setting, _ in _settings(config, folder, data, seed, watch):
        for each in tries:
            pruned_apart(at_first(setting), _material(setting), each)


def _prune_try(config: Config, folder: Path, data: Path | None, seed: int, choice: Choice, watch: Watch) -> None:
    """One try with all pruners, which share what comes before pruning."""
    for setting, _ in _settings(config, folder, data, seed, watch):
        pruned(setting, _material(setting), choice)


def _finish_scheme(config: Config, folder: Path, data: Path | None, seed: int, choice: Choice, watch: Watch) -> None:
    """What comes after the tries of a scheme."""

    def tell(event: Event) -> None:
        if event.state != "stored":
            watch(event)

    for setting, splits in _settings(config, folder, data, seed, tell):
        _scheme(config, setting, _material(setting), splits, choice)


def _settings(
    config: Config, folder: Path, data: Path | None, seed: int, watch: Watch
) -> Iterator[tuple[Setting, Splits]]:
    """A setting for each pruner; what is before pruning was told before."""
    splits = make_data(config.data, seed, data)
    for pruner in config.pruners:
        setting = _setting(config, splits, pruner, seed, _store(config, folder, seed, None), progress=False)
        yield replace(setting, store=_store(config, folder, seed, watch)), splits


def _store(config: Config, folder: Path, seed: int, watch: Watch | None) -> Store:
    return Store(folder / "stages", _prefixed(watch, f"seed {seed}, ") if len(config.seeds) > 1 else watch)


def _prefixed(watch: Watch | None, prefix: str) -> Watch | None:
    def tell(event: Event) -> None:
        if watch is not None:
            watch(replace(event, stage=prefix + event.stage))

    return tell


def _setting(config: Config, splits: Splits, pruner: Choice, seed: int, store: Store, progress: bool) -> Setting:
    tasks = list(splits.train.tasks)
    check_mix(config.mix, tasks)
    if config.problem1 is not None:
        pruned_task(config.problem1, tasks)
    basis = _basis(config, seed)
    networks = pretrained(config, splits, store, basis, seed)
    objectives: dict[str, Objective] = {task: MultiLabel() for task in networks}
    loaders = SplitLoaders(splits, config.batch_size, seed)
    reference = store.json(
        "reference",
        basis,
        lambda: evaluate(dict(networks), loaders.validation(), objectives, fabric=one_process(config.precision)),
        "evaluate the original networks on validation data",
    )
    return Setting(
        networks=networks,
        objectives=objectives,
        reference=reference,
        loaders=loaders,
        pruner=pruner,
        max_drop=config.max_drop,
        effort=config.effort,
        finetune=config.finetune,
        distill=config.distill,
        teachers=cache(lambda: _teachers(networks, loaders, store, basis)),
        prune=config.prune,
        tune=config.tune,
        mix=config.mix,
        seed=seed,
        store=store,
        basis=basis,
        progress=progress,
        finetune_lr=config.finetune_lr,
        precision=config.precision,
        first=config.first,
    )


def _teachers(
    networks: Mapping[str, nn.Module], loaders: SplitLoaders, store: Store, basis: Mapping[str, Any]
) -> dict[str, nn.Module]:
    """The original networks, with what they say about the training data looked up."""
    lessons = store.tensors(
        "lessons",
        basis,
        lambda: {task: outputs_of(network, loaders.calibration()) for task, network in networks.items()},
        "ask the original networks about the training data",
    )
    return {task: Remembered(net, loaders.calibration(), lessons[task]) for task, net in networks.items()}


def original_networks(
    config: Config, folder: str | Path, *, data: Path | None = None, watch: Watch | None = None
) -> tuple[dict[str, nn.Module], Splits]:
    """The trained networks of an experiment's first seed, and its data."""
    seed = config.seeds[0]
    splits = make_data(config.data, seed, data)
    store = _store(config, Path(folder), seed, watch)
    return pretrained(config, splits, store, _basis(config, seed), seed), splits


def _basis(config: Config, seed: int) -> dict[str, Any]:
    """What the original networks depend on."""
    return {
        "data": asdict(config.data),
        "network": asdict(config.network),
        "pretraining": config.pretraining.identity(),
        "batch_size": config.batch_size,
        "seed": seed,
        **({} if config.precision == PRECISIONS[0] else {"precision": config.precision}),
    }


def _result(config: Config, setting: Setting, splits: Splits, networks: Path, name: str) -> dict[str, Any]:
    material = _material(setting)
    originals = setting.store.json(
        "originals",
        setting.basis,
        lambda: evaluate(dict(setting.networks), splits.test.loader(500), setting.objectives),
        "evaluate the original networks on test data",
    )
    schemes = {}
    for choice in config.schemes:
        network, schemes[choice.label] = _scheme(config, setting, material, splits, choice)
        networks.mkdir(parents=True, exist_ok=True)
        save(network, networks / f"{config.name}-{choice.label}-{name}.pam")
    return {
        "experiment": config.name,
        "network": config.network.name,
        "pruner": setting.pruner.label,
        "seed": setting.seed,
        "tasks": list(setting.networks),
        "budget": config.max_drop,
        "reference": originals,
        "validation_reference": dict(setting.reference),
        "original_flops": _original_flops(material),
        "schemes": schemes,
        "environment": {
            "torch": torch.__version__,
            "threads": max(scheme.get("threads", torch.get_num_threads()) for scheme in schemes.values()),
            "machine": platform.machine(),
            "peak_gib": max(scheme.get("peak_gib", 0.0) for scheme in schemes.values()),
        },
    }


def _material(setting: Setting) -> Material:
    loaders = setting.loaders
    return prepare(setting.networks, loaders.calibration(), objectives=setting.objectives, train=loaders.train())


def _scheme(
    config: Config, setting: Setting, material: Material, splits: Splits, choice: Choice
) -> tuple[MultitaskNetwork, dict[str, Any]]:
    """The pruned network of a scheme, and what is told about it; of its tries, the best."""
    tried = [(each, *pruned(setting, material, each)) for each in choice.tries()]
    choice, network, notes = min(tried, key=lambda found: _preference(setting, found[1], found[2]["validation"]))
    found = {
        "flops": _costs(network),
        "metric": _tested(setting, choice, network, splits.test.loader(500)),
        "sharing": sharing_ratios(network),
        **network_record(network),
        **notes,
    }
    if len(tried) > 1:
        found["chosen_try"] = choice.label
        found["tries"] = {each.label: _in_short(other, told) for each, other, told in tried}
    if setting.first is not None:
        found["first"] = _in_short(*before_pruning(setting, material, choice))
    if config.problem1 is not None:
        found["problem1"] = prune_one_task(setting, material, choice, config.problem1)
    return network, found


def _in_short(network: MultitaskNetwork, notes: Mapping[str, Any]) -> dict[str, Any]:
    """What a pruned network costs, what it took, and what its metrics were before pruning."""
    kept = {name: notes[name] for name in ("validation", "task_batches", "stopped")}
    return {"flops": _costs(network), "entry": notes["path"][0]["metrics"], **kept}


def _preference(setting: Setting, network: MultitaskNetwork, validation: Mapping[str, float]) -> tuple[float, float]:
    """What is lowest for the best try: by how much it is over the budget, then its expected cost under the mix."""
    lost = losses(validation, setting.reference, setting.objectives)
    mix: Any = setting.mix
    return worst_excess(lost, setting.max_drop), expected_flops(network, resolve_mix(mix, network.tasks))


def _costs(network: MultitaskNetwork) -> dict[str, int]:
    return {str(tasks): network.flops(tasks) for tasks in all_subsets(network.tasks)}


def _original_flops(material: Material) -> dict[str, int]:
    network = material.side_by_side()
    return {task: network.flops(task) for task in material.networks}


def _tested(setting: Setting, choice: Choice, network: MultitaskNetwork, test: Any) -> dict[str, Any]:
    return setting.store.json(
        "tested",
        pruned_depends_on(setting, choice),
        lambda: evaluate(network, test, setting.objectives),
        f"{choice.label}: evaluate on test data",
    )
