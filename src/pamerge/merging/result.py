"""What a scheme did, to look at: ``network.merging``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pamerge.graph.align import Alignment
from pamerge.information import Trace
from pamerge.tasks import TaskSet


@dataclass(frozen=True)
class LayerMerging:
    """How the neurons of one junction were grouped.

    Attributes:
        name: the junction.
        alpha: the α that was used here; with ``PAM(exclusive=…)`` the share that the exclusive neurons carry.
        task_sets: the task set of each neuron, by its number; empty where it was dropped.
        origins: the tasks whose network each neuron came from.
        claimed: how many neurons each exclusive set took before overlaps were resolved.
        bits: the information of each exclusive set about the labels outside it, in bits.
        totals: the information of the whole layer about the same labels.
        traces: for each single task, the greedy order of neurons (as positions in ``origins``) and its information
            about the other tasks' labels.
        dropped: neurons that are gone, and why.
        repaired: neurons that got another task set because they would have had nothing to read.
    """

    name: str
    alpha: float
    task_sets: Mapping[int, TaskSet]
    origins: Mapping[int, TaskSet]
    claimed: Mapping[TaskSet, int]
    bits: Mapping[TaskSet, float]
    totals: Mapping[TaskSet, float]
    traces: Mapping[str, Trace]
    dropped: Mapping[int, str] = field(default_factory=dict)
    repaired: tuple[int, ...] = ()

    @property
    def sizes(self) -> dict[TaskSet, int]:
        """Number of neurons in each group."""
        kept = [tasks for tasks in self.task_sets.values() if tasks]
        return {tasks: kept.count(tasks) for tasks in sorted(set(kept))}

    @property
    def sharing(self) -> float:
        """The share of neurons that serve more than one task."""
        sizes = self.sizes
        return sum(count for tasks, count in sizes.items() if len(tasks) > 1) / max(1, sum(sizes.values()))

    def origin_counts(self) -> dict[TaskSet, dict[str, int]]:
        """How many neurons of each group came from each task's network."""
        counts: dict[TaskSet, dict[str, int]] = {}
        for neuron, tasks in self.task_sets.items():
            if tasks:
                for task in self.origins[neuron]:
                    group = counts.setdefault(tasks, {})
                    group[task] = group.get(task, 0) + 1
        return counts


@dataclass(frozen=True)
class Zipped:
    """What became of one set of channels when neurons of different networks were made one.

    Attributes:
        layers: the layers that compute the channels; several in a residual stream.
        groups: the channels that are one now, by their numbers; the first of each group stays.
        alone: channels that found no partner.
        differences: for each group, how different its members were, from 0 (the same) to about 1 (unrelated).
    """

    layers: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    alone: tuple[int, ...]
    differences: tuple[float, ...]


@dataclass(frozen=True)
class Merging:
    """What a scheme did.

    Attributes:
        scheme: the scheme, with its settings, as text.
        alignment: which layers of the networks matched, and why the match stopped.
        layers: how each junction was grouped; empty for schemes that choose no groups.
        seconds: how long the scheme took.
        zipped: which neurons became one, if any did.
        task_batches: batches that the scheme trained on, counted for each task; 0 for schemes that do not train.
    """

    scheme: str
    alignment: Alignment
    layers: Mapping[str, LayerMerging] = field(default_factory=dict)
    seconds: float = 0.0
    zipped: tuple[Zipped, ...] = ()
    task_batches: int = 0

    def __str__(self) -> str:
        lines = [self.scheme]
        for layer in self.layers.values():
            groups = ", ".join(f"{tasks}: {count}" for tasks, count in layer.sizes.items())
            dropped = f", dropped: {len(layer.dropped)}" if layer.dropped else ""
            lines.append(f"  {layer.name}: {groups}{dropped}")
        for found in self.zipped:
            lines.append(f"  {', '.join(found.layers)}: {len(found.groups)} zipped, {len(found.alone)} alone")
        lines += [f"  {one} and {other}: {why}" for (one, other), why in self.alignment.differences.items()]
        return "\n".join(lines)
