"""Does regrouping see how tasks are related, and what does α do? The paper's studies of it, on faces.

    python scripts/ablations.py --data FOLDER [--out runs/ablations]  # measures: results/ablations.json, then the chart
    python scripts/ablations.py --chart                               # only draws the chart again

*Relatedness*: three pairs of attributes that have about 0, 0.1, 0.2 and 0.5 bits in common, each; how many neurons of
the last hidden layer are shared, for several α. These networks start from a common training on the attributes that are
in no pair: one that has seen them leaves in every network what it has learnt about the other label. Here α is in bits,
as in the paper, and also a share of what the layer says, as in ``PAM``: shares of different totals cannot be compared
from pair to pair. *Inclusion*: B asks for half of the attributes that A asks for; how many neurons of each layer are
exclusive to A and to B. *α*: what the neurons that are taken first say about the other task, and what one task and both
tasks cost after merging, before anything is pruned. *Conditions*: those of Theorem 1, before regrouping and after it.
Networks are VGG-16 at an eighth of the width, started from one common training. Trained networks are kept in ``--out``,
so that a run that was killed goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from study import CONDITIONS, arguments, say, svg

from pamerge import network_conditions
from pamerge.data import Splits
from pamerge.experiments import Choice, Config, Pretraining, original_networks
from pamerge.experiments.registry import make_data
from pamerge.merging import PAM, Material, Separate, prepare
from pamerge.network.files import write_atomically
from pamerge.tasks import TaskSet
from pamerge.training import MultiLabel, evaluate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "ablations.json"
CHART = ROOT / "docs" / "images" / "ablations.svg"
BITS = (0.0, 0.1, 0.2, 0.5)
PAIRS = 3
"""For each amount: single attributes differ in how much a layer says about them."""
BITS_ALLOWED = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
INCLUSION_ALPHAS = (0.02, 0.05, 0.1, 0.2)
CONDITION_SCHEMES = {
    "separate": Separate(),
    "PAM, α = 0.2": PAM(alpha=0.2),
    "PAM, α = 0.5": PAM(alpha=0.5),
    "all shared": PAM(alpha=-1.0),
}
CONFIG = Config(
    name="ablations",
    data=Choice("lfw", {"quantile": 0.5, "shares": [0.6, 0.2, 0.2]}),
    network=Choice("vgg16", {"width": 0.125, "fc": 128, "batch_norm": True, "dropout": 0.0}),
    schemes=(),
    pruners=(),
    pretraining=Pretraining(common_epochs=8, epochs=2, lr=1e-3),
    batch_size=32,
)

Tasks = Mapping[str, Sequence[str]]


def main() -> None:
    """Train what is missing, merge, count, draw."""
    given = arguments(__doc__, "ablations")
    if not given.chart:
        found = measure(given.data, given.out)
        write_atomically(RESULTS, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    CHART.write_text(chart(json.loads(RESULTS.read_text())))


def measure(data: Path, out: Path) -> dict[str, Any]:
    """All studies."""
    splits = make_data(CONFIG.data, CONFIG.seeds[0], data)
    names = splits.train.names
    pairs = related_pairs(splits)
    others = [name for name in names if not any(name in pair for alike in pairs.values() for pair in alike)]
    return {
        "relatedness": [relatedness(pair, bits, others, data, out) for bits, alike in pairs.items() for pair in alike],
        "inclusion": inclusion({"A": names[:30], "B": names[:30:2]}, data, out),
        "alpha": impact_of_alpha({"A": names[:20], "B": names[20:]}, data, out),
        "conditions": conditions({"A": names[:20], "B": names[20:]}, data, out),
        "torch": torch.__version__,
    }


def related_pairs(splits: Splits) -> dict[float, list[tuple[str, str]]]:
    """For each amount of information the pairs of attributes that are nearest to it; no attribute twice."""
    labels = splits.train.labels.bool()
    free = {
        (one, two): common_bits(labels[:, first], labels[:, second])
        for (first, one), (second, two) in combinations(enumerate(splits.train.names), 2)
    }
    chosen: dict[float, list[tuple[str, str]]] = {bits: [] for bits in BITS}
    for bits in sorted(BITS, reverse=True):
        while len(chosen[bits]) < PAIRS:
            nearest = min(free, key=lambda pair, bits=bits: abs(free[pair] - bits))
            chosen[bits].append(nearest)
            free = {pair: value for pair, value in free.items() if not set(pair) & set(nearest)}
    return chosen


def common_bits(one: torch.Tensor, two: torch.Tensor) -> float:
    """What two binary labels have in common, in bits."""
    joint = torch.stack([((one == a) & (two == b)).double().mean() for a in (0, 1) for b in (0, 1)]).view(2, 2)

    def entropy(p: torch.Tensor) -> float:
        return float(-torch.special.xlogy(p, p).sum() / math.log(2))

    return entropy(joint.sum(0)) + entropy(joint.sum(1)) - entropy(joint)


def relatedness(pair: tuple[str, str], bits: float, others: Sequence[str], data: Path, out: Path) -> dict[str, Any]:
    """Shared neurons of the last hidden layer, of networks that start from a training on other attributes."""
    material, splits, accuracy = merged_material({"A": pair[:1], "B": pair[1:]}, data, out, others)
    labels = splits.train.labels.bool()
    columns = [splits.train.names.index(name) for name in pair]
    layer = PAM().traces(material).layers[-1]
    traces = {task: layer.trace(TaskSet("AB") - {task}, None) for task in "AB"}

    def shared(prefixes: Iterable[int]) -> int:
        taken = [trace.order[:length] for trace, length in zip(traces.values(), prefixes, strict=True)]
        return len(layer.neurons) - len(set().union(*taken))

    found = {
        "attributes": pair,
        "target_bits": bits,
        "bits": common_bits(labels[:, columns[0]], labels[:, columns[1]]),
        "accuracy": accuracy,
        "layer": layer.name,
        "neurons": len(layer.neurons),
        "totals": {task: trace.total for task, trace in traces.items()},
        "shared_by_bits": {
            limit: shared(trace.prefix(limit, total=1.0) for trace in traces.values()) for limit in BITS_ALLOWED
        },
        "shared_by_share": {alpha: shared(trace.prefix(alpha) for trace in traces.values()) for alpha in ALPHAS},
    }
    print(json.dumps(found), flush=True)
    return found


def inclusion(tasks: Tasks, data: Path, out: Path) -> dict[str, Any]:
    """Exclusive neurons of every layer, without those that say nothing to anyone, as in the paper."""
    material, _, accuracy = merged_material(tasks, data, out)
    counts = {}
    for alpha in INCLUSION_ALPHAS:
        layers = PAM(alpha=alpha, overlap="drop").merge(material).merging.layers
        counts[alpha] = {
            name: {str(group): layer.sizes.get(group, 0) for group in map(TaskSet, ("A", "B", "AB"))}
            for name, layer in layers.items()
        }
    found = {"tasks": {task: list(names) for task, names in tasks.items()}, "accuracy": accuracy, "counts": counts}
    print(json.dumps(found), flush=True)
    return found


def impact_of_alpha(tasks: Tasks, data: Path, out: Path) -> dict[str, Any]:
    """Information against the number of neurons taken, and costs before pruning against α."""
    material, _, accuracy = merged_material(tasks, data, out)
    layers = PAM().traces(material).layers
    shown = [layers[0], layers[len(layers) // 2], layers[-1]]
    costs = {}
    for alpha in (-1.0, *ALPHAS, 1.0):
        network = PAM(alpha=alpha).merge(material)
        costs[alpha] = {"single": mean(network.flops(task) for task in tasks), "all": network.flops(network.tasks)}
    found = {
        "tasks": {task: list(names) for task, names in tasks.items()},
        "accuracy": accuracy,
        "bits": {layer.name: {task: layer.trace(TaskSet([task]), None).bits for task in tasks} for layer in shown},
        "costs": costs,
    }
    print(json.dumps(found["costs"]), flush=True)
    return found


def conditions(tasks: Tasks, data: Path, out: Path) -> dict[str, Any]:
    """What Theorem 1 wants to be zero, and what Theorem 2 wants to be small and large, in bits, on validation data."""
    material, splits, _ = merged_material(tasks, data, out)
    objectives = {task: MultiLabel() for task in tasks}
    found: dict[str, Any] = {}
    for name, scheme in CONDITION_SCHEMES.items():
        layers = network_conditions(scheme.merge(material), splits.validation.loader(500), objectives)
        pairs = {layer: of_layer.pair({"A"}, {"B"}) for layer, of_layer in layers.items()}
        found[name] = {
            layer: {"neurons": list(pair.neurons), **{what: getattr(pair, what) for what in CONDITIONS}}
            for layer, pair in pairs.items()
        }
    print(json.dumps(found), flush=True)
    return found


def merged_material(
    tasks: Tasks, data: Path, out: Path, common: Sequence[str] = ()
) -> tuple[Material, Splits, dict[str, float]]:
    """Networks for some tasks, ready to be merged, and their accuracy on test data.

    Args:
        tasks: the attributes of each task.
        data: where the faces are.
        out: where networks are kept.
        common: the attributes of the common training, if not all.
    """
    options = {**CONFIG.data.options, "tasks": {task: list(names) for task, names in tasks.items()}}
    pretraining = replace(CONFIG.pretraining, common_labels=tuple(common))
    config = replace(CONFIG, data=Choice("lfw", options), pretraining=pretraining)
    networks, splits = original_networks(config, out, data=data, watch=say)
    objectives = {task: MultiLabel() for task in tasks}
    accuracy = evaluate(dict(networks), splits.test.loader(500), objectives)
    return prepare(networks, splits.train.loader(500), objectives=objectives), splits, accuracy


def by_relatedness(found: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The pairs of attributes that have about the same in common, the least related first."""
    pairs = found["relatedness"]
    return [[p for p in pairs if p["target_bits"] == bits] for bits in sorted({p["target_bits"] for p in pairs})]


