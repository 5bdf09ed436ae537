"""Pruning-aware merging, the scheme of the paper."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.information import Collector, Estimator, Gaussian, Trace, trace_collected
from pamerge.information.activations import junction_activations
from pamerge.merging.between_layers import BetweenLayers
from pamerge.merging.material import Material
from pamerge.merging.regroup import Overlap, Regrouping, check_share, regroup, regroup_share
from pamerge.merging.result import LayerMerging, Merging
from pamerge.merging.zipper import give_back_without_partner, zip_network
from pamerge.network.network import Junction, MultitaskNetwork
from pamerge.tasks import TaskSet

ALL_SHARED = -1.0
"""An α at which everything is shared."""

TIED_VALUES = 4
"""At most so many of a stream's junctions stand for a tied channel; more values a neuron would need more samples."""


@dataclass(frozen=True)
class PAM:
    """Regroup neurons into exclusive and shared sets by how much they say about each task's labels.

    Attributes:
        alpha: the share of what a layer says about the other tasks' labels that its exclusive neurons may carry; a
            number, or one for each junction by name. Below 0 everything is shared.
        trunk: the share of the layers, from the input on, in which everything is shared whatever α, but for neurons
            that ``zip`` finds no partner for; a residual stream belongs to it as a whole. What a layer knows about
            labels can only be less than what those before it know, but estimators see little of it in early layers, so
            that α alone does not tell that these serve everyone.
        exclusive: the share of each network's neurons in a layer that becomes exclusive, whatever α: those that say
            most about their own task's labels alone. None to let α decide, as in the paper. With ``zip``, neurons that
            find no partner become exclusive, too. Layers of a trunk have none.
        estimator: how information is measured: ``Gaussian()`` or the paper's ``Mixture()``.
        overlap: what happens to a neuron in several exclusive sets: ``"origin"``, ``"share"`` or the paper's
            ``"drop"``.
        levels: for three or more tasks, up to how many tasks an exclusive set may serve; None for all levels.
        streams: ``"block"`` regroups a residual stream at every block, ``"tied"`` gives each of its channels one task
            set for the whole stage.
        samples: how many calibration samples to use at most; None for all.
        pool: a feature map counts as ``pool × pool`` mean values.
        zip: make shared neurons of different networks one where they are at most so different, from 0 (the same) to
            about 1 (unrelated); None to keep them all. A shared layer of K networks starts K times as wide as one.
        steps: training steps after each layer that is zipped; needs ``merge(…, train=…)``. 0 for none.
        lr: learning rate of these steps.
        seed: seeds them.
    """

    alpha: float | Mapping[str, float] = 0.05
    trunk: float = 0.0
    exclusive: float | None = None
    estimator: Estimator = field(default_factory=Gaussian)
    overlap: Overlap = "origin"
    levels: int | None = None
    streams: Literal["block", "tied"] = "block"
    samples: int | None = None
    pool: int = 1
    zip: float | None = None
    steps: int = 0
    lr: float = 5e-4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.streams not in ("block", "tied"):
            raise PamergeError(f"streams={self.streams!r}; expected 'block' or 'tied'.")
        if not 0 <= self.trunk <= 1:
            raise PamergeError(f"trunk={self.trunk!r}; expected a share of the layers from 0 to 1.")
        if self.exclusive is not None:
            check_share(self.exclusive)
        if self.zip is not None and not self.zip >= 0:
            raise PamergeError(f"zip={self.zip!r}; expected a number from 0, or None.")
        if self.samples is not None and self.samples < 2:
            raise PamergeError(f"samples={self.samples!r}; expected at least 2, or None for all.")

    def merge(self, material: Material) -> MultitaskNetwork:
        """The regrouped network; ``network.merging`` tells what went where."""
        start = time.perf_counter()
        network = material.side_by_side()
        traces = self.traces(material, network)
        alphas = self._alphas(traces)
        trunk = traces.layers[: _trunk_length(traces.layers, self.trunk)]
        groups = {layer.name: self._regroup(layer, alphas[layer.name], layer in trunk) for layer in traces.layers}
        chosen: dict[str, dict[int, TaskSet]] = {}
        for layer in traces.layers:
            sets = dict(zip(layer.neurons, groups[layer.name].task_sets, strict=True))
            for junction in layer.junctions:
                chosen[junction.name] = {neuron: sets[neuron] for neuron in junction.task_sets()}
        network.regroup(chosen)
        layers = {
            junction.name: _record(junction, layer, groups[layer.name], self._said(alphas, groups, layer), network)
            for layer in traces.layers
            for junction in layer.junctions
        }
        tune = BetweenLayers(network, material, self.steps, self.lr, self.seed, "PAM")
        zipped = []
        if self.zip is not None:
            zipped = zip_network(network, material.calibration, tolerance=self.zip, after_layer=tune)
            matched = trunk if self.exclusive is None else traces.layers
            give_back_without_partner(network, [junction.name for layer in matched for junction in layer.junctions])
        network.merging = Merging(
            repr(self),
            material.alignment,
            layers,
            seconds=time.perf_counter() - start,
            zipped=tuple(zipped),
            task_batches=tune.task_batches,
        )
        return network

    def traces(self, material: Material, network: MultitaskNetwork | None = None) -> Traces:
        """What α needs to know of the data; read once for a material, whatever α, overlap and levels."""
        key = ("traces", repr(self.estimator), self.streams, self.samples, self.pool)
        if key not in material.cache:
            network = network or material.side_by_side()
            material.cache[key] = _read(self, network, material)
        found: Traces = material.cache[key]
        return found

    def _alphas(self, traces: Traces) -> dict[str, float]:
        names = [layer.name for layer in traces.layers]
        alphas = self.alpha if isinstance(self.alpha, Mapping) else dict.fromkeys(names, self.alpha)
        if set(alphas) != set(names):
            raise PamergeError(
                f"alpha has values for {', '.join(map(repr, alphas))}; expected one for each of: {', '.join(names)}."
            )
        return {**alphas, **dict.fromkeys(names[: _trunk_length(traces.layers, self.trunk)], ALL_SHARED)}

    def _regroup(self, layer: Layer, alpha: float, in_trunk: bool) -> Regrouping:
        if self.exclusive is not None:
            return regroup_share(layer.origins, layer.trace, 0.0 if in_trunk else self.exclusive)
        return regroup(layer.origins, layer.trace, alpha, overlap=self.overlap, levels=self.levels)

    def _said(self, alphas: Mapping[str, float], groups: Mapping[str, Regrouping], layer: Layer) -> float:
        """The α of a layer: the one that was given, or the share that exclusive neurons carry where none decided."""
        return alphas[layer.name] if self.exclusive is None else groups[layer.name].carried


