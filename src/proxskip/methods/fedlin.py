"""FedLin and S-Local-GD: corrections computed at an anchor, for the price of a second exchange."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from proxskip import theory
from proxskip.core.exchange import Client, Exchange, Sent, as_sent
from proxskip.core.method import About, Claims, Method, Style, chosen
from proxskip.core.parameters import check_probability
from proxskip.methods import steps
from proxskip.methods.gradient import LocalMethod
from proxskip.participation import EVERYONE, Participation
from proxskip.problems.federated import Problem
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True, repr=False)
class FedLin(LocalMethod):
    """Local steps corrected by  h_i = grad f_i(x) - grad f(x)  at the round's own x; diverges at gamma = 1/L.

    A. Mitra, R. Jaafar, G. J. Pappas, H. Hassani, Linear convergence in federated learning: tackling client
    heterogeneity and sparse gradients, NeurIPS 2021, arXiv:2102.07053, Algorithm 1 (without sparsification).

        h_i    = grad f_i(x) - sum_j w_j grad f_j(x)
        xhat_i = K_i times  y <- y - gamma_i (g_i(y) - h_i)   from y = x
        x+     = sum_i w_i xhat_i

    The anchor gradients are full gradients, also where the local steps use minibatches.

    Args:
        gamma: the step size, or one per client.
        K: the local steps in a round, or one number per client.
    """

    gamma: float | tuple[float, ...] = chosen()
    K: int | tuple[int, ...] = chosen()

    about = About(
        name="fedlin",
        title="FedLin",
        reference="Mitra, Jaafar, Pappas, Hassani, Linear Convergence in Federated Learning, NeurIPS 2021, "
        "arXiv:2102.07053",
        handles=frozenset({"batch", "clients", "weights"}),
        remembers=("h", "x"),
        style=Style("#009E73", "-.", "X"),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """Two exchanges: gradients at x, then the local phase."""
        (g,) = exchange(self.anchor, server["x"])
        (x,) = exchange(self.local, g, K=self.K)
        return {"x": x}

    def anchor(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        return _gradient_at(client, x)

    def local(self, client: Client, memory: Vectors, K: int, g: Array) -> Sent:
        """The mean gradient comes down; K steps with the difference."""
        h = memory["h"] - g
        return (client.send(client.descend(memory["x"], h, client.own(self.gamma), K)),), {"h": h}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> FedLin:
        """gamma_i = 1/(6 K_i L), Theorem 1 of the FedLin paper, or 1/(K_i L) of the figures; K = sqrt(kappa)."""
        K = steps.local_steps(problem) if self.K is None else self.K
        if self.gamma is not None:
            return replace(self, K=K)
        each = K if isinstance(K, tuple) else (K,)
        gammas = tuple(self.step(Setting.of(problem.es_A, K=k), figure) for k in each)
        return replace(self, gamma=gammas if isinstance(K, tuple) else gammas[0], K=K)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma_i <= 1/(K_i L); from 2/L on it is refused."""
        self.check_lengths(problem)
        gammas, counts = (np.broadcast_to(np.asarray(v), (problem.n,)) for v in (self.gamma, self.K))
        # the first client to diverge
        worst = int(np.argmax(gammas * counts))
        return replace(self, gamma=float(gammas[worst])).check_steps(problem, allow_unsafe_step, K=int(counts[worst]))

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """1/(6 K L)."""
        figure = 1 / (s.K * s.L)
        source = "Mitra, Jaafar, Pappas, Hassani, Linear Convergence in Federated Learning (FedLin), NeurIPS 2021: "
        source += "f - f* contracts by 1 - 1/(6 kappa) a round; the figure's step converges when measured, unproved"
        return StepLimits(figure / 6, figure, figure, 2 / s.L, source)

    def claims(self, problem: Problem) -> Claims:
        """gamma mu per step (f - f* contracts by 1 - 1/(6 kappa) per round) within the theorem, nothing outside."""
        if problem.mu is None or not isinstance(self.gamma, float) or not isinstance(self.K, int):
            return Claims()
        # a rate is only claimed for one gamma and one K
        theorem = self.limits(Setting.of(problem.L_max, K=self.K)).theorem or 0.0
        return Claims(self.gamma * problem.mu if self.gamma <= theorem else None)


