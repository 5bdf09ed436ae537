"""Commands that export a network and time it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from pamerge.deploy import chart as draw
from pamerge.deploy import export_onnx, measure, table
from pamerge.errors import PamergeError
from pamerge.network import load
from pamerge.network.files import write_atomically


def export(
    network: Annotated[Path, typer.Argument(help="A network that pamerge.save wrote.")],
    folder: Annotated[Path, typer.Argument(help="The bundle to write.")],
    subset: Annotated[
        list[str] | None, typer.Option(help="A subset of tasks, as age+gender; give it several times. Default: all.")
    ] = None,
    fuse: Annotated[str, typer.Option(help="auto, never or always: compute blocks as one dense layer.")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older bundle of this name.")] = False,
) -> None:
    """Write a network as ONNX: one weights file, a small graph for each subset of tasks."""
    bundle = export_onnx(load(network), folder, subset or "all", fuse=fuse, overwrite=overwrite)  # type: ignore[arg-type]
    typer.echo(
        f"{bundle.folder}: {len(bundle.subsets)} subset(s), {bundle.weight_bytes:,} bytes of weights, "
        f"{bundle.total_bytes:,} bytes in all"
    )


def bench(
    folder: Annotated[Path, typer.Argument(help="A bundle.")],
    against: Annotated[
        list[str] | None, typer.Option(help="Another bundle to compare with, as label=FOLDER; give it several times.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of one inference.")] = 1,
    batch: Annotated[int, typer.Option(help="Samples of one inference.")] = 1,
    repeats: Annotated[int, typer.Option(help="Timed inferences of each subset.")] = 50,
    warm_up: Annotated[int, typer.Option(help="Inferences of each subset before that.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure peak memory, in a process for each subset.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the measurements here.")] = None,
    chart: Annotated[Path | None, typer.Option(help="Draw them here (.png, .svg, .pdf).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but the table.")] = False,
) -> None:
    """Time every subset of a bundle, beside its FLOPs, weights and peak memory."""
    bundles = {folder.name or str(folder): folder}
    for item in against or []:
        label, sign, other = item.partition("=")
        if not sign or not label or label in bundles:
            raise PamergeError(
                f"--against {item} cannot be used; expected a new label and a folder, as mtz=faces-mtz/."
            )
        bundles[label] = Path(other)
    if chart is not None and chart.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise PamergeError(f"--chart {chart} cannot be drawn; expected a name that ends in .png, .svg or .pdf.")
    say = (lambda line: None) if quiet else (lambda line: typer.echo(line, err=True))
    found = measure(
        bundles, threads=threads, batch=batch, repeats=repeats, warm_up=warm_up, memory=memory, progress=say
    )
    typer.echo(table(found))
    if json_file is not None:
        content = json.dumps([dataclasses.asdict(item) for item in found], indent=1, ensure_ascii=False)
        write_atomically(json_file, (content + "\n").encode())
    if chart is not None:
        draw(found, chart)
