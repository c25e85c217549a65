"""The exact linear maps of a method's iteration, found by probing its own halves; quadratic functions as matrices."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

import proxskip as ps
from proxskip.codecs import Key, fields
from proxskip.types import Array
from support.comparing import close
from support.machine import Heads, Machine, cohorts_of, coins_of


def quadratic_form(psi: Callable[[Array], float], fixed: Array) -> Array:
    """The matrix of a quadratic function around its minimum, by polarisation."""
    E = np.eye(len(fixed))
    own = np.array([psi(fixed + e) for e in E])
    both = [[psi(fixed + E[i] + E[j]) if i != j else 4 * own[i] for j in range(len(E))] for i in range(len(E))]
    return np.asarray((np.array(both) - own[:, None] - own[None, :]) / 2)


def linear_part(act: Callable[[Array], Array], fixed: Array) -> Array:
    """The matrix of an affine act, column by column."""
    at = act(fixed)
    return np.stack([act(fixed + e) - at for e in np.eye(len(fixed))], axis=1)


class ErrorMaps:
    """The exact linear maps of one iteration, with and without communication, by probing a method's own halves.

    In the iteration form a coin of probability p follows every step. One round of the real code with K = 1, started from
    clients that hold different x_i, gives both outcomes: what was settled (heads), and ``xhat`` with the old h (tails).
    """

    def __init__(self, problem: Any, method: Any, cohort: Any = None) -> None:
        self.problem, self.machine = problem, Machine(method, problem, cohort)
        self.method: Any = self.machine.method
        self.n, self.d, s = problem.n, problem.d, problem.solution
        self.outcomes = []
        for mass, cohort in cohorts_of(self.machine.line.participation, self.n):
            rounds = self.rounds(cohort)
            self.outcomes += [(mass / len(rounds), cohort, r) for r in rounds]
        self.coins = coins_of(self.method, self.n, self.d)
        if self.problem.D is not None:
            self.fixed = np.concatenate([s.x, s.y])
        elif "h" in self.method.remembers:
            self.fixed = np.concatenate([np.tile(s.x, self.n), s.h.ravel()])
        else:
            self.fixed = s.x

    def rounds(self, cohort: Array) -> list[int]:
        """Rounds in which the codec draws everything that it can draw, each once."""
        if not isinstance(self.method, ps.Tamuna) or self.method.s >= len(cohort):
            return [0]
        c, found = len(cohort), {}
        for r in range(400):
            found.setdefault(fields.smallest(Key(0, r, 0, asked=c).shared_words(c), c).tobytes(), r)
        assert len(found) == math.factorial(c)
        return list(found.values())

    def states(self, z: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """A state vector as (server, memory)."""
        if self.problem.D is not None:
            x, y = z[: self.d], z[self.d :]
            return {"x": x, "y": y}, {"x": x[None], "h": -(self.problem.D.T @ y)[None]}
        if "h" not in self.method.remembers:
            return {"x": z}, {}
        X, H = z.reshape(2, self.n, self.d)
        return ({}, {"x": X, "h": H}) if "x" in self.method.remembers else ({"x": X}, {"h": H})

    def step(self, z: Array, cohort: Array, coins: Heads | None = None, r: int = 0) -> tuple[Array, Array]:
        """(heads, tails) from z; tails is meaningful for the cohort's members."""
        server, memory = self.states(z)
        self.machine.put(server, {k: v.copy() for k, v in memory.items()})
        self.machine.round(r, cohort, coins or self.coins[-1][1])
        kept = self.machine.memory
        if self.problem.D is not None:
            y = self.machine.server["y"]
            assert close(kept["h"][0] + 1.0, 1.0 - self.problem.D.T @ y, 1e-12), "h is not -D'y"
            return np.concatenate([kept["x"][0], y]), np.concatenate([kept["xhat"][0], z[self.d :]])
        if "h" not in self.method.remembers:
            return self.machine.server["x"], z
        old = kept.get("hhat", memory["h"]).ravel()
        heads = np.concatenate([self.machine.x.ravel(), kept["h"].ravel()])
        return heads, np.concatenate([kept["xhat"].ravel(), old])

    def psi(self, z: Array) -> float:
        """The method's own Lyapunov function."""
        server, memory = self.states(z)
        x = server.get("x", z[: self.d])
        return self.method.lyapunov(self.problem, x[0] if x.shape == (1, self.d) else x, server, memory)

    def subspace(self) -> Array:
        """Where the errors live: all of it, or sum_i w_i (h_i - h_i*) = 0 where nothing restores that."""
        size = len(self.fixed)
        if self.problem.D is not None or "h" not in self.method.remembers:
            return np.eye(size)
        heals = self.machine.line.everyone and not isinstance(self.method, ps.Tamuna)
        if heals and "x" not in self.method.remembers:
            return np.eye(size)
        sums = np.zeros((self.d, size))
        sums[:, self.n * self.d :] = np.kron(self.problem.weights, np.eye(self.d))
        return scipy.linalg.null_space(sums)

    def top(self) -> float:
        """The largest eigenvalue of E[Psi+] against Psi."""
        P, B = quadratic_form(self.psi, self.fixed), self.subspace()
        p = getattr(self.method, "p", 1.0)
        everybody = np.arange(self.n)
        mean = np.zeros_like(P)
        # other methods' coins do nothing without a communication
        alone = {"hhat", "w"} & set(self.method.remembers)
        for chance, coins in self.coins if alone else [(1.0, self.coins[-1][1])]:
            if p < 1:
                quiet = linear_part(lambda z, c=coins: self.step(z, everybody, c)[1], self.fixed)
                mean += (1 - p) * chance * quiet.T @ P @ quiet
        for chance, coins in self.coins:
            for probability, cohort, r in self.outcomes:
                M = linear_part(lambda z, S=cohort, c=coins, r=r: self.step(z, S, c, r)[0], self.fixed)
                mean += p * probability * chance * M.T @ P @ M
        Q, R = B.T @ mean @ B, B.T @ P @ B
        return float(scipy.linalg.eigh((Q + Q.T) / 2, (R + R.T) / 2, eigvals_only=True)[-1])

    @property
    def zeta(self) -> float:
        """What the method's theorem promises."""
        return self.method.zeta(self.problem)