@dataclass(frozen=True, slots=True, repr=False)
class SLocalGD(Method):
    """Local steps corrected at an anchor z; communicate with probability p, then move z with probability q.

    E. Gorbunov, F. Hanzely, P. Richtarik, Local SGD: unified theory and new efficient methods, AISTATS 2021,
    arXiv:2011.02828 (S-Local-SVRG with full gradients).

        h_i    = grad f_i(z) - sum_j w_j grad f_j(z)
        xhat_i = K times  y <- y - gamma (grad f_i(y) - h_i)   from y = x,    K ~ Geom(p)
        x+     = sum_i w_i xhat_i;    z <- x+ with probability q

    It is not FedLin: K is drawn, and for q < 1 most rounds cost one exchange instead of two.

    Args:
        gamma: the step size.
        p: the probability of communicating after a step; a round has 1/p steps on average.
        q: the probability that a round moves the anchor.
    """

    gamma: float = chosen()
    p: float = chosen()
    q: float = 1.0

    about = About(
        name="s-local-gd",
        title="S-Local-GD",
        reference="Gorbunov, Hanzely, Richtarik, Local SGD: Unified Theory, AISTATS 2021, arXiv:2011.02828",
        handles=frozenset({"batch", "clients", "weights"}),
        remembers=("h", "x"),
        style=Style("#56B4E9", "--", "<"),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One exchange, or two where the coin says that the anchor moves."""
        K = steps.geometric(exchange.rng, self.p)
        # toss the coin also in the first round, which has no anchor yet
        refresh = exchange.rng.random() < self.q or exchange.round == 0
        if refresh:
            (g,) = exchange(self.anchor, server["x"])
            (x,) = exchange(self.local_anchored, g, K=K)
        else:
            (x,) = exchange(self.local, server["x"], K=K)
        return {"x": x}

    def anchor(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        return _gradient_at(client, x)

    def local_anchored(self, client: Client, memory: Vectors, K: int, g: Array) -> Sent:
        """The mean gradient at the new anchor comes down; K steps with the difference."""
        h = memory["h"] - g
        return (client.send(client.descend(memory["x"], h, self.gamma, K)),), {"h": h}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        """K steps with the old anchor's difference."""
        return (client.send(client.descend(x, memory["h"], self.gamma, K)),), {}

    def check_parameters(self) -> None:
        Method.check_parameters(self)
        check_probability("q", self.q)

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> SLocalGD:
        """p = 1/sqrt(kappa), and gamma = p/(4 L): the order is proved, the constant measured. Figures have p/L."""
        p = theory.best_p(1.0 / problem.L, steps.known_mu(problem, "p")) if self.p is None else self.p
        if self.gamma is not None:
            return replace(self, p=p)
        largest = self.limits(Setting.of(problem.es_A, p=p)).figure
        return replace(self, gamma=largest if figure else largest / 4, p=p)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma <= p/L."""
        return self.check_steps(problem, allow_unsafe_step, p=self.p)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """p/L; linear convergence is proved for this order, the constant is measured."""
        source = "Gorbunov, Hanzely, Richtarik, Local SGD: Unified Theory and New Efficient Methods, AISTATS 2021, "
        source += "prove linear convergence for gamma of order p/L, their constant is not given here; "
        source += "gamma = p/L and p/(4L) converge when measured, without proof"
        return StepLimits(None, s.p / s.L, s.p / s.L, 2 / s.L, source)


def _gradient_at(client: Client, x: Array) -> Sent:
    """The local gradient at x; h is what the server read of it, so that all h sum to zero."""
    g = client.gradient(x)
    sent = client.send(g)
    # 0 g + x is x in the shape of g: one row per member of a cohort
    return (sent,), {"h": as_sent(g, g, sent), "x": 0.0 * g + x}
