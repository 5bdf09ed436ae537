"""What commands print: tables, results as JSON, and a line for every stage."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pamerge.experiments import Event

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on the standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors (and JSON with --json).")]

NARROWEST = 100
"""Tables of output that is no terminal are at least so wide."""


def output() -> Console:
    """Where results go."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(NARROWEST, console.width))


def print_table(rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Rows as a table; the first is the head, the first column is text and the others are numbers."""
    head, *body = rows
    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE)
    for index, name in enumerate(head):
        table.add_column(Text(name), justify="right" if index else "left")
    for row in body:
        table.add_row(*map(Text, row))  # names of tasks may look like markup
    output().print(table)


def print_lines(*lines: str) -> None:
    """Plain lines."""
    for line in lines:
        typer.echo(line)


def print_json(content: Any) -> None:
    """A result for programs."""
    typer.echo(json.dumps(content, indent=1))


def stage_lines(quiet: bool) -> Callable[[Event], None]:
    """Says on the error stream which stage begins, was done before, or ends."""

    def tell(event: Event) -> None:
        taken = f"{event.seconds:.1f} s" if event.state == "done" else ""
        typer.echo(f"{event.state:7} {taken:>8}  {event.stage}", err=True)

    return (lambda event: None) if quiet else tell
