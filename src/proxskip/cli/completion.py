"""Completion scripts for bash, zsh and fish, which shtab writes from the parser itself."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import shtab

from proxskip import datasets
from proxskip.cli.parser import parser
from proxskip.experiments.figures import PAPER
from proxskip.methods.registry import METHODS
from proxskip.support.version import __version__

ZSH = "(( $+functions[compdef] )) || { autoload -U +X compinit && compinit }\n"
"""What zsh needs where its start-up files load no completion."""


def command(o: Namespace) -> int:
    """Print the script of a shell."""
    top, commands = parser(__version__)
    names = " ".join(row.name for row in datasets.available())
    names_and_files = {
        "bash": "_proxskip_data",
        "zsh": f"{{compadd {names}; _files}}",
        "fish": f"{names} (__fish_complete_path (commandline -ct))",
    }
    bash = f'_proxskip_data() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}'
    # words that the parser does not insist on, since a plugin may add methods
    words = {"method": METHODS, "methods": METHODS, "experiments": PAPER}
    action: Any
    for p in commands.values():
        for action in p._actions:
            if action.dest == "data":
                action.complete = names_and_files
            elif action.dest in words:
                action.choices = list(words[action.dest])
            elif action.metavar in ("DIR", "FILE"):
                action.complete = shtab.FILE
    script = shtab.complete(top, o.shell, preamble={"bash": bash})
    print((ZSH if o.shell == "zsh" else "") + script, end="")
    return 0
