"""Completion scripts for bash, zsh and fish, which shtab writes from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import shtab

from proxskip.data import datasets
from proxskip.experiments import FUNCTIONS
from proxskip.registry import METHODS

ZSH = "(( $+functions[compdef] )) || { autoload -U +X compinit && compinit }\n"
"""What zsh needs where its start-up files load no completion."""


def script(shell: str, top: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script of this shell."""
    names = " ".join(row.name for row in datasets.available())
    names_and_files = {
        "bash": "_proxskip_data",
        "zsh": f"{{compadd {names}; _files}}",
        "fish": f"{names} (__fish_complete_path (commandline -ct))",
    }
    bash = f'_proxskip_data() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}'
    # words that the parser does not insist on, since a plugin may add methods
    words = {"method": METHODS, "methods": METHODS, "experiments": FUNCTIONS}
    action: Any
    for command in commands.values():
        for action in command._actions:
            if action.dest == "data":
                action.complete = names_and_files
            elif action.dest in words:
                action.choices = list(words[action.dest])
            elif action.metavar in ("DIR", "FILE"):
                action.complete = shtab.FILE
    return (ZSH if shell == "zsh" else "") + str(shtab.complete(top, shell, preamble={"bash": bash}))
