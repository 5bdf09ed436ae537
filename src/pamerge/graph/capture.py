"""From an ``nn.Module`` and an example input to a :class:`LayerGraph`."""

from __future__ import annotations

import operator
import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node as FxNode

from pamerge.errors import CaptureError
from pamerge.graph import rules  # noqa: F401  (fills the op table)
from pamerge.graph.layer_graph import Channels, LayerGraph, Node, consumers, in_head
from pamerge.graph.ops import Call, Draft, Problem, Value, functional_name, rule_for

BATCH = 2


def capture(module: nn.Module, example: Tensor) -> LayerGraph:
    """What a network computes, as nodes that each treat channels in a known way.

    Args:
        module: the network, in eval mode. It takes one tensor and returns one tensor.
        example: an input with a batch dimension; its values do not matter.

    Raises:
        CaptureError: with the operation, the module path and the source line of what is not supported.
    """
    if module.training:
        raise CaptureError("The network is in training mode; call .eval() on it first.")
    if not isinstance(example, Tensor) or example.dim() < 2 or len(example) == 0:
        raise CaptureError(
            "The example input must be a tensor with a batch dimension and channels, such as (1, 3, 72, 72)."
        )
    program = _export(module, example[:1].repeat(BATCH, *[1] * (example.dim() - 1)))
    return _Capture(program).graph()


def _export(module: nn.Module, example: Tensor) -> ExportedProgram:
    try:
        with torch.no_grad():
            module(example)
    except Exception as error:
        raise CaptureError(
            f"The network {type(module).__name__} cannot run on an input of shape {tuple(example.shape)}: {error}"
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, (example,), strict=False)
    except Exception as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CaptureError(
            f"torch.export cannot trace {type(module).__name__}: {first_line}. Control flow that depends on values "
            "has to go; see the torch.export documentation."
        ) from error


