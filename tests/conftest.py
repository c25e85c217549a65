"""The METHODS table: one row per method, with the laws it claims. A new method is one row and inherits them all.

    fixed_point   started at (x*, h*) it stays there
    lyapunov      on quadratics the largest eigenvalue of E[Psi+] against Psi is at most 1 - zeta
    rate          on logistic regression the mean over seeds stays below the theorem's bound
    sum_h         sum_i w_i h_i = 0, whatever happens
    converges     it reaches the solution
    batch         it takes minibatches

Every row also owes exact ledger counts (``up``, ``down``, ``exchanges``, ``extra``), the same trajectory on every engine
and bitwise resume. LocalGD claims no fixed point; Scaffold, FedLin and S-Local-GD no Lyapunov function.
"""

import io
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.sparse
from hypothesis import settings

import chromium
import proxskip as ps
from proxskip import cli, registry
from proxskip.engines.gpu.device import need_cupy
from proxskip.engines.in_process import NearEngine
from proxskip.engines.reference import ReferenceEngine
from proxskip.interfaces import Method, Request, Work
from proxskip.links.cohorts import Bernoulli, Everyone, Uniform, as_participation
from proxskip.links.gossip import AwakeLinks, RandomLinks
from proxskip.loop.metered_exchange import MeteredExchange
from proxskip.loop.run_spec import prepare
from proxskip.problems.federated import Problem
from proxskip.types import Array, Indices, InputError, Prox, UnsafeStepWarning, Vectors

WEIGHTS = (1.0, 2.0, 3.0, 4.0)
UNEVEN = (0.9, 0.5, 0.7, 1.0)
"""Probabilities of taking part."""


# -- tiers -------------------------------------------------------------------------------------------------------------
PROFILES = {"dev": 0.1, "ci": 0.2, "thorough": 1.0}
"""The profiles of Hypothesis, and the share of its examples that a test gets there: make quick, test and test-slow."""
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
for _name, _share in PROFILES.items():  # no deadlines: a machine may be busy
    settings.register_profile(_name, deadline=None, max_examples=round(100 * _share), derandomize=_name != "dev")
settings.load_profile(PROFILE)


def draws(examples: int) -> int:
    """How many of a test's examples are drawn in this profile."""
    return max(4, round(PROFILES[PROFILE] * examples))


def _name(value: Any) -> str | None:
    """The name of a row, or of a method's class."""
    about = getattr(value, "about", value)
    return getattr(about, "name", None)


def thinned(values: Iterable[Any], every: int = 4) -> list[Any]:
    """All values of a parameter; one of every so many stays out of the slow tier, the first among them."""
    return [pytest.param(v, marks=[pytest.mark.slow] if k % every else [], id=_name(v)) for k, v in enumerate(values)]


def needs(package: str) -> pytest.MarkDecorator:
    """Skip a test where an optional package is missing."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def module_or_skip(name: str) -> ModuleType:
    """Import a module of the library; skip the test where a package of somebody else is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        if (error.name or "proxskip").startswith("proxskip"):
            raise
        pytest.skip(f"{error.name} is not installed")


TORCH = pytest.param("torch", marks=[pytest.mark.torch, pytest.mark.slow, needs("torch")])
"""The torch engine among the values of a parameter ``engine``."""


def no_card() -> str:
    """Why the gpu engine cannot run here; empty if it can."""
    try:
        need_cupy()
    except InputError as error:
        return str(error)
    return ""


ON_CARD = pytest.param(
    "gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(bool(no_card()), reason=no_card() or "there is a GPU")]
)
"""The gpu engine likewise."""


