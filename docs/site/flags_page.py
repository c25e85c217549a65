"""The page with the flags of every command, made from the parser."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator

from proxskip import __version__
from proxskip.cli.parser import parser
from proxskip.methods.built_in import BUILT_IN

HEAD = """# Flags

Written from the program's own help. [The command line](command-line.md) explains the commands,
and [the notation](idea.md#notation) the letters. `proxskip run METHOD --help` shows the flags of one method alone.
"""


def page() -> str:
    """All flags of ``run``; of the other commands what ``run`` has not, and the names of the rest."""
    _, commands = parser(__version__, [kind.about.name for kind in BUILT_IN])
    of_run = {flag: help for _, flags in groups(commands["run"]) for flag, help in flags}
    lines = [HEAD]
    for name, command in commands.items():
        lines += [f"## {name}", ""]
        shared = []
        for title, flags in groups(command):
            own = [(flag, help) for flag, help in flags if name == "run" or of_run.get(flag) != help]
            shared += [flag.split()[0] for flag, help in flags if (flag, help) not in own]
            if own:
                lines += [title[0].upper() + title[1:] + ":", ""] if name == "run" else []
                lines += ["| flag | meaning |", "|---|---|"]
                lines += [f"| `{escaped(flag)}` | {escaped(help)} |" for flag, help in own] + [""]
        if shared:
            told = "all flags" if len(shared) == len(of_run) else ", ".join(f"`{flag}`" for flag in shared)
            lines += [textwrap.fill(f"As for `run`: {told}.", 120, break_on_hyphens=False), ""]
    return "\n".join(lines).rstrip() + "\n"


def groups(command: argparse.ArgumentParser) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The title of each group of flags, and its flags with their help."""
    for group in command._action_groups:
        flags = [a for a in group._group_actions if a.option_strings and a.help != argparse.SUPPRESS]
        if flags:
            yield group.title or "", [(spelled(a), a.help or "") for a in flags]


def spelled(flag: argparse.Action) -> str:
    """A flag and the names of its values."""
    values = flag.metavar or flag.dest.upper()
    words = [] if flag.nargs == 0 else [values] if isinstance(values, str) else values
    return " ".join([flag.option_strings[-1], *words])


def escaped(text: str) -> str:
    """A cell of a table."""
    return re.sub(r"([|$])", r"\\\1", text)
