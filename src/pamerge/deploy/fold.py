"""Batch norm folded into the weighted layer before it, once for the whole network.

Every subset of tasks then reads the same folded bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pamerge.graph.layer_graph import Node
from pamerge.network.program import Compiled, Step

Array = NDArray[np.float32]
_FOLDS_INTO = {"conv", "depthwise", "linear", "conv_transpose"}


@dataclass(frozen=True)
class Layer:
    """What a block computes: the operation of its node, and its tensors by name."""

    node: Node
    tensors: Mapping[str, Array]


@dataclass(frozen=True)
class Folded:
    """The steps of a network without the batch norms that were folded away, and the layers they call."""

    steps: tuple[Step, ...]
    layers: Mapping[str, Layer]


def fold(compiled: Compiled, blocks: Mapping[str, nn.Module]) -> Folded:
    """Fold each batch norm whose input comes straight from a weighted layer and is read by nothing else."""
    nodes = compiled.structure.nodes
    readers = Counter(register for step in compiled.steps for register in step.inputs)
    readers.update(compiled.outputs.values())
    layers: dict[str, Layer] = {}
    steps: list[Step] = []
    made_by: dict[int, int] = {}  # position in `steps` of the step that makes a register
    for step in compiled.steps:
        node = nodes[step.node]
        if step.block is not None:
            layers[step.block] = _layer(node, blocks[step.block])
            before = made_by.get(step.inputs[0])
            if node.op == "batch_norm" and before is not None and readers[step.inputs[0]] == 1:
                maker = steps[before]
                if maker.block is not None and nodes[maker.node].op in _FOLDS_INTO and maker.need == step.need:
                    layers[maker.block] = folded(layers[maker.block], layers.pop(step.block))
                    steps[before] = replace(maker, out=step.out)
                    made_by[step.out] = before
                    continue
        made_by[step.out] = len(steps)
        steps.append(step)
    return Folded(tuple(steps), layers)


def folded(layer: Layer, norm: Layer) -> Layer:
    """The layer that computes what a batch norm makes of another layer's output."""
    scale, shift = scale_and_shift(norm)
    weight = layer.tensors["weight"].astype(np.float64)
    axis = 1 if layer.node.op == "conv_transpose" else 0
    shape = [1] * weight.ndim
    shape[axis] = -1
    bias = layer.tensors["bias"].astype(np.float64) if "bias" in layer.tensors else 0.0
    tensors = {"weight": weight * scale.reshape(shape), "bias": bias * scale + shift}
    return Layer(layer.node, {name: value.astype(np.float32) for name, value in tensors.items()})


def scale_and_shift(norm: Layer) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A batch norm in eval mode is ``scale * x + shift``."""
    tensors = {name: value.astype(np.float64) for name, value in norm.tensors.items()}
    scale = tensors["weight"] / np.sqrt(tensors["running_var"] + norm.node.settings["eps"])
    return scale, tensors["bias"] - tensors["running_mean"] * scale


def _layer(node: Node, block: nn.Module) -> Layer:
    """A block's tensors as ONNX wants them: norms with scale and shift, numbers for each channel in a column."""
    named = [*block.named_parameters(), *block.named_buffers()]
    tensors = {name: value.detach().cpu().contiguous().numpy() for name, value in named if value.is_floating_point()}
    if node.op in ("batch_norm", "instance_norm") and "weight" not in tensors:
        features = block.num_features
        tensors |= {"weight": np.ones(features, np.float32), "bias": np.zeros(features, np.float32)}  # type: ignore[arg-type]
    if node.op in ("prelu", "scale", "shift"):
        tensors = {"weight": tensors["weight"].reshape(-1, *[1] * len(node.space))}
    return Layer(node, tensors)
