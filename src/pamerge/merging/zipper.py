"""Zips the neurons of a merged network, one set of channels after the other, from the input on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pamerge.graph.layer_graph import Node, in_head
from pamerge.merging.result import Zipped
from pamerge.merging.zip import coupling, functional_difference, match, shared_weights
from pamerge.network.blocks import tensor_of
from pamerge.network.layout import BlockLayout
from pamerge.network.network import MultitaskNetwork
from pamerge.network.structure import junction_names
from pamerge.network.zipping import zip_channels
from pamerge.tasks import TaskSet


def components(network: MultitaskNetwork) -> list[list[str]]:
    """Hidden weighted layers whose outputs are the same channels, such as all that add to a residual stream."""
    structure = network.structure
    head = in_head(structure.nodes)
    found: list[tuple[set[int], list[str]]] = []
    for node in structure.nodes.values():
        if node.kind == "weighted" and node.name not in head:
            channels, layers = set(node.channels.tolist()), [node.name]
            for other in [item for item in found if item[0] & channels]:
                found.remove(other)
                channels, layers = channels | other[0], other[1] + layers
            found.append((channels, layers))
    order = {name: index for index, name in enumerate(structure.nodes)}
    return sorted((sorted(layers, key=order.__getitem__) for _, layers in found), key=lambda layers: order[layers[0]])


def zip_network(
    network: MultitaskNetwork,
    calibration: Iterable[Any],
    *,
    samples: int = 500,
    tolerance: float | None = None,
    share: float = 1.0,
    after_layer: Callable[[], None] | None = None,
) -> list[Zipped]:
    """Zip all hidden layers from the input on; neurons are compared where what they read has been zipped before.

    Args:
        network: changed in place.
        calibration: batches of inputs, with labels where tasks have data sets of their own.
        samples: how many samples to look at.
        tolerance: zip only pairs that are at most so different, from 0 to about 1; None for all pairs.
        share: zip only this share of the pairs, the least different ones.
        after_layer: called after each layer, to fine-tune.
    """
    done = set(network.structure.input.channels.tolist())
    found = []
    for layers in components(network):
        nodes = network.structure.nodes
        ready = {layer for layer in layers if set(nodes[nodes[layer].inputs[0]].channels.tolist()) <= done}
        found.append(zip_component(network, layers, ready, calibration, samples, tolerance, share))
        done |= {int(channel) for layer in layers for channel in network.structure.nodes[layer].channels}
        if after_layer is not None:
            after_layer()
    return found


def give_back_without_partner(network: MultitaskNetwork, junctions: Iterable[str]) -> None:
    """Neurons of some junctions that were not zipped with any other go back to the task whose network had them."""
    structure = network.structure
    origins = {int(c): structure.task_set(int(mask)) for c, mask in enumerate(structure.origins)}
    sets = {name: network.junctions[name].task_sets() for name in junctions if name in network.junctions}
    changes = {
        name: {n: origins[n] for n, tasks in found.items() if len(origins[n]) == 1 < len(tasks)}
        for name, found in sets.items()
    }
    if any(changes.values()):
        network.restrict({name: found for name, found in changes.items() if found})


def zip_component(
    network: MultitaskNetwork,
    layers: list[str],
    ready: set[str],
    calibration: Iterable[Any],
    samples: int,
    tolerance: float | None,
    share: float,
) -> Zipped:
    """Zip the channels of some layers where they serve the same tasks and came from different networks."""
    everything = {int(c) for layer in layers for c in network.structure.nodes[layer].channels}
    producers = [Producer.of(network, layer, calibration, samples) for layer in layers]
    groups: dict[int, list[int]] = {}
    differences: dict[int, float] = {}
    for alike in _alike(network, layers):
        for first, other, difference in _pairs(network, producers, ready, alike, tolerance, share):
            groups.setdefault(first, [first]).append(other)
            differences[first] = max(differences.get(first, 0.0), difference)
    handled = {producer.norm.name for producer in producers if producer.norm is not None}
    _average_others(network, list(groups.values()), handled)
    zip_channels(network, list(groups.values()))
    alone = everything - {member for group in groups.values() for member in group}
    return Zipped(
        tuple(layers),
        tuple(map(tuple, groups.values())),
        tuple(sorted(alone)),
        tuple(differences[first] for first in groups),
    )


@torch.no_grad()
def _average_others(network: MultitaskNetwork, groups: list[list[int]], handled: set[str]) -> None:
    """Average the parameters that channel-wise layers hold for the members of a group; the first member's stay."""
    for key, layout in network.layouts.items():
        if layout.node.kind != "channelwise" or layout.node.name in handled:
            continue
        place = {int(channel): row for row, channel in enumerate(layout.outputs)}
        width = layout.node.width
        for group in groups:
            rows = [place[channel] for channel in group if channel in place]
            if len(rows) > 1 and group[0] in place:
                for tensor in [*network.blocks[key].parameters(), *network.blocks[key].buffers()]:
                    if tensor.dim():
                        by_channel = tensor.data.view(len(place), width, *tensor.shape[1:])
                        by_channel[rows[0]] = by_channel[rows].mean(0)


