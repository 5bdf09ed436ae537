"""The command ``pamerge report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pamerge.report.figures import write_figures
from pamerge.report.page import write_report
from pamerge.report.results import read_results


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Result files of experiments, or folders of them.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Also write the paper's figures into this folder, as SVG and PNG.")
    ] = None,
) -> None:
    """Show results as one HTML page that works without a network.

    Seeds of the same experiment and pruner are put together; several experiments or pruners are a choice on the page.

    \b
    Examples:
      pamerge report run/results/*.json
      pamerge report run --out faces.html --figures figures/
    """  # noqa: D301 - the backspace keeps the lines as they are
    results = read_results(runs)
    write_report(results, out)
    typer.echo(f"{out}: {len(results)} result(s), {out.stat().st_size:,} bytes")
    if figures is not None:
        written = write_figures(results, figures)
        typer.echo(f"{figures}: {len(written)} file(s)")
