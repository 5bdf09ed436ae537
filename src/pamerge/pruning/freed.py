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
            task needs them. A neuron that then feeds nothing is gone.
    """
    nodes, names = network.structure.nodes, junction_names(network.structure)

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
        inputs = 1 if node.op == "depthwise" else len(layout.inputs) * layout.input_width
        alone = active(group) - active(group - {leaving}) if leaving is not None else active(group)
        for neuron in layout.outputs.tolist():
            whole, part = rows.get(neuron, (0.0, 0.0))
            rows[neuron] = whole + cost * inputs * active(group), part + cost * inputs * alone
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
    """Importance divided by the operations that a removal frees, in units of the mean over the scored neurons."""
    values = [freed[junction][neuron] for junction, neurons in scores.items() for neuron in neurons]
    typical = sum(values) / max(1, len(values)) or 1.0
    return {
        junction: {n: value / max(freed[junction][n] / typical, 1e-12) for n, value in neurons.items()}
        for junction, neurons in scores.items()
    }
