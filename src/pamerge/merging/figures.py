"""Pictures of a merge: the information traces of a layer, and the groups of all layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamerge.errors import PamergeError
from pamerge.merging.result import LayerMerging, Merging

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def trace_figure(layer: LayerMerging) -> Figure:
    """Information against iteration for every direction of a layer, with the prefix that α keeps (paper, Appendix)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(layer.traces), 3.2), layout="constrained")
    panels = figure.subplots(1, len(layer.traces), squeeze=False, sharey=True)[0]
    for axes, (task, trace) in zip(panels, layer.traces.items(), strict=True):
        steps = range(1, len(trace.bits) + 1)
        kept = trace.prefix(layer.alpha)
        axes.plot(steps, trace.bits, color="#4269d0")
        axes.axhline(layer.alpha * trace.total, color="#888888", linewidth=0.8, linestyle="--")
        axes.axvspan(0, kept, color="#4269d0", alpha=0.12, linewidth=0)
        axes.set(
            title=f"{layer.name}: exclusive to {task}", xlabel=f"neurons taken ({kept} kept at α = {layer.alpha:g})"
        )
    panels[0].set_ylabel("bits about the other tasks' labels")
    return figure


def groups_figure(merging: Merging) -> Figure:
    """Group sizes and the sharing ratio of every layer."""
    from matplotlib.figure import Figure

    layers = list(merging.layers.values())
    if not layers:
        raise PamergeError(f"The scheme {merging.scheme} regrouped no layer; there is nothing to draw.")
    groups = sorted({tasks for layer in layers for tasks in layer.sizes})
    figure = Figure(figsize=(max(5.0, 0.55 * len(layers) + 2), 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    names = [layer.name for layer in layers]
    bottoms = [0.0] * len(layers)
    for group in groups:
        shares = [layer.sizes.get(group, 0) / max(1, sum(layer.sizes.values())) for layer in layers]
        upper.bar(names, shares, bottom=bottoms, label=str(group))
        bottoms = [bottom + share for bottom, share in zip(bottoms, shares, strict=True)]
    upper.set_ylabel("share of the layer's neurons")
    upper.legend(title="serves", fontsize="small")
    lower.bar(names, [layer.sharing for layer in layers], color="#888888")
    lower.set(ylabel="sharing ratio", ylim=(0, 1))
    lower.tick_params(axis="x", rotation=90)
    return figure
