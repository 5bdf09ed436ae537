"""What scripts that measure have in common: a command line, what they say, and how numbers and charts are shown."""

from __future__ import annotations

import argparse
import io
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pamerge.experiments import Event

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONDITIONS = ("co_information", "private_a", "private_b", "misplaced_a", "misplaced_b", "relevant_a", "relevant_b")
"""What Theorem 1 wants to be zero, and Theorem 2 small and large: attributes of a pair of ``network_conditions``."""


def arguments(description: str | None, name: str, *, chart: bool = True) -> argparse.Namespace:
    """``--data`` and ``--out`` to measure, or ``--chart`` to draw again what was measured, if there is a chart."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of LFW, or one that holds it")
    parser.add_argument("--out", type=Path, default=Path("runs") / name, help="where networks are kept")
    if chart:
        parser.add_argument("--chart", action="store_true", help="only draw the chart again")
    found = parser.parse_args()
    if not (chart and found.chart) and found.data is None:
        parser.error("--data is needed to measure")
    return found


def say(event: Event) -> None:
    """A line for each stage."""
    print(f"{event.state:8}{event.seconds:6.0f} s  {event.stage}", flush=True)


def svg(figure: Figure) -> str:
    """A figure as SVG, the same text whenever it is drawn."""
    from matplotlib import rc_context

    drawn = io.StringIO()
    with rc_context({"svg.hashsalt": "pamerge"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def spread(values: Iterable[float], form: str = "{:.2f}") -> str:
    """Mean and, of several values, standard deviation."""
    numbers = list(values)
    around = f" ± {form.format(statistics.stdev(numbers))}" if len(numbers) > 1 else ""
    return form.format(statistics.fmean(numbers)) + around
