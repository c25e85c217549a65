"""Is every success true? Random problems whose results are judged in 50 digits; ``make chaos`` runs it at length.

    python tests/campaigns/proofs.py [problems] [--first 0]

Half of the problems go to ``run``, and the other half to ``minimize``; every tenth is a federation. Data are
ill-conditioned and badly scaled, in single or double precision, and tolerances reach from easy to far below rounding.
A run ends after 1,500 rounds or 100,000 local steps, and takes 1,000 of them a round at most: some theorems ask for
millions, which would take hours.
"""

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import scipy.sparse

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for campaigns and support

import proxskip as ps
from campaigns.chaos import tell
from proxskip.types import UnsafeStepWarning
from support.lockstep import drive, federate

mpmath.mp.dps = 50
mpf = mpmath.mpf
STEPS, LEAST_P = 100_000, 1e-3
"""The most local steps of a run, and the smallest p of Scaffnew."""


def exact(v: Any) -> list[Any]:
    """The numbers of an array, without rounding."""
    return [mpf(float(u)) for u in np.asarray(v, dtype=np.float64).ravel()]


def exact_gradient(f: Any, x: Any) -> list[Any]:
    """grad f(x) of a linear model or a quadratic in 50 digits."""
    X = exact(x)
    if isinstance(f, ps.Quadratic):
        rows = [exact(r) for r in (np.diag(f.H) if f.H.ndim == 1 else f.H)]
        return [mpmath.fdot(r, X) - b for r, b in zip(rows, exact(f.b), strict=True)]
    A = f.A.toarray() if scipy.sparse.issparse(f.A) else f.A
    F, C = A.shape[1], f.C if f.loss == "softmax" else 1
    parts = [X[c * F : (c + 1) * F] for c in range(C)]
    g = [r * v for r, v in zip(exact(f.reg), X, strict=True)]
    for row, b, s in zip(A, f.b.tolist(), exact(f.s), strict=True):
        a = exact(row)
        z = [mpmath.fdot(a, part) for part in parts]
        for c, slope in enumerate(_slopes(f.loss, z, b)):
            for k in range(F):
                g[c * F + k] += s * slope * a[k]
    return g


def _slopes(loss: str, z: list[Any], b: float) -> list[Any]:
    if loss == "squared":
        return [z[0] - mpf(b)]
    if loss == "logistic":
        return [-mpf(b) / (1 + mpmath.exp(mpf(b) * z[0]))]
    top = max(z)
    p = [mpmath.exp(v - top) for v in z]
    return [v / sum(p) - (c == int(b)) for c, v in enumerate(p)]


def _norm(v: list[Any]) -> Any:
    return mpmath.sqrt(sum(u * u for u in v))


def residual(problem: Any, x: Any, lam: float, t: float) -> Any:
    """|grad f(x)|, or with lam |x|_1 the norm of the prox-gradient step of length t divided by t."""
    g = [mpf(0)] * problem.d
    for w, f in zip(exact(problem.weights), problem.clients, strict=True):
        g = [a + w * b for a, b in zip(g, exact_gradient(f, x), strict=True)]
    if not lam:
        return _norm(g)
    T, most = mpf(t), mpf(t) * mpf(lam)
    moved = [a - T * b for a, b in zip(exact(x), g, strict=True)]
    shrunk = [mpmath.sign(m) * max(abs(m) - most, mpf(0)) for m in moved]
    return _norm([a - b for a, b in zip(exact(x), shrunk, strict=True)]) / T


