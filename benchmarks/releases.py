"""An earlier tree and this one in turns: what a round, a record, an iteration of ``minimize`` and a first run take.

    python benchmarks/releases.py --old /path/to/0.3        the folder that holds its src, or a revision
    python benchmarks/releases.py --old REV --only round    some of the parts
    python benchmarks/releases.py --old REV --turns 1       quickly

The trees take turns, each in a process of its own: old, new, old, new. All times are those of the processor on one
thread, so that other work on the machine counts little; each is the least over the turns. Kernels are compiled before
anything is measured. Clients have five rows of 12 entries and 300 features.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

ROOT = Path(__file__).resolve().parents[1]
ROUND_BARS = {"Scaffnew, K = 1, 2,000 clients": 1.3}
"""The most that a round may take, over that of the old tree; the others may take twice as long."""
RECORDS_BAR = 1.5
"""The most that 20 rounds with the default records may take, over those without."""
FIRST_BAR = 1.3
"""The most that the first run of a process may take, over that of the old tree."""


# -- in a process of one tree ------------------------------------------------------------------------------------------
def rounds(quick: bool) -> Iterator[tuple[str, float]]:
    """Milliseconds of a whole round, with the loop around it and without records."""
    import proxskip as ps

    for n in (1_000, 2_000) if quick else (1_000, 2_000, 10_000):
        problem = many_clients(n)
        scaffnew = ps.Scaffnew(gamma=0.1, p=0.99, K=1)
        yield f"Scaffnew, K = 1, {n:,} clients", seconds_of_a_round(scaffnew, problem)
        yield f"Scaffnew, K = 1, 100 of {n:,} clients", seconds_of_a_round(scaffnew, problem, cohort=100)
        yield f"LocalGD, K = 1, {n:,} clients", seconds_of_a_round(ps.LocalGD(0.1, 1), problem)
        yield f"LocalGD, K = 1, 100 of {n:,} clients", seconds_of_a_round(ps.LocalGD(0.1, 1), problem, cohort=100)
        if n == 1_000:
            locodl = ps.LoCoDL.theory(problem, codec="rand-30")
            yield f"LoCoDL, {n:,} clients", seconds_of_a_round(locodl, problem, per_step=True)


def records(quick: bool) -> Iterator[tuple[str, float]]:
    """20 rounds with the default records over those without; milliseconds of both."""
    import proxskip as ps

    problems = {"1,000 clients": many_clients(1_000), "20 clients of 2,500 rows": many_clients(20, 2_500)}
    for name, problem in problems.items():
        _ = problem.solution, problem.L_i
        method = ps.Scaffnew.theory(problem)

        def run(every: int | None, method: Any = method, problem: Any = problem) -> None:
            ps.run(method, problem, rounds=20, every=every, progress=False, threads=1)

        for every, what in ((None, "with the default records"), (20, "without records")):
            yield f"20 rounds, {name}, {what}", least(lambda: run(every), 7)  # noqa: B023


def iterations(quick: bool) -> Iterator[tuple[str, float]]:
    """An iteration of ``minimize``: a gradient, a prox of next to nothing, and what is around them."""
    import numpy as np
    import scipy.sparse

    import proxskip as ps

    rng = np.random.default_rng(0)
    sparse = scipy.sparse.random(200, 50, 0.1, "csr", random_state=np.random.RandomState(0))
    functions = {
        "sparse logistic of 200 x 50": ps.Logistic(sparse, rng.choice([-1.0, 1.0], 200), l2=1e-6),
        "dense logistic of 200 x 50": ps.Logistic(
            rng.standard_normal((200, 50)), rng.choice([-1.0, 1.0], 200), l2=1e-6
        ),
        "quadratic of 50 unknowns": ps.Quadratic(np.diag(np.geomspace(1e-6, 1.0, 50)), np.ones(50)),
    }
    many = 500 if quick else 2_000
    for name, f in functions.items():
        for method in ("fista", "apda", "proxskip"):

            def minimize(most: int, f: Any = f, method: str = method) -> int:
                done = ps.minimize(
                    f, ps.prox.L1(1e-9), x0=np.ones(50), method=method, mu=1e-6, tol=1e-300, max_iter=most, threads=1,
                    progress=False,
                )  # fmt: skip
                return int(done.nit)

            few, more = minimize(10), minimize(many)
            seconds = least(lambda: minimize(many)) - least(lambda: minimize(10))
            yield f"an iteration of {method}, {name}", seconds / (more - few)


def first(quick: bool) -> Iterator[tuple[str, float]]:
    """All that a new process does until the end of its first run, imports included."""
    import proxskip as ps

    problem = many_clients(20, 50)
    ps.run(ps.Scaffnew.theory(problem), problem, rounds=5, progress=False, threads=1)
    yield "a new process until the end of its first run", time.process_time()


MEASURES: dict[str, Callable[[bool], Iterator[tuple[str, float]]]] = {
    "first": first,
    "round": rounds,
    "records": records,
    "minimize": iterations,
}
"""Each yields seconds by what they are of; ``first`` in a process of its own."""


def many_clients(n: int, rows: int = 5) -> Any:
    """Logistic regression on random sparse rows, ``rows`` a client."""
    import numpy as np
    import scipy.sparse

    import proxskip as ps

    rng = np.random.Generator(np.random.Philox(0))
    total, d = n * rows, 300
    columns = np.minimum((d * rng.random(12 * total) ** 2).astype(np.int32), d - 1)
    starts = np.arange(0, 12 * total + 1, 12)
    M = scipy.sparse.csr_matrix((np.ones(len(columns)), columns, starts), shape=(total, d))
    M.sum_duplicates()
    return ps.split(ps.Logistic(M, rng.choice([-1.0, 1.0], total), l2=1e-3), clients=n)


def seconds_of_a_round(method: Any, problem: Any, per_step: bool = False, **how: Any) -> float:
    """The time from the beginning of one round to that of the next, of which a quarter is faster; or per local step.

    The first rounds do not count: with cohorts they are the first to write to the memory of most clients.
    """
    import proxskip as ps

    kind, began = type(method), []
    its_own = kind.round

    def stamped(self: Any, server: Any, exchange: Any) -> Any:
        began.append(time.process_time())
        return its_own(self, server, exchange)

    many = 200 if how else 20
    kind.round = stamped
    try:
        result = ps.run(
            method, problem, rounds=many, every=many, progress=False, allow_unsafe_step=True, threads=1, **how
        )
    finally:
        kind.round = its_own
    if per_step:
        return (began[-1] - began[0]) / float(result.trace["iterations"][-1])
    taken = sorted(later - earlier for earlier, later in itertools.pairwise(began[many // 4 :]))
    return float(taken[len(taken) // 4])


def least(act: Callable[[], object], times: int = 5) -> float:
    """The least processor time of an act, after one that does not count."""
    act()
    taken = []
    for _ in range(times):
        start = time.process_time()
        act()
        taken.append(time.process_time() - start)
    return min(taken)


# -- both trees --------------------------------------------------------------------------------------------------------
def measure(source: Path, part: str, quick: bool) -> dict[str, float]:
    """The seconds of a part in a process with this tree."""
    command = [sys.executable, __file__, "--measure", part, *(["--quick"] if quick else [])]
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def in_turns(trees: dict[str, Path], part: str, turns: int, quick: bool) -> dict[str, dict[str, float]]:
    """The least seconds of each tree."""
    best: dict[str, dict[str, float]] = {tree: {} for tree in trees}
    for turn in range(turns + 1):
        for tree, source in trees.items():
            found = measure(source, part, quick)
            if turn == 0 and part == "first":
                continue  # it compiled
            best[tree] = {what: min(t, best[tree].get(what, t)) for what, t in found.items()}
    return best


def table(part: str, best: dict[str, dict[str, float]]) -> Iterator[str]:
    """Old, new and their ratio, with the bars."""
    old, new = best["old"], best["new"]
    for what, t in new.items():
        ratio = t / old[what]
        bar = {"round": ROUND_BARS.get(what, 2.0), "first": FIRST_BAR}.get(part)
        yield f"| {what} | {_ms(old[what])} | {_ms(t)} | {ratio:.2f} | {_verdict(ratio, bar)} |"
    if part == "records":
        for what in new:
            if what.endswith("with the default records"):
                plain = what.replace("with the default records", "without records")
                shares = old[what] / old[plain], new[what] / new[plain]
                verdict = _verdict(shares[1], RECORDS_BAR)
                yield f"| {what}, over those without | {shares[0]:.2f} | {shares[1]:.2f} | | {verdict} |"


def _ms(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    if milliseconds >= 100:
        return f"{milliseconds:,.0f}"
    return f"{milliseconds:.3g}"


def _verdict(ratio: float, bar: float | None) -> str:
    if bar is None:
        return ""
    return f"at most {bar:.3g}: {'met' if ratio <= bar else 'MISSED'}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--old", help="a revision of this repository, or a folder that holds another state of its src")
    options.add_argument("--only", nargs="*", choices=tuple(MEASURES), help="some of the parts")
    options.add_argument("--turns", type=int, default=4, help="how often each tree takes its turn after the first time")
    options.add_argument("--quick", action="store_true", help="small sizes")
    options.add_argument("--measure", choices=tuple(MEASURES), help=argparse.SUPPRESS)
    o = options.parse_args()
    if o.measure:
        print(json.dumps(dict(MEASURES[o.measure](o.quick))))
        return
    if o.old is None:
        options.error("--old is missing: give a revision, or a folder with another state of src")
    from same_bytes import exported

    print("## The last release and this tree in turns\n")
    print("Milliseconds of the processor, one thread, the least over the turns.\n")
    print("| what | old | new | new / old | bar |\n|---|---|---|---|---|")
    with exported(o.old) as old:
        for part in o.only or MEASURES:
            best = in_turns({"old": old, "new": ROOT / "src"}, part, o.turns, o.quick)
            for line in table(part, best):
                print(line, flush=True)


if __name__ == "__main__":
    main()
