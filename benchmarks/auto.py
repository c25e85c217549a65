"""minimize's "auto" against every fixed method: total seconds over many problems, half of them not used in tuning it.

python benchmarks/auto.py --jobs 14            all of it, some minutes on 16 cores; --only TEXT for a part
python benchmarks/auto.py --jobs 14 --split    the problems with psi(D x) in place of those with psi(x)

Each process has one thread, and a core of its own where there are enough. The runs of a problem take turns: one of
every method, then the next of every method, so that a slow moment of the machine meets all of them. With --virtual the
imposed costs are counted by a clock of their own instead of waited for: the problems that have them, in a minute and on
a busy machine too, without what Python adds. With --cpu all seconds are those of the processor, for a busy machine.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import numpy as np

import proxskip as ps

FIXED = ("proxgd", "fista", "fista-restart", "proxskip", "apda")
FIXED_SPLIT = ("papc", "pdhg", "splitskip", "apda")
"""The methods for psi(D x)."""
RATIOS = (0.3, 1.0, 3.0, 10.0, 100.0)
GRADIENT, EXPENSIVE = 6e-4, 30.0
"""Seconds of a gradient where costs are imposed; a third of it where a prox costs more gradients than EXPENSIVE."""
SHORTEST = 0.2
"""Problems whose best fixed method takes less are shown and not judged."""
LIMIT = 8.0
"""Seconds after which a method is given up."""


def spin(until: float) -> None:
    while time.perf_counter() < until:
        pass


class Virtual:
    """A clock that moves where a cost is imposed, and only there."""

    now = 0.0

    @classmethod
    def read(cls) -> float:
        return cls.now

    @classmethod
    def spin(cls, until: float) -> None:
        cls.now = max(cls.now, until)


def gradient_seconds(ratio: float) -> float:
    return GRADIENT if ratio <= EXPENSIVE else GRADIENT / 3


class Costly:
    """f whose gradient takes this many seconds."""

    def __init__(self, f: Any, seconds: float) -> None:
        self.f, self.L, self.mu, self.d, self.seconds = f, f.L, f.mu, f.d, seconds

    def value(self, x: Any) -> float:
        return float(self.f.value(x))

    def gradient(self, x: Any) -> Any:
        end = time.perf_counter() + self.seconds
        g = self.f.gradient(x)
        spin(end)
        return g


class CostlyProx(ps.prox.Operator):
    """psi whose prox takes ``ratio`` gradients."""

    def __init__(self, psi: Any, ratio: float) -> None:
        self.psi, self.seconds = psi, ratio * gradient_seconds(ratio)

    def __call__(self, x: Any) -> float:
        return float(self.psi(x))

    def prox(self, x: Any, t: float) -> Any:
        end = time.perf_counter() + self.seconds
        y = self.psi.prox(x, t)
        spin(end)
        return y


# -- problems ----------------------------------------------------------------------------------------------------------
def quadratic(kappa: float, seed: int, d: int = 100) -> Any:
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    H = (Q * np.geomspace(1 / kappa, 1, d)) @ Q.T
    H = (H + H.T) / 2
    truth = np.where(rng.random(d) < 0.2, rng.standard_normal(d), 0.0)
    return ps.Quadratic(H, H @ truth + 1e-2 * rng.standard_normal(d))


def imposed(kappa: float, seed: int, kind: str, ratio: float) -> tuple[Any, Any]:
    psi = ps.prox.L1(1e-3) if kind == "l1" else ps.prox.NonNegative()
    return Costly(quadratic(kappa, seed), gradient_seconds(ratio)), CostlyProx(psi, ratio)


def breast_cancer(lam: float, l2: float, ratio: float) -> tuple[Any, Any]:
    from sklearn.datasets import load_breast_cancer

    A, b = load_breast_cancer(return_X_y=True)
    A = (A - A.mean(axis=0)) / A.std(axis=0)
    f = ps.Logistic(A, b, l2_relative=l2)
    return Costly(f, gradient_seconds(ratio)), CostlyProx(ps.prox.L1(lam), ratio)


def logistic(rows: int, d: int, l2: float) -> tuple[Any, Any]:
    rng = np.random.default_rng(rows)
    A = rng.standard_normal((rows, d)) * np.geomspace(1, 0.05, d)
    b = A[:, ::7].sum(axis=1) + rng.standard_normal(rows) > 0
    return ps.Logistic(A, b, l2_relative=l2), ps.prox.L1(1e-3)


def lasso(rows: int, d: int, l2: float = 0.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(d)
    A = rng.standard_normal((rows, d)) * np.geomspace(1, 0.1, d)
    return ps.LeastSquares(A, A[:, :10].sum(axis=1) + 0.1 * rng.standard_normal(rows), l2=l2), ps.prox.L1(1e-3)


def group(rows: int, d: int) -> tuple[Any, Any]:
    f, _ = lasso(rows, d)
    return f, ps.prox.GroupL1(3e-3, (10,) * (d // 10))


def tv1d(d: int, spread: float) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    A = rng.standard_normal((2 * d, d)) * np.geomspace(1, spread, d)
    return ps.LeastSquares(A, A @ np.repeat(rng.standard_normal(d // 25), 25), l2=1e-4), ps.prox.TV1D(1e-3)


def low_rank(m: int, share: float, l2: float) -> tuple[Any, Any]:
    rng = np.random.default_rng(m)
    A = rng.standard_normal((int(share * m * m), m * m))
    M = rng.standard_normal((m, 2)) @ rng.standard_normal((2, m))
    b = A @ M.ravel() + 0.1 * rng.standard_normal(len(A))
    return ps.LeastSquares(A, b, l2_relative=l2), ps.prox.NuclearNorm(0.05, (m, m))


def deblurring(side: int, mu: float) -> tuple[Any, Any]:
    import scipy.linalg

    away = np.minimum(np.arange(side), side - np.arange(side))
    K = scipy.linalg.circulant(np.exp(-0.5 * (away / 1.5) ** 2) / np.exp(-0.5 * (away / 1.5) ** 2).sum())
    picture = np.kron(np.random.default_rng(0).random((4, 4)), np.ones((side // 4, side // 4)))
    b = K @ picture @ K + 3e-3 * np.random.default_rng(1).standard_normal(picture.shape)

    class Blur:
        L, d = 1.0 + mu, side * side

        def __init__(self) -> None:
            self.mu = mu

        def value(self, x: Any) -> float:
            X = x.reshape(side, side)
            return 0.5 * float(np.sum((K @ X @ K - b) ** 2)) + 0.5 * mu * float(np.sum(x**2))

        def gradient(self, x: Any) -> Any:
            return (K @ (K @ x.reshape(side, side) @ K - b) @ K).ravel() + mu * x

    return Blur(), ps.prox.TV2D(3e-4, (side, side), isotropic=False, threads=1)


def polyhedron(d: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    M = rng.standard_normal((d // 2, d))
    return quadratic(1e3, 5, d), ps.prox.Polyhedron(G=M, u=np.ones(d // 2))


# -- problems with psi(D x) --------------------------------------------------------------------------------------------
def chain(d: int, order: int = 1) -> Any:
    """Differences of this order."""
    import scipy.sparse

    D = scipy.sparse.eye_array(d, format="csr")
    for _ in range(order):
        D = D[1:] - D[:-1]
    return D


def grid(side: int) -> Any:
    """Differences of neighbours in a picture, the two of each point next to each other; zero over the border."""
    import scipy.sparse

    E = scipy.sparse.diags_array([np.r_[-np.ones(side - 1), 0.0], np.ones(side - 1)], offsets=[0, 1])
    eye = scipy.sparse.eye_array(side)
    both = scipy.sparse.vstack([scipy.sparse.kron(E, eye), scipy.sparse.kron(eye, E)], format="csr")
    return both[np.arange(2 * side * side).reshape(2, -1).T.ravel()]


def pictured(side: int, mu: float, isotropic: bool) -> tuple[Any, Any, Any]:
    f, _ = deblurring(side, mu)
    return f, ps.prox.GroupL1(3e-4, (2,) * (side * side)) if isotropic else ps.prox.L1(3e-4), grid(side)


def fused(rows: int, d: int, l2: float, share: float = 0.5) -> tuple[Any, Any, Any]:
    """share |x|_1 + (1 - share) sum |x_j+1 - x_j|, times 1e-3."""
    import scipy.sparse

    rng = np.random.default_rng(d + rows)
    A = rng.standard_normal((rows, d)) * np.geomspace(1, 0.1, d)
    truth = np.repeat(np.where(rng.random(d // 20) < 0.3, rng.standard_normal(d // 20), 0.0), 20)
    f = ps.LeastSquares(A, A @ truth + 0.1 * rng.standard_normal(rows), l2=l2)
    return f, ps.prox.L1(1e-3), scipy.sparse.vstack([share * scipy.sparse.eye_array(d), (1 - share) * chain(d)]).tocsr()


def trend(d: int) -> tuple[Any, Any, Any]:
    """Second differences: a piecewise linear signal, seen through a smoothing kernel."""
    f, _ = tv1d(d, 0.1)
    return f, ps.prox.L1(1e-2), chain(d, 2)


def graph(rows: int, d: int, l2: float) -> tuple[Any, Any, Any]:
    """Logistic regression whose coefficients are alike on the edges of a random graph."""
    import scipy.sparse

    f, _ = logistic(rows, d, l2)
    rng = np.random.default_rng(d)
    ends = np.array([rng.choice(d, 2, replace=False) for _ in range(3 * d)])
    at, ones = np.arange(len(ends)), np.ones(len(ends))
    D = scipy.sparse.csr_array((np.r_[ones, -ones], (np.r_[at, at], ends.T.ravel())), shape=(len(ends), d))
    return f, ps.prox.L1(1e-4), D


def imposed_split(kappa: float, kind: str, ratio: float) -> tuple[Any, Any, Any]:
    D = {"chain": lambda: chain(100), "grid": lambda: grid(10), "random": lambda: _random(40, 100)}[kind]()
    f = quadratic(kappa, 11)
    return Costly(f, gradient_seconds(ratio)), CostlyProx(ps.prox.L1(1e-2), ratio), D


def _random(rows: int, d: int) -> Any:
    return np.random.default_rng(3).standard_normal((rows, d)) / math.sqrt(d)


Problem = tuple[str, bool, float, Callable[..., Any], tuple[Any, ...]]


def problems() -> list[Problem]:
    """Name, whether the rule was tuned on it, tolerance, and how to make it."""
    out: list[Problem] = []
    for seed in (0, 1, 2, 3):
        for kappa in (1e2, 1e3, 1e4):
            for kind in ("l1", "x >= 0"):
                ratios = RATIOS[seed % 2 :: 2] if kappa > 1e2 else RATIOS[2 + seed % 2 :: 2]
                for r in ratios:
                    name = f"{kind}, kappa {kappa:g}, seed {seed}, prox = {r:g}"
                    # a prox of 3 gradients is where the rule was last changed
                    out.append((name, seed < 2 or r == 3.0, 1e-7, imposed, (kappa, seed, kind, r)))
    for kappa in (1e2, 1e3, 1e4):
        for kind in ("l1", "x >= 0"):
            for r in (2.0, 3.0):
                out.append(
                    (f"{kind}, kappa {kappa:g}, seed 7, prox = {r:g}", False, 1e-7, imposed, (kappa, 7, kind, r))
                )
    for r in RATIOS:
        out.append((f"breast cancer, prox = {r:g}", True, 1e-7, breast_cancer, (1e-3, 1e-3, r)))
        out.append((f"breast cancer, mu = 0, prox = {r:g}", r == 3.0, 1e-6, breast_cancer, (3e-3, 0.0, r)))
    for rows, d, l2 in ((2000, 200, 1e-4), (10_000, 300, 1e-4), (40_000, 400, 1e-3), (10_000, 300, 0.0)):
        out.append((f"logistic l1, {rows} x {d}, l2 {l2:g}", False, 1e-7, logistic, (rows, d, l2)))
    out += [
        ("lasso, 300 x 1000, mu = 0", True, 1e-7, lasso, (300, 1000)),
        ("lasso, 2000 x 1500", False, 1e-7, lasso, (2000, 1500, 1e-4)),
        ("group l1, 1000 x 2000", False, 1e-7, group, (1000, 2000)),
        ("TV1D, 200", True, 1e-7, tv1d, (200, 0.03)),
        ("TV1D, 1000", False, 1e-7, tv1d, (1000, 0.1)),
        ("low rank, 20", True, 1e-7, low_rank, (20, 0.6, 1e-3)),
        ("low rank, 40", False, 1e-7, low_rank, (40, 0.6, 1e-3)),
        ("low rank, 40, mu = 0", False, 1e-6, low_rank, (40, 0.5, 0.0)),
        ("deblurring, 32", True, 1e-6, deblurring, (32, 1e-4)),
        ("deblurring, 64", True, 1e-5, deblurring, (64, 1e-4)),
        ("polyhedron, 60", True, 1e-5, polyhedron, (60,)),
        ("lasso, 1000 x 3000, mu = 0", False, 1e-7, lasso, (1000, 3000)),
        ("group l1, 2000 x 4000", False, 1e-7, group, (2000, 4000)),
        ("TV1D, 2000", False, 1e-7, tv1d, (2000, 0.1)),
        ("low rank, 50", False, 1e-7, low_rank, (50, 0.6, 1e-3)),
        ("deblurring, 96", False, 1e-5, deblurring, (96, 1e-4)),
        ("polyhedron, 200", False, 1e-5, polyhedron, (200,)),
    ]
    return out


def split_problems() -> list[Problem]:
    """The same for psi(D x)."""
    out: list[Problem] = []
    for kind in ("chain", "grid", "random"):
        for kappa in (1e2, 1e4):
            for r in (0.1, 10.0):
                name = f"{kind}, kappa {kappa:g}, prox = {r:g}"
                out.append((name, kind == "chain", 1e-6, imposed_split, (kappa, kind, r)))
    return [
        *out,
        ("TV by D, anisotropic, 32", True, 1e-5, pictured, (32, 1e-4, False)),
        ("TV by D, isotropic, 64", False, 1e-5, pictured, (64, 1e-3, True)),
        ("TV by D, anisotropic, 96", False, 1e-4, pictured, (96, 1e-3, False)),
        ("fused lasso, 1000 x 400", True, 1e-7, fused, (1000, 400, 1e-3)),
        ("fused lasso, 500 x 1000, mu = 0", False, 1e-5, fused, (500, 1000, 0.0)),
        ("fused lasso, 4000 x 600", False, 1e-7, fused, (4000, 600, 1e-2)),
        ("trend, 200", True, 1e-6, trend, (200,)),
        ("trend, 600", False, 1e-5, trend, (600,)),
        ("graph, logistic 5000 x 200", True, 1e-7, graph, (5000, 200, 1e-3)),
        ("graph, logistic 20000 x 300, mu = 0", False, 1e-5, graph, (20_000, 300, 0.0)),
    ]


# -- times -------------------------------------------------------------------------------------------------------------
def one_run(given: Any, method: str, tol: float, **limit: Any) -> tuple[float, Any]:
    """Seconds, infinite where the method fails or cannot be used, and what was found."""
    f, psi, *D = given
    more = {"D": D[0], "p": 0.1 if method == "splitskip" and not _has_theorem(f, D[0]) else None} if D else {}
    then = time.perf_counter()
    try:
        found = ps.minimize(f, psi, method=method, tol=tol, threads=1, **limit, **more)
    except ps.InputError:  # needs a mu
        return math.inf, None
    took = time.perf_counter() - then
    return took if found.success else math.inf, found


def _has_theorem(f: Any, D: Any) -> bool:
    """Whether splitskip knows its p: f is strongly convex, and the rows of D are independent."""
    return bool(f.mu) and D.shape[0] < D.shape[1]


def judge(problem: Problem, runs: int) -> dict[str, Any]:
    name, tuned, tol, make, given = problem
    warnings.simplefilter("ignore")
    made = make(*given)
    fixed = ("fista-restart", "apda", "fista", "proxskip", "proxgd") if len(made) == 2 else FIXED_SPLIT[::-1]
    for method in (*fixed, "auto"):  # compiles, and lets f compute its constants
        one_run(made, method, tol, max_grad=40)
    took: dict[str, list[float]] = {method: [] for method in fixed}
    mine: list[float] = []
    for turn in range(runs):
        for method, times in took.items():
            if turn == 0 or times[-1] < math.inf:  # a method that has failed has no second run
                best = min((min(other) for other in took.values() if other), default=math.inf)
                times.append(one_run(made, method, tol, seconds=min(LIMIT, 3 * best))[0])
        seconds, found = one_run(made, "auto", tol, seconds=3 * LIMIT)
        mine.append(seconds)
    times = {method: statistics.median(t) if math.inf not in t else math.inf for method, t in took.items()}
    chosen = " ".join(f"{r}:{m}" for r, m in found.choices)
    return {"name": name, "tuned": tuned, "times": times, "auto": statistics.median(mine), "choices": chosen}


def own_core(cores: Any) -> None:
    """Pin a worker, if the system can and there are enough cores."""
    if hasattr(os, "sched_setaffinity") and not cores.empty():
        os.sched_setaffinity(0, {cores.get()})


def head(fixed: tuple[str, ...]) -> str:
    names = ("problem", *fixed, "auto", "auto / best", "choices of the last run")
    return f"| {' | '.join(names)} |\n" + "|---" * len(names) + "|"


def line(row: dict[str, Any], fixed: tuple[str, ...]) -> str:
    best = min(row["times"].values())
    cells = [f"{row['times'][m]:.3g}" if row["times"][m] < math.inf else "-" for m in fixed]
    short = "" if best >= SHORTEST else " (short)"
    shown = f"{row['auto'] / best:.2f}{short}" if best < math.inf else "-"
    label = row["name"] + ("" if row["tuned"] else " *")
    return f"| {label} | " + " | ".join(cells) + f" | {row['auto']:.3g} | {shown} | {row['choices']} |"


def summary(rows: list[dict[str, Any]]) -> str:
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        if SHORTEST <= (best := min(row["times"].values())) < math.inf:
            ratios[row["tuned"]].append(row["auto"] / best)
    said = "\nSeconds; - is a method that failed, needs mu, or took three times the best so far; * not used in tuning."
    for label, some in (("tuned", ratios[True]), ("not tuned", ratios[False]), ("all", ratios[True] + ratios[False])):
        if some:
            said += (
                f"\n\n{label}: {len(some)} problems of {SHORTEST} s or more, auto / best: median "
                f"{statistics.median(some):.3f}, worst {max(some):.3f}, {sum(r <= 1.1 for r in some)} at most 1.1."
            )
    return said


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--split", action="store_true")
    asked = parser.parse_args()
    chosen = [p for p in (split_problems if asked.split else problems)() if asked.only in p[0]]
    fixed = FIXED_SPLIT if asked.split else FIXED
    if asked.virtual:
        chosen, asked.runs, asked.jobs = [p for p in chosen if "prox = " in p[0]], 1, 1
    chosen.sort(key=lambda p: not p[0].endswith(("prox = 100", "prox = 10")))  # the longest first
    available: Any = multiprocessing.Manager().Queue()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    for core in cores if 1 < asked.jobs <= len(cores) else []:
        available.put(core)
    if asked.virtual:
        time.perf_counter, spin = Virtual.read, Virtual.spin
    elif asked.cpu:
        time.perf_counter = time.process_time
    with ProcessPoolExecutor(asked.jobs, initializer=own_core, initargs=(available,)) as pool:
        print("## `minimize`" + (" with psi(D x)" if asked.split else "") + ': "auto" against every fixed method\n')
        print(head(fixed), flush=True)
        rows = []
        for row in pool.map(judge, chosen, [asked.runs] * len(chosen)):
            rows.append(row)
            print(line(row, fixed), flush=True)
        print(summary(rows))
