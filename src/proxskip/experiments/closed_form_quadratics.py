"""Quadratics whose local steps have a closed form, an engine that uses it, and a stepper to drive methods with.

On f_i(x) = 1/2 x'H_i x - b_i'x, K times  y <- y - gamma (H_i y - b_i - h)  is

    y  ->  y - Q s(Lambda) Q' (H_i y - b_i - h),     s(a) = (1 - (1 - gamma a)^K) / a,     H_i = Q Lambda Q',

exact and independent of K in cost. The methods themselves are the library's own, and so is the meter.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from proxskip.engines.cpu.engine import CpuEngine
from proxskip.links.cohorts import Everyone
from proxskip.links.graphs import Graph
from proxskip.links.sums import weighted_sum
from proxskip.loop.line import Line
from proxskip.methods.steps import geometric
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import Quadratic
from proxskip.randomness import stream
from proxskip.seam import ClientHalf, Method, SettleHalf
from proxskip.types import Array, Indices, InputError, Vectors


def filling(n: int, d: int, kappa: float, *, spread: float = 3.0, seed: int = 0) -> Problem:
    """n diagonal quadratics with L = 1 and mu = 1/kappa, for every client and for their average, filling [mu, L].

    The first and the last coordinate have the curvatures mu and L at every client, so that kappa is what every method
    feels; those between are ``spread`` times larger or smaller from client to client. The draws do not depend on kappa.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    center = np.where(rng.random(d) < 0.5, -1.0, 1.0) + rng.standard_normal((n, d))
    factors = spread ** rng.uniform(-1.0, 1.0, (n, d))
    factors[:, [0, -1]] = 1.0
    H = np.clip(np.geomspace(1.0 / kappa, 1.0, d) * factors, 1.0 / kappa, 1.0)
    return Problem([Quadratic(a, a * c) for a, c in zip(H, center, strict=True)])


class Everybody:
    """All clients as one stack, in closed form."""

    def __init__(self, engine: ClosedForm) -> None:
        self.engine = engine
        self.gradients = 0

    def descend(self, x: Array, h: Array | float, gamma: Any, K: Any) -> Array:
        """K steps at once."""
        e = self.engine
        steps = np.broadcast_to(K, (e.n,)).reshape(-1, 1)
        self.gradients += int(steps.sum())
        step = np.asarray(gamma, dtype=np.float64) * e.a
        with np.errstate(divide="ignore", invalid="ignore"):
            small = -np.expm1(steps * np.log1p(-np.minimum(step, 1.0)))
        s = np.where(step <= 1.0, small, 1.0 - (1.0 - step) ** steps) / e.a
        x = np.broadcast_to(x, (e.n, e.d))
        wrong = e.times(x) - e.b - h
        moved = s * wrong if e.Q is None else _turn(e.Q, s * _turn(e.Q.swapaxes(1, 2), wrong))
        out: Array = x - moved
        return out

    def gradient(self, x: Array) -> Array:
        """H_i x - b_i."""
        self.gradients += self.engine.n
        return np.asarray(self.engine.times(np.broadcast_to(x, (self.engine.n, self.engine.d))) - self.engine.b)

    def own(self, values: Any) -> Any:
        """The clients' entries as a column."""
        return values if np.ndim(values) == 0 else np.asarray(values)[:, None]


class ClosedForm:
    """An engine for strongly convex quadratics with everybody in every round."""

    name = "closed-form"

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """The eigenvalues of every client, all at once."""
        self.problem, self.seed = problem, seed
        parts: list[Any] = list(problem.clients)
        if not all(isinstance(f, Quadratic) and f.mu > 0 for f in parts):
            raise InputError("the closed form is for strongly convex quadratics.")
        self.n, self.d = problem.n, problem.d
        self.b = np.stack([f.b for f in parts])
        self.Q: Array | None = None
        if all(f.H.ndim == 1 for f in parts):
            self.a = np.stack([f.H for f in parts])
        else:
            self.H = np.stack([f.hessian(f.b) for f in parts])
            self.a, self.Q = np.linalg.eigh(self.H)
        self.kept = {k: v.copy() for k, v in memory.items()}

    def times(self, x: Array) -> Array:
        """H_i x_i."""
        return self.a * x if self.Q is None else _turn(self.H, x)

    def run(
        self, half: ClientHalf, cohort: Indices, round: int, K: Any, down: tuple[Array, ...]
    ) -> tuple[tuple[Array, ...], int]:
        """The half once, for all."""
        client = Everybody(self)
        up, memory = half(client, self.kept, K, *down)
        self.kept |= memory
        return tuple(np.broadcast_to(v, (self.n, self.d)) for v in up), client.gradients

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        """The same."""
        self.kept |= half(Everybody(self), self.kept, *outcome)

    def sum(self, w: Array, U: Array) -> Array:
        """The weighted sum."""
        return np.asarray(w @ U)

    def mix(self, graph: Graph, U: Array) -> Array:
        """One gossip step."""
        return np.asarray(graph.W @ U)

    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        return {k: np.array(np.broadcast_to(v, (self.n, self.d))) for k, v in self.kept.items()}

    def close(self) -> None:
        """Nothing to give back."""


