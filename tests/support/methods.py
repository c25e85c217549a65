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

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import proxskip as ps
from proxskip.core.method import Method
from proxskip.problems.federated import Problem
from proxskip.types import Prox
from support.problems import WEIGHTS, difference, model, quadratics

UNEVEN = (0.9, 0.5, 0.7, 1.0)
"""Probabilities of taking part."""


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
        coded: of a round in d unknowns, the floats, bytes and bits that all clients send up, where they are
            not plain vectors of d numbers.
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


def newton_numbers(d: int) -> int:
    """f, the gradient and a triangle of the Hessian."""
    return 1 + d + d * (d + 1) // 2


SKIPS = "fixed_point lyapunov rate sum_h converges batch"
FULL = SKIPS.removesuffix(" batch")
PROXES = SKIPS.replace(" sum_h", "")
CONTROLS = "fixed_point sum_h converges batch"
METHODS = (
    Row("gd", ps.GD.theory, PROXES),
    Row("proxgd", ps.ProxGD.theory, PROXES, psi=ps.prox.L1(0.01), linear_psi=ps.prox.SquaredL2(0.3)),
    Row("accelerated", ps.Accelerated.theory, "fixed_point converges"),
    Row("fista", ps.Fista.theory, "fixed_point converges", psi=ps.prox.L1(0.01)),
    Row("newton", ps.Newton.theory, "fixed_point converges",
        coded=lambda d: (4 * newton_numbers(d), 32 * newton_numbers(d), 256 * newton_numbers(d))),
    Row("newton-weighted", ps.Newton.theory, "fixed_point converges", weights=WEIGHTS, own=True,
        coded=lambda d: (4 * newton_numbers(d), 32 * newton_numbers(d), 256 * newton_numbers(d))),
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
