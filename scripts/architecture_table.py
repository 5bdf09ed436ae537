"""Tries architectures of pytorchcv that nobody tuned pamerge for, and writes what happened.

Two networks of each architecture, with random weights, are captured and merged three times: separate, all neurons
shared, task sets at random. Separate and all shared must compute what the originals compute; every subset of tasks must
give what the full network gives. An architecture that cannot be merged is listed with the exact error.

    python scripts/architecture_table.py            # all of them: results/architectures.json and the table in the docs
    python scripts/architecture_table.py peleenet   # only look at some; writes nothing
"""

from __future__ import annotations

import importlib
import json
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pamerge
from pamerge.merging import prepare
from pamerge.network.files import write_atomically
from pamerge.network.network import Junction, MultitaskNetwork
from pamerge.tasks import TaskSet, all_subsets

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "architectures.json"
PAGE = ROOT / "docs" / "networks.md"
MARKS = "<!-- architectures: made by scripts/architecture_table.py -->", "<!-- end of architectures -->"
SIZES = (32, 48, 64, 75, 96, 128, 160, 192, 224, 256, 299, 331)

# One of each of many families, a small one, so that all of them take minutes. Those that fail stay in.
ARCHITECTURES = {
    "alexnet": "alexnet",
    "bam_resnet18": "bamresnet",
    "bninception": "bninception",
    "cbam_resnet18": "cbamresnet",
    "darknet_ref": "darknet",
    "densenet40_k12_cifar10": "densenet_cifar",
    "diracnet18v2": "diracnetv2",
    "dla46c": "dla",
    "dpn68": "dpn",
    "efficientnet_b0": "efficientnet",
    "fbnet_cb": "fbnet",
    "fishnet99": "fishnet",
    "ghostnet": "ghostnet",
    "hardnet39ds": "hardnet",
    "hrnet_w18_small_v1": "hrnet",
    "igcv3_wd4": "igcv3",
    "inceptionv3": "inceptionv3",
    "mixnet_s": "mixnet",
    "mnasnet_small": "mnasnet",
    "mobilenet_wd4": "mobilenet",
    "mobilenetv3_small_w7d20": "mobilenetv3",
    "nin_cifar10": "nin_cifar",
    "octresnet10_ad2": "octresnet",
    "peleenet": "peleenet",
    "preresnet10": "preresnet",
    "proxylessnas_cpu": "proxylessnas",
    "pyramidnet110_a48_cifar10": "pyramidnet_cifar",
    "regnetx002": "regnet",
    "resnext26_32x4d": "resnext",
    "senet16": "senet",
    "sepreresnet10": "sepreresnet",
    "shufflenetv2_wd2": "shufflenetv2",
    "spnasnet": "spnasnet",
    "squeezeresnet_v1_1": "squeezenet",
    "vovnet27s": "vovnet",
    "xception": "xception",
}


def main(chosen: list[str]) -> None:
    """Try the chosen architectures, or all of them and write the results."""
    torch.manual_seed(0)
    rows = []
    for name in chosen or ARCHITECTURES:
        start = time.perf_counter()
        row = attempt(name, ARCHITECTURES[name])
        rows.append(row)
        print(f"{name:<28} {time.perf_counter() - start:5.1f} s  {row['result']}", flush=True)
    merged = sum(row["result"] == "ok" for row in rows)
    print(f"{merged} of {len(rows)} captured, merged, all subsets right")
    if not chosen:
        found = {"tried": len(rows), "ok": merged, "architectures": rows, "torch": torch.__version__}
        write_atomically(RESULTS, (json.dumps(found, indent=1) + "\n").encode())
        write_table(rows)


def attempt(name: str, module: str) -> dict[str, Any]:
    """One row of the table."""
    row: dict[str, Any] = {"architecture": name, "module": module}
    try:
        make = getattr(importlib.import_module(f"pytorchcv.models.{module}"), name)
        few, more = (
            (10, 10) if module.endswith("_cifar") else (3, 4)
        )  # some of these insist on their data set's classes
        networks = {"A": randomised(make(num_classes=few), 1), "B": randomised(make(num_classes=more), 2)}
        x = smallest_input(networks["A"])
        row |= {"input": list(x.shape[1:]), "parameters": sum(p.numel() for p in networks["A"].parameters())}
        row |= merge_and_check(networks, x)
        row["result"] = "ok"
    except Exception as error:
        row["result"] = plain(error)
    return row


