"""The mixture estimator of the paper, made usable: scaled, with its own bandwidth, corrected, incremental."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.information.joint import noisy_entropies
from pamerge.information.kernels import Readout, bandwidth, baseline, shuffles_of, squared_distances
from pamerge.information.labels import (
    ArrayLike,
    Labels,
    as_tasks,
    check_neurons,
    checked_activations,
    is_classes,
    label_codes,
)
from pamerge.information.protocol import LayerInformation

_CACHE = 512 * 2**20  # bytes of single-neuron kernels that a state keeps; the rest are computed anew at every step
_BLOCK = 16  # candidates whose logarithms are taken together


@dataclass(frozen=True)
class Mixture:
    """The Kolchinsky–Tracey estimator: non-linear, on a subsample, slower than :class:`Gaussian`.

    A layer is scaled to a total variance of 1, and s² is chosen such that shuffled labels give the share
    ``leak`` of their entropy on the whole layer; the estimate for shuffled labels is subtracted.
    Information is summed over the labels. A class label is one label, regression labels are binned at their
    quantiles.

    Attributes:
        samples: Samples that are kept of each task's data, drawn uniformly, at least 8.
        leak: Share of the labels' entropy that shuffled labels may give on the whole layer, between 0 and 1.
        shuffles: Number of permutations that s² and the baseline are averaged over, at least 1.
        bins: Number of quantile bins of a regression label, at least 2.
        seed: Seed of the subsample and of the permutations.
    """

    samples: int = 500
    leak: float = 0.03
    shuffles: int = 4
    bins: int = 4
    seed: int = 0

    def collector(self) -> MixtureCollector:
        """A new, empty collector."""
        self.check()
        return MixtureCollector(self)

    def layer(self, activations: ArrayLike, labels: Mapping[str, ArrayLike]) -> LayerInformation:
        """The information of all neurons, summed over the labels, on samples that carry every label."""
        tasks = as_tasks(labels)
        x = checked_activations(activations, len(next(iter(tasks.values()))))
        complete = torch.cat([label_codes(values, self.bins) for values in tasks.values()], 1).ge(0).all(1)
        if not bool(complete.any()):
            raise PamergeError(f"No sample carries the labels of all of: {', '.join(tasks)}.")
        collector = self.collector()
        collector.add(x[complete], {task: values[complete] for task, values in tasks.items()})
        (state,) = collector.states()
        return state.whole()

    def check(self) -> None:
        """Raise if a parameter is out of range."""
        for name, least in (("samples", 8), ("shuffles", 1), ("bins", 2)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise PamergeError(f"Mixture({name}={value!r}): expected an integer of at least {least}.")
        if not (isinstance(self.leak, float) and 0 < self.leak < 1):
            raise PamergeError(f"Mixture(leak={self.leak!r}): expected a share between 0 and 1, such as 0.03.")


class MixtureCollector:
    """Keeps a uniform subsample of the samples that carry a task's labels, for each task.

    Each sample gets a random key and those with the smallest keys stay, so batches make no difference; tasks
    that are labelled on the same samples keep the same ones.
    """

    def __init__(self, estimator: Mixture) -> None:
        self.estimator = estimator
        self._kept: dict[str, _Kept] = {}
        self._seen = 0
        self._shape: tuple[int, int] | None = None

    def add(self, activations: ArrayLike, labels: Labels) -> None:
        """Add a batch; see :class:`~pamerge.information.protocol.Collector`."""
        tasks = as_tasks(labels)
        x = checked_activations(activations, len(next(iter(tasks.values()))))
        shape = x.shape[1], x.shape[2]
        if self._shape not in (None, shape):
            raise PamergeError(f"activations have (M, P) = {shape}, but earlier batches had {self._shape}.")
        self._shape = shape
        position = torch.arange(self._seen, self._seen + len(x))
        self._seen += len(x)
        for task, values in tasks.items():
            if task not in self._kept:
                self._kept[task] = _Kept(self.estimator.samples, self.estimator.seed)
            self._kept[task].add(task, x, values, position)

    def states(
        self, tasks: Iterable[str] | None = None, neurons: Iterable[int] | None = None
    ) -> Sequence[MixtureState]:
        """One empty set of neurons for each set of samples that carry the same labels of ``tasks``."""
        if self._shape is None:
            raise PamergeError("No activations were added yet.")
        index = check_neurons(neurons, self._shape[0])
        found: dict[tuple[int, ...], tuple[Tensor, list[Tensor]]] = {}
        for task in self._kept if tasks is None else tasks:
            kept = self._kept.get(task)
            if kept is None or kept.x is None or kept.labels is None:
                known = ", ".join(self._kept)
                raise PamergeError(f"No sample carries labels of task {task!r}; there are labels of: {known}.")
            for code in label_codes(kept.labels, self.estimator.bins).T:
                rows = (code >= 0).nonzero().squeeze(1)
                if len(rows):
                    key = tuple(kept.position[rows].tolist())
                    found.setdefault(key, (kept.x[rows], []))[1].append(code[rows])
        if not found:
            raise PamergeError("No tasks were asked for; expected at least one.")
        return [MixtureState(x, torch.stack(codes, 1), self.estimator, index) for x, codes in found.values()]


class MixtureState:
    """A growing set of neurons: squared distances add over neurons, so K of S ∪ {j} is K_S ∘ k_j.

    A step costs O(candidates · N² · labels) and never touches the neurons in S again. One candidate's kernel
    is in memory at a time, besides a bounded cache. Candidates are compared in single precision; the
    distances of S, and what :meth:`bits` reports, are in double precision.
    """

    def __init__(self, x: Tensor, codes: Tensor, estimator: Mixture, neurons: Tensor) -> None:
        if len(x) < 8:
            raise PamergeError(f"Only {len(x)} samples carry the same labels; Mixture needs at least 8.")
        values = x.double() - x.double().mean(0)
        self.variance = float(values.square().sum()) / (len(x) - 1)
        if self.variance <= 1e-24 * float(x.double().square().mean()):
            self.variance, values = 0.0, torch.zeros_like(values)  # constant, up to rounding
        values = values / (math.sqrt(self.variance) or 1.0)
        generator = torch.Generator().manual_seed(estimator.seed)
        self._labels = Readout.of(codes)
        self._shuffled = [Readout.of(other) for other in shuffles_of(codes, estimator.shuffles, generator)]
        self.bandwidth = bandwidth(squared_distances(values.flatten(1)), self._shuffled, estimator.leak)
        # Scale and bandwidth are the whole layer's, so that a set of neurons says the same in any pool. From
        # here on values are those of the candidates, (M, P, N), in units in which K = exp(−distance²).
        self._values = (values[:, neurons] / math.sqrt(2 * self.bandwidth)).permute(1, 2, 0).contiguous()
        self._distances = torch.zeros(len(x), len(x), dtype=torch.float64)
        self._open = torch.ones(len(self._values), dtype=torch.bool)
        self._bits: list[float] = []
        self._single = self._labels.to(torch.float32)
        self._single_values = self._values.float()
        self._sums = torch.empty(_BLOCK, *self._single.columns.shape)
        size = len(x)
        self._kernel, self._scratch = torch.empty(size, size), torch.empty(size, size)
        self._cache = torch.empty(min(len(self._values), _CACHE // (4 * size**2)), size, size)
        for neuron, cached in enumerate(self._cache):
            self._kernel_of(neuron, cached)

    def candidates(self) -> Tensor:
        """The plain information of S ∪ {j} in bits for every neuron j; infinite for the neurons in S."""
        everything = torch.full((len(self._values),), torch.inf, dtype=torch.float64)
        chosen = self._distances.neg().exp_().float()
        candidates: list[int] = self._open.nonzero().squeeze(1).tolist()
        for start in range(0, len(candidates), _BLOCK):
            block = candidates[start : start + _BLOCK]
            sums = self._sums[: len(block)]
            for place, neuron in enumerate(block):
                if neuron < len(self._cache):
                    torch.mul(self._cache[neuron], chosen, out=self._kernel)
                else:
                    self._kernel_of(neuron, self._kernel).mul_(chosen)
                torch.mm(self._single.columns, self._kernel, out=sums[place])
            everything[block] = self._single.information(sums).sum(-1)
        return everything

    def add(self, neuron: int) -> None:
        """Move a candidate into S."""
        if not self._open[neuron]:
            raise PamergeError(f"Neuron {neuron} was added before.")
        self._open[neuron] = False
        for values in self._values[neuron]:
            self._distances += (values.unsqueeze(1) - values).square_()
        self._bits.append(self._corrected(self._distances))

    def bits(self) -> Tensor:
        """The information of S after each addition, minus that of shuffled labels."""
        return torch.tensor(self._bits, dtype=torch.float64)

    def whole(self) -> LayerInformation:
        """The information of all candidates, whatever is in S."""
        values = self._values.flatten(0, 1).T
        noise = self.bandwidth * self.variance or 1.0
        covariance = torch.cov(values.T).reshape(values.shape[1], -1) * (2 * noise)
        entropies = noisy_entropies(covariance, noise, self._values.shape[1])
        return LayerInformation(self._corrected(squared_distances(values)), noise, entropies)

    def _corrected(self, distances: Tensor) -> float:
        kernel = distances.neg().exp_()
        return float(self._labels.information(self._labels.columns @ kernel).sum()) - baseline(kernel, self._shuffled)

    def _kernel_of(self, neuron: int, out: Tensor) -> Tensor:
        first, *others = self._single_values[neuron]
        torch.sub(first.unsqueeze(1), first, out=out).square_()
        for values in others:
            out.addcmul_(torch.sub(values.unsqueeze(1), values, out=self._scratch), self._scratch)
        return out.neg_().exp_()


class _Kept:
    """The samples of one task that have the smallest random keys so far."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self.generator = torch.Generator().manual_seed(seed)
        self.key = torch.empty(0)
        self.position = torch.empty(0, dtype=torch.long)
        self.x: Tensor | None = None
        self.labels: Tensor | None = None

    def add(self, task: str, x: Tensor, labels: Tensor, position: Tensor) -> None:
        present = (label_codes(labels) >= 0).any(1)
        if not bool(present.any()):
            return
        x, labels, position = x[present], labels[present], position[present]
        key = torch.rand(len(x), generator=self.generator)
        if self.x is not None and self.labels is not None:
            if is_classes(labels) != is_classes(self.labels) or labels.shape[1:] != self.labels.shape[1:]:
                raise PamergeError(
                    f"The labels of task {task!r} are {labels.dtype} of shape {tuple(labels.shape)}, but "
                    f"{self.labels.dtype} of shape {tuple(self.labels.shape)} in earlier batches."
                )
            x, labels = torch.cat([self.x, x]), torch.cat([self.labels, labels])
            key, position = torch.cat([self.key, key]), torch.cat([self.position, position])
        kept = key.argsort(stable=True)[: self.samples].sort().values
        self.x, self.labels, self.key, self.position = x[kept], labels[kept], key[kept], position[kept]
