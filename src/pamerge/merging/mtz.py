"""Baseline 2: multi-task zipping (He et al. 2018). Neurons of all networks are made one, layer by layer."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pamerge.errors import PamergeError
from pamerge.merging.between_layers import BetweenLayers
from pamerge.merging.material import Material
from pamerge.merging.result import Merging
from pamerge.merging.zipper import give_back_without_partner, zip_network
from pamerge.network.network import MultitaskNetwork
from pamerge.tasks import TaskSet


@dataclass(frozen=True)
class MTZ:
    """Share every hidden neuron of every network with one of each other network.

    From the input on, the neurons of a layer are matched by how little their outputs would change, pairs get the
    weights that change both least, and the whole network is fine-tuned on all tasks before the next layer's turn.

    Attributes:
        share: the share of a layer's pairs that is zipped, the least different ones. Neurons without a partner become
            exclusive to their own task. With 1.0 and networks of equal width every subset of tasks costs the same,
            apart from the heads.
        steps: training steps after each layer; needs ``merge(…, train=…)``. 0 for none.
        samples: how many calibration samples to measure layers on.
        lr: learning rate.
        seed: seeds the training after each layer.
    """

    share: float = 1.0
    steps: int = 100
    samples: int = 500
    lr: float = 5e-4
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise PamergeError(f"share={self.share!r}; expected a share from 0 to 1.")
        if self.samples < 1:
            raise PamergeError(f"samples={self.samples!r}; expected samples from 1.")

    def merge(self, material: Material) -> MultitaskNetwork:
        """The zipped network."""
        start = time.perf_counter()
        network = material.side_by_side()
        network.regroup(
            {
                name: dict.fromkeys(junction.task_sets(), TaskSet(t for group in junction.groups for t in group))
                for name, junction in network.junctions.items()
                if not junction.fixed
            }
        )
        tune = BetweenLayers(network, material, self.steps, self.lr, self.seed, "MTZ")
        zipped = zip_network(network, material.calibration, samples=self.samples, share=self.share, after_layer=tune)
        give_back_without_partner(network, [j.name for j in network.junctions.values() if not j.fixed])
        network.merging = Merging(
            repr(self),
            material.alignment,
            seconds=time.perf_counter() - start,
            zipped=tuple(zipped),
            task_batches=tune.task_batches,
        )
        return network
