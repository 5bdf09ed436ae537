"""Fine-tuning while layers are zipped one after the other."""

from __future__ import annotations

from collections.abc import Mapping

from pamerge.errors import PamergeError
from pamerge.merging.material import Material
from pamerge.network.network import MultitaskNetwork
from pamerge.training import Objective, finetune, infer_objectives


class BetweenLayers:
    """Trains a network on all tasks, whenever it is called; counts the effort.

    Args:
        network: the network.
        material: has the training data.
        steps: training steps in a call; 0 for none.
        lr: learning rate.
        seed: seeds every call.
        scheme: the name of the scheme, for messages.

    Attributes:
        task_batches: batches used for one task's loss so far.
    """

    def __init__(
        self, network: MultitaskNetwork, material: Material, steps: int, lr: float, seed: int, scheme: str
    ) -> None:
        if steps < 0:
            raise PamergeError(f"steps={steps!r}; expected steps from 0.")
        if steps and material.train is None:
            raise PamergeError(
                f"{scheme} fine-tunes after each layer and has no training data; "
                f"expected merge(…, train=…), or {scheme}(steps=0)."
            )
        self.network, self.material = network, material
        self.steps, self.lr, self.seed = steps, lr, seed
        self.objectives = _objectives(material, network, scheme) if steps else {}
        self.task_batches = 0

    def __call__(self) -> None:
        """Train for a while."""
        if self.steps and self.material.train is not None:
            found = finetune(
                self.network,
                self.material.train,
                self.objectives,
                steps=self.steps,
                lr=self.lr,
                seed=self.seed,
                progress=False,
            )
            self.task_batches += found.task_batches


def _objectives(material: Material, network: MultitaskNetwork, scheme: str) -> Mapping[str, Objective]:
    if material.objectives is not None:
        return material.objectives
    for _, targets in material.calibration:
        if set(network.tasks) <= set(targets):
            return infer_objectives(targets)
    raise PamergeError(f"{scheme} cannot tell what kind of labels the tasks have; expected merge(…, objectives=…).")
