"""What the studies on faces (ablations.py, growth.py) have in common: their command line."""

from __future__ import annotations

import argparse
from pathlib import Path


def arguments(description: str | None, name: str) -> argparse.Namespace:
    """``--data`` and ``--out`` to measure, or ``--chart`` to draw again what was measured."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of LFW, or one that holds it")
    parser.add_argument("--out", type=Path, default=Path("runs") / name, help="where networks are kept")
    parser.add_argument("--chart", action="store_true", help="only draw the chart again")
    found = parser.parse_args()
    if not found.chart and found.data is None:
        parser.error("--data is needed to measure")
    return found
