"""Running a network: its structure compiled to a flat list of steps, filtered for the tasks that are asked for.

Tensors are kept in pieces, one for each need-set. A step computes one piece, and whether it runs depends only on
its need-set, so the program of a subset of tasks is the full program with steps left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pamerge.graph.layer_graph import Channels, Node
from pamerge.network.blocks import make_function
from pamerge.network.layout import BlockLayout, block_layouts, pieces, spread
from pamerge.network.structure import Structure, groups_of, junction_names
from pamerge.tasks import TaskSet

JunctionHook = Callable[[str, TaskSet, Tensor], Tensor]
"""``hook(junction, group, tensor) -> tensor``: sees and may change what a group of neurons hands to the weighted
layers."""


@dataclass
class Step:
    """Computes one register from others. Exactly one of the last five fields says how."""

    need: int
    out: int
    inputs: tuple[int, ...]
    node: str
    block: str | None = None
    function: Callable[[Sequence[Tensor], bool], Tensor] | None = None
    gather: Gather | None = None
    junction: tuple[str, TaskSet] | None = None


@dataclass(frozen=True)
class Gather:
    """Collects channels from several pieces: parts of each, concatenated, then put in order if need be."""

    parts: tuple[slice | Tensor | None, ...]
    order: Tensor | None

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """The collected channels."""
        found = []
        for part, tensor in zip(self.parts, inputs, strict=True):
            if part is None:
                found.append(tensor)
            elif isinstance(part, slice):
                found.append(tensor[:, part])
            else:
                found.append(tensor.index_select(1, part.to(tensor.device)))
        result = found[0] if len(found) == 1 else torch.cat(found, 1)
        return result if self.order is None else result.index_select(1, self.order.to(result.device))


@dataclass(frozen=True)
class Where:
    """For each channel of a tensor: the register that holds it, and its position there."""

    registers: NDArray[np.int64]
    positions: NDArray[np.int64]


@dataclass(frozen=True)
class Compiled:
    """The steps of a whole network, the register of each task's output, and the number of registers."""

    structure: Structure
    steps: list[Step]
    outputs: Mapping[str, int]
    registers: int


