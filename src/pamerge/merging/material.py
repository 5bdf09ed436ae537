"""What every merging scheme starts from: the networks, captured and aligned, and the user's data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

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
        cache: what schemes have read off the data, so that trying many settings reads it once.
    """

    networks: Mapping[str, nn.Module]
    graphs: Mapping[str, LayerGraph]
    alignment: Alignment
    calibration: Iterable[Any]
    objectives: Mapping[str, Any] | None = None
    train: Iterable[Any] | None = None
    cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def side_by_side(self) -> MultitaskNetwork:
        """One network in which every neuron belongs to its own task; it computes what the originals compute."""
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