def _alike(network: MultitaskNetwork, layers: list[str]) -> list[list[int]]:
    """Channels that are computed by the same blocks in all of the layers, and serve more than one task."""
    where: dict[int, list[str]] = {}
    for key, layout in network.layouts.items():
        if layout.node.name in layers:
            for channel in layout.outputs.tolist():
                where.setdefault(channel, []).append(key)
    classes: dict[tuple[str, ...], list[int]] = {}
    for channel, keys in where.items():
        if all(len(network.layouts[key].group) > 1 for key in keys):
            classes.setdefault(tuple(sorted(keys)), []).append(channel)
    return list(classes.values())


def _pairs(
    network: MultitaskNetwork,
    producers: list[Producer],
    ready: set[str],
    channels: list[int],
    tolerance: float | None,
    share: float,
) -> list[tuple[int, int, float]]:
    """Pairs (first, other, difference): one network after the other joins the channels of those before it.

    The weights of the first channel of a pair are made common on the way.
    """
    structure = network.structure
    found = []
    tasks = [t for t in structure.tasks if any(structure.origins[c] == structure.mask([t]) for c in channels)]
    base: list[int] = []
    merged = TaskSet()
    for task in tasks:
        own = [c for c in channels if structure.origins[c] == structure.mask([task])]
        pairs: list[tuple[int, int]] = []
        if base:
            cost = torch.zeros(len(base), len(own), dtype=torch.float64)
            scale = torch.zeros_like(cost)
            for producer in producers:
                if producer.node.name in ready:
                    difference, size = producer.compare(base, own, merged, task)
                    cost, scale = cost + difference, scale + size
            relative = cost / scale.clamp_min(1e-30)
            pairs = sorted(match(cost), key=lambda pair: float(relative[pair]))[: round(share * min(cost.shape))]
            if tolerance is not None:
                pairs = [pair for pair in pairs if float(relative[pair]) <= tolerance]
            found += [(base[i], own[j], float(relative[i, j])) for i, j in pairs]
            for producer in producers:
                producer.share([base[i] for i, _ in pairs], [own[j] for _, j in pairs], merged, task)
        taken = {j for _, j in pairs}
        base, merged = base + [c for j, c in enumerate(own) if j not in taken], merged | {task}
    return found