def problem_of(seed: int) -> tuple[Any, float, float]:
    """(A problem, lambda of its l1 norm, a tolerance)."""
    rng = np.random.Generator(np.random.Philox((seed, 11)))
    kind = (ps.Logistic, ps.LeastSquares, ps.Softmax, ps.Quadratic)[int(rng.integers(4))]
    clients, d = int(rng.integers(1, 4)), int(rng.integers(2, 5))
    scale = 10.0 ** rng.uniform(-6, 6) if rng.random() < 0.5 else 1.0
    if kind is ps.Quadratic:
        kappa = 10.0 ** rng.uniform(0, 3)
        parts = ps.random_quadratics(
            clients, d, L=1.0, mu=1 / kappa, heterogeneity=10.0 ** rng.uniform(-2, 2), seed=seed
        )
        problem = ps.Problem([ps.Quadratic(scale * f.H, scale * f.b) for f in parts])
    else:
        rows = clients * int(rng.integers(3, 7))
        A = rng.standard_normal((rows, d)) * 10.0 ** rng.uniform(-1.5, 1.5, d) * scale
        b = rng.integers(0, 3, rows) if kind is ps.Softmax else np.arange(rows) % 2
        b[:3] = (0, 1, 2 if kind is ps.Softmax else 0)
        b = 10.0 ** rng.uniform(-2, 3) * rng.standard_normal(rows) if kind is ps.LeastSquares else b
        matrix = scipy.sparse.csr_matrix(A) if rng.random() < 0.3 else A
        model = kind(
            matrix, b, l2_relative=10.0 ** rng.uniform(-3, 0),
            dtype=np.float32 if rng.random() < 0.3 else np.float64, intercept=bool(rng.random() < 0.2),
            row_weights=rng.random(rows) + 0.1 if rng.random() < 0.3 else None,
        )  # fmt: skip
        problem = ps.split(model, clients, "iid", seed=seed)
    size = float(np.linalg.norm(problem.client_gradients(np.zeros(problem.d)))) + 1e-300
    lam = 0.1 * size * float(rng.random()) if rng.random() < 0.5 else 0.0
    return problem, lam, size * 10.0 ** rng.uniform(-17, -5)


def judged(seed: int) -> tuple[str, str | None]:
    """How the run of this seed ended, and a sentence if its success is not true."""
    problem, lam, tol = problem_of(seed)
    rng = np.random.Generator(np.random.Philox((seed, 12)))
    psi, way = (ps.prox.L1(lam) if lam else None), "federate" if seed % 10 == 0 else "run" if seed % 2 else "minimize"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)
        if way == "minimize":
            f = problem.clients[0]
            problem = ps.Problem([f])
            name = ("fista", "proxgd", "fista-restart", "proxskip")[int(rng.integers(3 if f.mu == 0 else 4))]
            found = ps.minimize(f, psi, method=name, tol=tol, max_grad=6000)
            x, t, said, success = found.x, 1.0 / found.parameters["L"], found.status.name, found.success
        else:
            problem = problem.with_psi(psi)
            usable = problem.mu is not None
            name = ("gd" if psi is None else "proxgd") if rng.random() < 0.4 or not usable else "scaffnew"
            t = 1.0 / problem.L_average
            best = ps.Scaffnew.theory(problem) if usable else None
            best = ps.Scaffnew(best.gamma, LEAST_P) if best is not None and best.p < LEAST_P else best
            if way == "federate" and best is not None:
                rounds = min(400, int(STEPS * best.p))
                server, clients = federate(best, problem, rounds, seed=seed, tol=tol, measure=20, least=1)
                state, _ = drive(server, clients)
                x, success = state.vectors["x"], state.reached
                said = server.verdict()[0].name
            else:
                method: Any = best if name == "scaffnew" else name
                result = ps.run(method, problem, tol=tol, rounds=1500, iterations=STEPS, seed=seed, threads=1)
                x, said, success = result.x, result.status.name, result.success
    if not success:
        return said, None
    true = residual(problem, x, lam, t)
    wrong = None if true <= mpf(tol) else f"{way} {name} seed {seed}: tol = {tol:.3g}, but it is {mpmath.nstr(true, 8)}"
    return said, wrong


def campaign(lo: int, hi: int) -> tuple[Counter[str], list[str]]:
    """These seeds: how their runs ended, and which successes are not true."""
    counts, wrong = Counter[str](), []
    for seed in range(lo, hi):
        said, bad = judged(seed)
        counts[said] += 1
        wrong += [] if bad is None else [bad]
    return counts, wrong


def main() -> int:
    """Print the counts; 1 if a success is not true."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="?", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    o = parser.parse_args()
    begin = time.perf_counter()
    counts, wrong = campaign(o.first, o.first + o.problems)
    for line in wrong:
        print(f"NOT TRUE: {line}")
    print(f"{o.problems} problems in {time.perf_counter() - begin:.0f} s")
    return tell(o.problems, len(wrong), **counts)


if __name__ == "__main__":
    sys.exit(main())