LONG_MODULES = {
    "test_audit", "test_auto", "test_baselines", "test_certificates", "test_chaos", "test_demo", "test_features",
    "test_five_gcs", "test_interrupt", "test_networks", "test_own_engine", "test_plugins", "test_scaling", "test_seam",
    "test_sklearn", "test_watch",
}  # fmt: skip
"""Modules that ``make quick`` leaves out as a whole."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks that follow from what a test uses."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("fuzz")
        if item.path.stem in LONG_MODULES:
            item.add_marker("long")
        if item.path.stem == "test_reproduce" and "made" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")  # all figures are made for it
        for fixture, mark in (("ray_here", "ray"), ("browser", "browser")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
                item.add_marker(pytest.mark.xdist_group(item.path.stem))  # one Ray, one browser
    # groups stay in one process: whichever came last would run alone
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


# -- problems ----------------------------------------------------------------------------------------------------------
@cache
def quadratics(n: int = 4, d: int = 4, kappa: float = 20.0, own: bool = False, seed: int = 3) -> tuple[Any, ...]:
    """n heterogeneous quadratics; with ``own`` the i-th is 2^i times as steep, so that L_i differ."""
    parts = ps.random_quadratics(n, d, L=1.0, mu=1.0 / kappa, seed=seed)
    return tuple(ps.Quadratic(2.0**i * f.H, 2.0**i * f.b) for i, f in enumerate(parts)) if own else tuple(parts)


def quadratic(kappa: float = 100.0, d: int = 30, seed: int = 0) -> Any:
    """One of them."""
    return quadratics(1, d, kappa, seed=seed)[0]


@cache
def data(classes: int = 2, rows: int = 96, features: int = 6, seed: int = 5) -> tuple[Array, Array]:
    """Rows with a third of zeros and labels that depend on them."""
    rng = np.random.Generator(np.random.Philox(seed))
    A = rng.standard_normal((rows, features)) * (rng.random((rows, features)) < 0.7)
    scores = A @ rng.standard_normal((features, classes)) + 0.5 * rng.standard_normal((rows, classes))
    return A, np.argmax(scores, axis=1).astype(np.float64)


LOSSES = {"logistic": ps.Logistic, "squared": ps.LeastSquares, "softmax": ps.Softmax}


@cache
def model(loss: str = "logistic", sparse: bool = False, dtype: str = "float64", l2: float = 0.02) -> Any:
    """A linear model on ``data``."""
    A, b = data(3, features=4) if loss == "softmax" else data()
    matrix = scipy.sparse.csr_matrix(A) if sparse else A
    return LOSSES[loss](matrix, b, l2=l2, l2_relative=True, dtype=np.dtype(dtype))


def difference(d: int) -> Array:
    """D x = (x_2 - x_1, ..., x_d - x_{d-1})."""
    return np.diff(np.eye(d), axis=0)


class OwnProx:
    """A psi of a user or of another library, whose calls are counted."""

    def __init__(self, prox: Callable[[Any, float], Any], value: Callable[[Any], Any] = lambda x: 0.0) -> None:
        self.prox, self.value = mock.Mock(side_effect=prox), mock.Mock(side_effect=value)

    def __call__(self, x: Any) -> Any:
        return self.value(x)


# -- the table ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    """A method on its kind of problem, and what it claims.

    Args:
        make: the method with parameters for a problem.
        up, down, exchanges: vectors a client and round, and exchanges a round; None where they vary.
        extra: full gradients of every client a round besides the local steps; None where they vary.
        numbers: numbers of its own that a client is sent in a round.
        masked: its messages hold only some of the coordinates.
        linear_psi: a psi whose prox is linear, for the eigenvalue law.
        tight: the eigenvalue equals ``theory.sharp_rate`` to the last digit.
        coded: of a round in d unknowns, the floats, bytes and bits that all clients send up, where a codec is used.
    """

    name: str
    make: Callable[[Problem], Method]
    laws: str
    up: int | None = 1
    down: int | None = 1
    exchanges: int | None = 1
    extra: int | None = 0
    numbers: int = 0
    masked: bool = False
    clients: int = 4
    weights: tuple[float, ...] | None = None
    own: bool = False
    psi: Prox | None = None
    linear_psi: Prox | None = None
    split: bool = False
    cohort: Any = None
    tight: bool = False
    coded: Callable[[int], tuple[int, int, int]] | None = None

    def claims(self, law: str) -> bool:
        return law in self.laws.split()

    def quadratic(self, linear: bool = False) -> Problem:
        return self._dress(Problem(quadratics(self.clients, own=self.own), self.weights), linear)

    def rows(self, loss: str = "logistic", sparse: bool = False, dtype: str = "float64") -> Problem:
        """Rows dealt by label."""
        given = "rows" if self.weights else "equal"
        cut = ps.split(model(loss, sparse, dtype), clients=self.clients, by="label", weights=given)
        return self._dress(cut, linear=False)

    def _dress(self, problem: Problem, linear: bool) -> Problem:
        psi = (self.linear_psi if linear else None) or self.psi
        return problem.with_psi(psi, difference(problem.d) if self.split else None) if psi else problem


def scaffnew_on(cohort: Any) -> Callable[[Problem], Method]:
    return lambda problem: ps.Scaffnew.theory(problem, cohort=cohort)


def gossip(graph: str, psd: bool = False, kind: Any = ps.DecentralizedScaffnew) -> Callable[[Problem], Method]:
    return lambda p: kind.theory(p, graph=ps.graphs.graph(graph, p.n, psd=psd))


def tamuna(s: int, cohort: Any = None) -> Callable[[Problem], Method]:
    return lambda problem: ps.Tamuna.theory(problem, s=s, cohort=cohort)


def locodl(codec: str) -> Callable[[Problem], Method]:
    return lambda problem: ps.LoCoDL.theory(problem, codec=codec)


SKIPS = "fixed_point lyapunov rate sum_h converges batch"
FULL = SKIPS.removesuffix(" batch")
PROXES = SKIPS.replace(" sum_h", "")
CONTROLS = "fixed_point sum_h converges batch"
METHODS = (
    Row("gd", ps.GD.theory, PROXES),
    Row("proxgd", ps.ProxGD.theory, PROXES, psi=ps.prox.L1(0.01), linear_psi=ps.prox.SquaredL2(0.3)),
    Row("accelerated", ps.Accelerated.theory, "fixed_point converges"),
    Row("fista", ps.Fista.theory, "fixed_point converges", psi=ps.prox.L1(0.01)),
    Row("local-gd", lambda p: ps.LocalGD.theory(p, K=4, figure=True), "batch"),
    Row("local-gd-cohort", lambda p: ps.LocalGD.theory(p, K=4, figure=True), "batch", cohort=3),
    Row("scaffold", lambda p: ps.Scaffold.theory(p, K=4, figure=True), CONTROLS),
    Row("scaffold-weighted", lambda p: ps.Scaffold.theory(p, K=3, figure=True), CONTROLS, weights=WEIGHTS),
    Row("scaffold-I", lambda p: ps.Scaffold.theory(p, K=4, option="I", figure=True), CONTROLS, up=2, down=2, extra=1),
    Row("scaffold-cohort", lambda p: ps.Scaffold.theory(p, K=4, figure=True), CONTROLS,
        up=2, down=2, weights=WEIGHTS, cohort=3),
    Row("fedlin", lambda p: ps.FedLin.theory(p, K=4, figure=True), CONTROLS, up=2, down=2, exchanges=2, extra=1),
    Row("fedlin-own", lambda p: ps.FedLin.theory(p, K=(1, 2, 3, 4)), CONTROLS,
        up=2, down=2, exchanges=2, extra=1, weights=WEIGHTS),
    Row("s-local-gd", lambda p: ps.SLocalGD.theory(p), CONTROLS, up=2, down=2, exchanges=2, extra=1),
    Row("s-local-gd-q", lambda p: ps.SLocalGD.theory(p, q=0.4), CONTROLS, up=None, down=None, exchanges=None),
    Row("proxskip", ps.ProxSkip.theory, PROXES, clients=1,
        psi=ps.prox.L1(0.01), linear_psi=ps.prox.Consensus(2), tight=True),
    Row("proxskip-shrink", ps.ProxSkip.theory, PROXES, clients=1, psi=ps.prox.SquaredL2(0.3)),
    Row("sproxskip", ps.SProxSkip.theory, PROXES, clients=1,
        psi=ps.prox.ElasticNet(0.01, 0.1), linear_psi=ps.prox.Consensus(2), tight=True),
    Row("apda", ps.APDA.theory, "fixed_point converges", up=2, clients=1, psi=ps.prox.L1(0.01)),
    Row("scaffnew", ps.Scaffnew.theory, SKIPS, tight=True),
    Row("scaffnew-weighted", lambda p: ps.Scaffnew.theory(p, own_steps=True), SKIPS,
        weights=WEIGHTS, own=True, tight=True),
    Row("scaffnew-psi", lambda p: ps.Scaffnew.theory(p, own_steps=True),
        PROXES, weights=WEIGHTS, own=True, psi=ps.prox.L1(0.01), linear_psi=ps.prox.SquaredL2(0.3)),
    Row("scaffnew-cohort", scaffnew_on(3), SKIPS, down=None, cohort=3),
    Row("scaffnew-pairs", scaffnew_on(2), SKIPS, down=None, cohort=2),
    Row("5gcs", lambda p: ps.FiveGCS.theory(p, figure=True), "fixed_point converges"),
    Row("5gcs-theory", ps.FiveGCS.theory, "fixed_point rate converges"),
    Row("5gcs-weighted", lambda p: ps.FiveGCS.theory(p, K=3), "fixed_point converges", weights=WEIGHTS, own=True),
    Row("5gcs-psi", ps.FiveGCS.theory, "fixed_point rate converges", weights=WEIGHTS, own=True, psi=ps.prox.L1(0.01)),
    Row("5gcs-cohort", lambda p: ps.FiveGCS.theory(p, cohort=3, figure=True), "fixed_point converges", weights=WEIGHTS, own=True,
        cohort=3, psi=ps.prox.L1(0.01)),
    Row("5gcs-uneven", lambda p: ps.FiveGCS.theory(p, cohort=UNEVEN), "fixed_point rate converges", up=None,
        down=None, cohort=UNEVEN),
    Row("scaffnew-decaying", lambda p: ps.Decaying(ps.Scaffnew.theory(p), 0.02), CONTROLS),
    Row("scaffnew-bernoulli", scaffnew_on(0.7), SKIPS, up=None, down=None, cohort=0.7),
    Row("proxskip-vr", ps.ProxSkipVR.theory, PROXES, clients=1, extra=None,
        psi=ps.prox.L1(0.01), linear_psi=ps.prox.Consensus(2), tight=True),
    Row("scaffnew-vr", ps.ScaffnewVR.theory, SKIPS, extra=None, tight=True),
    Row("scaffnew-vr-psi", ps.ScaffnewVR.theory, PROXES, extra=None,
        weights=WEIGHTS, psi=ps.prox.L1(0.01), linear_psi=ps.prox.SquaredL2(0.3)),
    Row("gradskip", ps.GradSkip.theory, FULL, own=True, extra=None, numbers=1),
    Row("gradskip-drowsy", lambda p: replace(ps.GradSkip.theory(p, p=0.5), q=(0.5, 0.0, 1.0, 0.9), gamma=0.2 / p.L),
        FULL, extra=None, numbers=1, weights=WEIGHTS),
    Row("tamuna", tamuna(2), SKIPS, coded=lambda d: (2 * d, 16 * d, 128 * d)),
    Row("tamuna-cohort", tamuna(2, 3), SKIPS, down=None, cohort=3, coded=lambda d: (2 * d, 16 * d, 128 * d)),
    Row("tamuna-whole", tamuna(3, 3), SKIPS, down=None, cohort=3),
    Row("locodl", locodl("rand-2+natural"), "fixed_point rate sum_h converges", down=2, weights=WEIGHTS,
        coded=lambda d: (8, 12, 72)),
    Row("locodl-rand", locodl("rand-1"), "fixed_point lyapunov rate sum_h converges", down=2, clients=2,
        coded=lambda d: (2, 16, 128)),
    Row("locodl-weighted", locodl("rand-2"), "fixed_point lyapunov sum_h converges", down=2, clients=2,
        weights=(1.0, 3.0), coded=lambda d: (4, 32, 256)),
    Row("locodl-identity", locodl("identity"), "fixed_point lyapunov rate sum_h converges", down=2, weights=WEIGHTS),
    Row("decentralized", gossip("ring"), SKIPS, up=None, down=0),
    Row("decentralized-path", gossip("path"), SKIPS, up=None, down=0),
    Row("decentralized-psd", gossip("star", psd=True), SKIPS, up=None, down=0),
    Row("decentralized-failing", lambda p: ps.DecentralizedScaffnew.theory(p, graph=ps.graphs.graph("ring", p.n).failing(0.2)), SKIPS,
        up=None, down=0),
    Row("random-gossip", lambda p: ps.RandomGossip.theory(p, graph="ring", p_e=0.4), SKIPS, up=None, down=0),
    Row("random-gossip-masked", lambda p: ps.RandomGossip.theory(p, graph=ps.graphs.graph("path", p.n).failing(0.3), p_e=0.8, k=3), SKIPS,
        up=None, down=0, clients=3, masked=True),
    Row("diging", gossip("ring", kind=ps.DIGing), CONTROLS, up=None, down=0),
    Row("diging-complete", gossip("complete", kind=ps.DIGing), CONTROLS, up=None, down=0),
    Row("extra", gossip("ring", kind=ps.EXTRA), CONTROLS, up=None, down=0),
    Row("extra-psd", gossip("star", True, ps.EXTRA), CONTROLS, up=None, down=0),
    Row("splitskip", ps.SplitSkip.theory, PROXES, down=None, clients=1,
        psi=ps.prox.L1(0.02), linear_psi=ps.prox.Singleton(), split=True),
    Row("splitskip-shrink", ps.SplitSkip.theory, PROXES, down=None, clients=1, psi=ps.prox.SquaredL2(0.5), split=True),
    Row("pdhg", lambda p: ps.PDHG.theory(p, mu=0.0), "fixed_point converges", down=None, clients=1,
        psi=ps.prox.L1(0.02), split=True),
)  # fmt: skip
NAMED = {row.name: row for row in METHODS}


def claiming(law: str, slow: tuple[str, ...] = ()) -> Any:
    """Parametrise a test over the rows that claim this law; those with these names are slow."""
    rows = [row for row in METHODS if row.claims(law)]
    marks = dict.fromkeys(slow, pytest.mark.slow)
    return pytest.mark.parametrize("row", [pytest.param(r, id=r.name, marks=marks.get(r.name, ())) for r in rows])


# -- a method's own halves, driven from any state ----------------------------------------------------------------------
class RowByRow(ReferenceEngine):
    """The reference engine, where a stacked message hands client i its row: the iterates between communications."""

    def run(self, request: Request) -> Work:
        ups, count, asked = [], 0, len(request.cohort)
        for j, i in enumerate(request.cohort):
            down = tuple(v[i] if v.ndim == 2 else v for v in request.down)
            K = request.K if np.ndim(request.K) == 0 else request.K[j : j + 1]
            own = {name: v[j : j + 1] for name, v in request.own.items()}
            one = replace(request, cohort=np.array([i]), down=down, K=K, own=own, first=j, asked=asked)
            work = super().run(one)
            ups.append(work.up)
            count += work.gradients
        return Work(tuple(np.concatenate(column) for column in zip(*ups, strict=True)), count)


class Heads:
    """A coin that always shows heads: K = 1; as told, a number in [0, 1) for each client, and the links awake."""

    def __init__(self, each: tuple[float, ...] = (), links: AwakeLinks | None = None) -> None:
        self.each, self.links = each, links

    def random(self, size: int | None = None) -> Any:
        return 0.0 if size is None else np.array(self.each[:size])


def links_awake(links: RandomLinks, d: int) -> Iterator[tuple[float, AwakeLinks]]:
    """Every set of awake links and of coordinates that they carry, with its probability."""
    i, j = np.nonzero(np.triu(links.graph.W, k=1))
    carried = [np.isin(np.arange(d), some) for some in itertools.combinations(range(d), links.k or d)]
    for state in itertools.product((None, *range(len(carried))), repeat=len(i)):
        up = [e for e, s in enumerate(state) if s is not None]
        chance = links.p ** len(up) * (1 - links.p) ** (len(i) - len(up)) / len(carried) ** len(up)
        mask = np.array([carried[s] for s in state if s is not None], dtype=bool).reshape(len(up), d)
        yield chance, AwakeLinks(i[up], j[up], links.graph.W[i[up], j[up]], mask)


def coins_of(method: Any, n: int, d: int) -> list[tuple[float, Heads]]:
    """Everything that a server half can draw in one iteration besides the coin of p, with its probability."""
    links: Any = getattr(method, "links", None)
    if isinstance(method, ps.RandomGossip):
        links = RandomLinks(method.graph, method.p_e * (1 - method.graph.failure), method.k)
    if isinstance(links, RandomLinks):
        return [(chance, Heads(links=awake)) for chance, awake in links_awake(links, d)]
    if not isinstance(method, ps.GradSkip):
        return [(1.0, Heads())]
    found = []
    for sleeps in itertools.product((True, False), repeat=n):
        chances = [1 - q if asleep else q for q, asleep in zip(method.q, sleeps, strict=True)]
        if np.prod(chances) > 0:
            found.append((float(np.prod(chances)), Heads(tuple(0.0 if asleep else 1 - 1e-9 for asleep in sleeps))))
    return found


class Machine:
    """One method on one problem, round by round, from any state."""

    def __init__(self, method: Method, problem: Problem, cohort: Any = None, engine: Any = None, seed: int = 0):
        participation = as_participation(cohort)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsafeStepWarning)
            self.method, _ = prepare(method, problem, participation, insist=True)
        self.problem, self.seed = problem, seed
        self.engine = engine or RowByRow()
        self.line = MeteredExchange(self.engine, problem, seed, participation)

    def put(self, server: Vectors, memory: Vectors) -> None:
        """Start from here; what is not given starts at zero."""
        zeros = {k: np.zeros((self.problem.n, self.problem.d)) for k in self.method.remembers}
        self.server = server
        self.engine.open(self.problem, zeros | memory, self.seed)

    def put_solution(self) -> None:
        """Start at x*, h_i* = grad f_i(x*), y*."""
        s: Any = self.problem.solution
        server = self.method.start(self.problem, s.x)
        if self.problem.D is not None:
            server["y"] = s.y
        memory = {"x": np.tile(s.x, (self.problem.n, 1)), "h": s.h, "c": s.h}
        if isinstance(self.method, ps.FiveGCS):  # v_i* = grad f_i(x*) - mu x*, and the server holds their sum
            memory["v"] = s.h - self.method.mu * s.x
            server["v"] = self.problem.weights @ memory["v"]
        self.put(server, {k: v.copy() for k, v in memory.items() if k in self.method.remembers})

    def round(self, r: int, cohort: Indices | None = None, rng: Any = None) -> None:
        """One round, with the cohort and the coin it would draw unless they are given."""
        self.line.begin(r)
        self.line.cohort = self.line.cohort if cohort is None else cohort
        self.line.rng = self.line.rng if rng is None else rng
        if isinstance(rng, Heads) and rng.links is not None:
            with mock.patch.object(RandomLinks, "draw", return_value=rng.links):
                self.server = self.method.round(self.server, self.line)
        else:
            self.server = self.method.round(self.server, self.line)

    @property
    def memory(self) -> Vectors:
        return self.engine.memory()

    @property
    def x(self) -> Array:
        """All clients' x, one row each."""
        x = self.server["x"] if "x" in self.server else self.memory["x"]
        return np.broadcast_to(x, (self.problem.n, self.problem.d))


