"""Features crossed with each other: every pair of settings that a method handles meets, and is right.

Of the cases that cover what it refuses too, one of three is tried: it is right, or is refused with one sentence.

A case is right if its trajectory is that of ``Judge``, whose clients are written out here once more by other formulas,
on every engine and through a resume; if the ledgers agree; and if the solution is a fixed point where gradients are full.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator

import proxskip as ps
from proxskip.core.method import flags
from proxskip.engines.local import OneClient
from proxskip.engines.ray.engine import RayEngine
from proxskip.engines.reference import ReferenceEngine
from proxskip.methods import registry
from proxskip.results.fields import FIELDS
from proxskip.types import UnsafeStepWarning
from support.tiers import ON_CARD, RAY_WARNS, TORCH

pytestmark = pytest.mark.long

COUNTED = [k for k, field in FIELDS.items() if field.whole and k not in ("late", "lost", "void")]

FEATURES: dict[str, tuple[Any, ...]] = {
    "loss": ("logistic", "squared", "softmax"),
    "form": ("dense", "sparse", "operator"),
    "dtype": ("float64", "float32"),
    "intercept": (False, True),
    "row_weights": (False, True),
    "clients": (4, 1),
    "weights": ("rows", "equal", "own"),
    "batch": (None, 2),
    "cohort": (None, 2, 0.7),
    "own_steps": (False, True),
    "psi": (None, "l1"),
    "D": (False, True),
    "start": ("zero", "x0", "h0", "bad h0", "warm"),
    "decay": (None, 0.05),
    "codec": (None, "identity", "float32", "natural", "rand-2", "masks-2"),
    "engine": ("cpu", "reference", "torch"),
    "resume": (False, True),
}
"""The gpu engine takes the cases of torch, and ray some of those of cpu."""
BUILT_IN = [name for name, kind in registry.METHODS.items() if kind.__module__.startswith("proxskip.")]
BIASED = ("local-gd", "diging", "extra", "5gcs")
"""No fixed point at (x*, h*): a bias, or other memory than x and h."""
ROUNDS = 6


def covering(features: dict[str, tuple[Any, ...]], seed: int) -> list[dict[str, Any]]:
    """Cases in which every pair of settings of two features occurs (greedy, the same for the same seed)."""
    rng = np.random.Generator(np.random.Philox(seed))
    sizes = [len(settings) for settings in features.values()]

    def pairs(pick: list[int]) -> set[Any]:
        return set(itertools.combinations(enumerate(pick), 2))

    places = [[(a, i) for i in range(size)] for a, size in enumerate(sizes)]
    open_pairs = {pair for one, other in itertools.combinations(places, 2) for pair in itertools.product(one, other)}
    cases = []
    while open_pairs:
        (a, i), (b, j) = min(open_pairs)
        best: tuple[int, list[int]] = (-1, [])
        for _ in range(12):
            pick = [int(rng.integers(size)) for size in sizes]
            pick[a], pick[b] = i, j
            best = max(best, (len(pairs(pick) & open_pairs), pick))
        open_pairs -= pairs(best[1])
        cases.append({name: features[name][k] for name, k in zip(features, best[1], strict=True)})
    return cases


def features_of(name: str) -> dict[str, tuple[Any, ...]]:
    return FEATURES | ({} if "codec" in flags(registry.named(name)) else {"codec": (None,)})


def handled(name: str) -> dict[str, tuple[Any, ...]]:
    """The features without what the method is bound to refuse, so that more of its cases are run."""
    handles = registry.named(name).about.handles
    left = {"form": ("dense", "sparse"), "start": ("zero", "x0", "h0", "warm")}
    left |= {"clients": (4, 3)} if "clients" in handles else {"clients": (1,)}
    left |= {"D": ("D" in handles,), "psi": ("l1",)} if "D" in handles else {"D": (False,)}
    left |= {} if "psi" in handles and "D" not in handles else {"psi": ("l1" if "D" in handles else None,)}
    left |= {} if "cohort" in handles else {"cohort": (None,)}
    left |= {} if "batch" in handles else {"batch": (None,)}
    left |= {"scaffnew": {"codec": (None, "float32")}, "locodl": {"codec": ("natural", "rand-2")}}.get(name, {})
    return features_of(name) | left


CASES = [
    (name, k, case)
    for m, name in enumerate(BUILT_IN)
    for k, case in enumerate([*covering(handled(name), 100 + m), *covering(features_of(name), m)[::3]])
]


def some_cases() -> list[Any]:
    """All cases; one of every twenty stays out of the slow tier, and those of torch stay in it."""
    here = [
        pytest.param(
            name, case, id=f"{name}-{k}",
            marks=list(TORCH.marks) if case["engine"] == "torch" else [] if i % 20 == 0 else [pytest.mark.slow],
        )
        for i, (name, k, case) in enumerate(CASES)
    ]  # fmt: skip
    of_torch = [(name, k, case | {"engine": "gpu"}) for name, k, case in CASES if case["engine"] == "torch"]
    return here + [
        pytest.param(name, case, id=f"{name}-{k}-gpu", marks=list(ON_CARD.marks)) for name, k, case in of_torch[::5]
    ]


# -- an independent client ---------------------------------------------------------------------------------------------
class Plain:
    """A linear model by explicit formulas, in double precision."""

    def __init__(self, f: Any) -> None:
        A = f.A if not scipy.sparse.issparse(f.A) else f.A.toarray()
        A = A if isinstance(A, np.ndarray) else np.column_stack([A @ e for e in np.eye(A.shape[1])])
        self.A, self.b, self.s, self.reg, self.loss = A.astype(np.float64), f.b, f.s, f.reg, f.loss
        self.N, self.d, self.C = f.N, f.d, f.C if f.loss == "softmax" else 1

    def gradient(self, x: Any) -> Any:
        return self._sum(x, np.arange(self.N), self.s)

    def minibatch_gradient(self, x: Any, rows: Any) -> Any:
        return self._sum(x, rows, self.N * self.s[rows] / len(rows))

    def _sum(self, x: Any, rows: Any, weights: Any) -> Any:
        g = self.reg * x
        X = x.reshape(self.C, -1)
        for j, w in zip(rows, weights, strict=True):
            z = X @ self.A[j]
            if self.loss == "squared":
                slope = z - self.b[j]
            elif self.loss == "logistic":
                slope = np.array([-self.b[j] / (1.0 + np.exp(self.b[j] * z[0]))])
            else:
                slope = np.exp(z) / np.exp(z).sum()
                slope[int(self.b[j])] -= 1.0
            g = g + w * np.outer(slope, self.A[j]).ravel()
        return g

    def value(self, x: Any) -> float:
        X, total = x.reshape(self.C, -1), 0.5 * float(np.sum(self.reg * x * x))
        for j in range(self.N):
            z = X @ self.A[j]
            if self.loss == "squared":
                loss = 0.5 * (z[0] - self.b[j]) ** 2
            elif self.loss == "logistic":
                loss = np.log1p(np.exp(-self.b[j] * z[0]))
            else:
                loss = np.log(np.exp(z).sum()) - z[int(self.b[j])]
            total += float(self.s[j] * loss)
        return total

    def hessian(self, x: Any) -> Any:
        H, X = np.diag(self.reg), x.reshape(self.C, -1)
        for j in range(self.N):
            z = X @ self.A[j]
            p = np.exp(z) / np.exp(z).sum()
            if self.loss == "squared":
                curvature = np.ones((1, 1))
            elif self.loss == "logistic":
                curvature = np.array([[1.0 / (2.0 + np.exp(z[0]) + np.exp(-z[0]))]])
            else:
                curvature = np.diag(p) - np.outer(p, p)
            H = H + self.s[j] * np.kron(curvature, np.outer(self.A[j], self.A[j]))
        return H


class Judge(ReferenceEngine):
    """The reference engine with clients of another make."""

    def client(self, members: Any, request: Any, place: int) -> OneClient:
        one = super().client(members, request, place)
        one.oracle = Plain(one.oracle)
        return one


# -- a case ------------------------------------------------------------------------------------------------------------
def problem_of(case: dict[str, Any]) -> Any:
    rng = np.random.Generator(np.random.Philox(9))
    N = 16
    A = rng.standard_normal((N, 3))
    b = np.arange(N) % (3 if case["loss"] == "softmax" else 2)
    kind = {"logistic": ps.Logistic, "squared": ps.LeastSquares, "softmax": ps.Softmax}[case["loss"]]
    form = {"dense": lambda M: M, "sparse": scipy.sparse.csr_matrix, "operator": aslinearoperator}[case["form"]]
    model = kind(
        form(A), b, l2=0.2, intercept=case["intercept"], dtype=case["dtype"],
        row_weights=1.0 + 10.0 * (np.arange(N) % 4 == 0) if case["row_weights"] else None,
    )  # fmt: skip
    if case["clients"] == 1 and case["form"] == "operator":
        problem = ps.Problem([model], batch=case["batch"])
    elif case["weights"] == "own":
        parts = np.array_split(np.arange(N), case["clients"])
        problem = ps.Problem([model.take(rows) for rows in parts], 1.0 + np.arange(len(parts)), batch=case["batch"])
    else:
        problem = ps.split(model, case["clients"], by="contiguous", weights=case["weights"], batch=case["batch"])
    psi = ps.prox.L1(0.02) if case["psi"] else None
    return problem.with_psi(psi, np.diff(np.eye(problem.d), axis=0) if case["D"] else None)


def method_of(name: str, problem: Any, case: dict[str, Any]) -> Any:
    kind = registry.named(name)
    given: dict[str, Any] = {} if case["codec"] is None else {"codec": case["codec"]}
    if "graph" in flags(kind):
        given["graph"] = "ring"
    if "own_steps" in flags(kind):
        given["own_steps"] = case["own_steps"]
    if problem.mu is None:  # an intercept: the theorems need mu, the methods do not
        given |= {flag: value for flag, value in (("p", 0.5), ("K", 2)) if flag in flags(kind)}
        given["gamma"] = 0.1 / problem.es_A
        given = given if "p" not in given else {k: v for k, v in given.items() if k != "K"}
        if "own_steps" in given and case["own_steps"]:
            return kind(tuple(0.1 / A for A in problem.es_A_i), 0.5, codec=case["codec"])
        return kind.theory(problem, **given)
    method = kind.theory(problem, **given)
    if name == "fedlin" and case["own_steps"]:
        method = replace(method, gamma=(method.gamma,) * problem.n, K=tuple(1 + i % 2 for i in range(problem.n)))
    return method


def run_of(method: Any, problem: Any, case: dict[str, Any], engine: Any, rounds: int = ROUNDS, **more: Any) -> Any:
    given: dict[str, Any] = {"rounds": rounds, "every": 1, "seed": 3, "cohort": case["cohort"], "engine": engine}
    rng = np.random.Generator(np.random.Philox(4))
    if case["start"] in ("x0", "h0", "bad h0"):
        given["x0"] = rng.standard_normal(problem.d)
    if case["start"] in ("h0", "bad h0"):
        h = rng.standard_normal((problem.n, problem.d))
        given["h0"] = h if case["start"] == "bad h0" else h - problem.weights @ h
    if case["start"] == "warm":
        given["warm"] = ps.run(method, problem, rounds=2, seed=1, engine="reference", allow_unsafe_step=True)
    return ps.run(method, problem, allow_unsafe_step=True, **given, **more)


def is_refused(name: str, case: dict[str, Any], tmp_path: Path) -> bool:
    """Whether it is refused with one sentence; otherwise it must be right."""
    try:
        problem = problem_of(case)
        method = method_of(name, problem, case)
        method = method if case["decay"] is None else ps.Decaying(method, case["decay"])
        got = run_of(method, problem, case, case["engine"])
    except ps.InputError as error:
        assert str(error).endswith(".")
        assert "\n" not in str(error)
        return True
    right, counts = run_of(method, problem, case, Judge()), [got.summary[k] for k in COUNTED]
    tol = 2e-3 if case["dtype"] == "float32" else 1e-9
    assert np.allclose(got.x, right.x, rtol=tol, atol=tol * (1 + np.abs(right.x).max()))
    if got.h is not None:
        assert np.allclose(got.h, right.h, rtol=tol, atol=tol * (1 + np.abs(right.h).max()))
    assert (counts, got.status) == ([right.summary[k] for k in COUNTED], right.status)
    if case["resume"]:
        run_of(method, problem, case, case["engine"], rounds=3, out=tmp_path / "run")
        same = {} if isinstance(case["engine"], str) else {"engine": case["engine"]}
        again = ps.resume(tmp_path / "run", problem, rounds=ROUNDS, **same)
        assert again.x.tobytes() == got.x.tobytes()
        assert counts == [again.summary[k] for k in COUNTED]
    if name not in BIASED and problem.batch is None and problem.D is None and problem.solution is not None:
        _stays(method, problem, case)
    return False


def _stays(method: Any, problem: Any, case: dict[str, Any]) -> None:
    """The solution of the problem, computed by other means, is a fixed point."""
    s = problem.solution
    start = {"x0": s.x}
    if "h" in method.remembers:
        start["h0"] = s.h - (problem.weights @ s.h if problem.psi is None else 0.0)
    there = ps.run(method, problem, rounds=2, seed=3, cohort=case["cohort"], allow_unsafe_step=True, **start)
    tol = 1e-3 if case["dtype"] == "float32" else 1e-6
    assert np.allclose(there.x, s.x, rtol=0, atol=tol * (1 + np.abs(s.x).max()))


@pytest.mark.parametrize(("name", "case"), some_cases())
def test_every_pair_of_features_is_right_or_refused(name: str, case: dict[str, Any], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)
        is_refused(name, case, tmp_path)


@pytest.fixture(scope="module")
def on_ray(ray_here: None) -> Iterator[RayEngine]:
    """One cluster, whose two actors serve all runs."""
    engine = RayEngine(2, stay=True)
    yield engine
    engine.shutdown()


@RAY_WARNS
@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_some_pairs_of_features_on_a_cluster(name: str, on_ray: RayEngine, tmp_path: Path) -> None:
    cases = [c for other, _, c in CASES if other == name and c["engine"] == "cpu"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # of the features that it handles the last have seldom to be refused
        some = [*cases[: -len(cases) : -3], *reversed(cases)]
        some.append({feature: settings[0] for feature, settings in handled(name).items()})
        assert not all(is_refused(name, case | {"engine": on_ray}, tmp_path) for case in some)


USUAL = {k: v[0] for k, v in FEATURES.items()} | {"engine": "cpu"}


@pytest.mark.parametrize("engine", [TORCH if name == "torch" else name for name in FEATURES["engine"]])
@pytest.mark.parametrize("name", ["gd", "scaffnew", "scaffold"])
def test_row_weights_and_minibatches_meet(name: str, engine: str, tmp_path: Path) -> None:
    assert not is_refused(name, USUAL | {"row_weights": True, "batch": 2, "engine": engine}, tmp_path)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_usual_case_of_every_method_is_not_refused(name: str, tmp_path: Path) -> None:
    kind = registry.named(name)
    case = USUAL | {"weights": "equal", "clients": 4 if "clients" in kind.about.handles else 1}
    case |= {"psi": "l1" if "psi" in kind.about.handles else None, "D": "D" in kind.about.handles}
    assert not is_refused(name, case, tmp_path)
