"""What every merging scheme starts from: the networks, captured and aligned, and the user's data."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from pamerge.errors import PamergeError
from pamerge.graph.align import Alignment
from pamerge.graph.layer_graph import LayerGraph
from pamerge.merging.result import Merging
from pamerge.network.layout import block_layouts, original_blocks, transfer
from pamerge.network.network import MultitaskNetwork
from pamerge.network.repair import repair
from pamerge.network.structure import lay_out


@dataclass(frozen=True)
class Material:
    """The networks to merge, and the data to do it with.

    Attributes:
        networks: the user's own modules; they are never changed.
        graphs: what they compute.
        alignment: how far they match.
        calibration: batches of ``(inputs, targets)``.
        objectives: the kind of each task, or None to read it off the labels.
        train: training batches, for schemes that fine-tune while they merge.
        start: the networks side by side, if they are not the originals any more, such as networks that were pruned one
            by one.
        cache: what schemes have read off the data, so that trying many settings reads it once.
    """

    networks: Mapping[str, nn.Module]
    graphs: Mapping[str, LayerGraph]
    alignment: Alignment
    calibration: Iterable[Any]
    objectives: Mapping[str, Any] | None = None
    train: Iterable[Any] | None = None
    start: MultitaskNetwork | None = None
    cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def side_by_side(self) -> MultitaskNetwork:
        """One network in which every neuron belongs to its own task; it computes what the originals compute."""
        if self.start is not None:
            return copy.deepcopy(self.start)
        structure = repair(lay_out(self.alignment))
        old_layouts, old_tensors = original_blocks(self.alignment, self.graphs)
        layouts = block_layouts(structure)
        moving = transfer(old_layouts, layouts)
        tensors = {}
        for key in layouts:
            names = dict.fromkeys(name for move in moving.moves[key] for name in old_tensors[move.source])
            found = {name: moving.apply(key, name, lambda k, n: old_tensors[k].get(n)) for name in names}
            tensors[key] = {name: tensor for name, tensor in found.items() if tensor is not None}
        network = MultitaskNetwork(structure, tensors)
        network.merging = Merging("side by side", self.alignment)  # schemes that regroup say more
        return network

    def started_from(self, start: MultitaskNetwork) -> Material:
        """The same with networks that have been changed since, such as pruned one by one."""
        if set(start.tasks) != set(self.networks):
            raise PamergeError(
                f"start has the tasks {', '.join(start.tasks)}; expected those of the networks: "
                f"{', '.join(self.networks)}."
            )
        shared = [j.name for j in start.junctions.values() if not j.fixed and any(len(group) > 1 for group in j.groups)]
        if shared:
            raise PamergeError(
                f"start shares neurons already, at {', '.join(shared[:3])}; expected networks that share nothing, as "
                "Separate() makes them."
            )
        return replace(self, start=start, cache={})
