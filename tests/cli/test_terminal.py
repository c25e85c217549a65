"""The command line as people use it: operators by text, completion, doctor."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.cli.parser import parser
from proxskip.prox import parse as prox_text
from proxskip.types import InputError

# -- operators ---------------------------------------------------------------------------------------------------------
OPERATORS = {
    "l1:5e-1": ps.prox.L1(0.5), "l2:0.5": ps.prox.L2(0.5), "squared-l2:0.5": ps.prox.SquaredL2(0.5),
    "elastic-net:0.5,1": ps.prox.ElasticNet(0.5, 1.0), "huber:0.5,1": ps.prox.Huber(0.5, 1.0),
    "group:0.5,2": ps.prox.GroupL1(0.5, (2, 2)), "tv:0.5,0.1": ps.prox.TV1D(0.5, 0.1),
    "tv2d:0.5,2x2": ps.prox.TV2D(0.5, (2, 2)), "nuclear:0.5,1x4": ps.prox.NuclearNorm(0.5, (1, 4)),
    "nonnegative": ps.prox.NonNegative(), "box:-1,1": ps.prox.Box(-1.0, 1.0), "simplex:2": ps.prox.Simplex(2.0),
    "l1-ball:2": ps.prox.L1Ball(2.0), "l2-ball": ps.prox.L2Ball(), "nuclear-ball:1,2x2": ps.prox.nuclear_ball(1.0, (2, 2)),
    "spectral-ball:1,2x2": ps.prox.spectral_ball(1.0, (2, 2)), "psd:2": ps.prox.psd(2),
    "consensus:2": ps.prox.Consensus(2), "singleton": ps.prox.Singleton(), "zero": ps.prox.Zero(),
}  # fmt: skip


def test_every_operator_by_its_text() -> None:
    assert {text.partition(":")[0] for text in OPERATORS} == set(prox_text.FORMS)
    for text, operator in OPERATORS.items():
        prox_text.check(text)
        assert repr(prox_text.parse(text, 4)) == repr(operator)
    both = prox_text.parse("l1:1e+0+nonnegative", 2)
    assert isinstance(both, ps.prox.Sum)
    np.testing.assert_allclose(both.prox(np.array([3.0, -4.0]), 1.0), [2.0, 0.0], atol=1e-6)


@pytest.mark.parametrize(("text", "said"), [
    ("l3:1", "is not known; use l1:LAM"), ("l1", "write l1:LAM"), ("l1:x", "not a number"), ("l1:1,2", "has 2 numbers"),
    ("nuclear:1,4", "needs a shape such as 28x28"), ("group:1,1.5", "whole number"), ("group:1,3", "do not divide"),
    ("tv2d:1,3x3", "does not fit the 4 unknowns"), ("l1:-1", "lam"), ("l1:1+l9:2", "is not known"),
])  # fmt: skip
def test_wrong_texts_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        prox_text.parse(text, 4)


# -- completion --------------------------------------------------------------------------------------------------------
TYPED = {
    "ru": "run",
    "run scaffn": "scaffnew scaffnew-vr",
    "run scaffnew --engine r": "ray reference",
    "run scaffnew --data digi": "digits",
    "run scaffnew --check": "--checkpoint-every",
    "plot {}/a": "{}/a.png",
}
SHELLS = {
    "bash": ["-c", 'COMP_WORDS=(proxskip {}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_proxskip; echo "${{COMPREPLY[*]}}"'],
    "fish": ["--no-config", "-c", 'complete -C "proxskip {}" | string split -f 1 \\t | string join " "'],
}  # fmt: skip
"""How a shell runs a command, and the command that prints the completions of some words."""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_get_every_command_and_flag(shell: str, call: Any) -> None:
    _, out, _ = call("completion", shell)
    for name, command in parser("0")[1].items():
        assert name in out
        for flag in command._option_string_actions:
            assert (flag if shell == "zsh" else f"-l {flag[2:]} ") in out or not flag.startswith("--")


def shell_and_script(shell: str, folder: Path, call: Any) -> tuple[str, Path]:
    """The shell's program, and its completion script as a file."""
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    script = folder / "script"
    script.write_text(call("completion", shell)[1])
    (folder / "a.png").touch()
    return program, script


@pytest.mark.parametrize("shell", ["bash", pytest.param("fish", marks=pytest.mark.shells)])
def test_a_shell_completes(shell: str, tmp_path: Path, call: Any) -> None:
    program, script = shell_and_script(shell, tmp_path, call)
    *flags, ask = SHELLS[shell]
    typed = {words.format(tmp_path): said.format(tmp_path) for words, said in TYPED.items()}
    if shell == "fish":
        typed[f"run scaffnew --data {tmp_path}/a"] = f"{tmp_path}/a.png"
    command = "\n".join([f"source {script}", *(ask.format(words) for words in typed)])
    done = subprocess.run([program, *flags, command], capture_output=True, text=True, timeout=60)
    assert [line.strip() for line in done.stdout.splitlines()] == list(typed.values())


@pytest.mark.slow
@pytest.mark.shells
def test_zsh_completes(tmp_path: Path, call: Any) -> None:
    """A person's keys in a terminal: the words, Tab, and then the line is printed instead of run."""
    program, script = shell_and_script("zsh", tmp_path, call)
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "dumb", "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    process = subprocess.Popen(
        [program, "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)

    def read_until(pattern: str) -> str:
        said, end = "", time.monotonic() + 60
        while not (found := re.search(pattern, said)) and time.monotonic() < end:
            if select.select([ours], [], [], 1.0)[0]:
                said += os.read(ours, 65536).decode("utf-8", "replace")
        assert found, said
        return found[1]

    try:
        os.write(ours, f'cd {tmp_path}; eval "$(<{script})"; print rea""dy\n'.encode())
        read_until(r"\n(ready)")
        for typed, wanted in (
            ("ru", "run"), ("run scaffnew-", "run scaffnew-vr"), ("run scaffnew --engine re", "run scaffnew --engine reference"),
            ("run scaffnew --data digi", "run scaffnew --data digits"), ("run gd --checkp", "run gd --checkpoint-every"),
            ("run gd --data a.p", "run gd --data a.png"), ("plot a.p", "plot a.png"),
        ):  # fmt: skip
            os.write(ours, f'proxskip {typed}\t\x01print -r -- "<\x05>"\n'.encode())
            assert read_until(r"\n<(.*?)>").strip() == f"proxskip {wanted}"
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.slow
def test_the_doctor_says_what_works(call: Any) -> None:
    code, out, _ = call("doctor", "--json")
    assert code == 0
    found = {row["what"]: row for row in json.loads(out)}
    assert {"proxskip", "engine cpu", "engine gpu", "engine ray", "flwr", "data sets"} <= found.keys()
    assert found["engine cpu"]["works"]
    assert found["numpy"]["here"] == np.__version__
    assert found["pandas"]["works"] is (importlib.util.find_spec("pandas") is not None)
