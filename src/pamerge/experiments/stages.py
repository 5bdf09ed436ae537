"""From original networks to a pruned one with one scheme: tune → merge → fine-tune → prune, each stage kept.

A killed run goes on: finished stages are read, fine-tuning and pruning go on from their checkpoints, and every stage
starts from random states of its own, so that the end is the same.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from pamerge.errors import PamergeError
from pamerge.experiments.config import Choice, First
from pamerge.experiments.describe import information_record
from pamerge.experiments.options import check_options
from pamerge.experiments.registry import PRUNE_FIRST, TUNE, make_pruner, make_scheme
from pamerge.experiments.store import Store
from pamerge.merging import PAM, Material
from pamerge.merging.regroup import Overlap
from pamerge.network.network import MultitaskNetwork
from pamerge.pruning import prune
from pamerge.pruning.parts import independent_parts
from pamerge.pruning.path import PruningPath
from pamerge.pruning.ranking import resolve_mix
from pamerge.tasks import TaskSet
from pamerge.training import Objective, finetune
from pamerge.training.finetune import seeded
from pamerge.tuning import compare_alphas

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Notes = dict[str, Any]

APART = Choice("separate")
"""How networks are pruned one by one before they are merged."""

GIVEN = {"networks", "network", "train", "validation", "calibration", "objectives", "pruner", "max_drop", "mix", "seed"}
GIVEN_TO_PRUNE = GIVEN | {"reference", "effort", "checkpoint", "progress", "optimizer", "fabric", "teachers", "distill"}
GIVEN_TO_TUNE = GIVEN | {"scheme", "progress"}
"""What a configuration cannot choose in its tables of options for pruning and tuning."""


class Loaders(Protocol):
    """Where batches come from. Every call starts from the same random state, whatever was read before."""

    def train(self) -> Any:
        """Training batches."""

    def validation(self) -> Any:
        """Batches that the budget is checked on."""

    def calibration(self) -> Any:
        """Batches that information is measured on."""


@dataclass(frozen=True)
class Setting:
    """What all schemes have in common.

    Attributes:
        networks: the original networks.
        objectives: the loss and metric of each task.
        reference: the original networks' validation metrics.
        loaders: the data.
        pruner: the pruner.
        max_drop: the budget.
        effort: the limit of task-batches, or None.
        finetune: training steps between merging and pruning.
        distill: the original networks' share in the loss of fine-tuning and pruning.
        teachers: gives the original networks as teachers; called only if they teach.
        prune: further options of :func:`pamerge.prune`.
        tune: further options of :func:`pamerge.compare_alphas`.
        mix: how often each combination of tasks is executed; None if they are all alike.
        seed: for all that is left to chance.
        store: where stages are kept.
        basis: everything else that the results depend on.
        progress: show how fine-tuning and pruning get on.
        finetune_lr: the learning rate between merging and pruning; None for that of :func:`pamerge.finetune`.
        precision: of fine-tuning and pruning.
        first: a smaller budget or effort to prune with before.
    """

    networks: Mapping[str, nn.Module]
    objectives: Mapping[str, Objective]
    reference: Mapping[str, float]
    loaders: Loaders
    pruner: Choice
    max_drop: float
    effort: int | None
    finetune: int
    distill: float
    teachers: Callable[[], Mapping[str, nn.Module]]
    prune: Mapping[str, Any]
    tune: Mapping[str, Any]
    mix: Mapping[str, float] | None
    seed: int
    store: Store
    basis: Mapping[str, Any]
    progress: bool = False
    finetune_lr: float | None = None
    precision: str = "32-true"
    first: First | None = None

    def taught(self) -> dict[str, Any]:
        """How the original networks teach, as something that stages depend on."""
        return {"distill": self.distill} if self.distill else {}

    def lessons(self) -> dict[str, Any]:
        """How the original networks teach, as options of training."""
        return {"distill": self.distill, "teachers": self.teachers()} if self.distill else {}

    def rate(self) -> dict[str, Any]:
        """The learning rate of fine-tuning, if it is chosen."""
        return {} if self.finetune_lr is None else {"lr": self.finetune_lr}

    def preferences(self) -> dict[str, Any]:
        """The mix and the options of tuning, as something that stages depend on."""
        mix = {} if self.mix is None else {"mix": dict(self.mix)}
        return mix | ({"tune": dict(self.tune)} if self.tune else {})


def check_stage_options(for_prune: Mapping[str, Any], for_tune: Mapping[str, Any]) -> None:
    """Options of a configuration's tables for pruning and tuning."""
    check_options(prune, "prune", for_prune, GIVEN_TO_PRUNE)
    check_options(compare_alphas, "tune", tune_options(for_tune), GIVEN_TO_TUNE)


