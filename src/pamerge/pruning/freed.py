"""What the removal of a neuron saves."""

from __future__ import annotations

import math

from pamerge.network.network import MultitaskNetwork
from pamerge.network.structure import junction_names
from pamerge.pruning.protocol import Scores
from pamerge.pruning.ranking import Mix

_COUNTED = ("conv", "linear", "conv_transpose", "depthwise")


def flops_freed(network: MultitaskNetwork, mix: Mix) -> Scores:
    """What the removal of each neuron would save, as expected cost under a mix (in multiply-accumulates times two).

    Its columns in all blocks that read it, and, if no other junction uses it, its rows in the blocks that compute it.
    """
    nodes, names = network.structure.nodes, junction_names(network.structure)
    active = {
        group: sum(share for tasks, share in mix.items() if tasks & group)
        for group in {layout.group for layout in network.layouts.values()}
    }
    users: dict[int, int] = {}
    for junction in network.junctions.values():
        for neurons in junction.groups.values():
            for neuron in neurons:
                users[neuron] = users.get(neuron, 0) + 1
    rows: dict[int, float] = {}
    found: Scores = {}
    for layout in network.layouts.values():
        node = layout.node
        if node.op not in _COUNTED:
            continue
        space = nodes[node.inputs[0]].space if node.op == "conv_transpose" else node.space
        cost = 2 * math.prod(node.settings.get("kernel", ())) * math.prod(space) * node.width * active[layout.group]
        inputs = 1 if node.op == "depthwise" else len(layout.inputs) * layout.input_width
        for neuron in layout.outputs.tolist():
            rows[neuron] = rows.get(neuron, 0.0) + cost * inputs
        if node.kind == "weighted":
            columns = found.setdefault(names[node.inputs[0]], {})
            for neuron in layout.inputs.tolist():
                columns[neuron] = columns.get(neuron, 0.0) + cost * layout.input_width * len(layout.outputs)
    return {
        junction: {
            neuron: saved + (rows.get(neuron, 0.0) if users[neuron] == 1 else 0.0) for neuron, saved in s.items()
        }
        for junction, s in found.items()
    }


def per_flop(scores: Scores, freed: Scores) -> Scores:
    """Importance divided by the operations that a removal frees, in units of the mean over the scored neurons."""
    values = [freed[junction][neuron] for junction, neurons in scores.items() for neuron in neurons]
    typical = sum(values) / max(1, len(values)) or 1.0
    return {
        junction: {n: value / max(freed[junction][n] / typical, 1e-12) for n, value in neurons.items()}
        for junction, neurons in scores.items()
    }
