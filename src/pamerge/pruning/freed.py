"""What the removal of a neuron saves."""

from __future__ import annotations

import functools
import math

from pamerge.network.network import MultitaskNetwork
from pamerge.network.structure import junction_names
from pamerge.pruning.protocol import Scores
from pamerge.pruning.ranking import Mix
from pamerge.tasks import TaskSet

_COUNTED = ("conv", "linear", "conv_transpose", "depthwise")


def flops_freed(network: MultitaskNetwork, mix: Mix, leaving: str | None = None) -> Scores:
    """What the removal of each neuron would save, as expected cost under a mix (in multiply-accumulates times two).

    Its columns in all blocks that read it, and, if no other junction uses it, its rows in the blocks that compute it.

    Args:
        network: The network.
        mix: How often each subset of tasks is executed.
        leaving: If only this task leaves the neurons: the columns in blocks that serve it, and the rows where no other
            task needs them, less what the rows gain: a neuron of fewer tasks reads more. A neuron that then feeds
            nothing is gone. May be negative.
    """
    nodes, names = network.structure.nodes, junction_names(network.structure)

    @functools.cache
    def readable(junction: str, group: TaskSet) -> int:
        """How many neurons a neuron of a group reads."""
        return sum(len(found) for tasks, found in network.junctions[junction].groups.items() if group.issubset(tasks))

    @functools.cache
    def active(group: TaskSet) -> float:
        return sum(share for tasks, share in mix.items() if tasks & group)

    users: dict[int, int] = {}
    for junction in network.junctions.values():
        for neurons in junction.groups.values():
            for neuron in neurons:
                users[neuron] = users.get(neuron, 0) + 1
    rows: dict[int, tuple[float, float]] = {}  # what the rows cost, and what of that only the leaving task needs
    fed: set[int] = set()  # neurons that still feed something
    found: Scores = {}
    for layout in network.layouts.values():
        node, group = layout.node, layout.group
        if node.op not in _COUNTED:
            continue
        space = nodes[node.inputs[0]].space if node.op == "conv_transpose" else node.space
        cost = 2 * math.prod(node.settings.get("kernel", ())) * math.prod(space) * node.width
        rest = group - {leaving} if leaving is not None else TaskSet()
        # what a depthwise convolution reads need not be a junction
        inputs = len(layout.inputs) * layout.input_width if node.kind == "weighted" else 1
        after = readable(names[node.inputs[0]], rest) * layout.input_width if node.kind == "weighted" else 1
        row, kept = cost * inputs * active(group), cost * after * active(rest)
        for neuron in layout.outputs.tolist():
            whole, part = rows.get(neuron, (0.0, 0.0))
            rows[neuron] = whole + row, part + row - kept
        if node.kind == "weighted":
            serves = leaving is None or leaving in group
            columns = found.setdefault(names[node.inputs[0]], {})
            for neuron in layout.inputs.tolist():
                saved = cost * layout.input_width * len(layout.outputs) * active(group) if serves else 0.0
                columns[neuron] = columns.get(neuron, 0.0) + saved
            fed.update([] if serves else layout.inputs.tolist())

    def saved_rows(neuron: int) -> float:
        return rows.get(neuron, (0.0, 0.0))[neuron in fed] if users[neuron] == 1 else 0.0

    return {
        junction: {neuron: saved + saved_rows(neuron) for neuron, saved in columns.items()}
        for junction, columns in found.items()
    }


def per_flop(scores: Scores, freed: Scores) -> Scores:
    """Importance divided by the operations that a removal frees, in units of the mean over the scored neurons.

    A negative importance (something does harm) is multiplied instead: either way the lowest ones free much.
    """
    values = [freed[junction][neuron] for junction, neurons in scores.items() for neuron in neurons]
    typical = sum(values) / max(1, len(values)) or 1.0

    def each(value: float, free: float) -> float:
        units = max(free / typical, 1e-12)
        return value / units if value >= 0 else value * units

    return {
        junction: {n: each(value, freed[junction][n]) for n, value in neurons.items()}
        for junction, neurons in scores.items()
    }


def that_free(scores: Scores, freed: Scores) -> Scores:
    """The neurons whose removal saves something, and those that say nothing: the other tasks will leave them, too."""
    kept = {
        junction: {n: value for n, value in neurons.items() if value <= 0 or freed[junction][n] > 0}
        for junction, neurons in scores.items()
    }
    return {junction: neurons for junction, neurons in kept.items() if neurons}
