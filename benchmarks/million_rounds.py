"""A million clients with memory: rounds, peak memory, checkpoints in parts, a kill, and a resume with the same bytes.

    python benchmarks/million_rounds.py            1,000,000 clients, d = 300, cohorts of 1,000, 2,000 rounds
    python benchmarks/million_rounds.py --quick    a tenth of the clients, rounds and limit
    python benchmarks/million_rounds.py --only speed

Every phase is a process of its own, so that its peak memory is its own. The bars are printed as ratios:

    speed     a round on cohorts of 1,000 clients, by the time of a problem that has only 1,000 (at most 1.5)
    memory    the largest resident memory of a phase, by 6 GB
    resume    the bytes of x, h and the counts after a kill and a resume are those of the run that was not killed
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import numpy as np
import scipy.sparse

import proxskip as ps
from proxskip.links import rows

SPEED_BAR, MEMORY_BAR = 1.5, 6e9
ROWS_EACH, ENTRIES = 5, 12
LOCAL_STEPS = 10.0
"""Mean number of local steps of a round."""


def problem_of(clients: int, d: int) -> ps.Problem:
    """Rows of 12 entries, 5 of each client."""
    rng = np.random.Generator(np.random.Philox(7))
    N = ROWS_EACH * clients
    indices = rng.integers(0, d, ENTRIES * N, dtype=np.int32)
    indptr = np.arange(0, ENTRIES * N + 1, ENTRIES, dtype=np.int32)
    A = scipy.sparse.csr_array((rng.standard_normal(ENTRIES * N), indices, indptr), shape=(N, d))
    A.sum_duplicates()
    b = np.where(A @ rng.standard_normal(d) > 0, 1.0, -1.0)
    return ps.split(ps.Logistic(A, b, l2=0.05), clients=clients, by="iid", seed=0)


def methods_of(problem: ps.Problem, cohort: int) -> dict[str, ps.Method]:
    """Scaffnew (TAMUNA's rule without masks) and TAMUNA, with the same number of local steps on every problem."""
    gamma, p = 1.0 / problem.L_max, 1.0 / LOCAL_STEPS
    chi = min(1.0, float(problem.n * (cohort - 1)) / (cohort * max(1, problem.n - 1)))
    return {"scaffnew": ps.Scaffnew(gamma, p), "tamuna": ps.Tamuna(gamma, p, cohort, chi)}


def digest(result: ps.Result) -> str:
    """Of x, of the rows of all who took part in the order of their numbers, and of how often they did."""
    found = hashlib.sha256(result.x.tobytes() + result.participation.tobytes())
    for name in sorted(result.memory):
        view: Any = result.memory[name]
        clients = np.flatnonzero(result.participation)
        for lo in range(0, len(clients), 4096):
            some = clients[lo : lo + 4096]
            found.update(np.ascontiguousarray(view[some]).tobytes())
    return found.hexdigest()


def peak() -> int:
    """Bytes of resident memory at most so far, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# -- phases, each in a process of its own ------------------------------------------------------------------------------
def phase_run(a: argparse.Namespace) -> dict[str, Any]:
    """All rounds into a folder, from the start or from its checkpoint."""
    began = time.perf_counter()
    rows.LIMIT = a.limit
    problem = problem_of(a.clients, a.features)
    method = methods_of(problem, a.cohort)["scaffnew"]
    ready, made = time.perf_counter() - began, peak()
    if (Path(a.out) / "spec.toml").exists():
        result = ps.resume(a.out, problem, threads=a.threads)
    else:
        result = ps.run(
            method, problem, rounds=a.rounds, cohort=a.cohort, every=a.rounds, out=a.out,
            checkpoint_every=a.save_every, threads=a.threads,
        )  # fmt: skip
    wall, summary = time.perf_counter() - began - ready, result.summary()
    took_part = int(np.count_nonzero(result.participation))
    return {
        "digest": digest(result), "peak": peak(), "peak_before": made, "seconds": summary["seconds"], "wall": wall,
        "making": ready, "took_part": took_part, "status": summary["status"], "notes": summary["warnings"],
        "on_disk": sum(p.stat().st_size for p in Path(a.out).iterdir()),
    }  # fmt: skip


def phase_speed(a: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a round, on cohorts of many clients and on a problem that has only one cohort; the best of three."""
    small, large = problem_of(a.cohort, a.features), problem_of(a.clients, a.features)
    found: dict[str, Any] = {}
    for name in ("scaffnew", "tamuna"):
        best: dict[str, list[float]] = {"small": [], "large": []}
        for _ in range(3):
            for kind, problem in (("small", small), ("large", large)):
                # the step of the small problem for both, so that they do the same work
                method = methods_of(small, a.cohort)[name]
                on = {"cohort": a.cohort} if kind == "large" else {}
                result = ps.run(
                    method, problem, rounds=a.speed_rounds, every=a.speed_rounds, threads=a.threads,
                    allow_unsafe_step=True, **on,
                )  # fmt: skip
                best[kind].append(result.summary()["seconds"] / a.speed_rounds)
        seconds = {k: min(v) for k, v in best.items()}
        found[name] = seconds | {"ratio": seconds["large"] / seconds["small"]}
    return found


# -- the parent --------------------------------------------------------------------------------------------------------
def child(a: argparse.Namespace, phase: str, out: Path | None = None) -> subprocess.Popen[str]:
    given = ["--phase", phase, "--out", str(out or "")]
    for name in ("clients", "cohort", "features", "rounds", "limit", "save_every", "speed_rounds", "threads"):
        given += [f"--{name.replace('_', '-')}", str(getattr(a, name))]
    return subprocess.Popen([sys.executable, __file__, *given], stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a phase ended with status {process.returncode}.")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def killed(a: argparse.Namespace, out: Path) -> int:
    """Begin a run, and kill it once it has saved a third of the rounds; the newest part that it wrote."""
    process = child(a, "run", out)
    wanted = max(2, a.rounds // a.save_every // 3)
    newest = 0
    while process.poll() is None and newest < wanted:
        newest = max((int(p.name[7:]) for p in out.glob("memory.0*")), default=0)
        time.sleep(0.01)
    if process.poll() is not None:
        raise SystemExit("the run ended before it was killed; give more rounds.")
    process.send_signal(signal.SIGKILL)
    process.wait()
    return newest


def main() -> int:
    a = parsed()
    if a.phase:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(json.dumps(phase_run(a) if a.phase == "run" else phase_speed(a)))
        return 0
    fine = True
    if a.only in (None, "speed"):
        for name, s in answer(child(a, "speed")).items():
            fine &= s["ratio"] <= SPEED_BAR
            print(
                f"speed   {name:<9} {1e3 * s['large']:7.2f} ms a round on cohorts of {a.cohort:,} of {a.clients:,}, "
                f"{1e3 * s['small']:7.2f} ms with {a.cohort:,} alone: {s['ratio']:.2f} of at most {SPEED_BAR}",
                flush=True,
            )
    if a.only in (None, "resume"):
        fine &= resumed(a)
    return 0 if fine else 1


def resumed(a: argparse.Namespace) -> bool:
    """Straight, killed and resumed runs, and their bars."""
    with tempfile.TemporaryDirectory(dir=a.where) as folder:
        straight = answer(child(a, "run", Path(folder) / "straight"))
        newest = killed(a, Path(folder) / "killed")
        again = answer(child(a, "run", Path(folder) / "killed"))
    print(
        f"rounds  {a.rounds:,} in {straight['seconds']:.1f} s and {straight['wall']:.1f} s with {a.rounds // a.save_every} "
        f"checkpoints, after {straight['making']:.1f} s for the problem; {straight['took_part']:,} clients took part; "
        f"{straight['on_disk'] / 1e9:.2f} GB in the folder; {straight['status']}"
    )
    for name, s in (("straight", straight), ("resumed", again)):
        print(
            f"memory  {name:<9} {s['peak'] / 1e9:.2f} GB at most ({s['peak_before'] / 1e9:.2f} before the run): "
            f"{s['peak'] / MEMORY_BAR:.2f} of {MEMORY_BAR / 1e9:.0f} GB"
        )
    same = straight["digest"] == again["digest"]
    print(f"resume  killed after part {newest}: {'the same bytes' if same else 'OTHER BYTES'}")
    return same and max(straight["peak"], again["peak"]) <= MEMORY_BAR


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--cohort", type=int, default=1_000)
    parser.add_argument("--features", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--limit", type=int, default=2 * 10**9, help="bytes of the clients' memory in memory")
    parser.add_argument("--save-every", type=int, default=100, help="rounds between checkpoints")
    parser.add_argument("--speed-rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--where", default=None, help="a folder on a disk, for the run folders")
    parser.add_argument("--only", choices=["speed", "resume"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.quick:
        a.clients, a.rounds, a.limit, a.save_every = a.clients // 10, a.rounds // 10, a.limit // 10, a.save_every // 5
    return a


if __name__ == "__main__":
    sys.exit(main())
