"""The multitask network: one network for K tasks, in which any subset of tasks computes exactly what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pamerge.errors import PamergeError
from pamerge.network.blocks import make_block
from pamerge.network.cost import Convention, Spaces, block_flops, block_parameters, measured_spaces
from pamerge.network.layout import BlockLayout, Transfer, block_layouts, transfer
from pamerge.network.program import Compiled, Compiler, JunctionHook, Program
from pamerge.network.repair import repair
from pamerge.network.structure import Proposal, Structure, groups_of, junction_names, tighten, unsupplied
from pamerge.tasks import TaskSet, resolve_tasks


@dataclass(frozen=True)
class Junction:
    """The neurons that feed one or more weighted layers.

    Attributes:
        name: the layer (or sum) that the neurons come from.
        groups: the neurons of each task set, as channel numbers that stay the same for the life of the network.
        feeds: the weighted layers that read them.
        fixed: whether this is the network's input, which is never regrouped or pruned.
    """

    name: str
    groups: Mapping[TaskSet, tuple[int, ...]]
    feeds: tuple[str, ...]
    fixed: bool

    def task_sets(self) -> dict[int, TaskSet]:
        """The task set of each neuron."""
        return {neuron: group for group, neurons in self.groups.items() for neuron in neurons}


@dataclass(frozen=True)
class Change:
    """What a change of the structure did.

    Attributes:
        transfer: how tensors of the old blocks became those of the new ones; moves an optimiser's state as well.
        refused: for each junction the neurons that had to stay, because without them a group would have had
            nothing to read.
    """

    transfer: Transfer
    refused: Mapping[str, tuple[int, ...]]


class MultitaskNetwork(nn.Module):
    """K networks as one.

    Made by :func:`pamerge.merge`. Every layer is a set of ordinary modules, its blocks, one for each set of tasks
    that needs the block's outputs; running a subset of tasks runs the blocks whose tasks are in it, whole, and no
    others.
    """

    blocks: nn.ModuleDict

    def __init__(self, structure: Structure, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Use :func:`pamerge.merge` or :func:`pamerge.load`."""
        super().__init__()
        self._structure = structure
        self._layouts = block_layouts(structure)
        self.blocks = nn.ModuleDict({key: _filled(layout, tensors[key]) for key, layout in self._layouts.items()})
        self.merging: Any = None
        self._compiled: dict[bool, Compiled] = {}
        self._programs: dict[tuple[TaskSet, bool], Program] = {}
        self._accepted = {self.input_size}
        self.eval()

    # -- running ---------------------------------------------------------------------------------------------------

    def forward(
        self, x: Tensor, tasks: Iterable[str] | str | None = None, *, at_junction: JunctionHook | None = None
    ) -> dict[str, Tensor]:
        """The outputs of some tasks (all by default) for a batch of inputs.

        Args:
            x: inputs, ``(batch, *input_size)``.
            tasks: the tasks to run; neurons that none of them needs are not computed.
            at_junction: ``hook(junction, group, tensor) -> tensor`` for every group of every junction on the way
                to the weighted layers; used to look at activations and to put gates on neurons.
        """
        chosen = resolve_tasks(tasks, self.tasks)
        self._check_input(x)
        program = self._program(chosen, observed=at_junction is not None)
        return program.run(x, self.blocks, self.training, at_junction)  # type: ignore[arg-type]

    def subnet(self, tasks: Iterable[str] | str | None = None) -> Subnet:
        """A plain module ``x -> {task: tensor}`` that runs some tasks only; it shares its blocks with this network.

        Removing neurons gives the network new blocks: take the subnet again afterwards.
        """
        return Subnet(self, resolve_tasks(tasks, self.tasks))

    def _program(self, tasks: TaskSet, observed: bool = False) -> Program:
        if observed not in self._compiled:
            self._compiled[observed] = Compiler(self._structure, observed).compile()
        key = (tasks, observed)
        if key not in self._programs:
            self._programs[key] = Program(self._compiled[observed], tasks)
        return self._programs[key]

    def _check_input(self, x: Tensor) -> None:
        size = tuple(x.shape[1:]) if isinstance(x, Tensor) else None
        if size in self._accepted:
            return
        expected = "×".join(map(str, ("batch", *self.input_size)))
        got = "×".join(map(str, x.shape)) if isinstance(x, Tensor) else type(x).__name__
        if size is not None and len(size) == len(self.input_size) and size[0] == self.input_size[0]:
            try:  # a network without a fixed flatten takes other image sizes, too
                measured_spaces(self._program(TaskSet(self.tasks)), self.blocks, size)  # type: ignore[arg-type]
                self._accepted.add(size)
                return
            except Exception as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise PamergeError(f"The input has shape {got}; expected {expected}. ({reason})") from error
        raise PamergeError(f"The input has shape {got}; expected {expected}.")

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return self._structure.tasks

    @property
    def structure(self) -> Structure:
        """Who computes what for whom."""
        return self._structure

    @property
    def layouts(self) -> Mapping[str, BlockLayout]:
        """What each block reads and yields."""
        return self._layouts

    @property
    def input_size(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self._structure.input.features, *self._structure.input.space)

    @property
    def junctions(self) -> dict[str, Junction]:
        """All junctions, in the order of computation."""
        structure = self._structure
        found = {}
        for value, name in junction_names(structure).items():
            node, sets = structure.nodes[value], structure.task_sets[value]
            groups = {structure.task_set(g): tuple(node.channels[sets == g].tolist()) for g in groups_of(sets)}
            feeds = tuple(n.name for n in structure.nodes.values() if n.kind == "weighted" and n.inputs[0] == value)
            if groups:
                found[name] = Junction(name, groups, feeds, structure.is_fixed(value))
        return found

    def flops(
        self,
        tasks: Iterable[str] | str | None = None,
        *,
        convention: Convention = "paper",
        input_size: tuple[int, ...] | None = None,
    ) -> int:
        """Operations for one sample of some tasks (all by default); :mod:`pamerge.network.cost` says what counts."""
        return sum(self.layer_flops(tasks, convention=convention, input_size=input_size).values())

    def layer_flops(
        self,
        tasks: Iterable[str] | str | None = None,
        *,
        convention: Convention = "paper",
        input_size: tuple[int, ...] | None = None,
    ) -> dict[str, int]:
        """The same for each layer."""
        chosen = resolve_tasks(tasks, self.tasks)
        spaces: Spaces | None = None
        if input_size is not None and tuple(input_size) != self.input_size:
            try:
                spaces = measured_spaces(self._program(chosen), self.blocks, tuple(input_size))  # type: ignore[arg-type]
            except Exception as error:
                raise PamergeError(f"The network cannot run on inputs of size {tuple(input_size)}: {error}") from error
        found: dict[str, int] = {}
        for key, layout in self._layouts.items():
            if layout.group & chosen:
                default = (self._structure.nodes[layout.node.inputs[0]].space, layout.node.space)
                cost = block_flops(layout, *(spaces[key] if spaces else default), convention)
                if cost:
                    found[layout.node.name] = found.get(layout.node.name, 0) + cost
        return found

    def parameter_count(self, tasks: Iterable[str] | str | None = None) -> int:
        """Number of parameters that some tasks (all by default) use."""
        chosen = resolve_tasks(tasks, self.tasks)
        return sum(block_parameters(self.blocks[k]) for k, layout in self._layouts.items() if layout.group & chosen)

    def check(self) -> None:
        """Raises if an invariant is broken; for tests and for files of unknown origin."""
        structure = self._structure
        again, _ = tighten(structure)
        for name, node in structure.nodes.items():
            if not np.array_equal(again.nodes[name].channels, node.channels):
                raise PamergeError(f"{name!r} holds channels that no task needs.")
            if name in structure.task_sets and not np.array_equal(again.task_sets[name], structure.task_sets[name]):
                raise PamergeError(
                    f"The junction at {name!r} has neurons whose task sets are wider than the tasks they reach."
                )
        for layer, groups in unsupplied(structure).items():
            listed = ", ".join(str(structure.task_set(g)) for g in groups)
            raise PamergeError(f"Layer {layer!r} has groups with nothing to read: {listed}.")

    def __str__(self) -> str:
        """A table: a line for each junction, its group sizes, and what the layers that it feeds cost."""
        structure, costs = self._structure, self.layer_flops()
        columns = [structure.task_set(mask) for mask in self._all_groups()]
        names = [str(column) for column in columns]
        rows = [["junction", *names, "feeds", "MFLOPs"]]
        for junction in self.junctions.values():
            sizes = [str(len(junction.groups.get(column, ()))) for column in columns]
            feeds = ", ".join(junction.feeds[:2]) + (
                f" and {len(junction.feeds) - 2} more" if len(junction.feeds) > 2 else ""
            )
            rows.append([junction.name, *sizes, feeds, f"{sum(costs.get(f, 0) for f in junction.feeds) / 1e6:.2f}"])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "  ".join("─" * width for width in widths))
        cost = f"{self.flops() / 1e6:.2f} MFLOPs, {self.parameter_count():,} parameters"
        return "\n".join([f"{len(self.tasks)} task(s): {', '.join(self.tasks)}; {cost}", *lines])

    def __repr__(self) -> str:
        return f"MultitaskNetwork(tasks={list(self.tasks)}, blocks={len(self.blocks)}, flops={self.flops()})"

    def _all_groups(self) -> list[int]:
        return groups_of(np.concatenate(list(self._structure.task_sets.values())))

    # -- changing --------------------------------------------------------------------------------------------------

    def remove(self, neurons: Mapping[str, Sequence[int]]) -> Change:
        """Remove neurons for good: tensors shrink, and what only they needed disappears with them.

        Args:
            neurons: for each junction, the numbers of the neurons to remove, the least important first. Where a
                group would lose its last supplier, the last one named stays; the result says which.
        """
        return self.restrict({name: dict.fromkeys(numbers, TaskSet()) for name, numbers in neurons.items()})

    def restrict(self, task_sets: Mapping[str, Mapping[int, TaskSet]]) -> Change:
        """Give neurons smaller task sets, the empty one to remove a neuron; other connections are cut.

        Args:
            task_sets: for each junction, new task sets of some neurons, the least important neuron first.
        """
        old = self._structure
        values = {name: value for value, name in junction_names(old).items()}
        proposed, ranks = {}, {}
        for name, changes in task_sets.items():
            if name not in values or old.is_fixed(values[name]):
                known = ", ".join(junction.name for junction in self.junctions.values() if not junction.fixed)
                raise PamergeError(f"{name!r} is no junction whose neurons can be removed; these are: {known}.")
            proposed[values[name]], ranks[values[name]] = self._proposed(name, values[name], changes)
        new, refused = tighten(old, Proposal(proposed, ranks))
        names = junction_names(old)
        stayed = {names[value]: tuple(numbers) for value, numbers in refused.items()}
        return Change(self.rebuild(new), stayed)

    def regroup(self, task_sets: Mapping[str, Mapping[int, TaskSet]]) -> Transfer:
        """Give the neurons of some junctions new task sets, smaller or larger; neurons that are not named are dropped.

        Existing connections keep their weights, new ones are zero. Task sets that would leave a neuron with
        nothing to read are repaired; see :func:`pamerge.network.repair.repair`.
        """
        values = {name: value for value, name in junction_names(self._structure).items()}
        chosen = dict(self._structure.task_sets)
        for name, neurons in task_sets.items():
            channels = self._structure.nodes[values[name]].channels
            masks = {neuron: self._structure.mask(tasks) for neuron, tasks in neurons.items()}
            chosen[values[name]] = np.array([masks.get(channel, 0) for channel in channels.tolist()], dtype=np.int64)
        return self.rebuild(repair(replace(self._structure, task_sets=chosen)))

    def _proposed(self, name: str, value: str, changes: Mapping[int, TaskSet]) -> tuple[Any, Any]:
        node, sets = self._structure.nodes[value], self._structure.task_sets[value].copy()
        position = {channel: index for index, channel in enumerate(node.channels.tolist())}
        ranks = np.zeros(len(sets))
        for rank, (neuron, group) in enumerate(changes.items()):
            index = position.get(neuron)
            if index is None or not sets[index]:
                raise PamergeError(f"Junction {name!r} has no neuron {neuron}.")
            mask = self._structure.mask(resolve_tasks(group, self.tasks)) if group else 0
            if mask & ~sets[index]:
                raise PamergeError(
                    f"Neuron {neuron} of junction {name!r} serves {self._structure.task_set(int(sets[index]))}; "
                    f"it cannot be restricted to {group}."
                )
            sets[index], ranks[index] = mask, rank
        return sets, ranks

    @torch.no_grad()
    def rebuild(self, structure: Structure, *, old: Mapping[str, BlockLayout] | None = None) -> Transfer:
        """Take over a new structure of the same nodes: weights are kept, new connections are zero.

        Args:
            structure: the new structure.
            old: what the blocks hold in the new structure's channel numbers, if these are not the old ones.
        """
        layouts = block_layouts(structure)
        moving = transfer(old or self._layouts, layouts)
        blocks = {}
        for key, layout in layouts.items():
            if old is None and self._is_same(key, layout):
                blocks[key] = self.blocks[key]
            else:
                blocks[key] = _filled(layout, _moved(moving, key, layout, self.blocks), like=next(self.parameters()))
                blocks[key].train(self.training)
        self._structure, self._layouts = structure, layouts
        self.blocks = nn.ModuleDict(blocks)
        self._compiled.clear()
        self._programs.clear()
        return moving

    def _is_same(self, key: str, layout: BlockLayout) -> bool:
        old = self._layouts.get(key)
        return (
            old is not None
            and np.array_equal(old.outputs, layout.outputs)
            and np.array_equal(old.inputs, layout.inputs)
        )

    def __getstate__(self) -> dict[str, Any]:
        """Compiled programs are made anew in a copy."""
        return {**self.__dict__, "_compiled": {}, "_programs": {}}