def randomised(network: nn.Module, seed: int) -> nn.Module:
    """Batch-norm statistics and gains are moved away from zeros and ones, which would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            shape = module.running_mean.shape
            module.running_mean = 0.1 * torch.randn(shape, generator=generator)
            module.running_var = 0.8 + 0.4 * torch.rand(shape, generator=generator)
            if module.affine:
                module.weight.data = 0.8 + 0.4 * torch.rand(shape, generator=generator)
                module.bias.data = 0.1 * torch.randn(shape, generator=generator)
    return network.eval()


def smallest_input(network: nn.Module) -> Tensor:
    """The smallest square image that the network takes."""
    generator = torch.Generator().manual_seed(3)
    for size in SIZES:
        x = torch.randn(1, 3, size, size, generator=generator)
        try:
            with torch.no_grad():
                network(x)
        except (RuntimeError, ValueError):
            continue
        return x
    raise ValueError(f"no square image of {SIZES[0]} to {SIZES[-1]} pixels fits this network")


@torch.no_grad()
def merge_and_check(networks: dict[str, nn.Module], x: Tensor) -> dict[str, Any]:
    """Merge in three ways; raises where a result is not right."""
    expected = {task: network(x) for task, network in networks.items()}
    everyone = TaskSet(networks)
    rng = np.random.default_rng(0)
    subsets = list(all_subsets(networks))

    def share(junction: Junction) -> dict[int, TaskSet]:
        return dict.fromkeys(junction.task_sets(), everyone)

    def draw(junction: Junction) -> dict[int, TaskSet]:
        return {neuron: subsets[rng.integers(len(subsets))] for neuron in junction.task_sets()}

    material = prepare(networks, [x])
    styles = {"separate": pamerge.Separate(), "all shared": pamerge.Assigned(share), "random": pamerge.Assigned(draw)}
    for style, scheme in styles.items():
        network = scheme.merge(material)
        if style != "random":
            expect(network(x), expected, style)
        expect_subsets(network, x, style)
    alignment = material.alignment
    return {"layers": len(alignment.layers("A")), "matched": len(alignment.matched_layers())}


def expect_subsets(network: MultitaskNetwork, x: Tensor, style: str) -> None:
    """Every subset of tasks gives what the full network gives."""
    network.check()
    outputs = network(x)
    for tasks in all_subsets(network.tasks):
        expect(network(x, tasks=tasks), {task: outputs[task] for task in tasks}, f"{style}, {tasks}")
        expect(network.subnet(tasks)(x), {task: outputs[task] for task in tasks}, f"{style}, subnet of {tasks}")


def expect(found: dict[str, Tensor], expected: dict[str, Tensor], what: str) -> None:
    """Two sets of outputs agree."""
    for task, tensor in expected.items():
        worst = float((found[task] - tensor).abs().max() / tensor.abs().max().clamp_min(1e-6))
        if not worst < 1e-4:
            raise AssertionError(f"{what}: the output of {task} is wrong by {worst:.1e} of its largest value")


def plain(error: Exception) -> str:
    """The text of an error without the folders of this machine and the name of the task."""
    text = " ".join(str(error).split()).removeprefix("Task 'A': ")
    for folder in (sysconfig.get_paths()["purelib"], str(ROOT)):
        text = text.replace(folder + "/", "")
    return text if isinstance(error, pamerge.PamergeError) else f"{type(error).__name__}: {text}"


def write_table(rows: list[dict[str, Any]]) -> None:
    """Put the table between the marks of the page."""
    merged = sum(row["result"] == "ok" for row in rows)
    lines = [
        f"{merged} of {len(rows)} were captured and merged, and all subsets of tasks were right.",
        "",
        "| architecture | input | parameters | hidden layers matched | result |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        size = "×".join(map(str, row["input"])) if "input" in row else ""
        parameters = f"{row['parameters'] / 1e6:.1f} M" if "parameters" in row else ""
        matched = f"{row['matched']} of {row['layers']}" if "matched" in row else ""
        result = row["result"].replace("|", "\\|")
        lines.append(f"| `{row['architecture']}` | {size} | {parameters} | {matched} | {result} |")
    text = PAGE.read_text()
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    write_atomically(PAGE, (before + "\n".join([MARKS[0], "", *lines, "", MARKS[1]]) + after).encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
