"""Random interruptions: Ctrl-C and SIGTERM at any moment of a run, which is resumed until it ends, bitwise the same.

    python tests/campaigns/chaos_interrupt.py [100] [--first 0] [--engine cpu]

Each run is a process of its own, made by fork, so that a signal meets it anywhere: while a folder is made, in the
middle of local steps, while a checkpoint is written. A cluster and a card do not survive a fork, so that their runs are
interrupted in this process, one cluster for all. It prints how long the slowest took to end.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for campaigns and support

import proxskip as ps
from campaigns.chaos import tell
from proxskip.engines.cpu.engine import CpuEngine

DONE, AGAIN, LIMIT = 0, 3, 2.0
"""Exit codes of a run that ended and of one that was interrupted; seconds to end in, on an idle machine."""


def problems() -> tuple[ps.Problem, ps.Problem]:
    """Dense rows with and without minibatches; f* is found before anything is timed."""
    A, b = ps.datasets.load("digits")
    plain = ps.split(ps.Logistic(A, b, l2_relative=1e-3), clients=6, by="label")
    assert plain.solution is not None
    sampled = plain.with_batch(20)
    assert sampled.solution is not None
    return plain, sampled


SLOW = {"reference": 10, "torch": 10}
"""How many times fewer local steps a round has, where they take longer."""
Case = tuple[str, Any, ps.Problem, Callable[[], Any], dict[str, Any]]


def cases(engine: str, plain: ps.Problem, sampled: ps.Problem) -> list[Case]:
    """Rounds from a hundredth of a second to many."""
    if engine == "ray":
        from proxskip.engines.ray.engine import RayEngine

        cluster = RayEngine(2, stay=True, deadline=120)
        one = two = lambda: cluster
    elif engine == "cpu":
        one, two = (lambda: CpuEngine(1)), (lambda: CpuEngine(2))
    else:
        one = two = lambda: engine
    gamma, slow = 1.0 / plain.L, SLOW.get(engine, 1)
    scaffold = ps.Scaffold.theory(plain, K=9000 // slow, option="I")
    return [
        ("scaffnew", ps.Scaffnew(gamma, 1e-4 * slow), plain, one, {"rounds": 5}),
        ("scaffnew, two threads", ps.Scaffnew(gamma, 1e-4 * slow), plain, two, {"rounds": 5}),
        ("scaffnew, minibatches", ps.Scaffnew(0.1 * gamma, 3e-5 * slow), sampled, two, {"rounds": 5}),
        ("scaffnew, cohorts", ps.Scaffnew(gamma, 1e-4 * slow), plain, one, {"rounds": 5, "cohort": 3}),
        ("fedlin", ps.FedLin.theory(plain, K=8000 // slow), plain, two, {"rounds": 4}),
        ("s-local-gd", ps.SLocalGD.theory(plain, p=1e-4 * slow, q=0.5), plain, one, {"rounds": 5}),
        ("scaffold, option I", scaffold, plain, one, {"rounds": 4}),
        ("short rounds", ps.Scaffnew(gamma, 0.1), plain, one, {"rounds": 800 // slow}),
    ]


def survives_a_fork(engine: str) -> bool:
    """Whether a run may be made in a child of a process that has made one."""
    if engine == "torch":
        import torch

        return not torch.cuda.is_available()
    return engine not in ("ray", "gpu")


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


def interrupted_here(job: Callable[[], ps.Result], after: float, number: int) -> tuple[int, float]:
    """As ``interrupted``, in this process."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    timer, before = threading.Timer(after, send), signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = AGAIN
    try:
        timer.start()
        code = DONE if job().status is not ps.Status.INTERRUPTED else AGAIN
        timer.cancel()
        timer.join()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
    return code, time.monotonic() - sent[0] if sent and code == AGAIN else 0.0


def interrupted(job: Callable[[], ps.Result], after: float, number: int) -> tuple[int, float]:
    """Send a signal some seconds after the job began; how it ended, and how long after the signal (0 if before)."""
    pid = child(job)
    until = time.monotonic() + after
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), 0.0
        time.sleep(0.002)
    sent = time.monotonic()
    os.kill(pid, number)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - sent


def campaign(
    count: int, folder: Path, seed: int = 0, engine_name: str = "cpu", say: Callable[[str], None] = lambda text: None
) -> tuple[list[str], float]:
    """``count`` interruptions, dealt to all cases: what went wrong, in sentences, and the slowest end."""
    draw, wrong, slowest, made = random.Random(seed), [], 0.0, 0
    listed = cases(engine_name, *problems())
    interrupt = interrupted if survives_a_fork(engine_name) else interrupted_here
    straight: dict[str, tuple[bytes, float]] = {}
    while made < count:
        name, method, problem, engine, how = listed[(seed + made) % len(listed)]
        if name not in straight:
            began = time.monotonic()
            whole = ps.run(method, problem, engine=engine(), allow_unsafe_step=True, **how)
            straight[name] = whole.x.tobytes(), time.monotonic() - began
        known, seconds = straight[name]
        out, code = folder / f"{len(list(folder.iterdir()))}", AGAIN
        for _ in range(3):  # interruptions of the same run
            job = resumed_or_run(out, method, problem, engine, how)
            number = draw.choice([signal.SIGINT, signal.SIGTERM])
            code, late = interrupt(job, draw.uniform(0.0, 1.2 * seconds / 3), number)
            slowest = max(slowest, late)
            if code not in (DONE, AGAIN, -signal.SIGTERM):
                wrong.append(f"{name}: a run ended with {code}.")
            if late > 10 * LIMIT:
                wrong.append(f"{name}: a run ended {late:.1f} seconds after its signal.")
            made += late > 0  # one that came too late is none
            if code == DONE:
                break
        if code != DONE:
            resumed_or_run(out, method, problem, engine, how)()
        if np.load(out / "x.npy").tobytes() != known:
            wrong.append(f"{name}: the resumed run has another x.")
        say(f"{made}/{count} {name}: slowest end so far {slowest:.2f} s")
    return wrong, slowest


def resumed_or_run(
    out: Path, method: Any, problem: ps.Problem, engine: Callable[[], Any], how: dict[str, Any]
) -> Callable[[], ps.Result]:
    """What a user does after an interruption: resume what can be resumed, else start again."""
    if (out / "spec.json").exists():
        made = engine()
        return lambda: ps.resume(out, problem, engine=made if not isinstance(made, str) else None)
    return lambda: ps.run(
        method, problem, engine=engine(), out=out, force=True, checkpoint_every=3, allow_unsafe_step=True, **how
    )


def main() -> int:
    """Print what went wrong; 1 if anything did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("--first", type=int, default=0, help="seed, and number of the first case")
    parser.add_argument("--engine", choices=["cpu", "reference", "torch", "ray", "gpu"], default="cpu")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        found, slowest = campaign(o.count, Path(place), o.first, o.engine, lambda text: print(text, flush=True))
    print("\n".join(found) or "every resumed run is bitwise the run that was never interrupted")
    return tell(o.count, len(found), **{"most seconds to end": round(slowest, 2)})


if __name__ == "__main__":
    sys.exit(main())