def tune_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of tuning; TOML has no None, so that ``false`` among the zips stands for it."""
    found = dict(options)
    if isinstance(found.get("zips"), list):
        found["zips"] = [None if value is False else value for value in found["zips"]]
    return found


def check_mix(mix: Any, tasks: Iterable[str]) -> None:
    """A mix must be of known tasks."""
    try:
        resolve_mix(mix, tasks)
    except PamergeError as error:
        raise PamergeError(f"mix: {error}") from None


def one_process(precision: str) -> Fabric:
    """Where experiments train: on the processor, each stage in a process of its own."""
    from lightning_fabric import Fabric  # here, because it takes seconds to import
    from lightning_fabric.plugins import MixedPrecision

    if precision == "32-true":
        return Fabric(accelerator="cpu", devices=1)
    # as a plugin, because Fabric tells on the terminal which precision it was given by name
    return Fabric(accelerator="cpu", devices=1, plugins=MixedPrecision(precision, "cpu"))  # type: ignore[arg-type]


def pruned(setting: Setting, material: Material, choice: Choice) -> tuple[MultitaskNetwork, Notes]:
    """The network that a scheme ends with, and what it took."""
    depends_on = pruned_depends_on(setting, choice)
    further = "" if setting.first is None else " further"
    title, store = f"{choice.label}: prune{further} with {setting.pruner.label}", setting.store
    if store.has_network("pruned", depends_on):  # then nothing that led to it is needed
        return store.network("pruned", depends_on, _nothing, title)
    network, before = before_pruning(setting, material, choice)
    spent = before.pop("task_batches")
    if setting.effort is not None and spent >= setting.effort:
        raise PamergeError(f"effort = {setting.effort}; {choice.label} used {spent} task-batches before pruning.")

    parts = independent_parts(network)
    checkpoints = [store.path("pruning", depends_on | _part(tasks, parts), ".checkpoint") for tasks in parts]

    def make() -> tuple[MultitaskNetwork, Notes]:
        paths: list[PruningPath] = []
        for tasks, checkpoint in zip(parts, checkpoints, strict=True):
            left = None if setting.effort is None else setting.effort - spent - sum(p.task_batches for p in paths)
            share = None if left is None else left // (len(parts) - len(paths))
            if share is not None and share < 1:
                raise PamergeError(f"effort = {setting.effort}; {choice.label} used it all before {tasks} was pruned.")
            path = prune(
                network,
                setting.loaders.train(),
                setting.loaders.validation(),
                setting.objectives,
                pruner=make_pruner(setting.pruner),
                tasks=tasks,
                max_drop=setting.max_drop,
                reference=setting.reference,
                mix=setting.mix,
                effort=share,
                checkpoint=checkpoint,
                seed=setting.seed,
                progress=setting.progress,
                fabric=one_process(setting.precision),
                **setting.lessons(),
                **(setting.prune if setting.first is None else {**setting.prune, "rounds": 1}),
            )
            paths.append(path)
        return network, before | {
            "validation": {task: value for path in paths for task, value in path.final.items()},
            "task_batches": spent + sum(path.task_batches for path in paths),
            "seconds": before["seconds"] + sum(path.seconds for path in paths),
            "threads": torch.get_num_threads(),
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,  # of the process so far
            "stopped": "; ".join(dict.fromkeys(path.stopped for path in paths)),
            "path": _one_path(paths),
        }

    found = store.network("pruned", depends_on, make, title)
    for checkpoint in checkpoints:  # the stage itself is kept
        checkpoint.unlink(missing_ok=True)
    return found


def at_first(setting: Setting) -> Setting:
    """The setting that a scheme begins with: with the smaller budget and effort, if it is pruned with these before."""
    first = setting.first
    return setting if first is None else replace(setting, max_drop=first.max_drop, effort=first.effort, first=None)


def before_pruning(setting: Setting, material: Material, choice: Choice) -> tuple[MultitaskNetwork, Notes]:
    """What pruning begins with: the merged network, or the one that was pruned with less before."""
    make = finetuned if setting.first is None else pruned
    return make(at_first(setting), material, choice)


def _part(tasks: TaskSet, parts: Sequence[TaskSet]) -> dict[str, Any]:
    """What tells the checkpoint of a part from the others'."""
    return {"part": str(tasks)} if len(parts) > 1 else {}


def _one_path(paths: Sequence[PruningPath]) -> list[dict[str, Any]]:
    """The points of one part after the other, with the metrics that the tasks of the other parts had meanwhile."""
    now = {task: value for path in paths for task, value in path.steps[0].metrics.items()}
    found = []
    for path in paths:
        found += [{"flops": dict(step.flops), "metrics": now | dict(step.metrics)} for step in path.steps]
        now |= path.final
    return found


def pruned_depends_on(setting: Setting, choice: Choice) -> dict[str, Any]:
    """Everything that the result of :func:`pruned` depends on."""
    return {
        **setting.basis,
        **setting.preferences(),
        "scheme": choice.identity(),
        "pruner": setting.pruner.identity(),
        "max_drop": setting.max_drop,
        "effort": setting.effort,
        "finetune": setting.finetune,
        **setting.rate(),
        **setting.taught(),
        "prune": dict(setting.prune),
        **({} if setting.first is None else {"first": asdict(setting.first)}),
    }