class Subnet(nn.Module):
    """Some tasks of a multitask network as a plain module; made by :meth:`MultitaskNetwork.subnet`."""

    def __init__(self, network: MultitaskNetwork, tasks: TaskSet) -> None:
        super().__init__()
        self.tasks = tuple(task for task in network.tasks if task in tasks)
        self._program = network._program(tasks)
        self.blocks = nn.ModuleDict({key: network.blocks[key] for key in self._program.blocks})
        self.training = network.training

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """The outputs of the subnet's tasks for a batch of inputs."""
        return self._program.run(x, self.blocks, self.training)  # type: ignore[arg-type]


def tensor_names(module: nn.Module) -> list[str]:
    """Parameters and buffers of a block, by name."""
    return [name for name, _ in [*module.named_parameters(), *module.named_buffers()]]


def _moved(moving: Transfer, key: str, layout: BlockLayout, blocks: nn.ModuleDict) -> dict[str, Tensor]:
    def old(source: str, name: str) -> Tensor | None:
        return getattr(blocks[source], name, None)

    found = {name: moving.apply(key, name, old) for name in tensor_names(make_block(layout))}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _filled(layout: BlockLayout, tensors: Mapping[str, Tensor], like: Tensor | None = None) -> nn.Module:
    """A block with its tensors; one that no source had is zero, with the type and device of ``like``."""
    block = make_block(layout)
    like = next(iter(tensors.values()), like)
    if like is None:
        raise PamergeError(f"Block {layout.key!r} has no tensors.")
    for name, meta in [*block.named_parameters(), *block.named_buffers()]:
        tensor = tensors.get(name)
        if tensor is None:
            dtype = meta.dtype if not meta.is_floating_point() else like.dtype
            tensor = torch.zeros(meta.shape, dtype=dtype, device=like.device)
        if tensor.shape != meta.shape:
            raise PamergeError(
                f"Tensor {name!r} of block {layout.key!r} has shape {tuple(tensor.shape)}; "
                f"expected {tuple(meta.shape)}."
            )
        if name in dict(block.named_parameters()):
            setattr(block, name, nn.Parameter(tensor.detach()))
        else:
            setattr(block, name, tensor.detach())
    return block