@dataclass
class Producer:
    """A weighted layer, and the batch norm that directly follows it, as one affine map of each input position.

    Attributes:
        network: the network.
        node: the layer.
        norm: the batch norm, if it is the only reader of the layer.
        inputs: the channels that the layer's junction holds.
        moments: for each task, ``E[x xᵀ]`` of these channels with a constant 1 at the end.
    """

    network: MultitaskNetwork
    node: Node
    norm: Node | None
    inputs: list[int]
    moments: Mapping[str, Tensor]

    @classmethod
    def of(cls, network: MultitaskNetwork, layer: str, calibration: Iterable[Any], samples: int) -> Producer:
        """The producer of a layer's channels."""
        nodes = network.structure.nodes
        readers = [node for node in nodes.values() if layer in node.inputs and len(node.channels)]
        affine = len(readers) == 1 and readers[0].op == "batch_norm" and readers[0].settings["affine"]
        inputs, moments = input_moments(network, nodes[layer], calibration, samples)
        return cls(network, nodes[layer], readers[0] if affine else None, inputs, moments)

    def compare(self, base: list[int], own: list[int], merged: TaskSet, task: str) -> tuple[Tensor, Tensor]:
        """What it costs to share each pair of channels, and the scale that makes it relative."""
        h_a, h_b = self._moments(base, merged), self._moments(base, TaskSet({task}))
        w_a, w_b = self.rows(base), self.rows(own)
        matrix = coupling(h_a, h_b)
        energy = [((w @ matrix) * w).flatten(1).sum(1) for w in (w_a, w_b)]
        return functional_difference(w_a, w_b, h_a, h_b), 0.5 * (energy[0][:, None] + energy[1][None, :])

    def _moments(self, channels: list[int], tasks: TaskSet) -> Tensor:
        """The second moments of what the block of some channels reads, of several tasks together."""
        place = {channel: index for index, channel in enumerate(self.inputs)}
        index = [place[channel] for channel in self._blocks(self.node, channels)[1].inputs.tolist()] + [-1]
        total = torch.stack([self.moments[task] for task in sorted(tasks)]).sum(0)
        return total[index][:, index]

    def _blocks(self, node: Node, channels: list[int]) -> tuple[nn.Module, BlockLayout, list[int]]:
        """The block that computes some channels, which is one for all of them, and their rows in it."""
        for key, layout in self.network.layouts.items():
            if layout.node.name == node.name and channels[0] in layout.outputs:
                place = {int(channel): row for row, channel in enumerate(layout.outputs)}
                return self.network.blocks[key], layout, [place[channel] for channel in channels]
        raise KeyError(f"no block of {node.name} computes {channels[0]}")

    @torch.no_grad()
    def rows(self, channels: list[int]) -> Tensor:
        """``(channels, positions, inputs + 1)``: weights with the batch norm folded in; the last column is the bias."""
        block, layout, rows = self._blocks(self.node, channels)
        weight = tensor_of(block, "weight").double()
        weight = weight.transpose(0, 1) if self.node.op == "conv_transpose" else weight
        weight = weight[rows].reshape(len(rows), len(layout.inputs), -1).transpose(1, 2)
        bias = weight.new_zeros(len(rows))
        if self.node.settings["bias"]:
            bias = tensor_of(block, "bias")[rows].double()
        if self.norm is not None:
            norm, _, places = self._blocks(self.norm, channels)
            scale, shift = _affine(norm, places)
            weight, bias = weight * scale[:, None, None], bias * scale + shift
        positions = weight.shape[1]
        constant = (bias / positions)[:, None, None].expand(-1, positions, 1)
        return torch.cat([weight, constant], 2)

    @torch.no_grad()
    def share(self, first: list[int], other: list[int], merged: TaskSet, task: str) -> None:
        """Give the first channel of each pair the weights that change both least."""
        if not first:
            return
        h_a, h_b = self._moments(first, merged), self._moments(first, TaskSet({task}))
        w_a, w_b = self.rows(first), self.rows(other)
        common = shared_weights(w_a.flatten(0, 1), w_b.flatten(0, 1), h_a, h_b).view_as(w_a)
        block, _, rows = self._blocks(self.node, first)
        weight, bias = common[:, :, :-1].transpose(1, 2), common[:, :, -1].sum(1)
        own_bias = tensor_of(block, "bias") if self.node.settings["bias"] else None
        if self.norm is not None:
            norm, _, places = self._blocks(self.norm, first)
            _, _, others = self._blocks(self.norm, other)
            _average(norm, places, others)
            scale, shift = _affine(norm, places)
            scale = torch.where(scale.abs() < 1e-12, torch.ones_like(scale), scale)
            weight = weight / scale[:, None, None]
            constant = own_bias[rows].double() * scale + shift if own_bias is not None else shift
            norm_bias = tensor_of(norm, "bias")
            norm_bias[places] += (bias - constant).to(norm_bias.dtype)
        elif own_bias is not None:
            own_bias[rows] = bias.to(own_bias.dtype)
        target = tensor_of(block, "weight")
        target = target.transpose(0, 1) if self.node.op == "conv_transpose" else target
        target[rows] = weight.reshape(target[rows].shape).to(target.dtype)


def _affine(norm: nn.Module, rows: list[int]) -> tuple[Tensor, Tensor]:
    """A batch norm in eval mode as scale and shift of each channel."""
    names = ("weight", "bias", "running_mean", "running_var")
    weight, bias, mean, variance = (tensor_of(norm, name)[rows].double() for name in names)
    eps = norm.eps
    assert isinstance(eps, float)
    scale = weight / (variance + eps).sqrt()
    return scale, bias - mean * scale


def _average(norm: nn.Module, rows: list[int], others: list[int]) -> None:
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = tensor_of(norm, name).data
        tensor[rows] = (tensor[rows] + tensor[others]) / 2


@torch.no_grad()
def input_moments(
    network: MultitaskNetwork, node: Node, calibration: Iterable[Any], samples: int
) -> tuple[list[int], dict[str, Tensor]]:
    """``E[x xᵀ]`` of the channels that a layer's junction holds, at each position, with a constant 1 at the end.

    Positions are those of a feature map, or of one that was flattened. Each task's moments are taken on the samples
    that have its labels; on all samples where no batch has labels.
    """
    name = junction_names(network.structure)[node.inputs[0]]
    groups = network.junctions[name].groups
    channels = [channel for group in groups.values() for channel in group]
    sums = {task: torch.zeros(len(channels) + 1, len(channels) + 1, dtype=torch.float64) for task in network.tasks}
    counts = dict.fromkeys(network.tasks, 0)
    seen = 0
    for batch in calibration:
        inputs, targets = batch if isinstance(batch, (tuple, list)) else (batch, {})
        found: dict[TaskSet, Tensor] = {}

        def look(where: str, group: TaskSet, tensor: Tensor, found: dict[TaskSet, Tensor] = found) -> Tensor:
            if where == name:
                found[group] = tensor.reshape(len(tensor), len(groups[group]), -1)
            return tensor

        network(inputs, at_junction=look)
        x = torch.cat([found[group] for group in groups], 1).transpose(0, 1).flatten(1).double()
        x = torch.cat([x, x.new_ones(1, x.shape[1])])
        moment = (x @ x.T).cpu()
        for task in network.tasks:
            if not targets or task in targets:
                sums[task] += moment
                counts[task] += x.shape[1]
        seen += len(inputs)
        if seen >= samples:
            break
    return channels, {task: total / max(1, counts[task]) for task, total in sums.items()}