def shared_shares(alike: Sequence[Mapping[str, Any]], of: str = "shared_by_bits") -> dict[str, float]:
    """For each α, in bits or as ``"shared_by_share"``, the share of the layer that serves both, a mean over pairs."""
    return {alpha: mean(pair[of][alpha] / pair["neurons"] for pair in alike) for alpha in alike[0][of]}


def chart(found: Mapping[str, Any]) -> str:
    """An SVG with a panel for each study, two for α."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    (related, included), (taken, priced) = figure.subplots(2, 2)
    for alike in by_relatedness(found):
        shares = shared_shares(alike)
        bits = mean(pair["bits"] for pair in alike)
        related.plot(list(map(float, shares)), list(shares.values()), marker="o", label=f"{bits:.2f} bits")
    related.set(title="Relatedness: last hidden layer", xlabel="α in bits", xscale="log")
    related.set_ylabel("share of neurons that serve both")
    related.legend(frameon=False, title="labels have in common")

    alpha, layers = next(iter(found["inclusion"]["counts"].items()))
    for task in ("A", "B"):
        included.plot(list(layers), [layer[task] for layer in layers.values()], marker="o", label=f"only {task}")
    included.set(title=f"Inclusion: B is half of A, α = {alpha}", ylabel="neurons")
    included.tick_params(axis="x", rotation=90, labelsize=7)
    included.legend(frameon=False)

    for layer, traces in found["alpha"]["bits"].items():
        bits = traces["B"]
        taken.plot([(n + 1) / len(bits) for n in range(len(bits))], [value / bits[-1] for value in bits], label=layer)
    taken.set(title="α: neurons taken for A", xlabel="share of the layer", ylabel="share of what it says about B")
    taken.legend(frameon=False)

    costs = {float(alpha): cost for alpha, cost in found["alpha"]["costs"].items() if 0 < float(alpha) < 1}
    for what, label in (("single", "one task"), ("all", "both tasks")):
        priced.plot(list(costs), [cost[what] / 1e6 for cost in costs.values()], marker="o", label=label)
    priced.set(title="α: cost after merging, before pruning", xlabel="α", ylabel="MFLOPs", xscale="log")
    priced.set_ylim(bottom=0)
    priced.legend(frameon=False)
    return svg(figure)


if __name__ == "__main__":
    main()
