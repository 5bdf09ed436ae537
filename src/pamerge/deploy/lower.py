"""From the steps of a subset of tasks to the operations of its graph.

A register of the program is a *view* here: for each of its features, the tensor of the graph that holds it and the
position there. Gathers only make new views; features are copied when an operation needs them as one tensor. So
pieces that were computed together, by a fused layer, stay together for as long as nobody reads one without the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pamerge.deploy.fold import Folded, Layer
from pamerge.deploy.speed import MARGIN, copy_time, layer_time
from pamerge.graph.layer_graph import Node
from pamerge.network.layout import spread
from pamerge.network.program import Gather, Step
from pamerge.network.structure import Structure
from pamerge.tasks import TaskSet

Fuse = Literal["auto", "never", "always"]
Indices = NDArray[np.int64]
Shape = tuple[int, ...]
View = NDArray[np.int64]
"""For each feature of a tensor of the program, the tensor of the graph that holds it (upper 32 bits) and its position
there (lower 32 bits)."""
MAX_FUSED_RUNS = 96  # a fused weight that is put together from more is not worth the size of its graph
_BITS = 32


@dataclass(frozen=True)
class Part:
    """A block inside a layer: its key, and where the columns of its weight stand in the layer's input."""

    key: str
    columns: Indices


@dataclass(frozen=True)
class Operation:
    """Makes one tensor of the graph: a layer (of one block, or of several fused), a function, or a copy of a view."""

    out: int
    inputs: tuple[int, ...]
    node: Node
    parts: tuple[Part, ...] = ()
    view: View | None = None


@dataclass(frozen=True)
class Lowered:
    """The operations of a subset, the shapes of its tensors without the batch, and the tensor of each output."""

    operations: tuple[Operation, ...]
    shapes: tuple[Shape, ...]
    outputs: Mapping[str, int]


def lower(structure: Structure, folded: Folded, outputs: Mapping[str, int], tasks: TaskSet, fuse: Fuse) -> Lowered:
    """The operations that a subset of tasks needs."""
    mask = structure.mask(tasks)
    lowering = _Lowering(structure, folded.layers, fuse)
    pending: list[Step] = []
    for step in folded.steps:
        if not step.need & mask:
            continue
        if step.gather is not None:
            if not all(register in lowering.views for register in step.inputs):
                lowering.compute(pending)
                pending = []
            lowering.gather(step, step.gather)
        else:
            if pending and pending[0].node != step.node:
                lowering.compute(pending)
                pending = []
            pending.append(step)
    lowering.compute(pending)
    found = {task: lowering.tensor(lowering.views[outputs[task]]) for task in structure.tasks if task in tasks}
    return Lowered(tuple(lowering.operations), tuple(lowering.shapes), found)