class _Capture:
    """Walks the exported graph once; holds what is known so far."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.nodes: dict[str, Node] = {}
        self.tensors: dict[str, dict[str, Tensor]] = {}
        self.known: dict[FxNode, Any] = {}
        self.layer_of: dict[str, str] = {}  # parameter → the weighted layer that uses it
        self.same_as = np.empty(0, dtype=np.int64)  # union-find over channels

    def graph(self) -> LayerGraph:
        tensors = self._tensors()
        inputs = set(self.program.graph_signature.user_inputs)
        for fx_node in self.program.graph.nodes:
            if fx_node.op == "placeholder":
                self.known[fx_node] = self._input(fx_node) if fx_node.name in inputs else tensors.get(fx_node.name)
            elif fx_node.op == "call_function":
                self._call(fx_node)
        output = self._output()
        nodes = {node.name: replace(node, channels=self._find(node.channels)) for node in self.nodes.values()}
        nodes = _renumber(_without_dead_ends(nodes, output))
        _check(nodes, output)
        return LayerGraph(nodes, output, {name: self.tensors.get(name, {}) for name in nodes})

    def _tensors(self) -> dict[str, Tensor]:
        """Placeholder → parameter, buffer or constant; a parameter stays an ``nn.Parameter``."""
        state: dict[str, Any] = {**self.program.state_dict, **self.program.constants}
        signature = self.program.graph_signature
        sources = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        return {placeholder: state[name] for placeholder, name in sources.items()}

    def _input(self, fx_node: FxNode) -> Value:
        if self.nodes:
            raise CaptureError("The network takes several inputs; pamerge merges networks that take one tensor.")
        shape = tuple(fx_node.meta["val"].shape)
        draft = Draft("input", "input", [], 1, shape[2:], count=shape[1])
        return self._add(draft, "input", "")

    def _output(self) -> str:
        results = self.program.graph_signature.user_outputs
        values = [self.known[node] for node in self.program.graph.output_node().args[0]]  # type: ignore[union-attr]
        if len(results) != 1 or not isinstance(values[-1], Value):
            raise CaptureError(
                f"The network returns {len(results)} results; pamerge needs networks that return one tensor. "
                "Wrap the network in a module that picks one."
            )
        return values[-1].node

    def _call(self, fx_node: FxNode) -> None:
        if fx_node.target is operator.getitem:
            source, index = fx_node.args
            results = self.known[source]  # type: ignore[index]
            self.known[fx_node] = results[index] if isinstance(results, list) else results
            if not isinstance(results, list) and index != 0:
                self._fail(fx_node, "only its first result is supported")
            return
        op = str(fx_node.target)
        rule = rule_for(op)
        if rule is None:
            self._fail(
                fx_node,
                "it is not in the op table. If it keeps channels apart, say so with "
                f'pamerge.graph.register_op("{op}", rule=pamerge.graph.keeps_channels); otherwise rewrite this part of the network',
            )
        try:
            drafts = rule(self._bind(fx_node))  # type: ignore[misc]
            several = isinstance(drafts, list)
            found = [self._result(draft, fx_node) for draft in (drafts if isinstance(drafts, list) else [drafts])]
        except Problem as problem:
            self._fail(fx_node, str(problem))
        self.known[fx_node] = found if several else found[0]
        if op != functional_name(op):  # later readers of what was overwritten see the new values
            self.known[fx_node.args[0]] = found[0]  # type: ignore[index]

    def _bind(self, fx_node: FxNode) -> Call:
        """Arguments by name, defaults left out at the end, activations and tensors in their places."""
        names = [argument.name for argument in fx_node.target._schema.arguments]  # type: ignore[union-attr]
        bound = dict(zip(names, fx_node.args, strict=False))
        for name in names:  # in the schema's order, so that arguments can be replayed by position
            if name in fx_node.kwargs:
                bound[name] = fx_node.kwargs[name]
        if fx_node.kwargs:
            defaults = {argument.name: argument.default_value for argument in fx_node.target._schema.arguments}  # type: ignore[union-attr]
            last = max(names.index(name) for name in bound)
            bound = {name: bound.get(name, defaults[name]) for name in names[: last + 1]}
        arguments = {name: self._resolve(argument) for name, argument in bound.items()}
        results = fx_node.meta["val"]
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        shapes = tuple(tuple(result.shape) for result in results)
        if not shapes[0] or shapes[0][0] != BATCH:
            raise Problem(f"its result of shape {shapes[0]} has lost the batch dimension")
        return Call(str(fx_node.target), arguments, shapes[0], shapes)

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, FxNode):
            return self.known[argument]
        if isinstance(argument, (list, tuple)):
            return [self._resolve(item) for item in argument]
        return argument

    def _result(self, draft: Draft | Value, fx_node: FxNode) -> Value:
        if isinstance(draft, Value):
            return draft
        if draft.kind == "join":
            self._expect_no_input(draft)
        path, line = _where(fx_node)
        if draft.kind == "weighted":
            for argument in fx_node.all_input_nodes:
                if isinstance(self.known.get(argument), nn.Parameter):
                    first = self.layer_of.setdefault(argument.name, path or fx_node.name)
                    if first != (path or fx_node.name) or self._is_taken(path):
                        raise Problem(
                            f"its weights are used twice (first in {first!r}); a weighted module can be called only once. "
                            "Give each call a module of its own"
                        )
        return self._add(draft, path or fx_node.name, line)

    def _is_taken(self, path: str) -> bool:
        return any(node.kind == "weighted" and node.path == path for node in self.nodes.values())

    def _expect_no_input(self, draft: Draft) -> None:
        """The input's channels are common to all networks; a layer's outputs that are added to them would be, too."""
        first = self.nodes["input"].channels
        touches = [bool(np.isin(self._find(value.channels), first).any()) for value in draft.inputs]
        if any(touches) and not all(touches):
            raise Problem("it combines the network's input with the output of a layer; put a convolution before it")

    def _add(self, draft: Draft, path: str, line: str) -> Value:
        name, number = path, 1
        while name in self.nodes:
            number += 1
            name = f"{path}#{number}"
        channels = draft.channels if draft.channels is not None else self._new_channels(draft.count)
        for other in draft.same:
            self._unite(draft.same[0], other)
        self.nodes[name] = Node(
            name=name,
            kind=draft.kind,
            op=draft.op,
            inputs=tuple(value.node for value in draft.inputs),
            channels=channels,
            width=draft.width,
            space=tuple(draft.space),
            settings=dict(draft.settings),
            path=path,
            line=line,
        )
        tensors = {key: tensor.detach() for key, tensor in draft.tensors.items() if tensor is not None}
        if tensors:
            self.tensors[name] = tensors
        return Value(name, channels, draft.width, tuple(draft.space), draft.whole)

    def _new_channels(self, count: int) -> Channels:
        start = len(self.same_as)
        self.same_as = np.concatenate([self.same_as, np.arange(start, start + count)])
        return np.arange(start, start + count)

    def _find(self, channels: Channels) -> Channels:
        roots = self.same_as[channels]
        while (roots != self.same_as[roots]).any():
            roots = self.same_as[roots]
        return roots

    def _unite(self, left: Channels, right: Channels) -> None:
        while True:
            roots = self._find(left), self._find(right)
            if np.array_equal(*roots):
                return
            self.same_as[np.maximum(*roots)] = np.minimum(*roots)

    def _fail(self, fx_node: FxNode, reason: str) -> None:
        path, line = _where(fx_node)
        where = f" in module {path!r}" if path else ""
        raise CaptureError(f"Cannot capture {fx_node.target}{where} ({line or 'source line unknown'}): {reason}.")


def _where(fx_node: FxNode) -> tuple[str, str]:
    """Module path, and the innermost source line that is not torch's own."""
    stack = fx_node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    frames = re.findall(r'File "([^"]+)", line (\d+)', fx_node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if "/torch/" not in frame[0]] or frames
    return path, f"{own[-1][0]}:{own[-1][1]}" if own else ""


def _without_dead_ends(nodes: dict[str, Node], output: str) -> dict[str, Node]:
    """Drops what the output does not depend on."""
    wanted = {output, next(iter(nodes))}
    for name in reversed(list(nodes)):
        if name in wanted:
            wanted.update(nodes[name].inputs)
    return {name: node for name, node in nodes.items() if name in wanted}


def _renumber(nodes: dict[str, Node]) -> dict[str, Node]:
    """Channels as 0, 1, 2, … in the order in which they appear, the input's first."""
    found: dict[int, int] = {}
    renumbered = {}
    for name, node in nodes.items():
        numbers = [found.setdefault(int(channel), len(found)) for channel in node.channels]
        renumbered[name] = replace(node, channels=np.array(numbers, dtype=np.int64))
    return renumbered


def _check(nodes: dict[str, Node], output: str) -> None:
    if not any(node.kind == "weighted" for node in nodes.values()):
        raise CaptureError("The network has no weighted layer between its input and its output.")
    for node in nodes.values():
        if len(np.unique(node.channels)) != len(node.channels):
            raise CaptureError(
                f"The tensor computed in {node.path or node.name!r} ({node.op}, {node.line}) holds the same channel twice, "
                "as in cat([x, x]); this is not supported."
            )
    head, readers = in_head(nodes), consumers(nodes)
    for node in nodes.values():
        if node.kind == "whole" and node.name not in head:
            reader = readers[node.name][0]
            raise CaptureError(
                f"{node.op} in module {node.path!r} ({node.line}) mixes channels, and {reader.path or reader.name!r} computes on "
                "its result; such an operation is supported only after a network's last weighted layer."
            )
