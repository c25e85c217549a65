"""The command line ``proxskip``."""

from proxskip.cli.commands import main

__all__ = ["main"]
