"""Pruning of one network: pamerge's Taylor beside torch-pruning's, from the same trained network to the same FLOPs.

    python benchmarks/bench_pruning.py [--quick] [--data FOLDER]

Both rank neurons of the whole network by a Taylor score from the same number of batches, remove a few, train a few
steps, and so on down to half and to a quarter of the operations; what is left of a fixed number of batches goes into a
last fine-tuning. Both see the same data and use the same optimiser and learning rates (SGD with momentum, as in the
paper of the score; it suffers least from being started anew after every removal, which torch-pruning needs). Operations
are counted by ``torch.utils.flop_counter``. In small networks one channel is several per cent of all operations, so
torch-pruning goes first, and pamerge has to get to what it reached, or below. Every result is kept as soon as it is
there, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch_pruning
from pytorchcv.models.resnet_cifar import CIFARResNet
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

import pamerge
from pamerge import zoo
from pamerge.data import fashion_canvases
from pamerge.data.idx import read_idx
from pamerge.network.files import write_atomically
from pamerge.pruning import Taylor, prune
from pamerge.training import Classification, MultiLabel, evaluate, finetune

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "benchmarks" / "pruning.json"
SHARES = (0.5, 0.25)
TASK = "A"


@dataclass(frozen=True)
class Case:
    """A network, its data, and how long to train and prune it."""

    make: Callable[[int], nn.Module]
    data: Callable[[Path, int], tuple[DataLoader, DataLoader, DataLoader]]
    objective: MultiLabel | Classification
    input_size: tuple[int, ...]
    epochs: int
    budget: int  # batches from one target to the next
    steps: int = 10  # training batches between removals
    batches: int = 5  # batches for scores
    fraction: float = 0.05
    train_lr: float = 2e-3
    lr: float = 0.01


SGD = partial(torch.optim.SGD, momentum=0.9)


def canvases(folder: Path, seed: int) -> tuple[DataLoader, DataLoader, DataLoader]:
    splits = fashion_canvases(folder, train=4000, validation=250, generator=torch.Generator().manual_seed(seed))
    splits = splits.with_tasks({TASK: splits.train.names[:5]})
    shuffle = torch.Generator().manual_seed(seed)
    return splits.train.loader(32, shuffle=shuffle), splits.validation.loader(50), splits.test.loader(50)


def items(folder: Path, seed: int) -> tuple[DataLoader, DataLoader, DataLoader]:
    """Single items at half the usual size: 4,000 to train on, 250 to validate, 3,000 of the official test images."""
    generator = torch.Generator().manual_seed(seed)

    def read(part: str, rows: slice) -> TensorDataset:
        images = torch.tensor(read_idx(folder / f"{part}-images-idx3-ubyte.gz")).float().unsqueeze(1)
        order = torch.randperm(len(images), generator=generator)[rows] if part == "train" else torch.arange(3000)
        inputs = functional.interpolate((images[order] / 255 - 0.286) / 0.353, (16, 16), mode="area")
        return TensorDataset(inputs, torch.tensor(read_idx(folder / f"{part}-labels-idx1-ubyte.gz")).long()[order])

    state = generator.get_state()
    train = read("train", slice(4000))
    generator.set_state(state)
    validation = read("train", slice(4000, 4250))
    shuffled = DataLoader(train, 32, shuffle=True, generator=torch.Generator().manual_seed(seed), drop_last=True)
    return shuffled, DataLoader(validation, 50), DataLoader(read("t10k", slice(None)), 50)


def resnet20(seed: int) -> nn.Module:
    """The ResNet-20 of pytorchcv for one channel of 16×16."""
    torch.manual_seed(seed)
    channels = [[16] * 3, [32] * 3, [64] * 3]
    net = CIFARResNet(channels, 16, bottleneck=False, in_channels=1, in_size=(16, 16), num_classes=10)
    net.features.final_pool = nn.AdaptiveAvgPool2d(1)
    return net


def lenet(seed: int) -> nn.Module:
    return zoo.lenet5(5, (1, 28, 112), generator=torch.Generator().manual_seed(seed))


CASES = {
    "lenet5, canvases": Case(lenet, canvases, MultiLabel(), (1, 28, 112), epochs=5, budget=700),
    "resnet20, items": Case(resnet20, items, Classification(), (1, 16, 16), epochs=5, budget=300),
}


def flops(network: nn.Module, size: tuple[int, ...]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.eval()(torch.zeros(1, *size))
    return counter.get_total_flops()


def endless(loader: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        for inputs, targets in loader:
            yield inputs, targets[TASK] if isinstance(targets, dict) else targets


def train(network: nn.Module, case: Case, batches: Iterator, steps: int, optimizer: Optimizer, cosine: bool) -> None:
    """Plain training of a plain module."""
    lr = optimizer.param_groups[0]["lr"]
    network.train()
    for step in range(steps):
        if cosine:
            optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        inputs, targets = next(batches)
        optimizer.zero_grad()
        case.objective.loss(network(inputs), targets).backward()
        optimizer.step()
    network.eval()


def with_torch_pruning(network: nn.Module, case: Case, loaders: tuple, shares: Sequence[float]) -> Iterator[nn.Module]:
    """Down to each share of the operations by torch-pruning."""
    importance = torch_pruning.importance.GroupTaylorImportance()
    example = torch.zeros(1, *case.input_size)
    last = [module for module in network.modules() if isinstance(module, (nn.Linear, nn.Conv2d))][-1]
    rounds = round(1 / case.fraction)
    pruner = torch_pruning.pruner.BasePruner(
        network, example, importance, global_pruning=True, pruning_ratio=0.97, iterative_steps=rounds,
        ignored_layers=[last],
    )  # fmt: skip
    batches, whole = endless(loaders[0]), flops(network, case.input_size)
    for share in shares:
        used = 0
        while flops(network, case.input_size) > share * whole:
            train(network, case, batches, case.steps, SGD(network.parameters(), lr=case.lr), cosine=False)
            network.zero_grad()
            for _ in range(case.batches):
                inputs, targets = next(batches)
                case.objective.loss(network(inputs), targets).backward()
            used += case.steps + case.batches
            for group in pruner.step(interactive=True):
                group.prune()
                if flops(network, case.input_size) <= share * whole:
                    break
        train(network, case, batches, case.budget - used, SGD(network.parameters(), lr=case.lr), cosine=True)
        yield network


def with_pamerge(
    network: nn.Module, case: Case, loaders: tuple, shares: Sequence[float], **options: object
) -> Iterator[nn.Module]:
    """The same by pamerge."""
    training, validation, _ = loaders
    merged = pamerge.merge({TASK: network}, [next(iter(training))[0]], pamerge.Separate())
    whole, objectives = merged.flops(), {TASK: case.objective}
    for share in shares:
        path = prune(
            merged, training, validation, objectives, pruner=Taylor(batches=case.batches), target=share * whole,
            fraction=case.fraction, steps=case.steps, final=0, lr=case.lr, optimizer=SGD, progress=False, **options,
        )  # fmt: skip
        steps = case.budget - path.task_batches
        finetune(merged, training, objectives, steps=steps, lr=case.lr, optimizer=SGD, progress=False)
        yield merged.subnet()


THEIRS = "torch-pruning GroupTaylor"
METHODS: dict[str, Callable[..., Iterator[nn.Module]]] = {
    THEIRS: with_torch_pruning,
    "pamerge Taylor": partial(with_pamerge, per_flop=False),
    "pamerge Taylor, per FLOP": partial(with_pamerge, per_flop=True),
}


def accuracy(network: nn.Module, case: Case, loader: DataLoader) -> float:
    return evaluate(network, [(x, {TASK: y[TASK] if isinstance(y, dict) else y}) for x, y in loader],
                    {TASK: case.objective})[TASK]  # fmt: skip


def run(name: str, seed: int, folder: Path, kept: dict[str, dict], quick: bool) -> None:
    case = CASES[name]
    loaders = case.data(folder, seed)
    trained: nn.Module | None = None
    for method, down in METHODS.items():
        key = f"{name} | {method} | seed {seed}"
        if key in kept:
            continue
        if trained is None:
            trained = case.make(seed)
            loaders = case.data(folder, seed)
            epochs = 1 if quick else case.epochs
            steps = epochs * len(loaders[0])
            train(trained, case, endless(loaders[0]), steps, Adam(trained.parameters(), case.train_lr), cosine=True)
        torch.manual_seed(seed)
        loaders = case.data(folder, seed)
        start = time.perf_counter()
        whole = flops(trained, case.input_size)
        found = {"original": accuracy(trained, case, loaders[2]), "shares": {}}
        network = copy.deepcopy(trained)
        shares: Sequence[float] = SHARES
        if method != THEIRS:
            shares = [result["flops"] for result in kept[f"{name} | {THEIRS} | seed {seed}"]["shares"].values()]
        for share, pruned in zip(SHARES, down(network, case, loaders, shares), strict=True):
            found["shares"][str(share)] = {
                "accuracy": accuracy(pruned, case, loaders[2]),
                "flops": flops(pruned, case.input_size) / whole,
                "parameters": sum(parameter.numel() for parameter in pruned.parameters()),
            }
        found["seconds"] = round(time.perf_counter() - start, 1)
        print(key, json.dumps(found), flush=True)
        kept[key] = found
        if not quick:
            content = {"torch": torch.__version__, "torch-pruning": torch_pruning.__version__, "runs": kept}
            write_atomically(RESULTS, (json.dumps(content, indent=1) + "\n").encode())


def table(kept: dict[str, dict]) -> str:
    """Mean and spread (standard deviation) of the test accuracy, in per cent."""
    lines = [f"{'case':<18} {'method':<26} {'original':>12} " + " ".join(f"{f'{s:.0%} FLOPs':>24}" for s in SHARES)]
    for name in CASES:
        for method in METHODS:
            runs = [found for key, found in kept.items() if key.startswith(f"{name} | {method} | ")]
            if not runs:
                continue
            cells = [f"{_spread([100 * r['original'] for r in runs]):>12}"]
            for share in map(str, SHARES):
                reached = statistics.mean(r["shares"][share]["flops"] for r in runs)
                spread = _spread([100 * r["shares"][share]["accuracy"] for r in runs])
                cells.append(f"{f'{spread} at {reached:.3f}':>24}")
            lines.append(f"{name:<18} {method:<26} {' '.join(cells)}  ({len(runs)} seeds)")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values) if len(values) > 1 else 0:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, little training, nothing is kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--case", choices=CASES, help="only this one")
    parser.add_argument("--data", type=Path, help="the folder of Fashion-MNIST")
    arguments = parser.parse_args()
    data = Path(os.environ.get("PAMERGE_DATA", ROOT.parent / "shared" / "data"))
    folder = arguments.data or data / "fashion-mnist"
    kept: dict[str, dict] = {}
    if not arguments.quick:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        kept = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else {}
    for seed in range(1 if arguments.quick else arguments.seeds):
        for name in [arguments.case] if arguments.case else CASES:
            run(name, seed, folder, kept, arguments.quick)
    print(table(kept))


if __name__ == "__main__":
    main()