class Stepper:
    """One method on one problem, round after round from x0 = 0 and h0 = 0, with its state in the open.

    It is the loop without its records, so that every single round can be measured; the draws are the loop's own.
    """

    def __init__(self, method: Method, problem: Problem, seed: int = 0, engine: Any = None) -> None:
        self.method, self.problem, self.seed = method, problem, seed
        self.engine = ClosedForm() if engine is None else engine
        self.again(seed)

    def again(self, seed: int) -> None:
        """From the beginning, with another seed."""
        self.seed = seed
        self.put(self.method.start(self.problem, np.zeros(self.problem.d)), {})

    def put(self, server: Vectors, memory: Vectors) -> None:
        """Start from this state; memories that are not given start at zero."""
        zeros = {k: np.zeros((self.problem.n, self.problem.d)) for k in self.method.remembers}
        if getattr(self.engine, "problem", None) is self.problem:  # the shards are there already
            self.engine.kept, self.engine.seed = zeros | memory, self.seed
        else:
            self.engine.open(self.problem, zeros | memory, self.seed)
        self.line = Line(self.engine, self.problem, self.seed, Everyone())
        self.server, self.round = server, 0

    def step(self) -> None:
        """One round."""
        self.line.begin(self.round)
        self.server = self.method.round(self.server, self.line)
        self.round += 1

    def ahead(self, steps: int) -> Array:
        """Every client's iterate after so many local steps of the coming round, which stays to be done."""
        if steps == 0:
            return np.array(np.broadcast_to(self.X, (self.problem.n, self.problem.d)))
        local: Any = getattr(self.method, "local", None) or self.method._same.local  # type: ignore[attr-defined]

        def look(client: Any, memory: Vectors, K: int, *down: Array) -> tuple[tuple[Array, ...], Vectors]:
            return (local(client, memory, K, *down)[1]["xhat"],), {}

        down = () if "x" in self.method.remembers else (self.server["x"],)
        (X,), _ = self.engine.run(look, self.line.all, self.round, steps, down)
        return np.array(X)

    @property
    def X(self) -> Array:
        """The server's x, or every client's, one row each."""
        return self.server["x"] if "x" in self.server else self.engine.kept["x"]

    @property
    def x(self) -> Array:
        """The answer: the server's x, or the mean of the clients'."""
        return self.X if self.X.ndim == 1 else weighted_sum(self.problem.weights, self.X)


def own_engine(problem: Problem, threads: int | None = None) -> Any:
    """The closed form where there is one, otherwise the cpu engine."""
    quadratic = all(isinstance(f, Quadratic) for f in problem.clients)
    return ClosedForm() if quadratic else CpuEngine(threads)


def distance2(X: Array, x_star: Array) -> float:
    """|x - x*|^2, or its mean over the clients."""
    apart = np.atleast_2d(X - x_star)
    return float(np.einsum("ij,ij->", apart, apart)) / len(apart)


def rounds_to(method: Method, problem: Problem, eps: float, limit: int, seed: int = 0) -> int | None:
    """The first round after which |x - x*|^2 <= eps |x0 - x*|^2; None if that is not within the limit, or never."""
    assert problem.solution is not None
    s = Stepper(method, problem, seed)
    start = distance2(s.X, problem.solution.x)
    with np.errstate(all="ignore"):
        while s.round < limit:
            s.step()
            now = distance2(s.X, problem.solution.x)
            if now <= eps * start:
                return s.round
            if not now < 1e12 * start:
                return None
    return None