class _Lowering:
    def __init__(self, structure: Structure, layers: Mapping[str, Layer], fuse: Fuse) -> None:
        self.structure, self.layers, self.fuse = structure, layers, fuse
        self.operations: list[Operation] = []
        self.shapes: list[Shape] = [(structure.input.features, *structure.input.space)]
        self.views: dict[int, View] = {0: self._whole(0)}
        self.copies: dict[bytes, int] = {}

    # -- views and tensors -----------------------------------------------------------------------------------------

    def gather(self, step: Step, gather: Gather) -> None:
        """The view of a gather: its parts, concatenated, in order."""
        found = []
        for part, register in zip(gather.parts, step.inputs, strict=True):
            view = self.views[register]
            found.append(view if part is None else view[part if isinstance(part, slice) else part.numpy()])
        view = np.concatenate(found)
        self.views[step.out] = view if gather.order is None else view[gather.order.numpy()]

    def tensor(self, view: View) -> int:
        """The tensor that holds exactly this view, by a copy if need be."""
        existing = self._existing(view)
        if existing is not None:
            return existing
        sources = tuple(sources_of(view))
        space = self.shapes[sources[0]][1:]
        out = self._new((len(view), *space))
        self.operations.append(Operation(out, sources, self.structure.input, view=view))
        self.copies[view.tobytes()] = out
        return out

    def _existing(self, view: View) -> int | None:
        first = int(view[0]) >> _BITS
        if len(view) == self.shapes[first][0] and np.array_equal(view, self._whole(first)):
            return first
        return self.copies.get(view.tobytes())

    def _new(self, shape: Shape) -> int:
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def _whole(self, tensor: int) -> View:
        return np.arange(self.shapes[tensor][0]) + (tensor << _BITS)

    def _copy_time(self, view: View) -> float:
        if self._existing(view) is not None:
            return 0.0
        return copy_time((len(view), *self.shapes[int(view[0]) >> _BITS][1:]), len(runs(view)))

    # -- computing the pieces of a node ----------------------------------------------------------------------------

    def compute(self, steps: list[Step]) -> None:
        """All pieces of one node: together where that is faster, else one by one."""
        if not steps:
            return
        node = self.structure.nodes[steps[0].node]
        together = len(steps) > 1 and self.fuse != "never" and node.kind != "whole"
        if node.kind == "weighted":
            if not (together and self._fused(node, steps)):
                for step in steps:
                    self._layer(node, [step], self.views[step.inputs[0]])
        elif not (together and self._joint(node, steps)):
            for step in steps:
                self._apply(node, [step], [self.views[register] for register in step.inputs])

    def _fused(self, node: Node, steps: list[Step]) -> bool:
        """One dense layer with zero blocks in place of several, if that is possible and faster."""
        if node.op == "conv_transpose":
            return False
        views = [self.views[step.inputs[0]] for step in steps]
        union = np.unique(np.concatenate(views))
        if sum(len(column_runs(_locate(union, view), len(union))) for view in views) > MAX_FUSED_RUNS:
            return False
        if self.fuse == "auto":
            outputs = [self._rows(step) for step in steps]
            split = sum(
                layer_time(node, len(view), rows) + self._copy_time(view)
                for view, rows in zip(views, outputs, strict=True)
            )
            split += copy_time((sum(outputs), *node.space), len(steps))  # the next layer reads them together
            fused = layer_time(node, len(union), sum(outputs)) + self._copy_time(union)
            if fused * MARGIN >= split:
                return False
        self._layer(node, steps, union)
        return True

    def _rows(self, step: Step) -> int:
        return len(self.layers[str(step.block)].tensors["weight"])

    def _layer(self, node: Node, steps: Sequence[Step], view: View) -> None:
        source = self.tensor(view)
        parts = tuple(Part(str(s.block), _locate(view, self.views[s.inputs[0]])) for s in steps)
        sizes = [self._rows(step) for step in steps]
        if node.op == "conv_transpose":
            sizes = [self.layers[str(step.block)].tensors["weight"].shape[1] for step in steps]
        out = self._new((sum(sizes), *node.space))
        self.operations.append(Operation(out, (source,), node, parts))
        for step, piece in zip(steps, _pieces(self._whole(out), sizes), strict=True):
            self.views[step.out] = piece

    def _joint(self, node: Node, steps: list[Step]) -> bool:
        """One operation for all pieces, where their inputs lie together at least as well as apart."""
        if len({len(step.inputs) for step in steps}) > 1:
            return False
        operands = [[self.views[step.inputs[i]] for step in steps] for i in range(len(steps[0].inputs))]
        joined = [np.concatenate(views) for views in operands]
        order = np.argsort(joined[0])
        straight = bool((np.diff(order) == 1).all())
        if not straight and (node.kind == "channelwise" or self._ratio(node) is None):
            return False  # a layer's tensors are stored in the order of its pieces
        apart = sum(self._existing(view) is None for views in operands for view in views)
        if sum(self._existing(view[order]) is None for view in joined) > min(apart, len(steps) - 1):
            return False
        self._apply(node, steps, [view[order] for view in joined], order)
        return True

    def _apply(self, node: Node, steps: Sequence[Step], views: Sequence[View], order: Indices | None = None) -> None:
        """A function, or a layer that keeps channels apart, of one piece or of several that lie together."""
        sources = tuple(self.tensor(view) for view in views)
        counts = [len(self.views[step.inputs[0]]) for step in steps]
        if node.kind == "whole":
            sizes = [node.features]
        else:
            before = self.structure.nodes[node.inputs[0]].width
            sizes = [count * node.width // before for count in counts]
        out = self._new((sum(sizes), *node.space))
        parts = tuple(Part(str(step.block), np.empty(0, np.int64)) for step in steps if step.block is not None)
        self.operations.append(Operation(out, sources, node, parts))
        whole = self._whole(out)
        ratio = self._ratio(node)
        if order is not None and ratio is not None:
            whole = whole[spread(np.argsort(order), ratio)]
        for step, piece in zip(steps, _pieces(whole, sizes), strict=True):
            self.views[step.out] = piece

    def _ratio(self, node: Node) -> int | None:
        """Features of the output for each feature of the input, if that is a whole number."""
        before = self.structure.nodes[node.inputs[0]].width
        return None if node.width % before else node.width // before


def sources_of(view: View) -> list[int]:
    """The tensors that a view reads, in order."""
    return list(dict.fromkeys(tensor for tensor, _, _ in runs(view)))


def runs(view: View) -> list[tuple[int, int, int]]:
    """Tensor, start and stop of each stretch of a view that lies together."""
    breaks = np.flatnonzero(np.diff(view) != 1) + 1
    firsts = view[np.concatenate([[0], breaks])].tolist()
    lengths = np.diff(breaks, prepend=0, append=len(view)).tolist()
    return [
        (first >> _BITS, first % (1 << _BITS), first % (1 << _BITS) + length)
        for first, length in zip(firsts, lengths, strict=True)
    ]


def column_runs(columns: Indices, width: int) -> list[tuple[int, int]]:
    """A weight whose j-th column belongs at ``columns[j]``, as stretches ``(start, stop)`` of its own columns.

    A stretch of zeros is ``(-1, its length)``.
    """
    source = np.full(width, -1)
    source[columns] = np.arange(len(columns))
    after, before = source[1:], source[:-1]
    breaks = np.flatnonzero(np.where(after < 0, before >= 0, (before < 0) | (after - before != 1))) + 1
    found = []
    for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), width], strict=True):
        first = int(source[start])
        found.append((-1, stop - start) if first < 0 else (first, first + stop - start))
    return found


def _locate(union: View, view: View) -> Indices:
    """Where the features of a view stand in another that holds them all."""
    if np.array_equal(union, view):
        return np.arange(len(view))
    order = np.argsort(union)
    return order[np.searchsorted(union[order], view)]


def _pieces(view: View, sizes: Sequence[int]) -> list[View]:
    stops = np.cumsum(sizes)
    return [view[slice(int(stop) - size, int(stop))] for stop, size in zip(stops, sizes, strict=True)]
