"""The command line: run, compare, theory, data, resume, plot, demo."""

from proxskip.cli.commands import main

__all__ = ["main"]