class Affine:
    """A method without coins on diagonal quadratics is an affine map, coordinate by coordinate: its powers by squaring.

    The map is read off the method's own code, from one round at zero and one at every unit vector of its state. The
    state is what the server holds or the clients' x_i, and the h_i; the last h_i is minus the sum of the others, or
    rounding would make it drift over millions of rounds. What clients remember besides is written anew in every round.
    """

    def __init__(self, method: Method, problem: Problem) -> None:
        assert problem.solution is not None
        self.x_star = problem.solution.x[:, None]
        self.stepper = Stepper(method, problem)
        self.server = list(self.stepper.server)
        self.own = 0 if self.server else problem.n
        z0 = self._state()
        size, d = z0.shape
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
        own = memory["x"] if self.own else []
        return np.stack([*(s.server[k] for k in self.server), *own, *memory.get("h", [])[:-1]])

    def _image(self, z: Array) -> Array:
        s, h = self.stepper, z[len(self.server) + self.own :]
        memory = {"h": np.concatenate([h, -h.sum(axis=0, keepdims=True)])} if len(h) else {}
        if self.own:
            memory["x"] = z[: self.own]
        s.put({k: z[i] for i, k in enumerate(self.server)}, memory)
        s.step()
        return self._state()

    def error(self, z: Array) -> float:
        """|x - x*|^2 of a state, or its mean over the clients."""
        return float(np.sum((z[:, self.x] - self.x_star) ** 2)) / max(1, self.own)

    def after(self, rounds: int) -> Array:
        """x after so many rounds, or every client's, one row each."""
        z, power = self.z0, self.M
        for bit in reversed(f"{rounds:b}"):
            z = _turn(power, z) if bit == "1" else z
            power = power @ power
        return np.asarray(z[:, self.x].T)

    def rounds_to(self, eps: float, most: int = 48) -> tuple[int | None, float]:
        """The first round with error <= eps times the first one, and the smallest error seen, relative to it.

        None if 2^most rounds do not suffice. The error must cross eps once, as a linear rate's does.
        """
        start = self.error(self.z0)
        powers, z, floor = [self.M], self.z0, 1.0
        while not (now := self.error(_turn(powers[-1], self.z0)) / start) <= eps:
            floor = min(floor, now)
            if len(powers) > most or not now < 1e12:
                return None, floor
            powers.append(powers[-1] @ powers[-1])
        rounds = 0
        for k in reversed(range(len(powers))):
            ahead = _turn(powers[k], z)
            if self.error(ahead) > eps * start:
                z, rounds = ahead, rounds + 2**k
        return rounds + 1, eps


class Factors:
    """A method whose error after a round is, coordinate by coordinate, a factor that only its draw of K decides.

    So it is for S-Local-GD with q = 1, since nothing but x outlives a round. The factors are read off the method's own
    code, one round for every K that is drawn, and K is drawn as the loop draws it.
    """

    def __init__(self, method: Any, problem: Problem) -> None:
        assert problem.solution is not None
        self.method, self.x_star = method, problem.solution.x
        self.stepper = Stepper(method, problem)
        self.known: dict[int, Array] = {}

    def factor(self, K: int) -> Array:
        """What one round with K local steps multiplies x - x* by."""
        if K not in self.known:
            s = self.stepper
            s.put({"x": self.x_star + 1.0}, {})
            s.line.begin(0)
            s.line.rng = _Coin(-math.expm1((K - 0.5) * math.log1p(-self.method.p)))  # type: ignore[assignment]
            self.known[K] = self.method.round(s.server, s.line)["x"] - self.x_star
        return self.known[K]

    def rounds_to(self, eps: float, seed: int = 0, limit: int = 10_000_000) -> int | None:
        """The first round with error <= eps times the first one."""
        coins = stream(seed, 0, "server")
        error = -self.x_star
        goal = eps * float(error @ error)
        for r in range(limit):
            error = error * self.factor(geometric(stream(seed, r, "server", coins), self.method.p))
            if error @ error <= goal:
                return r + 1
        return None


class _Coin:
    """A generator that always gives the same number."""

    def __init__(self, u: float) -> None:
        self.u = u

    def random(self) -> float:
        return self.u


def slope(x: Any, y: Any) -> float:
    """The log-log slope by least squares."""
    return float(np.polyfit(np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float)), 1)[0])


def _turn(Q: Array, x: Array) -> Array:
    return np.asarray((Q @ x[..., None])[..., 0])
