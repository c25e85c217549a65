"""S-Local-GD: FedLin's correction with a random loop length and an anchor that is refreshed by a coin."""

from __future__ import annotations

from dataclasses import dataclass

from proxskip import theory
from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.seam import About, Client, Exchange, Method, Style, as_sent
from proxskip.theory.steps import Setting, StepLimits
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True)
class SLocalGD(Method):
    """Local steps corrected at an anchor z; communicate with probability p, then move z with probability q.

    E. Gorbunov, F. Hanzely, P. Richtarik, Local SGD: unified theory and new efficient methods, AISTATS 2021,
    arXiv:2011.02828 (S-Local-SVRG with full gradients).

        h_i    = grad f_i(z) - sum_j w_j grad f_j(z)
        xhat_i = K times  y <- y - gamma (grad f_i(y) - h_i)   from y = x,    K ~ Geom(p)
        x+     = sum_i w_i xhat_i;    z <- x+ with probability q

    It is not FedLin: K is drawn, and for q < 1 most rounds cost one exchange instead of two.
    """

    gamma: float
    p: float
    q: float = 1.0

    about = About(
        name="s-local-gd",
        title="S-Local-GD",
        reference="Gorbunov, Hanzely, Richtarik, Local SGD: Unified Theory, AISTATS 2021, arXiv:2011.02828",
        handles=frozenset({"batch", "clients"}),
        remembers=("h", "x"),
        style=Style("#56B4E9", "--", "<"),
        exchanges=2,
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One exchange, or two where the coin says that the anchor moves."""
        K = steps.geometric(exchange.rng, self.p)
        # the coin is tossed in every round, also in the first one, which has no anchor yet
        refresh = exchange.rng.random() < self.q or exchange.round == 0
        if refresh:
            (g,) = exchange(self.anchor, server["x"])
            (x,) = exchange(self.local_anchored, g, K=K)
        else:
            (x,) = exchange(self.local, server["x"], K=K)
        return {"x": x}

    def anchor(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """The local gradient at the new anchor goes up."""
        g = client.gradient(x)
        sent = client.send(g)
        # 0 g + x is x in the shape of g, with a row for each member where a whole cohort is computed at once
        return (sent,), {"h": as_sent(g, g, sent), "x": 0.0 * g + x}

    def local_anchored(self, client: Client, memory: Vectors, K: int, g: Array) -> tuple[tuple[Array, ...], Vectors]:
        """The mean gradient at the new anchor comes down; K steps with the difference."""
        h = memory["h"] - g
        return (client.send(client.descend(memory["x"], h, self.gamma, K)),), {"h": h}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """K steps with the old anchor's difference."""
        return (client.send(client.descend(x, memory["h"], self.gamma, K)),), {}

    @classmethod
    def theory(cls, problem: Problem, p: float | None = None, q: float = 1.0) -> SLocalGD:
        """gamma = p/(4 L): the order p/L is proved, this constant is measured; p = 1/sqrt(kappa) where not given."""
        p = p or theory.best_p(1.0 / problem.L, theory.known(problem.mu))
        return cls(gamma=cls.limits(Setting.of(problem.es_A, p=p)).figure / 4, p=p, q=q)

    @classmethod
    def paper_figure(cls, problem: Problem, p: float | None = None, q: float = 1.0) -> SLocalGD:
        """gamma = p/L, as in Figure 1b and Table 1."""
        p = p or theory.best_p(1.0 / problem.L, theory.known(problem.mu))
        return cls(gamma=cls.limits(Setting.of(problem.es_A, p=p)).figure, p=p, q=q)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """p and q in (0, 1], gamma <= p/L."""
        steps.check_probability("p", self.p)
        steps.check_probability("q", self.q)
        return self.check_steps(problem, insist, p=self.p)

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """p/L; linear convergence is proved for this order, the constant is measured."""
        source = "Gorbunov, Hanzely, Richtarik, Local SGD: Unified Theory and New Efficient Methods, AISTATS 2021, "
        source += "prove linear convergence for gamma of order p/L, their constant is not given here; "
        source += "gamma = p/L and p/(4L) converge when measured, without proof"
        return StepLimits(None, s.p / s.L, s.p / s.L, 2 / s.L, source)
