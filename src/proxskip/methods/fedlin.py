"""FedLin: the correction is computed anew in every round, at the price of a second exchange."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.seam import About, Claims, Client, Exchange, Method, Style, as_sent
from proxskip.theory.steps import Setting, StepLimits
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True)
class FedLin(Method):
    """Local steps corrected by  h_i = grad f_i(x) - grad f(x)  at the round's own x; diverges at gamma = 1/L.

    A. Mitra, R. Jaafar, G. J. Pappas, H. Hassani, Linear convergence in federated learning: tackling client
    heterogeneity and sparse gradients, NeurIPS 2021, arXiv:2102.07053, Algorithm 1 (without sparsification).

        h_i    = grad f_i(x) - sum_j w_j grad f_j(x)
        xhat_i = K_i times  y <- y - gamma_i (g_i(y) - h_i)   from y = x
        x+     = sum_i w_i xhat_i

    The anchor gradients are full gradients, also where the local steps use minibatches.
    """

    gamma: float | tuple[float, ...]
    K: int | tuple[int, ...]

    about = About(
        name="fedlin",
        title="FedLin",
        reference="Mitra, Jaafar, Pappas, Hassani, Linear Convergence in Federated Learning, NeurIPS 2021, "
        "arXiv:2102.07053",
        handles=frozenset({"batch", "clients"}),
        remembers=("h", "x"),
        style=Style("#009E73", "-.", "X"),
        exchanges=2,
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """Two exchanges: gradients at x, then the local phase."""
        (g,) = exchange(self.anchor, server["x"])
        (x,) = exchange(self.local, g, K=self.K)
        return {"x": x}

    def anchor(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """The local gradient at x goes up."""
        g = client.gradient(x)
        sent = client.send(g)
        # h is the gradient as the server read it, or the h of all clients would not sum to zero; 0 g + x is x in the
        # shape of g, with a row for each member where a whole cohort is computed at once
        return (sent,), {"h": as_sent(g, g, sent), "x": 0.0 * g + x}

    def local(self, client: Client, memory: Vectors, K: int, g: Array) -> tuple[tuple[Array, ...], Vectors]:
        """The mean gradient comes down; K steps with the difference."""
        h = memory["h"] - g
        return (client.send(client.descend(memory["x"], h, client.own(self.gamma), K)),), {"h": h}

    @classmethod
    def theory(cls, problem: Problem, K: int | tuple[int, ...] | None = None) -> FedLin:
        """gamma_i = 1/(6 K_i L), Theorem 1 of the FedLin paper, with K = sqrt(kappa) where it is not given."""
        K = K or steps.local_steps(problem)
        if isinstance(K, int):
            return cls(gamma=cls.limits(Setting.of(problem.es_A, K=K)).theorem or 0.0, K=K)
        return cls(gamma=tuple(cls.limits(Setting.of(problem.es_A, K=k)).theorem or 0.0 for k in K), K=K)

    @classmethod
    def paper_figure(cls, problem: Problem, K: int | None = None) -> FedLin:
        """gamma = 1/(K L), as in Figure 1b and Table 1."""
        K = K or steps.local_steps(problem)
        return cls(gamma=cls.limits(Setting.of(problem.es_A, K=K)).figure, K=K)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma_i <= 1/(K_i L); from 2/L on it is refused."""
        steps.check_count("K", self.K, problem.n)
        if isinstance(self.gamma, tuple) and len(self.gamma) != problem.n:
            raise InputError(f"gamma has {len(self.gamma)} entries for {problem.n} clients.")
        gammas, counts = (np.broadcast_to(np.asarray(v), (problem.n,)) for v in (self.gamma, self.K))
        # the client that diverges first
        worst = int(np.argmax(gammas * counts))
        return replace(self, gamma=float(gammas[worst])).check_steps(problem, insist, K=int(counts[worst]))

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """1/(6 K L)."""
        figure = 1 / (s.K * s.L)
        source = "Mitra, Jaafar, Pappas, Hassani, Linear Convergence in Federated Learning (FedLin), NeurIPS 2021: "
        source += "f - f* contracts by 1 - 1/(6 kappa) a round; the figure's step converges when measured, unproved"
        return StepLimits(figure / 6, figure, figure, 2 / s.L, source)

    def claims(self, problem: Problem) -> Claims:
        """gamma mu per step (f - f* contracts by 1 - 1/(6 kappa) per round) within the theorem, nothing outside."""
        if problem.mu is None or not isinstance(self.gamma, float) or not isinstance(self.K, int):
            return Claims()
        # a rate is claimed only where all clients have one gamma and one K
        theorem = self.limits(Setting.of(problem.L_max, K=self.K)).theorem or 0.0
        return Claims(self.gamma * problem.mu if self.gamma <= theorem else None)
