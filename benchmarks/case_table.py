"""What the cases of ``same_bytes.py`` are made of: problems, methods with their parameters, and results as arrays.

Only names that stay are used: ``proxskip`` with its public names. See ``tests/support/methods.py`` for what each method claims.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

import proxskip as ps
from proxskip.graphs import graph  # releases before 0.3 run this too

UNEQUAL = (1.0, 2.0, 3.0, 4.0)
CLOCKS = ("seconds", "versions", "cluster", "plan")
"""Fields and columns that depend on the machine, not on the computation."""

MANY = 1 << 16
"""Entries from which a stack is compared by the sha256 of its rows."""


class Case(NamedTuple):
    """Something to compute; ``act`` is given a folder for run folders, and its result is compared field by field."""

    engine: str
    name: str
    act: Callable[[Path], Any]


# -- results as arrays -------------------------------------------------------------------------------------------------
def flat(v: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every array, number and text in a result, with its place."""
    if isinstance(v, np.ndarray):
        yield (key, v) if v.size < MANY or v.ndim < 2 else (f"{key}.sha256", digests(v))
    elif scipy.sparse.issparse(v):
        yield key, v.toarray()
    elif v is None or isinstance(v, (str, Enum)):
        text = v.name if isinstance(v, Enum) else str(v)
        text = "LIMIT" if text == "MAX_ROUNDS" else text  # as releases before 0.3 say it
        yield key, np.frombuffer(text.encode(), np.uint8)
    elif isinstance(v, (bytes, bytearray)):
        yield key, np.frombuffer(bytes(v).hex().encode(), np.uint8)
    elif isinstance(v, (bool, int, float, np.generic)):
        yield key, np.asarray(v)
    else:
        for name, part in _parts(v):
            if name not in CLOCKS:
                yield from flat(part, f"{key}.{name}" if key else name)


def digests(v: Any) -> Any:
    """The sha256 of each row, as four numbers."""
    return np.array([np.frombuffer(hashlib.sha256(row.tobytes()).digest(), np.uint64) for row in v])


def _parts(v: Any) -> list[tuple[str, Any]]:
    if isinstance(v, ps.Trace):
        return [(name, v[name]) for name in v.columns]
    if isinstance(v, Mapping):
        return [(str(k), part) for k, part in v.items()]
    if isinstance(v, (set, frozenset)):
        return [("members", np.array(sorted(v)))]
    if isinstance(v, (tuple, list)):
        if v and all(type(part) in (int, float) for part in v):
            return [("all", np.array(v))]
        return [("length", len(v)), *((str(k), part) for k, part in enumerate(v))]
    if is_dataclass(v):
        return [(f.name, getattr(v, f.name)) for f in fields(v)]
    raise TypeError(f"{type(v).__name__} cannot be compared.")


# -- problems ----------------------------------------------------------------------------------------------------------
@cache
def data(rows: int = 96, features: int = 6, classes: int = 2, seed: int = 5) -> tuple[Any, Any]:
    """Rows with some zeros, and labels that depend on them."""
    rng = np.random.Generator(np.random.Philox(seed))
    A = rng.standard_normal((rows, features)) * (rng.random((rows, features)) < 0.7)
    scores = A @ rng.standard_normal((features, classes)) + 0.5 * rng.standard_normal((rows, classes))
    return A, np.argmax(scores, axis=1).astype(np.float64)


LOSSES = {"logistic": ps.Logistic, "squared": ps.LeastSquares, "softmax": ps.Softmax}


@cache
def model(loss: str, storage: str, dtype: str = "float64", rows: int = 96, features: int = 6) -> Any:
    """A linear model on ``data``: dense, sparse, or sparse with ones alone."""
    A, b = data(rows, features, 3 if loss == "softmax" else 2)
    A = (A != 0).astype(np.float64) if storage == "ones" else A
    given = A if storage == "dense" else scipy.sparse.csr_matrix(A)
    return LOSSES[loss](given, b, l2_relative=0.02, dtype=np.dtype(dtype))


@cache
def quadratics(n: int, own: bool) -> tuple[Any, ...]:
    """Heterogeneous quadratics; with ``own`` each is twice as steep as the one before."""
    made = ps.random_quadratics(n, 4, L=1.0, mu=0.05, seed=3)
    return tuple(ps.Quadratic(2.0**i * f.H, 2.0**i * f.b) if own else f for i, f in enumerate(made))


