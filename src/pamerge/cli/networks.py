"""Commands for a user's own networks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pamerge.cli.show import AsJson, Quiet, print_json, print_lines, print_table, stage_lines
from pamerge.experiments.own_networks import merge_own_networks, read_merge_config
from pamerge.network import MultitaskNetwork, load
from pamerge.tasks import TaskSet, all_subsets

MOST_SUBSETS = 6
"""With more tasks than this, only single tasks and all of them are shown."""


def merge(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="What to merge, a TOML file.")],
    out: Annotated[Path | None, typer.Option(help="The file to write, instead of the one in the file.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Merge your own trained networks, fine-tune and prune them within a budget, and save the result.

    A run that was killed goes on: give the same command again. Finished stages are kept in <out>.stages.

    Example: pamerge merge faces.toml, where faces.toml has

    \b
      out = "faces.pam"                   # paths are relative to this file
      max_drop = 0.01                     # what each task may lose
      [networks.age]
      factory = "models:age_network"      # module and function
      weights = "age.safetensors"         # or .pt, .pth; optional
      objective = "regression"            # or classification, multilabel
      [networks.gender]
      factory = "models:gender_network"
      objective = "classification"
      [data]
      factory = "data:loaders"            # gives {"train": …, "validation": …} and,
                                          # if you like, calibration and test

    \b
    Optional keys, with their defaults: scheme = "pam" (or {name = "pam", alpha = "tune"}, "mtz",
    "separate"), pruner = "taylor" (or "vib", "magnitude"), finetune = 200 (steps), effort (a limit
    of task-batches), seed = 0; the tables [prune] (options of pamerge.prune), [mix] (how often each
    combination runs, as "age+gender" = 0.3), [tune] (options of pamerge.compare_alphas for
    alpha = "tune") and args = {…} for a factory.
    """  # noqa: D301 - the backspace keeps the lines as they are
    _, found = merge_own_networks(
        read_merge_config(config), config.parent, out=out, watch=stage_lines(quiet), progress=not quiet
    )
    if as_json:
        print_json(found)
    elif not quiet:
        print_table(_cost_rows(found), "cost of every combination")
        print_table(_metric_rows(found), "metrics")
        print_lines(f"{found['out']} is written. Pruning stopped because {found['stopped']}.")


def inspect(
    network: Annotated[
        Path, typer.Argument(metavar="FILE", help="A network that pamerge.save or pamerge merge wrote.")
    ],
    as_json: AsJson = False,
) -> None:
    """Say what a saved network is: its tasks, the cost of every combination, and the groups of its neurons.

    Example: pamerge inspect faces.pam
    """
    found = _description(load(network))
    if as_json:
        print_json(found)
        return
    size = "×".join(map(str, found["input_size"]))
    print_lines(f"{network}: {len(found['tasks'])} task(s): {', '.join(found['tasks'])}; inputs of {size}")
    rows = [["tasks", "MFLOPs", "parameters"]]
    for tasks, cost in found["subsets"].items():
        rows.append([tasks, f"{cost['flops'] / 1e6:.3f}", f"{cost['parameters']:,}"])
    print_table(rows, "cost of every combination")
    groups = sorted({TaskSet.parse(name) for layer in found["layers"].values() for name in layer["groups"]})
    rows = [["neurons of", *(f"for {tasks}" for tasks in groups)]]
    for name, layer in found["layers"].items():
        rows.append([name, *(str(layer["groups"].get(str(tasks), 0)) for tasks in groups)])
    print_table(rows, "groups of neurons, by the tasks that they serve")


def _description(network: MultitaskNetwork) -> dict[str, Any]:
    tasks = network.tasks
    subsets = [s for s in all_subsets(tasks) if len(tasks) <= MOST_SUBSETS or len(s) in (1, len(tasks))]
    return {
        "tasks": list(tasks),
        "input_size": list(network.input_size),
        "subsets": {
            str(subset): {"flops": network.flops(subset), "parameters": network.parameter_count(subset)}
            for subset in subsets
        },
        "layers": {
            name: {
                "groups": {str(group): len(neurons) for group, neurons in junction.groups.items()},
                "feeds": list(junction.feeds),
            }
            for name, junction in network.junctions.items()
        },
    }


def _cost_rows(found: Mapping[str, Any]) -> list[list[str]]:
    rows = [["tasks", "MFLOPs before", "MFLOPs now", "times less", "parameters before", "parameters now"]]
    for tasks, cost in found["flops"].items():
        before = found["original_flops"][tasks]
        rows.append(
            [
                tasks,
                f"{before / 1e6:.3f}",
                f"{cost / 1e6:.3f}",
                f"{before / cost:.2f}",
                f"{found['original_parameters'][tasks]:,}",
                f"{found['parameters'][tasks]:,}",
            ]
        )
    return rows


def _metric_rows(found: Mapping[str, Any]) -> list[list[str]]:
    parts = [part for part in ("validation", "test") if part in found]
    rows = [["task", "metric", *(f"{part} {when}" for part in parts for when in ("before", "now"))]]
    for task in found["tasks"]:
        values = [found[name][task] for part in parts for name in (f"original_{part}", part)]
        rows.append([task, found["metric"][task], *(f"{value:.4f}" for value in values)])
    return rows
