"""minimize against pyproximal, skglm, scikit-learn, scikit-image and cvxpy: CPU seconds to the same accuracy.

    python benchmarks/peers.py [--only TEXT] [--limit SECONDS]

Every answer is judged by one certificate, computed off the clock: |F(x) - F*|/(F(0) - F*), where F* is the value of a
run of minimize with a tiny tolerance; with constraints, the largest violation
if that is more. Solvers with a callback are stopped at the first iterate that is good enough.
Solvers with a tolerance are run with smaller and smaller ones, and the first run that is good enough counts alone.
Each solver has a process of its own and one BLAS thread; those that compile themselves run once before the clock.
f, its smoothness and psi are made on the clock of every solver that takes them.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import resource
import time
import warnings

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import numpy as np
from peers_cases import CASES

import proxskip as ps

GOAL = 1e-6
REPEATED = 3
"""Runs of which the fastest counts, for what takes less than SHORT seconds."""
SHORT = 3.0
MEMORY = 8 << 30
"""Bytes a solver may have."""
LADDERS = {
    "steps": (0.0,),
    "compiled": tuple(10.0 ** (-k / 2) for k in range(4, 27)),
    "cones": (1e-4, 1e-6, 1e-8, 1e-10),
}
"""Tolerances to try, by the kind of solver: one with a callback, one with a tolerance, one of cvxpy's."""


class Enough(Exception):
    """Ends a solver that offers a callback only."""


class Judge:
    """F - F* relative to that of zero, and a clock that stands still while somebody is judged."""

    def __init__(self, case, best):
        self.case, self.best, self.scale = case, best, case.objective(np.zeros(case.d)) - best
        self.spent = self.then = math.nan
        self.seen = multiprocessing.Value("d", math.nan)  # what was reached, for whoever ends the process

    def gap_of(self, x):
        x = np.asarray(x, dtype=np.float64).ravel()
        return max(abs(self.case.objective(x) - self.best) / self.scale, self.case.violation(x))

    def start(self):
        self.spent, self.then = 0.0, time.process_time()

    def stop(self):
        self.spent += time.process_time() - self.then

    def look(self, x):
        """A callback: ends the run at the goal."""
        self.stop()
        self.seen.value = self.gap_of(x)
        if self.seen.value <= GOAL:
            raise Enough
        self.then = time.process_time()


def timed(judge, solver, tol):
    """Seconds and gap of one run."""
    judge.start()
    try:
        x = solver(tol, judge.look)
    except Enough:
        return judge.spent, judge.seen.value
    judge.stop()
    return judge.spent, judge.gap_of(x)


def race(judge, solver, kind, pipe):
    """Sends (seconds, gap) of the first run that reaches the goal; before it what was reached so far."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(None), np.errstate(all="ignore"):
        if kind == "compiled":
            solver(0.5, lambda x: None)
        for tol in LADDERS[kind]:
            seconds, gap = timed(judge, solver, tol)
            if gap > GOAL:
                pipe.send((math.inf, gap))
                continue
            runs = [(seconds, gap), *(timed(judge, solver, tol) for _ in range(REPEATED - 1 if seconds < SHORT else 0))]
            pipe.send(min(run for run in runs if run[1] <= GOAL))
            break
    pipe.send(None)


def outcome(judge, solver, kind, limit):
    """Seconds and gap, or infinity and the gap that was reached within the limit."""
    mine, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=race, args=(judge, solver, kind, theirs))
    process.start()
    theirs.close()
    judge.seen.value, found = math.nan, None
    with contextlib.suppress(EOFError):
        while mine.poll(limit) and (news := mine.recv()) is not None:
            found = news
    process.kill()
    process.join()
    return found or (math.inf, judge.seen.value)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", default="", help="cases whose name contains this")
    options.add_argument("--limit", type=float, default=60.0, help="seconds that a run may take")
    options.add_argument("--solver", default="", help="solvers whose name contains this, beside minimize")
    asked = options.parse_args()
    print("## `minimize` against other libraries\n")
    print(f"| problem | solver | CPU seconds | over the first | gap, at most {GOAL:g} |\n|---|---|---|---|---|")
    for make in CASES:
        case = make()
        if asked.only not in case.name:
            continue
        judge = Judge(case, reference(case))
        solvers = {k: v for k, v in case.solvers().items() if asked.solver in k or k == "minimize"}
        rows = {name: outcome(judge, *solver, asked.limit) for name, solver in solvers.items()}
        first = min(seconds for seconds, _ in rows.values())
        for name, (seconds, gap) in sorted(rows.items(), key=lambda row: row[1][0]):
            shown = f"{seconds:.3g} | {seconds / first:.2f}" if seconds < math.inf else "not reached | -"
            print(f"| {case.name} | {name} | {shown} | {gap:.1e} |", flush=True)


def reference(case):
    """F*: the smallest value of a run with a tiny tolerance."""
    f, psi, more = case.ours()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ps.minimize(f, psi, **{"tol": 1e-11, "seconds": 100.0} | more)
    return case.objective(found.x.ravel())


if __name__ == "__main__":
    main()