def cohorts_of(participation: Any, n: int) -> list[tuple[float, Indices]]:
    """Every cohort with its probability."""
    if isinstance(participation, Everyone):
        return [(1.0, np.arange(n))]
    if isinstance(participation, Uniform):
        found = [np.array(S) for S in itertools.combinations(range(n), participation.c)]
        return [(1.0 / len(found), S) for S in found]
    assert isinstance(participation, Bernoulli)
    found = [np.array(S) for c in range(1, n + 1) for S in itertools.combinations(range(n), c)]
    q = np.broadcast_to(participation.probability, (n,))
    mass = [float(np.prod(np.where(np.isin(np.arange(n), S), q, 1 - q))) for S in found]
    return [(m / sum(mass), S) for m, S in zip(mass, found, strict=True)]


def close(a: Any, b: Any, tol: float) -> bool:
    """Equal to ``tol`` relative to the largest entry."""
    scale = max(float(np.max(np.abs(b))), 1e-300)
    return bool(np.max(np.abs(np.asarray(a) - np.asarray(b))) <= tol * scale)


# -- results of runs ---------------------------------------------------------------------------------------------------
def bits(result: ps.Result) -> bytes:
    """Everything that a run computed, and what it counted."""
    parts = [result.x, *(result.memory[k] for k in sorted(result.memory))]
    parts += [result.trace[k] for k in result.trace.columns if k != "seconds"]
    return b"".join(np.ascontiguousarray(v).tobytes() for v in parts)


