"""Local steps on diagonal quadratics in closed form, and ways to count the rounds to an accuracy.

On f_i(x) = 1/2 x'H_i x - b_i'x with a diagonal H_i, K times  y <- y - gamma (H_i y - b_i - h)  is

    y  ->  y - s(H_i) (H_i y - b_i - h),     s(a) = (1 - (1 - gamma a)^K) / a,

which is exact and costs the same for every K. The methods and the counting of communication are the library's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from proxskip.core.engine import Request
from proxskip.core.method import Method
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.in_process import NearEngine
from proxskip.engines.local import Sender
from proxskip.methods import FedLin, ProxSkip, SLocalGD, SProxSkip
from proxskip.methods.steps import geometric
from proxskip.participation import Everyone
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import Quadratic
from proxskip.running.metered_exchange import MeteredExchange
from proxskip.support.randomness import generator, stream
from proxskip.types import Array, Indices, Vectors


def filling(n: int, d: int, kappa: float, *, spread: float = 3.0, seed: int = 0) -> Problem:
    """n diagonal quadratics whose curvatures fill [mu, L] = [1/kappa, 1], for every client and for their average.

    Every client has the curvatures mu and L in the first and last coordinate; in the others, clients differ by factors
    up to ``spread``. The draws do not depend on kappa.
    """
    rng = generator(seed)
    center = np.where(rng.random(d) < 0.5, -1.0, 1.0) + rng.standard_normal((n, d))
    factors = spread ** rng.uniform(-1.0, 1.0, (n, d))
    factors[:, [0, -1]] = 1.0
    H = np.clip(np.geomspace(1.0 / kappa, 1.0, d) * factors, 1.0 / kappa, 1.0)
    return Problem([Quadratic(a, a * c) for a, c in zip(H, center, strict=True)])


class ClosedFormClients(Sender):
    """All clients as one stack; their local steps in closed form."""

    def __init__(self, H: Array, b: Array) -> None:
        self.H, self.b = H, b

    def descend(self, x: Array, h: Array | float, gamma: Any, K: Any) -> Array:
        """All K steps at once."""
        steps = np.broadcast_to(K, (len(self.b),)).reshape(-1, 1)
        self.gradients += int(steps.sum())
        step = np.asarray(gamma, dtype=np.float64) * self.H
        # expm1 and log1p are exact for small gamma a
        with np.errstate(divide="ignore", invalid="ignore"):
            small = -np.expm1(steps * np.log1p(-np.minimum(step, 1.0)))
        s = np.where(step <= 1.0, small, 1.0 - (1.0 - step) ** steps) / self.H
        return np.asarray(x - s * (self.H * x - self.b - h))

    def gradient(self, x: Array) -> Array:
        """H_i x - b_i."""
        self.gradients += len(self.b)
        return np.asarray(self.H * x - self.b)

    def own(self, values: Any) -> Any:
        """The values as a column."""
        return values if np.ndim(values) == 0 else np.asarray(values)[:, None]


class ClosedFormEngine(NearEngine):
    """An engine for strongly convex diagonal quadratics, without cohorts."""

    name = "closed-form"
    together = True

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Stack the quadratics."""
        super().open(problem, memory, seed)
        functions: list[Any] = list(problem.clients)
        self.H, self.b = np.stack([f.H for f in functions]), np.stack([f.b for f in functions])

    def client(self, members: Indices, request: Request, place: int) -> ClosedFormClients:
        """All clients."""
        return ClosedFormClients(self.H, self.b)


class Stepper:
    """A method on a problem, round by round from x0 = 0 and h0 = 0, with the draws of a run and access to its state."""

    def __init__(self, method: Method, problem: Problem, seed: int = 0, threads: int | None = 1) -> None:
        self.method, self.problem = method, problem
        diagonal = all(isinstance(f, Quadratic) and f.H.ndim == 1 for f in problem.clients)
        self.engine: ClosedFormEngine | CpuEngine = ClosedFormEngine() if diagonal else CpuEngine(threads)
        self.zeros = {k: np.zeros((problem.n, problem.d)) for k in method.remembers}
        self.engine.open(problem, self.zeros, seed)
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Start again, with another seed."""
        self.seed = self.engine.seed = seed
        self.set_state(self.method.start(self.problem, np.zeros(self.problem.d)), {})

    def set_state(self, server: Vectors, memory: Vectors) -> None:
        """Continue from this state; vectors that are missing start at zero."""
        self.engine.kept = {k: v.copy() for k, v in (self.zeros | memory).items()}
        self.line = MeteredExchange(self.engine, self.problem, self.seed, Everyone())
        self.server, self.round = server, 0

    def step(self) -> None:
        """Run one communication round."""
        self.line.begin(self.round)
        self.server = self.method.round(self.server, self.line)
        self.round += 1

    def ahead(self, steps: int) -> Array:
        """Every client's iterate after some local steps of the coming round, which is not run."""
        if steps == 0:
            return np.array(np.broadcast_to(self.X, (self.problem.n, self.problem.d)))
        # SProxSkip is ProxSkip with stochastic gradients: its client half is ProxSkip's
        method: Any = self.method
        local = (ProxSkip(method.gamma, method.p) if isinstance(method, SProxSkip) else method).local

        def half(client: Any, memory: Vectors, K: int, *down: Array) -> tuple[tuple[Array, ...], Vectors]:
            return (local(client, memory, K, *down)[1]["xhat"],), {}

        # on a graph the clients hold their own x; otherwise the server sends it
        down = () if "x" in self.method.remembers else (self.server["x"],)
        (X,) = self.engine.run(Request(half, self.line.all, self.round, steps, down)).up
        return np.array(X)

    @property
    def X(self) -> Array:
        """The server's x, or the clients' x_i as rows."""
        return self.server["x"] if "x" in self.server else self.engine.kept["x"]

    @property
    def error(self) -> float:
        """|x - x*|^2, or its mean over the clients."""
        assert self.problem.solution is not None
        apart = np.atleast_2d(self.X - self.problem.solution.x)
        return float(np.einsum("ij,ij->", apart, apart)) / len(apart)


