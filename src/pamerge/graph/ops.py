"""The op table: how each ATen operation treats channels.

A rule turns one call of an operation into a :class:`Draft` of a node, or raises :class:`Problem` with the bare fact;
:func:`~pamerge.graph.capture` adds where in the network it happened. An operation that is not in the table is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.graph.layer_graph import Channels, Kind


class Problem(Exception):
    """Why an operation cannot be captured; the caller knows where."""


@dataclass(frozen=True)
class Value:
    """An activation while a network is being captured: who computes it and which channels it holds.

    ``whole`` marks the result of an operation that has mixed the channels: a single pseudo-channel.
    """

    node: str
    channels: Channels
    width: int
    space: tuple[int, ...]
    whole: bool = False

    @property
    def features(self) -> int:
        """Size of dimension 1."""
        return len(self.channels) * self.width

    @property
    def rank(self) -> int:
        """Number of dimensions, with the batch."""
        return 2 + len(self.space)


@dataclass(frozen=True)
class Call:
    """One call of an operation: arguments by name, with activations as :class:`Value` and parameters as tensors."""

    op: str
    arguments: Mapping[str, Any]
    shape: tuple[int, ...]
    """Shape of the (first) result, with the batch."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of all results, for operations that return several tensors."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def values(self) -> list[Value]:
        """The activations among the arguments, in order, each once."""
        found: dict[str, Value] = {}
        _template(list(self.arguments.values()), found)
        return list(found.values())


@dataclass(frozen=True)
class Draft:
    """A node before it has a name: what a rule returns.

    ``channels=None`` asks for new channels, ``count`` of them. ``same`` lists groups of channel arrays that are one and the same
    channel position by position (what is added to each other).
    """

    kind: Kind
    op: str
    inputs: Sequence[Value]
    width: int
    space: tuple[int, ...]
    channels: Channels | None = None
    count: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor | None] = field(default_factory=dict)
    same: Sequence[Channels] = ()
    whole: bool = False


Rule = Callable[[Call], Draft | Value | list[Draft | Value]]
_RULES: dict[str, Rule] = {}


def register_op(*ops: str, rule: Rule) -> None:
    """Tell the capture how an operation treats channels.

    Args:
        ops: names as ``torch.export`` writes them, such as ``"aten.relu.default"`` or ``"mylib.clip.default"``.
        rule: one of :func:`keeps_channels`, :func:`joins_channels`, :func:`mixes_output`, or a function of your own.

    The table is also what :func:`pamerge.load` trusts: a saved network may call nothing else.
    """
    for op in ops:
        _RULES[op] = rule


def known_ops() -> list[str]:
    """Every operation in the table."""
    return sorted(_RULES)


def rule_for(op: str) -> Rule | None:
    """The rule of an operation; an in-place form (``relu_``) has the rule of its functional form."""
    return _RULES.get(op) or _RULES.get(functional_name(op))


def functional_name(op: str) -> str:
    """``aten.relu_.default`` → ``aten.relu.default``."""
    namespace, name, overload = op.split(".", 2)
    return f"{namespace}.{name.removesuffix('_')}.{overload}" if not name.startswith("_") else op


def resolve_op(op: str) -> Callable[..., Any]:
    """The callable behind the name of an operation in the table."""
    if op not in _RULES:
        raise PamergeError(
            f"The operation {op!r} is not in the op table. If it is your own, import the module that calls "
            "pamerge.graph.register_op before loading the network."
        )
    target: Any = torch.ops
    try:
        for part in op.split("."):
            target = getattr(target, part)
    except AttributeError as error:
        raise PamergeError(f"This version of torch has no operation {op!r}: {error}.") from None
    return target  # type: ignore[no-any-return]


# -- rules that serve many operations ------------------------------------------------------------------------------


def keeps_channels(call: Call) -> Draft:
    """A function of one activation that treats every channel in the same way and apart from the others."""
    value = _only_value(call)
    if value.whole:
        return mixes_output(call)
    _expect_features(call, value)
    return Draft(
        "keeps",
        functional_name(call.op),
        [value],
        value.width,
        call.shape[2:],
        channels=value.channels,
        settings={"args": _arguments(call)},
    )


