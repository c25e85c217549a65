"""Completion scripts for bash, zsh and fish, written from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from proxskip.data import datasets
from proxskip.experiments import FUNCTIONS
from proxskip.registry import METHODS

ZSH = """\
(( $+functions[compdef] )) || { autoload -U +X compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""
"""What zsh needs to read a script for bash, also where its start-up files load no completion."""


def script(shell: str, top: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script of this shell."""
    table = {name: _words(name, p) for name, p in commands.items()}
    if shell == "fish":
        return _fish(top, commands, table)
    return (ZSH if shell == "zsh" else "") + _bash(commands, table)


def _words(name: str, parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """What may follow each flag, and under "" what may stand anywhere."""
    free = {"run": list(METHODS), "compare": list(METHODS), "reproduce": list(FUNCTIONS)}.get(name, [])
    found: dict[str, list[str]] = {"": free}
    for action in _actions(parser):
        choices = [str(c) for c in action.choices] if action.choices is not None else []
        if action.dest == "data":
            choices = [row.name for row in datasets.available()]
        if not action.option_strings:
            found[""] += choices
        for flag in action.option_strings:
            found[flag] = choices
    return found


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    yield from parser._actions


def _takes_value(parser: argparse.ArgumentParser, flag: str) -> bool:
    return parser._option_string_actions[flag].nargs != 0


# -- bash and zsh ------------------------------------------------------------------------------------------------------
def _bash(commands: Mapping[str, argparse.ArgumentParser], table: Mapping[str, dict[str, list[str]]]) -> str:
    cases = []
    for name, words in table.items():
        parser = commands[name]
        flags = " ".join(flag for flag in words if flag.startswith("--"))
        for flag, given in words.items():
            if flag.startswith("--") and _takes_value(parser, flag):
                cases.append(_case(name, flag, given, not given or flag == "--data"))
        cases.append(_case(name, "*", [*words[""], flags], True))
    lines = "\n".join(cases)
    return f"""\
_proxskip() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words="" files="" k
    for ((k = 1; k < COMP_CWORD; k++)); do
        case "${{COMP_WORDS[k]}}" in
            {"|".join(commands)}) command="${{COMP_WORDS[k]}}"; break ;;
        esac
    done
    if [ -z "$command" ]; then
        COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version --plugin" -- "$current"))
        return
    fi
    case "$command:$before" in
{lines}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if [ -n "$files" ] && [[ "$current" != -* ]]; then
        COMPREPLY+=($(compgen -f -- "$current"))
    fi
}}
complete -o filenames -F _proxskip proxskip
"""


def _case(name: str, flag: str, words: list[str], files: bool) -> str:
    return f'        {name}:{flag}) words="{" ".join(words)}"; files={"1" if files else ""} ;;'


# -- fish --------------------------------------------------------------------------------------------------------------
def _fish(
    top: argparse.ArgumentParser,
    commands: Mapping[str, argparse.ArgumentParser],
    table: Mapping[str, dict[str, list[str]]],
) -> str:
    first = "complete -c proxskip -n __fish_use_subcommand -f"
    lines = [f"{first} -l help", f"{first} -l version"]
    subs = [a for a in top._actions if isinstance(a, argparse._SubParsersAction)]
    helps = {a.dest: a.help for sub in subs for a in sub._choices_actions}
    for name, parser in commands.items():
        lines.append(f"{first} -a {name} -d {_quoted(helps.get(name) or '')}")
        here = f"complete -c proxskip -n '__fish_seen_subcommand_from {name}'"
        if table[name][""]:
            lines.append(f"{here} -a {_quoted(' '.join(table[name]['']))}")
        for action in _actions(parser):
            for flag in action.option_strings:
                if not flag.startswith("--"):
                    continue
                given = table[name][flag]
                # -r offers files too, which --data takes as well as names
                only = "-r" if flag == "--data" else "-x"
                value = "" if action.nargs == 0 else f" {only} -a {_quoted(' '.join(given))}" if given else " -r"
                said = _quoted((action.help or "").split(";")[0].replace("%%", "%"))
                lines.append(f"{here} -l {flag[2:]}{value} -d {said}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