def rounds_to(method: Method, problem: Problem, eps: float, limit: int, seed: int = 0) -> int | None:
    """The first round after which |x - x*|^2 <= eps |x0 - x*|^2; None if it diverges or takes more than ``limit``."""
    s = Stepper(method, problem, seed)
    start = s.error
    with np.errstate(all="ignore"):
        while s.round < limit:
            s.step()
            now = s.error
            if now <= eps * start:
                return s.round
            if not now < 1e12 * start:  # diverged, or nan
                return None
    return None


class AffineMap:
    """The round of a deterministic method on diagonal quadratics: an affine map per coordinate, powered by squaring.

    One round from zero and one from every unit vector of the state give the map. The state has the server's vectors or
    the clients' x_i, and all h_i but the last, which is minus the sum of the others: otherwise it would drift.
    """

    def __init__(self, method: Method, problem: Problem) -> None:
        assert problem.solution is not None
        self.x_star = problem.solution.x[:, None]
        self.stepper = Stepper(method, problem)
        self.server = list(self.stepper.server)
        self.own = 0 if self.server else problem.n
        z0 = self._state()
        size, d = z0.shape
        # homogeneous coordinates: M (z, 1) = (A z + c, 1), one matrix per coordinate of x
        base = self._image(np.zeros((size, d)))
        self.M = np.zeros((d, size + 1, size + 1))
        self.M[:, -1, -1] = 1.0
        self.M[:, :-1, -1] = base.T
        for k, unit in enumerate(np.eye(size)):
            self.M[:, :-1, k] = (self._image(np.repeat(unit[:, None], d, axis=1)) - base).T
        self.z0 = np.concatenate([z0, np.ones((1, d))]).T
        at = self.server.index("x") if self.server else 0
        self.x = slice(at, at + max(1, self.own))

    def _state(self) -> Array:
        s = self.stepper
        memory = s.engine.memory()
        own: Sequence[Array] = list(memory["x"]) if self.own else []
        return np.stack([*(s.server[k] for k in self.server), *own, *memory.get("h", [])[:-1]])

    def _image(self, z: Array) -> Array:
        """The state one round after z."""
        s, h = self.stepper, z[len(self.server) + self.own :]
        memory = {"h": np.concatenate([h, -h.sum(axis=0, keepdims=True)])} if len(h) else {}
        if self.own:
            memory["x"] = z[: self.own]
        s.set_state({k: z[i] for i, k in enumerate(self.server)}, memory)
        s.step()
        return self._state()

    def error(self, z: Array) -> float:
        """|x - x*|^2 of a state, averaged over the clients if each has its own x."""
        return float(np.sum((z[:, self.x] - self.x_star) ** 2)) / max(1, self.own)

    def rounds_to(self, eps: float, most: int = 48) -> tuple[int | None, float]:
        """The first round with error <= eps times the initial error, and the smallest relative error seen.

        None if 2^most rounds are not enough. The error must cross eps only once.
        """
        start = self.error(self.z0)
        # double the rounds until eps is reached, then bisect
        powers, z, floor = [self.M], self.z0, 1.0
        while not (now := self.error(_multiply(powers[-1], self.z0)) / start) <= eps:
            floor = min(floor, now)
            if len(powers) > most or not now < 1e12:
                return None, floor
            powers.append(powers[-1] @ powers[-1])
        rounds = 0  # the most after which the error is still above eps, found one binary digit at a time
        for k in reversed(range(len(powers))):
            ahead = _multiply(powers[k], z)
            if self.error(ahead) > eps * start:
                z, rounds = ahead, rounds + 2**k
        return rounds + 1, eps


def rounds_of_s_local_gd(method: SLocalGD, problem: Problem, eps: float, seed: int = 0) -> int | None:
    """The first round of S-Local-GD with squared error <= eps times the initial one; None after ten million rounds.

    With q = 1, a round with K local steps multiplies each coordinate of x - x* by a factor, which FedLin with a fixed K
    has too. K is drawn as in a run.
    """
    assert problem.solution is not None
    x_star, factors = problem.solution.x, dict[int, Array]()
    coins = stream(seed, 0, "server")  # one generator, set to the key of each round
    error = -x_star
    goal = eps * float(error @ error)
    for r in range(10_000_000):
        K = geometric(stream(seed, r, "server", coins), method.p)
        if K not in factors:
            one = Stepper(FedLin(method.gamma, K), problem)
            one.set_state({"x": x_star + 1.0}, {})
            one.step()
            factors[K] = one.server["x"] - x_star
        error = error * factors[K]
        if error @ error <= goal:
            return r + 1
    return None


def _multiply(Q: Array, x: Array) -> Array:
    return np.asarray((Q @ x[..., None])[..., 0])
