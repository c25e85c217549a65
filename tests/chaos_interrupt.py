"""Random interruptions: Ctrl-C and SIGTERM at any moment of a run, which is resumed until it ends, bitwise the same.

    python tests/chaos_interrupt.py [INTERRUPTIONS] [SEED]

Each run is a process of its own, made by fork, so that a signal meets it anywhere: while a folder is made, in the
middle of local steps, while a checkpoint is written. It prints how long the slowest took to end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import proxskip as ps
from proxskip.engines.cpu.engine import CpuEngine

DONE, AGAIN, LIMIT = 0, 3, 2.0
"""Exit codes of a run that ended and of one that was interrupted; seconds to end in, on an idle machine."""


def problems() -> tuple[ps.Problem, ps.Problem]:
    """Dense rows with and without minibatches; f* is found before anything is timed."""
    A, b = ps.datasets.load("digits")
    plain = ps.split(ps.Logistic(A, b, l2=1e-3, l2_relative=True), clients=6, by="label")
    assert plain.solution is not None
    sampled = plain.with_batch(20)
    assert sampled.solution is not None
    return plain, sampled


def cases(
    plain: ps.Problem, sampled: ps.Problem
) -> list[tuple[str, Any, ps.Problem, Callable[[], Any], dict[str, Any]]]:
    """Rounds from a hundredth of a second to many, on every engine of this process."""
    one, two = (lambda: CpuEngine(1)), (lambda: CpuEngine(2))
    gamma = 1.0 / plain.L
    return [
        ("scaffnew, one thread", ps.Scaffnew(gamma, 1e-4), plain, one, {"rounds": 5}),
        ("scaffnew, two threads", ps.Scaffnew(gamma, 1e-4), plain, two, {"rounds": 5}),
        ("scaffnew, minibatches", ps.Scaffnew(0.1 * gamma, 3e-5), sampled, two, {"rounds": 5}),
        ("scaffnew, cohorts", ps.Scaffnew(gamma, 1e-4), plain, one, {"rounds": 5, "cohort": 3}),
        ("fedlin", ps.FedLin.theory(plain, K=8000), plain, two, {"rounds": 4}),
        ("s-local-gd", ps.SLocalGD.theory(plain, p=1e-4, q=0.5), plain, one, {"rounds": 5}),
        ("scaffold, option I", ps.Scaffold.theory(plain, K=9000, option="I"), plain, one, {"rounds": 4}),
        ("short rounds", ps.Scaffnew(gamma, 0.1), plain, one, {"rounds": 800}),
        ("reference", ps.Scaffnew(gamma, 1e-3), plain, lambda: "reference", {"rounds": 5}),
    ]


def child(job: Callable[[], ps.Result]) -> int:
    """The job in a process of its own; its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = DONE if job().status is not ps.Status.INTERRUPTED else AGAIN
    except KeyboardInterrupt:
        code = AGAIN
    finally:
        os._exit(code)


def interrupted(job: Callable[[], ps.Result], after: float, number: int) -> tuple[int, float]:
    """Send a signal some seconds after the job began; how it ended, and how long after the signal (0 if before)."""
    pid = child(job)
    until, late = time.monotonic() + after, 0.0
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), 0.0
        time.sleep(0.002)
    sent = time.monotonic()
    os.kill(pid, number)
    _, status = os.waitpid(pid, 0)
    late = time.monotonic() - sent
    return os.waitstatus_to_exitcode(status), late


def campaign(count: int, folder: Path, seed: int = 0, say: Callable[[str], None] = lambda text: None) -> list[str]:
    """``count`` interruptions, dealt to all cases; what went wrong, in sentences."""
    draw, wrong, slowest, made = random.Random(seed), [], 0.0, 0
    listed = cases(*problems())
    straight: dict[str, tuple[bytes, float]] = {}
    while made < count:
        name, method, problem, engine, how = listed[made % len(listed)]
        if name not in straight:
            began = time.monotonic()
            whole = ps.run(method, problem, engine=engine(), allow_unsafe_step=True, **how)
            straight[name] = whole.x.tobytes(), time.monotonic() - began
        known, seconds = straight[name]
        out, code = folder / f"{made}", AGAIN
        for _ in range(3):  # interruptions of the same run
            made += 1
            job = resumed_or_run(out, method, problem, engine, how)
            number = draw.choice([signal.SIGINT, signal.SIGTERM])
            code, late = interrupted(job, draw.uniform(0.0, 1.2 * seconds / 3), number)
            slowest = max(slowest, late)
            if code not in (DONE, AGAIN, -signal.SIGTERM):
                wrong.append(f"{name}: a run ended with {code}.")
            if late > 10 * LIMIT:
                wrong.append(f"{name}: a run ended {late:.1f} seconds after its signal.")
            if code == DONE:
                break
        if code != DONE:
            resumed_or_run(out, method, problem, engine, how)()
        if np.load(out / "x.npy").tobytes() != known:
            wrong.append(f"{name}: the resumed run has another x.")
        say(f"{made}/{count} {name}: slowest end so far {slowest:.2f} s")
    say(f"{made} interruptions, {len(wrong)} faults, slowest end {slowest:.2f} s")
    return wrong


def resumed_or_run(
    out: Path, method: Any, problem: ps.Problem, engine: Callable[[], Any], how: dict[str, Any]
) -> Callable[[], ps.Result]:
    """What a user does after an interruption: resume what can be resumed, else start again."""
    if (out / "spec.toml").exists():
        made = engine()
        return lambda: ps.resume(out, problem, engine=made if not isinstance(made, str) else None)
    return lambda: ps.run(
        method, problem, engine=engine(), out=out, force=True, checkpoint_every=3, allow_unsafe_step=True, **how
    )


if __name__ == "__main__":
    count, seed = (int(v) for v in (*sys.argv[1:], *("100", "0")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as place:
        found = campaign(count, Path(place), seed, print)
    print("\n".join(found) or "every resumed run is bitwise the run that was never interrupted")
    sys.exit(bool(found))
