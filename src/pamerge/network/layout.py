"""From a structure to blocks: which exist, what each reads and yields, and how weights move to a new layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pamerge.graph.align import Alignment
from pamerge.graph.layer_graph import Channels, LayerGraph, Node
from pamerge.network.structure import Structure, groups_of, mask_order, suppliers
from pamerge.tasks import TaskSet

_IN_OUT = {"conv": ("out", "in"), "linear": ("out", "in"), "conv_transpose": ("in", "out")}


@dataclass(frozen=True)
class Piece:
    """Channels of a node that are computed together: those with the same need and, after a sum, the same operands."""

    need: int
    channels: Channels
    operands: tuple[int, ...] = ()


@dataclass(frozen=True)
class BlockLayout:
    """The parameters of one layer for one group of its outputs."""

    node: Node
    group: TaskSet
    outputs: Channels
    inputs: Channels
    input_width: int

    @property
    def key(self) -> str:
        """Name of the block among the network's modules; module names may not contain dots."""
        return f"{self.node.name.replace('.', '/')}:{self.group}"


def pieces(structure: Structure, node: Node) -> list[Piece]:
    """How the tensor of a node is stored: a piece for each need-set, in a fixed order."""
    need = structure.needs[node.name]
    if node.kind in ("input", "whole"):
        return [Piece(int(np.bitwise_or.reduce(need)), node.channels)] if len(need) else []
    if node.kind != "join":
        return [Piece(group, node.channels[need == group]) for group in groups_of(need)]
    present = np.stack([np.isin(node.channels, structure.nodes[name].channels) for name in node.inputs], axis=1)
    found = {(int(n), tuple(np.flatnonzero(row).tolist())) for n, row in zip(need, present, strict=True)}
    result = []
    for group, operands in sorted(found, key=lambda item: (mask_order(item[0]), item[1])):
        row = np.isin(np.arange(len(node.inputs)), operands)
        result.append(Piece(group, node.channels[(need == group) & (present == row).all(axis=1)], operands))
    return result


def read_order(structure: Structure, name: str) -> Channels:
    """The channels of a node in the order in which its pieces hold them: reading several is a concatenation."""
    node = structure.nodes[name]
    if node.kind != "wire":
        parts = [piece.channels for piece in pieces(structure, node)]
    else:
        parts = [order[np.isin(order, node.channels)] for order in (read_order(structure, n) for n in node.inputs)]
    return np.concatenate([node.channels[:0], *parts])


def block_layouts(structure: Structure) -> dict[str, BlockLayout]:
    """Every block of a network, by key."""
    found = {}
    for node in structure.nodes.values():
        if node.kind not in ("weighted", "channelwise") or not len(node.channels):
            continue
        source = structure.nodes[node.inputs[0]]
        if node.kind == "weighted":
            order = read_order(structure, source.name)
            sets = dict(zip(source.channels.tolist(), structure.task_sets[source.name].tolist(), strict=True))
            task_sets = np.array([sets[channel] for channel in order.tolist()], dtype=np.int64)
        for piece in pieces(structure, node):
            inputs = order[suppliers(task_sets, piece.need)] if node.kind == "weighted" else piece.channels
            block = BlockLayout(node, structure.task_set(piece.need), piece.channels, inputs, source.width)
            found[block.key] = block
    return found


# -- moving tensors from one layout into another -----------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """Which rows and columns of a new block come from which rows and columns of an old one."""

    source: str
    rows: NDArray[np.int64]
    source_rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    source_columns: NDArray[np.int64]


@dataclass(frozen=True)
class Transfer:
    """How the tensors of an old layout become those of a new one: kept where they exist, zero where they are new.

    It moves anything that has the shape of a parameter, so an optimiser's state moves like the parameters themselves.
    """

    blocks: Mapping[str, BlockLayout]
    moves: Mapping[str, tuple[Move, ...]]

    def apply(self, key: str, name: str, tensors: Callable[[str, str], Tensor | None]) -> Tensor | None:
        """The new tensor ``name`` of block ``key``, from ``tensors(old key, name)``; None if no old block has it."""
        block = self.blocks[key]
        axes = _IN_OUT.get(block.node.op, ("out",)) if name == "weight" else ("out",)
        result: Tensor | None = None
        for move in self.moves[key]:
            old = tensors(move.source, name)
            if old is None:
                continue
            if old.dim() == 0:
                return old.clone()
            sizes = {
                "out": len(block.outputs) * block.node.width,
                "in": len(block.inputs) * block.input_width,
            }
            if result is None:
                result = old.new_zeros([sizes[axis] for axis in axes] + list(old.shape[len(axes) :]))
            new_index = {"out": move.rows, "in": move.columns}
            old_index = {"out": move.source_rows, "in": move.source_columns}
            result[_grid([new_index[axis] for axis in axes])] = old[_grid([old_index[axis] for axis in axes])]
        return result


def _grid(indices: list[NDArray[np.int64]]) -> tuple[Tensor, ...]:
    tensors = [torch.from_numpy(index) for index in indices]
    return (tensors[0],) if len(tensors) == 1 else (tensors[0][:, None], tensors[1][None, :])


def transfer(old: Mapping[str, BlockLayout], new: Mapping[str, BlockLayout]) -> Transfer:
    """How to fill the blocks of a new layout from the blocks of an old one."""
    by_node: dict[str, list[tuple[str, BlockLayout]]] = {}
    for key, block in old.items():
        by_node.setdefault(block.node.name, []).append((key, block))
    moves = {}
    for key, block in new.items():
        found = []
        for old_key, source in by_node.get(block.node.name, []):
            rows, source_rows = _common(block.outputs, source.outputs, block.node.width)
            columns, source_columns = _common(block.inputs, source.inputs, block.input_width)
            if len(rows):
                found.append(Move(old_key, rows, source_rows, columns, source_columns))
        moves[key] = tuple(found)
    return Transfer(new, moves)


def _common(new: Channels, old: Channels, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the channels that both hold, as features."""
    _, new_at, old_at = np.intersect1d(new, old, assume_unique=True, return_indices=True)
    return spread(new_at, width), spread(old_at, width)


def spread(positions: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Positions of channels → positions of their features."""
    return (positions[:, None] * width + np.arange(width)).reshape(-1) if width > 1 else positions


def original_blocks(
    alignment: Alignment, graphs: Mapping[str, LayerGraph]
) -> tuple[dict[str, BlockLayout], dict[str, Mapping[str, Tensor]]]:
    """The layers of the original networks as blocks, in the channel numbering of the alignment."""
    layouts, tensors = {}, {}
    for task in alignment.tasks:
        graph, number = graphs[task], alignment.numbering[task]
        sources = {name: found[task] for name, found in alignment.sources.items() if task in found}
        # in the order of the task's own network, which is the order of its weights
        own = {name: number[graph.nodes[source].channels] for name, source in sources.items()}
        for name, channels in own.items():
            node = alignment.nodes[name]
            if node.kind in ("weighted", "channelwise"):
                source = alignment.nodes[node.inputs[0]]
                layout = BlockLayout(node, TaskSet({task}), channels, own[source.name], source.width)
                layouts[layout.key] = layout
                tensors[layout.key] = graph.tensors[sources[name]]
    return layouts, tensors
