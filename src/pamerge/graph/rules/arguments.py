"""What rules ask of a call: the activation it works on, its parameters, its settings."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pamerge.graph.ops import Call, Problem, Value


def activation(call: Call, name: str = "") -> Value:
    """The argument ``name`` (the first by default), which must depend on the network's input."""
    value = call[name or next(iter(call.arguments))]
    if not isinstance(value, Value):
        raise Problem(f"its {name or 'first argument'} does not depend on the network's input")
    return value


def parameter(call: Call, name: str) -> Tensor | None:
    """A parameter or buffer, if there is one."""
    tensor = call[name]
    if tensor is not None and not isinstance(tensor, Tensor):
        raise Problem(f"its {name} is computed by the network instead of being a parameter")
    return tensor


def weight_of(call: Call) -> Tensor:
    """The weight, which must be there."""
    weight = parameter(call, "weight")
    if weight is None:
        raise Problem("it has no weight")
    return weight


def per_axis(setting: int | Sequence[int] | None, rank: int, default: int) -> list[int]:
    """A setting as one number for each spatial dimension."""
    if setting is None:
        return [default] * rank
    return [setting] * rank if isinstance(setting, int) else list(setting) * (rank // len(setting))


def expect_rank(call: Call, value: Value) -> int:
    """The number of spatial dimensions in an operation's name.

    torch takes a tensor without a batch, too, and would take the batch for the channels.
    """
    rank = int(call.name[-2])
    if len(value.space) != rank:
        raise Problem(f"it works on {rank} spatial dimensions; its input of shape {value.shape} has {len(value.space)}")
    return rank
