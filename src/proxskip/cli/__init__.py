"""The command line: run, compare, theory, data, resume, plot, reproduce."""

from proxskip.cli.commands import main

__all__ = ["main"]
