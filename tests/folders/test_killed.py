"""A process that dies at any moment leaves a folder with one whole result, and the same call again goes on."""

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.types import InputError
from support.comparing import bits

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
PROBLEM = ps.Problem(ps.random_quadratics(4, 3, L=1.0, mu=0.01, seed=1))
METHOD = ps.Scaffnew.theory(PROBLEM)
GIVEN: dict[str, Any] = {"engine": "reference", "checkpoint_every": 3}
FEW, MANY = 3, 7


def straight(rounds: int) -> ps.Result:
    return ps.run(METHOD, PROBLEM, rounds=rounds, engine="reference")


def in_child(job: Callable[[], Any], before: Callable[[], Any]) -> int:
    """The job in a process of its own; its number."""
    assert PROBLEM.solution is not None  # found once, and not in every process
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        before()
        job()
        code = 0
    finally:
        os._exit(code)


def dying_at(folder: Path, k: int) -> Callable[[], None]:
    """End the process, as a kill does, before its k-th change to a file of the folder."""
    left = [k]

    def listen(event: str, given: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.remove") or (event == "open" and given[1] in ("xb", "w"))
        if not changes or not str(given[0]).startswith(str(folder)) or ".lock" in str(given[0]):
            return
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)

    return lambda: sys.addaudithook(listen)


def check_whole(folder: Path, rounds: int, known: dict[int, ps.Result]) -> ps.Result:
    """What is loaded is a run of one moment: that of ``rounds`` rounds, or a checkpoint that says so."""
    found = ps.load(folder)
    assert isinstance(found, ps.Result)
    wanted = known.setdefault(found.rounds, straight(found.rounds))
    assert np.array_equal(found.x, wanted.x)
    if not len(found.trace):  # killed before the record at the start
        assert (found.rounds, found.status) == (0, ps.Status.INTERRUPTED)
        return found
    assert found.trace["round"].tolist() == list(range(found.rounds + 1))
    assert np.array_equal(found.trace["f"], wanted.trace["f"])
    for name in ("iterations", "floats_up", "f", "gap"):
        assert found.summary[name] == wanted.summary[name], name
    if found.status is ps.Status.INTERRUPTED:
        assert f"not ended: this is the checkpoint after {found.rounds} rounds; continue it" in found.message
        assert not (folder / "summary.json").exists()
    else:
        assert found.rounds in (FEW, rounds)
        assert str(found.rounds) in found.message
    return found


def kinds(folder: Path) -> dict[str, tuple[Callable[[], Any], Callable[[], Any], Path]]:
    """What is done before, the call that is killed and then made again, and the folder of the run."""

    def sweep(rounds: int) -> ps.Result:
        return ps.sweep([METHOD], PROBLEM, rounds=rounds, out=folder, **GIVEN)[0]

    def run() -> ps.Result:
        try:
            return ps.run(METHOD, PROBLEM, rounds=MANY, out=folder, **GIVEN)
        except InputError:
            return ps.resume(folder, PROBLEM)

    def first() -> ps.Result:
        return ps.run(METHOD, PROBLEM, rounds=FEW, out=folder, **GIVEN)

    return {
        "run": (lambda: None, run, folder),
        "resume": (first, lambda: ps.resume(folder, PROBLEM, rounds=MANY, checkpoint_every=3), folder),
        "sweep": (lambda: sweep(FEW), lambda: sweep(MANY), folder / METHOD.name),
    }


def go_on(kind: str, folder: Path, kill: Callable[[Callable[[], Any]], bool], known: dict[int, ps.Result]) -> bool:
    """Kill one call, look at what it left, and make the call again; whether the kill came in time."""
    before, call, place = kinds(folder)[kind]
    before()
    killed = kill(call)
    with contextlib.nullcontext() if (place / "checkpoint").exists() else contextlib.suppress(InputError):
        check_whole(place, MANY, known)
    assert bits(call()) == bits(known.setdefault(MANY, straight(MANY)))
    assert check_whole(place, MANY, known).rounds == MANY
    assert np.array_equal(np.load(place / "x.npy"), known[MANY].x)
    return killed


@pytest.mark.parametrize("kind", ["run", "resume", "sweep"])
def test_a_kill_before_every_change_to_a_file(kind: str, tmp_path: Path) -> None:
    known: dict[int, ps.Result] = {}
    for k in range(1, 200):
        folder = tmp_path / str(k)

        def kill(call: Callable[[], Any], folder: Path = folder, k: int = k) -> bool:
            pid = in_child(call, dying_at(folder, k))
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9

        if not go_on(kind, folder, kill, known):
            break
    assert 8 < k < 199


@pytest.mark.slow
@pytest.mark.parametrize("times", [30, pytest.param(200, marks=pytest.mark.release)])
@pytest.mark.parametrize("kind", ["run", "resume", "sweep"])
def test_a_kill_at_random_moments(kind: str, times: int, tmp_path: Path) -> None:
    draw, known, killed = random.Random(kind), {}, 0
    seconds = []
    for k in range(3):  # the first call may wait for the disk or for kernels
        before, call, _ = kinds(tmp_path / f"timed{k}")[kind]
        before()
        began = time.monotonic()
        os.waitpid(in_child(call, lambda: None), 0)
        seconds.append(time.monotonic() - began)

    def kill(call: Callable[[], Any]) -> bool:
        pid = in_child(call, lambda: None)
        time.sleep(draw.uniform(0.0, 1.2 * min(seconds)))
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

    for k in range(times):
        killed += go_on(kind, tmp_path / str(k), kill, known)
    assert killed > times / 4