def finetuned(setting: Setting, material: Material, choice: Choice) -> tuple[MultitaskNetwork, Notes]:
    """The network of a scheme before pruning, whatever the pruner and the budget."""
    scheme, notes = tuned(setting, choice)
    settled = replace(choice, options={**choice.options, **notes.get("chosen", {})})
    basis = {**setting.basis, "scheme": settled.identity()}
    if PRUNE_FIRST in choice.options:
        start, before, basis["start"] = pruned_apart(setting, material, choice)
        material = material.started_from(start)
        notes["task_batches"] += before["task_batches"]
        notes["seconds"] += before["seconds"]
    network, merging = _merged(setting, material, scheme, settled, basis)
    notes["task_batches"] += merging["task_batches"]
    notes["seconds"] += merging["seconds"]
    notes |= {name: merging[name] for name in ("merging", "information")}
    if not setting.finetune:
        return network, notes
    depends_on = {**basis, "finetune": setting.finetune, **setting.rate(), **setting.taught()}
    checkpoint = setting.store.path("finetuning", depends_on, ".checkpoint")

    def make() -> tuple[MultitaskNetwork, Notes]:
        result = finetune(
            network,
            setting.loaders.train(),
            setting.objectives,
            steps=setting.finetune,
            checkpoint=checkpoint,
            seed=setting.seed,
            progress=setting.progress,
            fabric=one_process(setting.precision),
            **setting.rate(),
            **setting.lessons(),
        )
        return network, {"task_batches": result.task_batches, "seconds": result.seconds}

    network, training = setting.store.network("finetuned", depends_on, make, f"{choice.label}: fine-tune")
    checkpoint.unlink(missing_ok=True)
    notes["task_batches"] += training["task_batches"]
    notes["seconds"] += training["seconds"]
    return network, notes


def pruned_apart(
    setting: Setting, material: Material, choice: Choice
) -> tuple[MultitaskNetwork, Notes, dict[str, Any]]:
    """The networks that a scheme starts from if they are pruned one by one first, what it took, what they depend on."""
    if setting.effort is None:
        raise PamergeError(f"{PRUNE_FIRST} is a share of the effort, which has no limit; expected effort = …")
    apart = replace(setting, effort=round(choice.options[PRUNE_FIRST] * setting.effort))
    return *pruned(apart, material, APART), pruned_depends_on(apart, APART)


def _merged(
    setting: Setting, material: Material, scheme: Any, settled: Choice, depends_on: Mapping[str, Any]
) -> tuple[MultitaskNetwork, Notes]:
    def make() -> tuple[MultitaskNetwork, Notes]:
        start = time.perf_counter()
        fresh = replace(material, calibration=setting.loaders.calibration(), train=setting.loaders.train())
        with seeded(setting.seed):
            network: MultitaskNetwork = scheme.merge(fresh)
        merging = network.merging
        return network, {
            "task_batches": 0 if merging is None else merging.task_batches,
            "seconds": time.perf_counter() - start,
            "merging": str(merging).splitlines(),
            "information": {} if merging is None else information_record(merging, overlap=_overlap(scheme)),
        }

    return setting.store.network("merged", depends_on, make, f"{settled.label}: merge")


def tuned(setting: Setting, choice: Choice) -> tuple[Any, Notes]:
    """The scheme, with α tuned if the configuration asks for it, and what to record."""
    scheme = make_scheme(choice)
    notes: Notes = {"task_batches": 0, "seconds": 0.0}
    if not isinstance(scheme, PAM):
        return scheme, notes
    if choice.options.get("alpha") != TUNE:
        return scheme, {**notes, **_decided_by(scheme)}
    depends_on = {
        **setting.basis,
        **setting.preferences(),
        "scheme": choice.identity(),
        "pruner": setting.pruner.identity(),
        "max_drop": setting.max_drop,
    }

    def make() -> Notes:
        with seeded(setting.seed):
            found = compare_alphas(
                setting.networks,
                setting.loaders.calibration(),
                setting.loaders.train(),
                setting.loaders.validation(),
                setting.objectives,
                pruner=make_pruner(setting.pruner),
                max_drop=setting.max_drop,
                mix=setting.mix,
                scheme=scheme,
                progress=False,
                seed=setting.seed,
                **tune_options(setting.tune),
            )
        return {
            "chosen": {name: getattr(found.best, name) for name in ("alpha", "trunk", "exclusive", "overlap", "zip")},
            "probes": {probe.name: {"drop": probe.drop, "cost": probe.cost} for probe in found.probes},
            "task_batches": sum(probe.task_batches for probe in found.probes),
            "seconds": sum(probe.seconds for probe in found.probes),
        }

    notes = setting.store.json("tuned", depends_on, make, f"{choice.label}: tune α for {setting.pruner.label}")
    chosen = replace(scheme, **notes["chosen"])
    return chosen, {**notes, **_decided_by(chosen)}


def _decided_by(scheme: PAM) -> Notes:
    """What decides which neurons are exclusive."""
    return {"alpha": scheme.alpha} if scheme.exclusive is None else {"exclusive": scheme.exclusive}


def _overlap(scheme: Any) -> Overlap:
    return scheme.overlap if isinstance(scheme, PAM) else "origin"


def _nothing() -> tuple[MultitaskNetwork, Notes]:
    raise AssertionError("the stage is stored")
