"""Runs in several processes: the same runs, whatever the user defined, and nothing lost when they are interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from support.comparing import same

pytestmark = pytest.mark.long
A, LABELS = np.random.default_rng(0).normal(size=(600, 300)), np.arange(600) % 2  # larger than what is sent in messages


def logistic() -> ps.Problem:
    return ps.split(ps.Logistic(A, LABELS, l2=0.1), clients=6, by="contiguous")


def test_processes_make_the_same_runs(tmp_path: Path) -> None:
    alone = ps.sweep(["scaffnew", "gd"], logistic(), rounds=10, seeds=2)
    shared = ps.sweep(["scaffnew", "gd"], logistic(), rounds=10, seeds=2, jobs=2, out=tmp_path / "out")
    assert all(same(a, b) for a, b in zip(alone, shared, strict=True))
    assert all(same(a, b) for a, b in zip(alone, ps.load(tmp_path / "out"), strict=True))  # type: ignore[arg-type]


PLUGIN = """
from dataclasses import dataclass
import proxskip as ps

@dataclass(frozen=True)
class Halved(ps.GD):
    about = ps.core.About(name="halved", title="halved")
    gamma: float = 0.1
"""
SCRIPT = """
import sys
from dataclasses import replace
from proxskip.methods import registry

registry.load_plugin(sys.argv[1])

@ps.core.register
@dataclass(frozen=True)
class Quartered(ps.GD):
    about = replace(Halved.about, name="quartered", title="quartered")
    gamma: float = 0.05

class Mine(ps.Quadratic): ...  # this class is in no module that another process could import

problem = ps.Problem([Mine([1.0, 2.0], [1.0, 1.0]), Mine([1.0, 1.0], [0.0, 1.0])])
for r in ps.sweep(["halved", "quartered"], problem, rounds=5, seeds=2, jobs=2, engine="reference", out=sys.argv[2]):
    name = r.summary["method"]
    print(name, r.rounds, r.x.tolist() == ps.run(name, problem, rounds=5, engine="reference").x.tolist())
"""


def test_methods_of_ones_own_run_in_processes(tmp_path: Path) -> None:
    """One of a plugin and one of a script without a protected start."""
    plugin, script = tmp_path / "own.py", tmp_path / "script.py"
    plugin.write_text(PLUGIN)
    script.write_text(PLUGIN + SCRIPT)
    command = [sys.executable, str(script), str(plugin), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    told = [f"{name} 5 True" for name in ("halved", "quartered") for _ in range(2)]
    assert done.stdout.splitlines() == told, done.stderr


LONG = """
import sys
import numpy as np
import proxskip as ps

A, b = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 2
problem = ps.split(ps.Logistic(A, b, l2=0.1), clients=6, by="contiguous")
methods = [ps.Scaffnew(0.05, p) for p in (0.5, 0.1, 0.2)]
rounds = int(sys.argv[2])
results = ps.sweep(methods, problem, rounds=rounds, jobs=2, out=sys.argv[1], every=rounds, checkpoint_every=500)
print([r.status.name for r in results], flush=True)
"""


def test_an_interrupt_leaves_a_folder_that_the_same_call_continues(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LONG)
    out = tmp_path / "out"
    command = [sys.executable, str(tmp_path / "script.py"), str(out), "400000"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    begun = time.monotonic()
    while len(list(out.glob("*/checkpoint.previous"))) < 2 and time.monotonic() - begun < 120:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does, to all processes
    words, errors = child.communicate(timeout=120)
    assert words == "['INTERRUPTED', 'INTERRUPTED']\n", errors
    assert "Traceback" not in errors
    done = [r.rounds for r in ps.load(out)]  # type: ignore[union-attr]
    assert len(done) == 2
    again = ps.resume(out / "0-scaffnew", problem_of_script(), rounds=done[0] + 5)
    straight = ps.run(ps.Scaffnew(0.05, 0.5), problem_of_script(), rounds=done[0] + 5, every=400000)
    assert np.array_equal(again.x, straight.x)


def problem_of_script() -> ps.Problem:
    data, labels = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 2
    return ps.split(ps.Logistic(data, labels, l2=0.1), clients=6, by="contiguous")


class InTurn(ps.Quadratic):
    """In other processes: the first call of one that breaks fails once another one is under way, which waits for it."""

    def __init__(self, folder: Path, breaks: bool) -> None:
        super().__init__([1.0, 2.0], [1.0, 1.0])
        self.folder, self.breaks, self.parent = folder, breaks, os.getpid()

    def gradient(self, x: Any) -> Any:
        if os.getpid() == self.parent:
            return super().gradient(x)
        if not self.breaks:
            (self.folder / "other").touch()
            self.wait_for("over")
        elif self.is_first():
            self.wait_for("other")
            raise ArithmeticError("broken on purpose")
        return super().gradient(x)

    def is_first(self) -> bool:
        try:
            (self.folder / "breaking").mkdir()
        except FileExistsError:
            return False
        return True

    def wait_for(self, name: str) -> None:
        end = time.monotonic() + 60
        while not (self.folder / name).exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert (self.folder / name).exists()


def test_an_error_in_one_of_two_sweeps_leaves_the_other_alone(tmp_path: Path) -> None:
    good: list[ps.Results] = []
    methods = [ps.GD(0.1), ps.GD(0.2)]
    waits, breaks = InTurn(tmp_path, False), InTurn(tmp_path, True)

    def other() -> None:
        waits.wait_for("breaking")
        good.append(ps.sweep(methods, ps.Problem([waits]), rounds=50, jobs=2, progress=False))

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(ArithmeticError, match="broken on purpose"):
        ps.sweep(methods, ps.Problem([breaks]), rounds=3, jobs=2, progress=False)
    (tmp_path / "over").touch()
    thread.join()
    assert [r.status.name for r in good[0]] == ["LIMIT"] * 2