def same(a: ps.Result, b: ps.Result) -> bool:
    """Bitwise, but for the clock and the machine."""
    quiet = ("seconds", "versions", "cluster")
    assert bits(a) == bits(b)
    assert a.trace.columns == b.trace.columns
    assert {k: v.tobytes() for k, v in a.server.items()} == {k: v.tobytes() for k, v in b.server.items()}
    assert (a.h is None) == (b.h is None)
    assert a.h is None or np.array_equal(a.h, b.h)
    assert np.array_equal(a.participation, b.participation)
    assert (a.status, a.success, a.message, a.warnings) == (b.status, b.success, b.message, b.warnings)
    ours, theirs = ({k: v for k, v in r.summary.items() if k not in quiet} for r in (a, b))
    assert ours == theirs
    return True


def near(a: ps.Result, b: ps.Result, tol: float) -> None:
    """The iterates, what clients remember, f along the way, and every count."""
    assert close(a.x, b.x, tol)
    assert a.memory.keys() == b.memory.keys()
    for k in b.memory:
        # h and y are differences of vectors: measure them by the gradients and the iterates they come from
        scale = max(np.abs(b.memory[k]).max(), np.abs(b.x).max(), 1e-300)
        assert np.abs(a.memory[k] - b.memory[k]).max() <= 10 * tol * scale, k
    assert close(a.trace["f"], b.trace["f"], tol)
    for k in ("iterations", "local_steps", "grad_evals", "vectors_up", "vectors_down", "bits_up", "bits_down"):
        assert np.array_equal(a.trace[k], b.trace[k]), k