@cache
def wide(n: int = 96, d: int = 4200, diagonal: bool = False) -> Any:
    """So many clients and unknowns that a cohort of 64 of them has 2^18 entries, where large stacks are computed lazily."""
    rng = np.random.Generator(np.random.Philox(8))
    if diagonal:
        return ps.Problem([ps.Quadratic(0.5 + rng.random(d), rng.standard_normal(d)) for _ in range(n)])
    columns = rng.integers(0, d, (4 * n, 30))
    A = scipy.sparse.csr_matrix((rng.standard_normal(120 * n), columns.ravel(), 30 * np.arange(4 * n + 1)), (4 * n, d))
    A.sum_duplicates()
    return ps.split(ps.Logistic(A, rng.choice([0.0, 1.0], 4 * n), l2=0.1), clients=n, by="label")


@cache
def tall() -> Any:
    """One client with so many entries that its rows are dealt to the threads."""
    return ps.Problem([model("logistic", "sparse", rows=90_000, features=25)])


# -- methods -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Entry:
    """A method with its parameters on the problem that it is for.

    Args:
        batch: whether it takes minibatches.
        own: a steeper function for each further client.
        D: psi(D x) with differences for D.
        needs: a name of the package without which there is no such method yet; an earlier tree leaves it out.
    """

    name: str
    make: Callable[[Any], Any]
    batch: bool = True
    clients: int = 4
    unequal: bool = False
    own: bool = False
    psi: Any = None
    D: bool = False
    cohort: Any = None
    needs: str = "GD"

    def on(self, loss: str = "logistic", storage: str = "dense", dtype: str = "float64", batch: Any = None) -> Any:
        """Its problem: rows dealt by label, or quadratics."""
        problem = _problem(self.clients, self.unequal, self.own, loss, storage, dtype)
        if self.psi is not None:
            problem = problem.with_psi(self.psi, np.diff(np.eye(problem.d), axis=0) if self.D else None)
        return problem if batch is None else problem.with_batch(batch)


@cache
def _problem(clients: int, unequal: bool, own: bool, loss: str, storage: str, dtype: str) -> Any:
    if loss == "quadratics":
        return ps.Problem(quadratics(clients, own), UNEQUAL if unequal else None)
    weights: Any = "rows" if unequal else "equal"
    return ps.split(model(loss, storage, dtype), clients=clients, by="label", weights=weights)


def on_graph(kind: Any, name: str, psd: bool = False) -> Callable[[Any], Any]:
    return lambda problem: kind.theory(problem, graph=graph(name, problem.n, psd=psd))


def scaffnew(cohort: Any) -> Callable[[Any], Any]:
    return lambda problem: ps.Scaffnew.theory(problem, cohort=cohort)


