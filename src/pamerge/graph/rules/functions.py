"""Rules of functions that need a closer look before they count as keeping channels apart."""

from __future__ import annotations

from dataclasses import replace

from pamerge.graph.ops import Call, Draft, Problem, Value, keeps_channels, mixes_output
from pamerge.graph.rules.arguments import activation, expect_rank


def same(call: Call) -> Value:
    """Gives its input back."""
    return activation(call)


def cast(call: Call) -> Value:
    """Gives its input back; changes of type are errors."""
    value = activation(call)
    if call.dtype != value.dtype:
        raise Problem(f"it turns {value.dtype} into {call.dtype}; a network must compute with one type")
    return value


def pool(call: Call) -> Draft:
    """Keeps channels apart: pooling over space."""
    expect_rank(call, activation(call))
    if "kernel_size" in call.arguments and not call["stride"]:
        # What torch does without a stride: two spellings of one pooling have to match.
        given = {**call.arguments, "stride": call["kernel_size"]}
        order = dict.fromkeys([*list(given)[:2], "stride", *given])
        call = replace(call, arguments={name: given[name] for name in order})
    return keeps_channels(call)


def softmax(call: Call) -> Draft:
    """Over space it keeps channels apart; over channels it is allowed only behind the last weighted layer."""
    return mixes_output(call) if activation(call).axis(call["dim"]) == 1 else keeps_channels(call)


def pad(call: Call) -> Draft:
    """Keeps channels apart: padding over space; or channels of zeros, to which something is added."""
    value, pads = activation(call), list(call["pad"])
    over_space, others = pads[: 2 * len(value.space)], pads[2 * len(value.space) :]
    if not any(others):
        return keeps_channels(call)
    before, behind, *batch = others
    is_zero = call["mode"] in (None, "constant") and not call["value"]
    is_split = before % value.width or behind % value.width  # half a channel
    if any(over_space) or any(batch) or not is_zero or min(before, behind) < 0 or is_split or value.whole:
        raise Problem("this padding of channels is not supported; only zeros before and behind them are")
    settings = {"before": before > 0, "behind": behind > 0}
    zeros = (before // value.width, behind // value.width)
    return Draft("wire", "pad_channels", [value], value.channels, settings=settings, zeros=zeros)


def dropout(call: Call) -> Draft:
    """Keeps channels apart; works when the merged network is in training mode."""
    value = activation(call)
    if call["train"]:
        raise Problem("it drops numbers at random even in eval mode; pass training=self.training")
    settings = {"p": call["p"], "feature": call.name == "feature_dropout"}
    return Draft("keeps", "dropout", [value], value.channels, settings=settings)