# -- engines whose vectors live elsewhere ------------------------------------------------------------------------------
class Far:
    """A vector that numpy cannot read: only + - * / with its like and with numbers."""

    __array_ufunc__ = None
    ndim = 1

    def __init__(self, v: Any) -> None:
        self.v, self.shape = v, v.shape

    def __array__(self, *_: object, **__: object) -> Any:
        raise TypeError("this vector is elsewhere")

    @staticmethod
    def of(v: Any) -> Any:
        assert isinstance(v, (Far, float, int)), type(v)
        return v.v if isinstance(v, Far) else v


for _verb in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv"):

    def _act(self: Far, other: Any, verb: str = f"__{_verb}__") -> Far:
        return Far(getattr(self.v, verb)(Far.of(other)))

    setattr(Far, f"__{_verb}__", _act)


class Elsewhere(NearEngine):
    """Before an engine's class: as if it were on another machine; it counts what is fetched."""

    fetched = 0

    def is_far(self) -> bool:
        return True

    def place(self, v: Any) -> Any:
        return Far(v)

    def fetch(self, v: Any) -> Any:
        self.fetched += 1
        return v.v

    def wait(self) -> None: ...

    def run(self, request: Any) -> Any:
        return super().run(replace(request, down=tuple(Far.of(v) for v in request.down)))

    def tell(self, half: Any, cohort: Any, outcome: Any) -> None:
        super().tell(half, cohort, tuple(v.v if isinstance(v, Far) else v for v in outcome))

    def sums(self, rows: Any, up: Any) -> Any:
        return tuple(map(Far, super().sums(rows, up)))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def code_of(page: str, block: int) -> str:
    """A block of Python code of a page in docs/, numbered from 0."""
    text = (Path(__file__).resolve().parents[1] / "docs" / page).read_text("utf-8")
    found: list[str] = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return found[block]