GIVEN = [[0, 1], [2, 3], [0, 2, 3], [1]]
l1, shrink = ps.prox.L1(0.01), ps.prox.SquaredL2(0.3)
ALL = (
    Entry("gd", ps.GD.theory),
    Entry("proxgd", ps.ProxGD.theory, psi=l1),
    Entry("proxgd-box", ps.ProxGD.theory, psi=ps.prox.Box(-0.2, 0.3)),
    Entry("accelerated", ps.Accelerated.theory, batch=False),
    Entry("fista", ps.Fista.theory, batch=False, psi=l1),
    Entry("newton", lambda p: ps.Newton(), batch=False, needs="Newton"),
    Entry("local-gd", lambda p: ps.LocalGD.theory(p, K=4, figure=True)),
    Entry("local-gd-cohort", lambda p: ps.LocalGD.theory(p, K=4, figure=True), cohort=3),
    Entry("local-gd-given", lambda p: ps.LocalGD.theory(p, K=4, figure=True), cohort=GIVEN),
    Entry("scaffold", lambda p: ps.Scaffold.theory(p, K=4, figure=True)),
    Entry("scaffold-unequal", lambda p: ps.Scaffold.theory(p, K=3, figure=True), unequal=True),
    Entry("scaffold-I", lambda p: ps.Scaffold.theory(p, K=4, option="I", figure=True)),
    Entry("scaffold-cohort", lambda p: ps.Scaffold.theory(p, K=4, figure=True), unequal=True, cohort=3),
    Entry("scaffold-bernoulli", lambda p: ps.Scaffold.theory(p, K=4, figure=True), cohort=0.6),
    Entry("fedlin", lambda p: ps.FedLin.theory(p, K=4, figure=True)),
    Entry("fedlin-own", lambda p: ps.FedLin.theory(p, K=(1, 2, 3, 4)), unequal=True),
    Entry("s-local-gd", ps.SLocalGD.theory),
    Entry("s-local-gd-q", lambda p: ps.SLocalGD.theory(p, q=0.4)),
    Entry("proxskip", ps.ProxSkip.theory, clients=1, psi=l1),
    Entry("proxskip-shrink", ps.ProxSkip.theory, clients=1, psi=shrink),
    Entry("sproxskip", ps.SProxSkip.theory, clients=1, psi=ps.prox.ElasticNet(0.01, 0.1)),
    Entry("scaffnew", ps.Scaffnew.theory),
    Entry("scaffnew-own", lambda p: ps.Scaffnew.theory(p, own_steps=True), unequal=True, own=True),
    Entry("scaffnew-psi", lambda p: ps.Scaffnew.theory(p, own_steps=True), unequal=True, own=True, psi=l1),
    Entry("scaffnew-psi-equal", ps.Scaffnew.theory, psi=shrink),
    Entry("scaffnew-cohort", scaffnew(3), cohort=3),
    Entry("scaffnew-pairs", scaffnew(2), cohort=2),
    Entry("scaffnew-cohort-unequal", scaffnew(3), unequal=True, cohort=3),
    Entry("scaffnew-bernoulli", scaffnew(0.7), cohort=0.7),
    Entry("tamuna", lambda p: ps.Tamuna.theory(p, s=2), needs="Tamuna"),
    Entry("tamuna-cohort", lambda p: ps.Tamuna.theory(p, cohort=3, s=2), cohort=3, needs="Tamuna"),
    Entry("locodl", lambda p: ps.LoCoDL.theory(p, codec="rand-2+natural"), batch=False, unequal=True, needs="LoCoDL"),
    Entry("scaffnew-given", ps.Scaffnew.theory, cohort=GIVEN),
    Entry("scaffnew-decaying", lambda p: ps.Decaying(ps.Scaffnew.theory(p), 0.02)),
    Entry("local-gd-decaying", lambda p: ps.Decaying(ps.LocalGD.theory(p, K=3, figure=True), 0.05)),
    Entry("decentralized", on_graph(ps.DecentralizedScaffnew, "ring")),
    Entry("decentralized-path", on_graph(ps.DecentralizedScaffnew, "path")),
    Entry("decentralized-psd", on_graph(ps.DecentralizedScaffnew, "star", psd=True)),
    Entry("diging", on_graph(ps.DIGing, "ring")),
    Entry("diging-complete", on_graph(ps.DIGing, "complete")),
    Entry("extra", on_graph(ps.EXTRA, "ring")),
    Entry("extra-psd", on_graph(ps.EXTRA, "star", psd=True)),
    Entry("splitskip", ps.SplitSkip.theory, clients=1, psi=ps.prox.L1(0.02), D=True),
    Entry("splitskip-shrink", ps.SplitSkip.theory, clients=1, psi=ps.prox.SquaredL2(0.5), D=True),
    Entry("pdhg", lambda p: ps.PDHG.theory(p, mu=0.0), batch=False, clients=1, psi=ps.prox.L1(0.02), D=True),
    Entry("apda", lambda p: ps.APDA.theory(p), batch=False, clients=1, psi=l1, needs="APDA"),
    Entry("5gcs", lambda p: ps.FiveGCS.theory(p, figure=True), batch=False, own=True, needs="FiveGCS"),
    Entry("5gcs-psi", lambda p: ps.FiveGCS.theory(p), batch=False, unequal=True, psi=l1, needs="FiveGCS"),
    Entry("5gcs-cohort", lambda p: ps.FiveGCS.theory(p, cohort=3, figure=True), batch=False, cohort=3, needs="FiveGCS"),
    Entry("gradskip", lambda p: ps.GradSkip.theory(p), batch=False, own=True, needs="GradSkip"),
    Entry("scaffnew-vr", lambda p: ps.ScaffnewVR.theory(p), psi=l1, needs="ScaffnewVR"),
    Entry("proxskip-vr", lambda p: ps.ProxSkipVR.theory(p), clients=1, psi=l1, needs="ProxSkipVR"),
    Entry("random-gossip", lambda p: ps.RandomGossip.theory(p, graph="ring", p_e=0.4), needs="RandomGossip"),
)
ENTRIES = tuple(entry for entry in ALL if hasattr(ps, entry.needs))
NAMED = {entry.name: entry for entry in ENTRIES}


def run(method: Any, problem: Any, **given: Any) -> Any:
    """``ps.run`` with a record a round; steps beyond the theorem are meant."""
    given = {"rounds": 8, "seed": 4, "every": 1, "allow_unsafe_step": True} | given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        return ps.run(method, problem, **given)


def run_entry(name: str, problem: Any = None, **given: Any) -> Any:
    """An entry of the table on its problem."""
    entry = NAMED[name]
    problem = entry.on() if problem is None else problem
    return run(entry.make(problem), problem, **{"cohort": entry.cohort} | given)
