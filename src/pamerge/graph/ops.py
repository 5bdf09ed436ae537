"""The op table: how each operation treats channels.

A rule turns one call of an operation into a :class:`Draft` of a node, or raises :class:`Problem` with the bare fact;
:func:`~pamerge.graph.capture` adds where in the network it happened. An operation that is not in the table is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pamerge.errors import PamergeError
from pamerge.graph.layer_graph import Channels, Kind


class Problem(Exception):  # noqa: N818  (a fact on its way to a CaptureError)
    """Why an operation cannot be captured; the caller knows where."""


@dataclass(frozen=True)
class Value:
    """An activation while a network is being captured: who computes it and which channels it holds.

    Attributes:
        node: the node that computes it.
        channels: its channels; each owns ``width`` neighbouring features.
        shape: its shape, with the batch.
        dtype: its type.
        whole: whether an operation has mixed its channels; it has a single pseudo-channel then.
        padded: whether some of its channels are zeros that nobody computes; only a sum may read them.
    """

    node: str
    channels: Channels
    shape: tuple[int, ...]
    dtype: torch.dtype
    whole: bool = False
    padded: bool = False

    @property
    def features(self) -> int:
        """Size of dimension 1."""
        return self.shape[1] if self.rank > 1 else 1

    @property
    def width(self) -> int:
        """Features of one channel: more than one after a flatten or a depthwise convolution with a multiplier."""
        return self.features // len(self.channels)

    @property
    def space(self) -> tuple[int, ...]:
        """The dimensions behind the channels."""
        return self.shape[2:]

    @property
    def rank(self) -> int:
        """Number of dimensions, with the batch."""
        return len(self.shape)

    def axis(self, dim: int) -> int:
        """A dimension counted from the front; the batch is none that a network may work on."""
        axis = dim % self.rank
        if axis == 0:
            raise Problem("it works across the samples of a batch")
        return axis


@dataclass(frozen=True)
class Call:
    """One call of an operation.

    Attributes:
        op: the name of the operation.
        arguments: by name, in the order of the operation's schema: activations as :class:`Value`, parameters and
            constants as tensors. Arguments that were not given may be missing.
        shapes: the shape of each result, with the batch.
        dtype: the type of the first result.
        keyword_only: names of the arguments that have to be passed by name.
    """

    op: str
    arguments: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    keyword_only: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def name(self) -> str:
        """The operation without namespace, overload and the underscore of an in-place form: ``add``."""
        return functional_name(self.op).split(".")[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return self.shapes[0]

    @property
    def values(self) -> list[Value]:
        """The activations among the arguments, in order, each once."""
        found: dict[str, Value] = {}
        _collect(list(self.arguments.values()), found)
        return list(found.values())


@dataclass(frozen=True)
class Draft:
    """A node before it has a name: what a rule returns.

    Attributes:
        kind: how it treats channels.
        op: the name of a block or function, or of the operation to call.
        inputs: the activations that it reads.
        channels: its channels; None asks for ``count`` new ones.
        settings: what else there is to say, as plain JSON.
        tensors: its parameters.
        same: arrays of channels that are one and the same position by position, because they are added to each other.
        zeros: how many channels of zeros its result has before and behind its channels.
        whole: whether it mixes channels.
        note: how it mixes them, for the error message if a weighted layer follows.
    """

    kind: Kind
    op: str
    inputs: Sequence[Value]
    channels: Channels | None = None
    count: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor | None] = field(default_factory=dict)
    same: Sequence[Channels] = ()
    zeros: tuple[int, int] = (0, 0)
    whole: bool = False
    note: str = ""


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
        if not isinstance(op, str) or not re.fullmatch(r"\w+\.\w+\.\w+", op):
            raise PamergeError(
                f"{op!r} is not the name of an operation; expected 'namespace.name.overload', such as "
                "'mylib.clip.default'."
            )
        if op != functional_name(op):
            raise PamergeError(
                f"{op!r} changes its argument in place. Register the functional form, {functional_name(op)!r}; "
                "it covers both."
            )
        _RULES[op] = rule


def known_ops() -> list[str]:
    """Every operation in the table. The in-place form of an operation, such as ``relu_``, is known with it."""
    return sorted(_RULES)


def rule_for(op: str) -> Rule | None:
    """The rule of an operation; an in-place form (``relu_``) has the rule of its functional form."""
    return _RULES.get(functional_name(op))


def functional_name(op: str) -> str:
    """``aten.relu_.default`` → ``aten.relu.default``."""
    return re.sub(r"^(\w+\.(?!_)\w*[^\W_])_(\.\w+)$", r"\1\2", op)


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
        raise PamergeError(
            f"torch has no operation {op!r} ({error}). If it is your own, import the module that defines it."
        ) from None
    return target  # type: ignore[no-any-return]


# -- the rules that a user needs ------------------------------------------------------------------------------------


def keeps_channels(call: Call) -> Draft:
    """Keeps channels apart: a function of one activation that treats every channel in the same way."""
    values = call.values
    if len(values) != 1:
        raise Problem(f"it reads {len(values)} activations where one was expected")
    value = values[0]
    if value.whole:
        return mixes_output(call)
    _expect_features(call, value)
    return Draft("keeps", functional_name(call.op), [value], value.channels, settings=replay_settings(call))


def joins_channels(call: Call) -> Draft:
    """Joins tensors channel by channel: a function of several activations; they may broadcast over space only."""
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
        first.channels,
        settings=replay_settings(call),
        same=[value.channels for value in values],
    )


def mixes_output(call: Call) -> Draft:
    """Mixes channels without weights: allowed only behind a network's last weighted layer."""
    return Draft(
        "whole", functional_name(call.op), call.values, count=1, settings=replay_settings(call), whole=True
    )  # fmt: skip


def _expect_features(call: Call, value: Value) -> None:
    if len(call.shape) < 2 or call.shape[1] != value.features:
        raise Problem(f"it turns {value.features} features into a tensor of shape {call.shape}")


# -- arguments as plain JSON, to call the operation again later -------------------------------------------------------


def replay_settings(call: Call) -> dict[str, Any]:
    """The arguments as plain JSON, with ``{"input": i}`` where the i-th activation goes."""
    found: dict[str, Value] = {}
    filled = {name: _template(name, argument, found) for name, argument in call.arguments.items()}
    by_name = {name: filled.pop(name) for name in call.keyword_only & set(filled)}
    return {"args": list(filled.values())} | ({"kwargs": by_name} if by_name else {})


def fill_template(argument: Any, inputs: Sequence[Tensor]) -> Any:
    """The inverse of the templates of :func:`replay_settings`: puts the activations in their places."""
    if isinstance(argument, dict):
        return inputs[argument["input"]]
    if isinstance(argument, list):
        return [fill_template(item, inputs) for item in argument]
    return argument


def _collect(argument: Any, found: dict[str, Value]) -> None:
    if isinstance(argument, Value):
        found.setdefault(argument.node, argument)
    elif isinstance(argument, (list, tuple)):
        for item in argument:
            _collect(item, found)


def _template(name: str, argument: Any, found: dict[str, Value]) -> Any:
    if isinstance(argument, Value):
        found.setdefault(argument.node, argument)
        return {"input": list(found).index(argument.node)}
    if isinstance(argument, (list, tuple)):
        return [_template(name, item, found) for item in argument]
    if isinstance(argument, Tensor):
        raise Problem(f"its argument {name!r} is a parameter or constant tensor of shape {tuple(argument.shape)}")
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    raise Problem(f"its argument {name!r} is a {type(argument).__name__} ({argument}), which is not supported")