class Compiler:
    """Turns a structure into steps; ``observed`` puts a step at every junction where a hook can look in."""

    def __init__(self, structure: Structure, observed: bool) -> None:
        self.structure = structure
        self.observed = observed
        self.names = junction_names(structure)
        self.steps: list[Step] = []
        self.sizes: list[int] = []  # channels in each register
        self.where: dict[str, Where] = {}
        self.at_junction: dict[str, Where] = {}
        self.gathers: dict[tuple[bytes, bytes, int], Step] = {}
        self.scatter = np.zeros((2, len(structure.origins)), dtype=np.int64)

    def compile(self) -> Compiled:
        """All steps of the network."""
        blocks: dict[str, list[BlockLayout]] = {}
        for layout in block_layouts(self.structure).values():
            blocks.setdefault(layout.node.name, []).append(layout)
        for node in self.structure.nodes.values():
            if node.kind == "input":
                self.where[node.name] = self._new_piece_map(node, [(self._register(len(node.channels)), node.channels)])
            elif node.kind == "wire":
                self.where[node.name] = self._wire(node)
            elif len(node.channels):
                self._compute(node, blocks.get(node.name, []))
            if self.observed and node.name in self.structure.task_sets:
                self._observe(node)
        outputs = {}
        for task, name in self.structure.outputs.items():
            node = self.structure.nodes[name]
            outputs[task] = self._read(name, node.channels, self.structure.mask([task]))
        return Compiled(self.structure, self.steps, outputs, len(self.sizes))

    def _compute(self, node: Node, blocks: list[BlockLayout]) -> None:
        found = []
        parts = pieces(self.structure, node)
        function = make_function(node) if not blocks else None
        for index, piece in enumerate(parts):
            if blocks:
                source = node.inputs[0]
                inputs = [self._read(source, blocks[index].inputs, piece.need, junction=node.kind == "weighted")]
            elif node.kind == "whole":
                inputs = [self._read(name, self.structure.nodes[name].channels, piece.need) for name in node.inputs]
            else:
                operands = piece.operands if node.kind == "join" else range(len(node.inputs))
                inputs = [self._read(node.inputs[i], piece.channels, piece.need) for i in operands]
            if node.kind == "join" and len(piece.operands) == 1:  # the other operands were left out: nothing to add
                found.append((inputs[0], piece.channels))
                continue
            out = self._register(len(piece.channels))
            step = Step(piece.need, out, tuple(inputs), node.name, function=function)
            if blocks:
                step.block = blocks[index].key
            self.steps.append(step)
            found.append((out, piece.channels))
        self.where[node.name] = self._new_piece_map(node, found)

    def _observe(self, node: Node) -> None:
        task_sets = self.structure.task_sets[node.name]
        found = []
        for group in groups_of(task_sets):
            channels = node.channels[task_sets == group]
            out = self._register(len(channels))
            source = self._read(node.name, channels, group)
            tasks = self.structure.task_set(group)
            self.steps.append(Step(group, out, (source,), node.name, junction=(self.names[node.name], tasks)))
            found.append((out, channels))
        self.at_junction[node.name] = self._new_piece_map(node, found)

    def _register(self, channels: int) -> int:
        self.sizes.append(channels)
        return len(self.sizes) - 1

    def _new_piece_map(self, node: Node, found: list[tuple[int, Channels]]) -> Where:
        for register, channels in found:
            self.scatter[0, channels] = register
            self.scatter[1, channels] = np.arange(len(channels))
        registers, positions = self.scatter[:, node.channels]
        return Where(registers, positions)

    def _wire(self, node: Node) -> Where:
        for name in node.inputs:
            source = self.structure.nodes[name]
            if len(source.channels):  # a layer that has lost all of its neurons is not computed
                self.scatter[0, source.channels] = self.where[name].registers
                self.scatter[1, source.channels] = self.where[name].positions
        registers, positions = self.scatter[:, node.channels]
        return Where(registers, positions)

    def _read(self, name: str, channels: Channels, need: int, junction: bool = False) -> int:
        """A register with exactly these channels of a node, in this order."""
        source = self.structure.nodes[name]
        where = self.at_junction[name] if junction and self.observed else self.where[name]
        self.scatter[0, source.channels] = where.registers
        self.scatter[1, source.channels] = where.positions
        registers, positions = self.scatter[:, channels]
        starts = np.flatnonzero(np.diff(registers, prepend=-1))
        if len(starts) == 1 and np.array_equal(positions, np.arange(self.sizes[registers[0]])):
            return int(registers[0])
        key = (registers.tobytes(), positions.tobytes(), source.width)
        if key in self.gathers:
            self.gathers[key].need |= need
            return self.gathers[key].out
        gather, inputs = self._gather(registers, positions, starts, source.width)
        step = Step(need, self._register(len(channels)), inputs, name, gather=gather)
        self.gathers[key] = step
        self.steps.append(step)
        return step.out

    def _gather(
        self,
        registers: NDArray[np.int64],
        positions: NDArray[np.int64],
        starts: NDArray[np.int64],
        width: int,
    ) -> tuple[Gather, tuple[int, ...]]:
        distinct = registers[starts]
        if len(set(distinct.tolist())) == len(distinct):  # each piece is read in one run
            runs = np.split(positions, starts[1:])
            parts = [self._part(run, self.sizes[r], width) for run, r in zip(runs, distinct, strict=True)]
            return Gather(tuple(parts), None), tuple(distinct.tolist())
        inputs = list(dict.fromkeys(distinct.tolist()))  # interleaved: concatenate all, then pick
        offsets = dict(zip(inputs, np.cumsum([0, *(self.sizes[r] for r in inputs)]), strict=False))
        order = positions + np.array([offsets[r] for r in registers.tolist()])
        return Gather((None,) * len(inputs), torch.from_numpy(spread(order, width))), tuple(inputs)

    @staticmethod
    def _part(run: NDArray[np.int64], size: int, width: int) -> slice | Tensor | None:
        if (np.diff(run) == 1).all():
            return None if len(run) == size else slice(int(run[0]) * width, (int(run[-1]) + 1) * width)
        return torch.from_numpy(spread(run, width))


class Program:
    """The steps that a subset of tasks needs, ready to run with a set of blocks."""

    def __init__(self, compiled: Compiled, tasks: TaskSet) -> None:
        mask = compiled.structure.mask(tasks)
        self.registers = compiled.registers
        self.outputs = {task: register for task, register in compiled.outputs.items() if task in tasks}
        self.steps = [step for step in compiled.steps if step.need & mask]
        last_use: dict[int, int] = {}
        for index, step in enumerate(self.steps):
            last_use.update(dict.fromkeys(step.inputs, index))
        self.frees: list[list[int]] = [[] for _ in self.steps]
        for register, index in last_use.items():
            if register not in self.outputs.values():
                self.frees[index].append(register)

    @property
    def blocks(self) -> list[str]:
        """Keys of the blocks that run."""
        return [step.block for step in self.steps if step.block is not None]

    def run(
        self, x: Tensor, blocks: Mapping[str, nn.Module], training: bool, hook: JunctionHook | None = None
    ) -> dict[str, Tensor]:
        """The outputs of the tasks for a batch of inputs."""
        registers: list[Tensor | None] = [None] * self.registers
        registers[0] = x
        for step, frees in zip(self.steps, self.frees, strict=True):
            inputs: list[Tensor] = [registers[i] for i in step.inputs]  # type: ignore[misc]
            if step.block is not None:
                result = blocks[step.block](inputs[0])
            elif step.function is not None:
                result = step.function(inputs, training)
            elif step.gather is not None:
                result = step.gather(inputs)
            else:
                assert step.junction is not None
                result = hook(*step.junction, inputs[0]) if hook else inputs[0]
            registers[step.out] = result
            for register in frees:
                registers[register] = None
        return {task: registers[register] for task, register in self.outputs.items()}  # type: ignore[misc]
