"""All commands, and what happens when something goes wrong."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import typer
from pamerge_runtime import BundleError

from pamerge.cli.data import data
from pamerge.cli.deploy import bench, export
from pamerge.cli.experiments import demo, run
from pamerge.cli.networks import inspect, merge
from pamerge.errors import PamergeError
from pamerge.report.command import report

app = typer.Typer(
    help="Merge trained networks into one in which any subset of tasks runs at minimal cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help texts show TOML, whose brackets would be taken for markup
)
for command in (demo, merge, inspect, export, bench, run, report):
    app.command()(command)
app.add_typer(data, name="data")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's mistake is one clear message and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    with warnings.catch_warnings():
        if "--quiet" in arguments:
            warnings.simplefilter("ignore")
        warnings.showwarning = _show_warning
        try:
            app(arguments)
        except (PamergeError, BundleError) as error:
            typer.echo(f"pamerge: {error}", err=True)
            sys.exit(2)
        except OSError as error:
            typer.echo(f"pamerge: {error.filename or ''}: {error.strerror or error}", err=True)
            sys.exit(2)


def _show_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    """Without the source line, which means nothing to who runs a command."""
    typer.echo(f"pamerge: warning: {message}", err=True)