@dataclass
class Layer:
    """Neurons that are regrouped together: a junction, or all junctions of a tied stream."""

    name: str
    junctions: list[Junction]
    neurons: list[int]
    origins: list[TaskSet]
    collector: Collector
    found: dict[tuple[TaskSet, tuple[int, ...] | None], Trace] = field(default_factory=dict)

    def trace(self, tasks: TaskSet, neurons: Sequence[int] | None) -> Trace:
        """The greedy order of some neurons about some tasks' labels; remembered."""
        key = (tasks, None if neurons is None else tuple(neurons))
        if key not in self.found:
            self.found[key] = trace_collected(self.collector, sorted(tasks), neurons)
        return self.found[key]


@dataclass(frozen=True)
class Traces:
    """The layers of a material, with all that was read of the data."""

    layers: list[Layer]


def _trunk_length(layers: Sequence[Layer], share: float) -> int:
    """How many layers a trunk has: a share of them, and as many more as a residual stream that begins in it needs.

    A stream with channels that are shared in one block and exclusive in the next would have to be computed for all
    tasks in both, and could not be zipped.
    """
    length = round(share * len(layers))
    begun = {neuron for layer in layers[:length] for neuron in layer.neurons}
    return max((place for place, layer in enumerate(layers, start=1) if begun.intersection(layer.neurons)), default=0)


