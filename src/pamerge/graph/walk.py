"""Walks through an exported program, operation by operation, and turns it into nodes."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node as FxNode

from pamerge.errors import CaptureError
from pamerge.graph.constants import Parameters, constants_of, fold
from pamerge.graph.layer_graph import Channels, Node
from pamerge.graph.memory import Memory, Overwritten, written_argument
from pamerge.graph.ops import Call, Draft, Problem, Value, functional_name, rule_for

BATCH = 2
SAME_CHANNEL_TWICE = (
    "its result holds the same channel twice, as in cat([x, relu(x)]) or cat([x, x + f(x)]), where a sum or a function "
    "that keeps channels apart makes the channels of both one. Not supported; put a convolution before one of them"
)
_NO_EFFECT = {"aten._assert_tensor_metadata.default"}  # torch.export writes it before a cast
_OWN_WEIGHTS = {"conv", "conv_transpose", "linear", "depthwise"}


class Walk:
    """Goes through a program once; holds what is known so far."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.nodes: dict[str, Node] = {}
        self.tensors: dict[str, dict[str, Tensor]] = {}
        self.known: dict[FxNode, Any] = {}  # an activation, a constant tensor, or a list of them
        self.parameters = Parameters()
        self.notes: dict[str, str] = {}
        self.memory = Memory()
        self.channels = _ChannelNumbers()

    def run(self) -> tuple[dict[str, Node], str]:
        """The nodes in the order of computation, and the name of the one that computes the output."""
        constants = constants_of(self.program)
        for fx_node in self.program.graph.nodes:
            if fx_node.op == "placeholder":
                self.memory.add(fx_node, is_constant=fx_node.name in constants)
                if fx_node.name in constants:
                    self.known[fx_node] = constants[fx_node.name]
                    self.parameters.add(fx_node, constants[fx_node.name])
                else:
                    self.known[fx_node] = self._input(fx_node)
            elif fx_node.op == "call_function" and str(fx_node.target) not in _NO_EFFECT:
                try:
                    self._call(fx_node)
                except Problem as problem:
                    self._fail(fx_node, str(problem))
        (result,) = self.program.graph.output_node().args[0]
        value = self.known.get(result)
        if not isinstance(value, Value):
            raise CaptureError("The network's output does not depend on its input.")
        if value.padded:
            raise CaptureError("The network's output has channels that are padded with zeros; this is not supported.")
        roots = {name: replace(node, channels=self.channels.find(node.channels)) for name, node in self.nodes.items()}
        return roots, value.node

    def _input(self, fx_node: FxNode) -> Value:
        if self.nodes:
            raise CaptureError("The network takes several inputs; pamerge merges networks that take one tensor.")
        shape = tuple(fx_node.meta["val"].shape)
        draft = Draft("input", "input", [], count=shape[1])
        return self._add(draft, "input", "", "", shape, fx_node.meta["val"].dtype)

    def _call(self, fx_node: FxNode) -> None:
        if fx_node.target is operator.getitem:
            source, index = fx_node.args
            results = self._resolve(source)
            if not isinstance(index, int) or index >= len(results):
                raise Problem("only the first result of this operation is supported")
            self.known[fx_node] = self.parameters.derive(fx_node, results[index])
            self.memory.add(fx_node)
            return
        arguments = [self._resolve(node) for node in fx_node.all_input_nodes]
        depends_on_input = any(isinstance(a, Value) for given in arguments for a in _as_list(given))
        self.known[fx_node] = self._apply_rule(fx_node) if depends_on_input else self._fold(fx_node)
        self.memory.add(fx_node)
        if isinstance(fx_node.target, OpOverload) and written_argument(fx_node.target) is not None:
            for other, is_same in self.memory.overwritten_by(fx_node):
                self.known[other] = self.known[fx_node] if is_same else Overwritten(str(fx_node.target))

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, FxNode):
            known = self.known[argument]
            if isinstance(known, Overwritten):
                raise Problem(
                    f"it reads a tensor after {known.op} has changed its memory through a view of it; use the form "
                    f"that is not in place ({functional_name(known.op)})"
                )
            return known
        if isinstance(argument, (list, tuple)):
            return [self._resolve(item) for item in argument]
        return argument

    def _fold(self, fx_node: FxNode) -> Any:
        args = [self._resolve(argument) for argument in fx_node.args]
        kwargs = {name: self._resolve(argument) for name, argument in fx_node.kwargs.items()}
        return self.parameters.derive(fx_node, fold(fx_node.target, args, kwargs))

    def _apply_rule(self, fx_node: FxNode) -> Any:
        op = str(fx_node.target)
        rule = rule_for(op)
        if rule is None or not isinstance(fx_node.target, OpOverload):
            raise Problem(
                f"it is not in the op table. If it keeps channels apart, say so with pamerge.graph.register_op({op!r}, "
                "rule=pamerge.graph.keeps_channels); otherwise rewrite this part of the network. See docs/networks.md"
            )
        if written_argument(fx_node.target) is not None and op == functional_name(op):
            raise Problem("it changes its argument in place; register an operation that does not")
        call = self._bind(fx_node, fx_node.target)
        _expect_sum_of_padded(call)
        drafts = rule(call)
        several = isinstance(fx_node.meta["val"], (list, tuple))
        found = [
            draft if isinstance(draft, Value) else self._draw(draft, fx_node, shape, call.dtype)
            for draft, shape in zip(_as_list(drafts), call.shapes, strict=False)
        ]
        return found if several else found[0]

    def _bind(self, fx_node: FxNode, target: OpOverload) -> Call:
        """Arguments by name, in the order of the schema; what was not given is left out where it can be."""
        schema = target._schema.arguments
        given = dict(zip([argument.name for argument in schema], fx_node.args, strict=False)) | fx_node.kwargs
        positional = [argument for argument in schema if not argument.kwarg_only]
        last = max((index for index, argument in enumerate(positional) if argument.name in given), default=-1)
        bound = {
            argument.name: self._resolve(given.get(argument.name, argument.default_value))
            for index, argument in enumerate(schema)
            if argument.name in given or index < last
        }
        results = _as_list(fx_node.meta["val"])
        if not all(isinstance(result, Tensor) for result in results):
            raise Problem("it returns something else than tensors")
        shapes = tuple(tuple(result.shape) for result in results)
        if not shapes[0] or shapes[0][0] != BATCH:
            raise Problem(f"its result of shape {shapes[0]} has lost the batch dimension")
        keyword_only = frozenset(argument.name for argument in schema if argument.kwarg_only)
        return Call(str(target), bound, shapes, results[0].dtype, keyword_only)

    def _draw(self, draft: Draft, fx_node: FxNode, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
        path, line = _where(fx_node)
        if draft.kind == "join":
            self._expect_no_input(draft)
        if draft.op in _OWN_WEIGHTS:
            for node in fx_node.all_input_nodes:
                self.parameters.claim(node, self.known[node], path or fx_node.name)
        return self._add(draft, path or fx_node.name, path, line, shape, dtype)

    def _expect_no_input(self, draft: Draft) -> None:
        """The input's channels are common to all networks; a layer's outputs that are added to them would be, too."""
        first = self.nodes["input"].channels
        touches = [bool(np.isin(self.channels.find(value.channels), first).any()) for value in draft.inputs]
        if any(touches) and not all(touches):
            raise Problem("it combines the network's input with the output of a layer; put a convolution before it")

    def _add(
        self, draft: Draft, wanted: str, path: str, line: str, shape: tuple[int, ...], dtype: torch.dtype
    ) -> Value:
        name, number = wanted, 1
        while name in self.nodes:
            number += 1
            name = f"{wanted}#{number}"
        channels = draft.channels if draft.channels is not None else self.channels.new(draft.count)
        for other in draft.same:
            self.channels.unite(draft.same[0], other)
        if self.channels.has_twins(channels):
            raise Problem(SAME_CHANNEL_TWICE)
        whole = draft.whole or any(value.whole for value in draft.inputs)
        before, behind = (self.channels.new(count) for count in draft.zeros)
        value = Value(name, np.concatenate([before, channels, behind]), shape, dtype, whole, any(draft.zeros))
        self.nodes[name] = Node(
            name=name,
            kind=draft.kind,
            op=draft.op,
            inputs=tuple(given.node for given in draft.inputs),
            channels=channels,
            width=value.width,
            space=value.space,
            settings=dict(draft.settings),
            path=path,
            line=line,
        )
        tensors = {key: tensor.detach() for key, tensor in draft.tensors.items() if tensor is not None}
        if tensors:
            self.tensors[name] = tensors
        if draft.note:
            self.notes[name] = draft.note
        return value

    def _fail(self, fx_node: FxNode, reason: str) -> NoReturn:
        raise CaptureError(f"Cannot capture {fx_node.target}{place(*_where(fx_node))}: {reason}.")


class _ChannelNumbers:
    """Numbers for channels; channels that are added to each other become one (union-find)."""

    def __init__(self) -> None:
        self.same_as = np.empty(0, dtype=np.int64)

    def new(self, count: int) -> Channels:
        numbers = np.arange(len(self.same_as), len(self.same_as) + count)
        self.same_as = np.concatenate([self.same_as, numbers])
        return numbers

    def find(self, channels: Channels) -> Channels:
        roots = self.same_as[channels]
        while (roots != self.same_as[roots]).any():
            roots = self.same_as[roots]
        return roots

    def has_twins(self, channels: Channels) -> bool:
        return len(np.unique(self.find(channels))) < len(channels)

    def unite(self, left: Channels, right: Channels) -> None:
        while True:
            roots = self.find(left), self.find(right)
            if np.array_equal(*roots):
                return
            # minimum.at, because one channel may stand at several positions, each of which pulls it somewhere else
            np.minimum.at(self.same_as, np.maximum(*roots), np.minimum(*roots))


def _as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _where(fx_node: FxNode) -> tuple[str, str]:
    """Module path, and the innermost source line that is not torch's own."""
    stack = fx_node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return path, own_line(re.findall(r'File "([^"]+)", line (\d+)', fx_node.meta.get("stack_trace") or ""))


def _expect_sum_of_padded(call: Call) -> None:
    """Channels of zeros exist nowhere; the sum with a tensor that has these channels is that tensor alone."""
    values = call.values
    if any(value.padded for value in values):
        is_sum = call.name == "add" and len(values) == 2 and call["alpha"] in (None, 1)
        if not is_sum or all(value.padded for value in values) or values[0].shape != values[1].shape:
            raise Problem("it reads channels that were padded with zeros; only the sum with another tensor may follow")


def place(path: str, line: str) -> str:
    """Where in the network something is, for a message."""
    return (f" in module {path!r}" if path else "") + f" ({line})"


def own_line(frames: Iterable[tuple[str, str]]) -> str:
    """The innermost of some frames that is the user's code rather than torch's or ours."""
    frames = list(frames)
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    own = [frame for frame in frames if not frame[0].startswith(ours)] or frames
    return ":".join(own[-1]) if own else "source line unknown"
