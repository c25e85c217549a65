"""Cases without clients: ``ps.minimize`` with every method that it knows by name, and ``ps.plan`` with given costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from case_table import Case, model

import proxskip as ps
from proxskip.methods.registry import METHODS  # releases before 0.3 run this too

PLAIN = ("proxgd", "fista", "fista-restart", "proxskip", *(["apda"] if "apda" in METHODS else []))
SPLIT = ("splitskip", "papc", "pdhg")
SAMPLED = ("proxgd", "proxskip", "sproxskip")


def quadratic(kappa: float = 50.0, d: int = 12) -> Any:
    rng = np.random.Generator(np.random.Philox(1))
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    H = (Q * np.geomspace(1 / kappa, 1, d)) @ Q.T
    return ps.Quadratic((H + H.T) / 2, rng.standard_normal(d) / 3)


def problems() -> dict[str, tuple[Any, Any]]:
    """f and psi."""
    return {
        "lasso": (model("squared", "dense"), ps.prox.L1(0.02)),
        "logistic": (model("logistic", "sparse"), ps.prox.ElasticNet(0.01, 0.05)),
        "quadratic": (quadratic(), ps.prox.Box(-0.5, 0.5)),
        "softmax": (model("softmax", "dense"), ps.prox.GroupL1(0.02, (3,) * 6)),
        "smooth": (model("logistic", "dense"), None),
    }


def psis() -> dict[str, Any]:
    """Operators of each kind, for twelve unknowns."""
    p = ps.prox
    return {
        "l2": p.L2(0.1), "squared": p.SquaredL2(0.2), "huber": p.Huber(0.1, 0.5), "nonnegative": p.NonNegative(),
        "simplex": p.Simplex(), "l1-ball": p.L1Ball(0.7), "l2-ball": p.L2Ball(0.5), "tv1d": p.TV1D(0.05),
        "tv2d": p.TV2D(0.05, (3, 4)), "nuclear": p.NuclearNorm(0.1, (3, 4)), "zero": p.Zero(),
        "consensus": p.Consensus(3),
    }  # fmt: skip


class Seen(ps.callbacks.Callback):
    """Keeps the x of every record."""

    def __init__(self) -> None:
        self.x: list[Any] = []

    def on_record(self, step: int, metrics: Any) -> None:
        self.x.append(metrics.x)


def solve(f: Any, psi: Any, method: Any, _: Path, **given: Any) -> Any:
    """The x of all records, and the result."""
    seen = Seen()
    given = {"tol": 1e-7, "seed": 3, "track": True, "max_iter": 3000} | given
    found = ps.minimize(f, psi, method=method, callbacks=[seen], **given)
    # a status by its number: its name may be an alias
    return {"x": np.array(seen.x), "minimum": replace(found, status=int(found.status))}


def cases() -> Iterator[Case]:
    """Every method on every kind of problem."""

    def case(name: str, *what: Any, **given: Any) -> Case:
        return Case("minimize", name, partial(solve, *what, **given))

    made = problems()
    for label, (f, psi) in made.items():
        for name in PLAIN:
            yield case(f"{name}-{label}", f, psi, name)
            yield case(f"{name}-{label}-x0", f, psi, name, x0=np.linspace(-1, 1, f.d), tol=1e-3, threads=1)
        D = np.diff(np.eye(f.d), axis=0)
        for name in SPLIT:
            yield case(f"{name}-{label}", f, ps.prox.L1(0.03), name, D=D)
            yield case(f"{name}-{label}-sparse", f, ps.prox.SquaredL2(0.1), name, D=scipy.sparse.csr_matrix(D))
    for label in ("lasso", "logistic", "softmax"):
        for name in SAMPLED:
            yield case(f"{name}-{label}-batch", *made[label], name, batch=8, max_iter=400)
    f, psi = made["logistic"]
    yield case("proxskip-p", f, psi, "proxskip", p=0.3, gamma=0.5 / f.L)
    yield case("proxskip-dual", f, psi, "proxskip", dual=np.ones(f.d) / 10)
    yield case("proxskip-object", f, psi, ps.ProxSkip(1.0 / f.L, 0.2))
    pair = (f.value, f.gradient)
    yield case("proxgd-backtracking", pair, psi, "proxgd", x0=np.zeros(f.d))
    yield case("fista-restart-backtracking", pair, psi, "fista-restart", x0=np.zeros(f.d))
    yield case("proxskip-backtracking", pair, psi, "proxskip", x0=np.zeros(f.d), p=0.3)
    for label, operator in psis().items():
        yield case(f"proxskip-{label}", quadratic(), operator, "proxskip", tol=1e-6)
