"""The command line: a thin layer over the API."""

from pamerge.cli.app import main

__all__ = ["main"]
