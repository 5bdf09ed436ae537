"""Commands about the data sets of the experiments."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from pamerge.cli.show import AsJson, Quiet, print_json, print_lines
from pamerge.data import SOURCES, Splits, folder_of
from pamerge.experiments import Choice
from pamerge.experiments.registry import make_data

data = typer.Typer(
    help="The data sets of the experiments: where they come from, and reading them.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

Folder = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with the downloaded files, or with a folder for each data set (lfw/, …)."),
]


@data.command("list")
def list_data(folder: Folder = None, as_json: AsJson = False) -> None:
    """Print the data sets, where to download them, and whether they are in a folder.

    Example: pamerge data list --data ~/data
    """
    found: dict[str, Any] = {}
    for name, source in SOURCES.items():
        place = None if folder is None else folder_of(name, folder)
        missing = [] if not source.files else source.missing(place) if place is not None else None
        found[name] = {
            "about": source.about,
            "download": list(source.download),
            "files": [" or ".join(names) for names in source.files],
            "optional": list(source.optional),
            "folder": str(place) if place is not None and source.files else None,
            "missing": missing,
        }
    if as_json:
        print_json(found)
        return
    for name, item in found.items():
        print_lines(f"{name}: {item['about']}")
        print_lines(*(f"  download  {address}" for address in item["download"]))
        print_lines(*(f"  expected  {file}" for file in item["files"]))
        print_lines(*(f"  optional  {file}" for file in item["optional"]))
        print_lines(f"  {_state(item)}", "")


@data.command()
def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set: digits, fashion, lfw or celeba.")],
    folder: Folder = None,
    limit: Annotated[int | None, typer.Option(help="Read only so many images of faces.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read a data set once, keep crops of faces for later runs, and say what was found and what was skipped.

    Example: pamerge data prepare lfw --data ~/data
    """
    options = {} if limit is None else {"limit": limit}
    with Progress(console=Console(stderr=True), disable=quiet or as_json, transient=True) as progress:
        bar = progress.add_task(f"reading {name}", total=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what was skipped is printed below
            splits = make_data(
                Choice(name, options), 0, folder, lambda done, total: progress.update(bar, completed=done, total=total)
            )
    found = _counts(name, splits)
    if as_json:
        print_json(found)
    elif not quiet:
        print_lines(
            f"{name}: {splits.report}",
            "  " + ", ".join(f"{part}: {count}" for part, count in found["images"].items()),
            "  " + ", ".join(f"task {task}: {len(labels)} labels" for task, labels in found["tasks"].items()),
        )


def _state(item: dict[str, Any]) -> str:
    if item["missing"] is None:
        return "give --data FOLDER to see whether it is there"
    if item["missing"]:
        return f"not in {item['folder']}: {', '.join(item['missing'])}"
    return f"found in {item['folder']}" if item["folder"] else "always there"


def _counts(name: str, splits: Splits) -> dict[str, Any]:
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    return {
        "name": name,
        "images": {part: len(images) for part, images in parts.items()},
        "input_size": list(splits.train.input_size),
        "tasks": {task: list(labels) for task, labels in splits.train.tasks.items()},
        "rows": splits.report.rows,
        "missing": list(splits.report.missing),
        "corrupt": list(splits.report.corrupt),
    }
