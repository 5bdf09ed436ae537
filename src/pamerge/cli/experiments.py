"""Commands that compare schemes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from pamerge.cli.show import AsJson, Quiet, print_json, print_lines, print_table, stage_lines
from pamerge.experiments import Config, read_config
from pamerge.experiments import run as run_experiment
from pamerge.experiments.tables import combination_rows, gain_rows, problem1_rows
from pamerge.report import write_report


def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The experiment, a TOML file.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for stages, results and networks.", show_default="runs/<name>")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with downloaded data; see: pamerge data list.")] = None,
    jobs: Annotated[int, typer.Option(help="Schemes and seeds to work on at once, sharing the threads.")] = 1,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare schemes: train the networks, merge, fine-tune and prune them, and print what every combination costs.

    Stages that were done before are not done again, and a run that was killed goes on: give the same command again.

    Example: pamerge run lenet.toml --data ~/data --out runs/lenet, where lenet.toml has

    \b
      name = "lenet"
      schemes = ["separate", "mtz", {name = "pam", alpha = "tune"}]
      pruners = ["taylor", "vib"]
      max_drop = 0.01                     # what each task may lose
      effort = 10000                      # task-batches that every scheme may use
      data = "fashion"                    # or digits, lfw, celeba; see: pamerge data list
      network = "lenet5"                  # or vgg16, resnet18, resnet34
      [pretraining]
      epochs = 10

    \b
    Optional keys: finetune (steps), finetune_lr, distill (the original networks' share in the loss), batch_size,
    seeds = [0, 1], precision ("32-true" or "bf16-mixed"); the tables [prune] (options of pamerge.prune),
    [tune] (options of pamerge.compare_alphas), [mix] (how often each combination runs, as "A+B" = 0.3) and [problem1]
    (what the other tasks lose when one task alone is pruned: task, laps, fraction, steps).
    """  # noqa: D301 - the backspace keeps the lines as they are
    experiment = read_config(config)
    folder = out or Path("runs") / experiment.name
    results = run_experiment(experiment, folder, data=data, watch=stage_lines(quiet), progress=not quiet, jobs=jobs)
    _report(experiment, results, as_json, quiet)
    if not quiet and not as_json:
        print_lines(f"Results are in {folder / 'results'}, pruned networks in {folder / 'networks'}.")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for stages, results and networks.")] = Path("pamerge-demo"),
    seed: Annotated[int, typer.Option(help="Decides the data, the networks and all that is left to chance.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare PAM with its baselines on two small networks that read handwritten digits.

    Needs no download. A demo that was interrupted goes on: give the same command again.

    Example: pamerge demo --out /tmp/demo --seed 1
    """
    with resources.as_file(resources.files("pamerge.experiments") / "configs" / "demo.toml") as path:
        experiment = replace(read_config(path), seeds=(seed,))
    torch.set_num_threads(1)  # networks this small are no faster on more, and so results do not depend on the machine
    jobs = min(len(experiment.schemes), os.cpu_count() or 1)
    results = run_experiment(experiment, out, watch=stage_lines(quiet), jobs=jobs)
    write_report(results, out / "report.html")
    _report(experiment, results, as_json, quiet)
    if not quiet and not as_json:
        pruner = experiment.pruners[0].label
        network = out / "networks" / f"{experiment.name}-{_own_schemes(experiment)[0]}-{pruner}-seed{seed}.pam"
        print_lines(
            "What to do next:",
            f"  open {out / 'report.html'} in a browser: toggle tasks, see what runs and what it costs",
            f"  pamerge inspect {network}",
            f"  pamerge export {network} {out / 'onnx'}",
            f"  pamerge bench {out / 'onnx'}",
            "  pamerge merge --help    # your own networks",
        )


def _report(config: Config, results: Sequence[Mapping[str, Any]], as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(results)
    if as_json or quiet:
        return
    for pruner in config.pruners:
        found = [result for result in results if result["pruner"] == pruner.label]
        print_table(combination_rows(found), f"{config.name}, pruned with {pruner.label}")
        if len(config.schemes) > 1:
            for scheme in _own_schemes(config):
                print_table(gain_rows(found, scheme))
        if config.problem1 is not None:
            for scheme in found[0]["schemes"]:
                task = found[0]["schemes"][scheme]["problem1"]["task"]
                print_table(problem1_rows(found[0], scheme), f"{scheme}: only {task} is pruned")


def _own_schemes(config: Config) -> list[str]:
    """The schemes whose gains are of interest: PAM, or the last one if it is not compared."""
    return [choice.label for choice in config.schemes if choice.name == "pam"] or [config.schemes[-1].label]