def joins_channels(call: Call) -> Draft:
    """A function of several activations, channel by channel; shapes may broadcast over space but not over channels."""
    values = call.values
    if len(values) == 1:
        return keeps_channels(call)
    if any(value.whole for value in values):
        return mixes_output(call)
    first = values[0]
    for other in values[1:]:
        if other.features != first.features or other.rank != first.rank:
            raise Problem(
                f"it combines tensors of {first.features} and {other.features} features "
                f"({first.rank} and {other.rank} dimensions), which is not channel by channel"
            )
        if other.width != first.width:
            raise Problem(f"it combines tensors with {first.width} and {other.width} features a channel")
    _expect_features(call, first)
    return Draft(
        "join",
        functional_name(call.op),
        values,
        first.width,
        call.shape[2:],
        channels=first.channels,
        settings={"args": _arguments(call)},
        same=[value.channels for value in values],
    )


def mixes_output(call: Call) -> Draft:
    """A function that mixes channels without weights, such as softmax; no weighted layer may follow."""
    return Draft(
        "whole",
        functional_name(call.op),
        call.values,
        call.shape[1] if len(call.shape) > 1 else 1,
        call.shape[2:],
        count=1,
        settings={"args": _arguments(call)},
        whole=True,
    )


def _only_value(call: Call) -> Value:
    values = call.values
    if len(values) != 1:
        raise Problem(f"it reads {len(values)} activations where one was expected")
    return values[0]


def _expect_features(call: Call, value: Value) -> None:
    if len(call.shape) < 2 or call.shape[1] != value.features:
        raise Problem(f"it turns {value.features} features into a tensor of shape {call.shape}")
    for name, argument in call.arguments.items():
        if isinstance(argument, Tensor) and argument.numel() != 1:
            raise Problem(f"its argument {name!r} is a constant tensor of shape {tuple(argument.shape)}")


def _arguments(call: Call) -> list[Any]:
    """The positional arguments as plain JSON, with ``{"input": i}`` where the i-th activation goes."""
    found: dict[str, Value] = {}
    return [_template(argument, found) for argument in call.arguments.values()]


def _template(argument: Any, found: dict[str, Value]) -> Any:
    if isinstance(argument, Value):
        found.setdefault(argument.node, argument)
        return {"input": list(found).index(argument.node)}
    if isinstance(argument, (list, tuple)):
        return [_template(item, found) for item in argument]
    if isinstance(argument, Tensor):
        return argument.item() if argument.numel() == 1 else None
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    raise Problem(f"an argument of type {type(argument).__name__} ({argument}) is not supported")


def fill_template(argument: Any, inputs: Sequence[Tensor]) -> Any:
    """The inverse of the template in ``settings["args"]``: puts the activations in their places."""
    if isinstance(argument, dict):
        return inputs[argument["input"]]
    if isinstance(argument, list):
        return [fill_template(item, inputs) for item in argument]
    return argument


# -- helpers for the rules in rules.py -------------------------------------------------------------------------------


def new_layer(op: str, value: Value, outputs: int, call: Call, settings: Mapping[str, Any], **tensors: Any) -> Draft:
    """A weighted layer with ``outputs`` new channels."""
    return Draft(
        "weighted",
        op,
        [value],
        1,
        call.shape[2:],
        count=outputs,
        settings=settings,
        tensors=tensors,
    )


def channelwise(
    op: str, value: Value, call: Call, settings: Mapping[str, Any], width: int = 0, **tensors: Any
) -> Draft:
    """A layer with parameters for each channel; all tensors have one row a feature of the output."""
    return Draft(
        "channelwise",
        op,
        [value],
        width or value.width,
        call.shape[2:],
        channels=value.channels,
        settings=settings,
        tensors=tensors,
    )


def pick(value: Value, positions: Sequence[int] | np.ndarray[Any, Any]) -> Channels:
    """The channels that stand at some positions of dimension 1, which must be whole channels."""
    positions = np.asarray(positions)
    if value.width == 1:
        return value.channels[positions]
    rows = positions.reshape(-1, value.width) if len(positions) % value.width == 0 else np.empty((0, value.width))
    if len(rows) == 0 or (rows[:, 0] % value.width).any() or (np.diff(rows, axis=1) != 1).any():
        raise Problem(f"it cuts through channels of {value.width} features")
    return value.channels[rows[:, 0] // value.width]
