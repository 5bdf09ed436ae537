"""``evaluate``: the metric of each task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pamerge.errors import PamergeError
from pamerge.network.network import MultitaskNetwork
from pamerge.tasks import TaskSet
from pamerge.training.data import Batches, Shapes, capital
from pamerge.training.processes import resolve_fabric, shard, sums_by_task
from pamerge.training.protocol import Objective, check_objectives
from pamerge.training.steps import in_full_precision

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Model = MultitaskNetwork | nn.Module | Mapping[str, nn.Module]
"""A multitask network; a plain module for a single task, or one that returns a mapping; or a module for each task."""


def evaluate(
    network: Model, data: Iterable[Any], objectives: Mapping[str, Objective], *, fabric: Fabric | None = None
) -> dict[str, float]:
    """The metric of each task that has an objective, over all samples that have its labels.

    Args:
        network: A multitask network. Also a plain module (with one objective), or a mapping from each task to its own
            module, such as the original networks.
        data: An iterable of ``(inputs, targets)`` batches; a batch may have labels of only some tasks.
        objectives: For each task how it is judged; tasks that are not named are not run.
        fabric: Device, precision and processes; by default the device where the network is.

    Raises:
        PamergeError: The data is empty, wrong, or has no labels for a task.
    """
    module = nn.ModuleDict(_indexed(network)) if isinstance(network, Mapping) else network
    check_objectives(objectives, network.tasks if isinstance(network, MultitaskNetwork) else None)
    if fabric is not None:
        module.to(fabric.device)
    fabric = resolve_fabric(fabric, module)
    run = runner(network, objectives)
    known = network.tasks if isinstance(network, MultitaskNetwork) else None
    batches = Batches(shard(data, fabric), "the data", objectives, known, prober(module, run, objectives, fabric))
    return evaluate_batches(module, run, batches, fabric)


Run = Callable[[Tensor, TaskSet], Mapping[str, Tensor]]
"""From inputs and tasks to outputs."""


def evaluate_batches(module: nn.Module, run: Run, batches: Batches, fabric: Fabric) -> dict[str, float]:
    """The metric of each task, over the batches of all processes."""
    objectives, scores, empty = batches.objectives, dict[str, Tensor](), True
    with in_eval_mode(module), torch.no_grad():
        for batch in batches:
            empty = False
            if not batch.targets:
                continue
            batch = batch.to(fabric.device)
            with fabric.autocast():
                outputs = run(batch.inputs, batch.labelled)
            for task, targets in batch.targets.items():
                output = batch.matching(in_full_precision(outputs[task]), task)
                sums, counts = objectives[task].score(output, targets)
                score = torch.stack([sums.double().reshape(-1), counts.double().reshape(-1)])
                scores[task] = scores[task] + score if task in scores else score
    if empty and fabric.world_size == 1:
        raise PamergeError(f"{capital(batches.name)} is empty; expected at least one batch of (inputs, targets).")
    scores = sums_by_task(scores, list(objectives), fabric)
    missing = [task for task in objectives if task not in scores]
    if missing:
        raise PamergeError(
            f"{capital(batches.name)} has no labels for task(s) {', '.join(map(repr, missing))}; expected some, to "
            "evaluate them with."
        )
    return {task: _mean(scores[task]) for task in objectives}


def runner(network: Model, objectives: Mapping[str, Objective]) -> Run:
    """How to run some tasks of whatever a user calls a network."""
    if isinstance(network, MultitaskNetwork):
        return lambda x, tasks: network(x, tasks)
    if isinstance(network, Mapping):
        missing = [task for task in objectives if task not in network]
        if missing:
            raise PamergeError(
                f"There is no network for task(s) {', '.join(map(repr, missing))}; got: {', '.join(network)}."
            )
        return lambda x, tasks: {task: network[task](x) for task in tasks}

    def run(x: Tensor, tasks: TaskSet) -> Mapping[str, Tensor]:
        outputs = network(x)
        if isinstance(outputs, Mapping):
            return outputs
        if len(objectives) > 1:
            raise PamergeError(
                f"The network gives one output for {len(objectives)} tasks; give a module for each task instead."
            )
        return dict.fromkeys(objectives, outputs)

    return run


def prober(
    module: nn.Module, run: Run, objectives: Mapping[str, Objective], fabric: Fabric
) -> Callable[[Tensor], Shapes]:
    """A function from an input to the shapes of the tasks' outputs."""

    def probe(x: Tensor) -> Shapes:
        with in_eval_mode(module), torch.no_grad(), fabric.autocast():
            outputs = run(x.to(fabric.device), TaskSet(objectives))
        missing = [task for task in objectives if task not in outputs]
        if missing:
            raise PamergeError(f"the network gives no output for task(s) {', '.join(map(repr, missing))}.")
        return {task: tuple(outputs[task].shape[1:]) for task in objectives}

    return probe


@contextmanager
def in_eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every part is in the mode that it was in."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _mean(score: Tensor) -> float:
    """The mean of sums / counts where there was anything to count."""
    sums, counts = score
    return float((sums[counts > 0] / counts[counts > 0]).mean()) if bool((counts > 0).any()) else float("nan")


def _indexed(networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Under names that a module may have."""
    return {str(index): module for index, module in enumerate(networks.values())}