def _read(scheme: PAM, network: MultitaskNetwork, material: Material) -> Traces:
    shared = [junction for junction in network.junctions.values() if not junction.fixed and len(junction.groups) > 1]
    layers = [_layer(scheme, [junction]) for junction in shared]
    if scheme.streams == "tied":
        layers = [_layer(scheme, junctions) for junctions in _tied(shared)]
    labelled: set[str] = set()
    batches = junction_activations(network, material.calibration, pool=scheme.pool, samples=scheme.samples)
    for activations, targets in batches:
        known = {task: labels for task, labels in targets.items() if task in network.tasks}
        labelled |= set(known)
        for layer in layers:
            mine = {task: labels for task, labels in known.items() if any(task in origin for origin in layer.origins)}
            if mine:
                layer.collector.add(_values(layer, activations), mine)
    missing = [task for task in network.tasks if task not in labelled]
    if missing and layers:
        raise PamergeError(
            f"PAM needs labels of every task, and the calibration data has none for {', '.join(map(repr, missing))}. "
            "Expected batches of (inputs, {task: labels})."
        )
    return Traces(layers)


def _layer(scheme: PAM, junctions: list[Junction]) -> Layer:
    origins: dict[int, TaskSet] = {}
    for junction in junctions:
        origins |= junction.task_sets()
    return Layer(junctions[0].name, junctions, list(origins), list(origins.values()), scheme.estimator.collector())


def _tied(junctions: list[Junction]) -> list[list[Junction]]:
    """Junctions that have neurons in common, directly or through others."""
    components: list[tuple[set[int], list[Junction]]] = []
    for junction in junctions:
        neurons, together = set(junction.task_sets()), [junction]
        for other in [c for c in components if c[0] & neurons]:
            components.remove(other)
            neurons, together = neurons | other[0], other[1] + together
        components.append((neurons, together))
    order = {junction.name: i for i, junction in enumerate(junctions)}
    return sorted((found for _, found in components), key=lambda found: order[found[0].name])


def _values(layer: Layer, activations: Mapping[str, Tensor]) -> Tensor:
    """``(N, neurons, P)``: a tied neuron's values at several junctions of its stream, zero where it has fewer."""
    if len(layer.junctions) == 1:
        return activations[layer.name]
    where: dict[int, list[tuple[str, int]]] = {neuron: [] for neuron in layer.neurons}
    for junction in layer.junctions:
        for position, neuron in enumerate(junction.task_sets()):
            where[neuron].append((junction.name, position))
    most = min(TIED_VALUES, max(map(len, where.values())))
    first = activations[layer.name]
    result = first.new_zeros(len(first), len(layer.neurons), most, first.shape[2])
    for row, places in enumerate(where.values()):
        picks = torch.linspace(0, len(places) - 1, min(most, len(places))).round().int().tolist()
        for column, pick in enumerate(picks):
            name, position = places[pick]
            result[:, row, column] = activations[name][:, position]
    return result.flatten(2)


def _record(
    junction: Junction, layer: Layer, groups: Regrouping, alpha: float, network: MultitaskNetwork
) -> LayerMerging:
    chosen = dict(zip(layer.neurons, groups.task_sets, strict=True))
    wanted = {neuron: chosen[neuron] for neuron in junction.task_sets()}
    got = network.junctions[junction.name].task_sets() if junction.name in network.junctions else {}
    final = {neuron: got.get(neuron, TaskSet()) for neuron in wanted}
    everyone = TaskSet(task for origin in layer.origins for task in origin)
    return LayerMerging(
        name=junction.name,
        alpha=alpha,
        task_sets=final,
        origins=junction.task_sets(),
        claimed=groups.claimed,
        bits=groups.bits,
        totals=groups.totals,
        traces={task: layer.trace(everyone - {task}, None) for task in sorted(everyone)},
        dropped={
            neuron: "reaches no task" if wanted[neuron] else "lay in several exclusive sets"
            for neuron, tasks in final.items()
            if not tasks
        },
        repaired=tuple(neuron for neuron, tasks in final.items() if tasks and tasks != wanted[neuron]),
    )