# -- fixtures ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def proxskip_data() -> Path:
    """The folder with the data sets: $PROXSKIP_DATA, or shared/data beside the repository; else the test is skipped."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ["PROXSKIP_DATA"]) if "PROXSKIP_DATA" in os.environ else beside
    if not folder.is_dir():
        pytest.skip("no data folder: set PROXSKIP_DATA to one that holds w8a.gz and its friends")
    return folder


@pytest.fixture
def own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that a test makes known are forgotten after it."""
    monkeypatch.setattr(registry.METHODS, "_known", dict(registry.METHODS))


@pytest.fixture
def quiet_steps() -> Iterator[None]:
    """Steps outside the theorem are meant here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)
        yield


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process: exit code, stdout, stderr."""

    def run(*argv: Any) -> tuple[int, str, str]:
        code = cli.main([str(a) for a in argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run


RAY_WARNS = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""Ray leaves processes and sockets to the garbage collector."""
RAY_CPUS = 6
"""Of the Ray that a module of tests shares."""


@pytest.fixture(scope="module")
def ray_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """One Ray for all tests of a module: on loopback, without dashboard and usage statistics."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    from proxskip.engines.ray.cluster import start_here

    ray.cloudpickle.register_pickle_by_value(request.module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start_here(num_cpus=RAY_CPUS, object_store_memory=150 * 2**20, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    program = chromium.find()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(chromium.NAMES)} is installed")
    with chromium.Browser(program) as found:
        yield found
