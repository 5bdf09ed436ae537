"""Rules of operations that change a tensor's shape."""

from __future__ import annotations

import math
from dataclasses import replace

from pamerge.graph.ops import Call, Draft, Problem, keeps_channels, mixes_output
from pamerge.graph.rules.arguments import activation


def reshape(call: Call) -> Draft:
    """Flatten, view, squeeze: keeps channels apart if each still owns whole slices of dimension 1."""
    value, shape = activation(call), call.shape
    if math.prod(shape[1:]) != math.prod(value.shape[1:]):
        raise Problem(f"it moves the batch dimension (from shape {value.shape} to {shape})")
    # A channel owns a stretch of the sample's numbers; all own equal stretches, in order. So they stay apart iff
    # dimension 1 still divides into them.
    count = len(value.channels)
    if value.whole or len(shape) == 1 or shape[1] % count:
        note = f"it reshapes {count} channels to {shape[1:]}"
        return Draft("whole", "reshape", [value], count=1, settings={"shape": list(shape[1:])}, whole=True, note=note)
    settings = {"from": value.width, "width": shape[1] // count, "space": list(shape[2:])}
    return Draft("keeps", "reshape", [value], value.channels, settings=settings)


def expand(call: Call) -> Draft:
    """Keeps channels apart: repeats numbers over space."""
    value = activation(call)
    if value.whole:
        sizes = call["size"]
        return mixes_output(
            call if sizes is None else replace(call, arguments={**call.arguments, "size": [-1, *sizes[1:]]})
        )
    if len(call.shape) != value.rank or call.shape[1] != value.features:
        raise Problem(f"it expands a tensor of shape {value.shape} to {call.shape}; only space can be expanded")
    settings = {"space": list(call.shape[2:])}
    return Draft("keeps", "expand", [value], value.channels, settings=settings)


def permute(call: Call) -> Draft:
    """Over space it keeps channels apart; it may move channels only behind the last weighted layer."""
    value = activation(call)
    order = [dim % value.rank for dim in call["dims"]]
    if order[0] != 0:
        raise Problem("it moves the batch dimension")
    return keeps_channels(call) if order[1] == 1 else mixes_output(call)


def transpose(call: Call) -> Draft:
    """Over space it keeps channels apart; it may move channels only behind the last weighted layer."""
    value = activation(call)
    axes = {value.axis(call["dim0"]), value.axis(call["dim1"])}
    return mixes_output(call) if 1 in axes else keeps_channels(call)


def select(call: Call) -> Draft:
    """One position: over space it keeps channels apart; one channel is allowed only behind the last weighted layer."""
    return mixes_output(call) if activation(call).axis(call["dim"]) == 1 else keeps_channels(call)


def stack(call: Call) -> Draft:
    """A new dimension, which is allowed only behind the last weighted layer."""
    if (call["dim"] or 0) % len(call.shape) == 0:
        raise Problem("it moves the batch dimension")
    return mixes_output(call)


def reduce(call: Call) -> Draft:
    """Over space it keeps channels apart; over channels it is allowed only behind the last weighted layer."""
    value = activation(call)
    dims = [call["dim"]] if isinstance(call["dim"], int) else call["dim"]
    axes = {value.axis(dim) for dim in dims}
    return mixes_output(call) if 1 in axes else keeps_channels(call)
