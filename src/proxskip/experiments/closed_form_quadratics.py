"""Local steps on quadratics in closed form: an engine that uses it, and ways to count the rounds to an accuracy.

On f_i(x) = 1/2 x'H_i x - b_i'x, K times  y <- y - gamma (H_i y - b_i - h)  is

    y  ->  y - Q s(Lambda) Q' (H_i y - b_i - h),     s(a) = (1 - (1 - gamma a)^K) / a,     H_i = Q Lambda Q',

which is exact and costs the same for every K. The methods and the counting of communication are the library's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from proxskip.engines.cpu.engine import CpuEngine
from proxskip.interfaces import Engine, Method, Request, SettleHalf, Work
from proxskip.links.cohorts import Everyone
from proxskip.links.gossip import AwakeLinks, Mixer
from proxskip.links.sums import weighted_sum
from proxskip.loop.metered_exchange import Line
from proxskip.methods import ProxSkip, SLocalGD, SProxSkip
from proxskip.methods.steps import geometric
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import Quadratic
from proxskip.randomness import generator, stream
from proxskip.types import Array, Indices, InputError, Vectors


def filling(n: int, d: int, kappa: float, *, spread: float = 3.0, seed: int = 0) -> Problem:
    """n diagonal quadratics whose curvatures fill [mu, L] = [1/kappa, 1], for every client and for their average.

    The first and the last coordinate have the curvatures mu and L for every client, so that every method is governed
    by kappa; between them, clients differ by factors up to ``spread``. The draws do not depend on kappa.
    """
    rng = generator(seed)
    center = np.where(rng.random(d) < 0.5, -1.0, 1.0) + rng.standard_normal((n, d))
    factors = spread ** rng.uniform(-1.0, 1.0, (n, d))
    factors[:, [0, -1]] = 1.0
    H = np.clip(np.geomspace(1.0 / kappa, 1.0, d) * factors, 1.0 / kappa, 1.0)
    return Problem([Quadratic(a, a * c) for a, c in zip(H, center, strict=True)])


class ClosedFormClients:
    """All clients as one stack; their local steps in closed form."""

    def __init__(self, engine: ClosedFormEngine) -> None:
        self.engine = engine
        self.gradients = 0

    def descend(self, x: Array, h: Array | float, gamma: Any, K: Any) -> Array:
        """All K steps at once."""
        e = self.engine
        steps = np.broadcast_to(K, (e.n,)).reshape(-1, 1)
        self.gradients += int(steps.sum())
        step = np.asarray(gamma, dtype=np.float64) * e.a
        # s(a) = (1 - (1 - gamma a)^K) / a; by expm1 and log1p, which are exact for small gamma a, if gamma a <= 1
        with np.errstate(divide="ignore", invalid="ignore"):
            small = -np.expm1(steps * np.log1p(-np.minimum(step, 1.0)))
        s = np.where(step <= 1.0, small, 1.0 - (1.0 - step) ** steps) / e.a
        x = np.broadcast_to(x, (e.n, e.d))
        g = e.times(x) - e.b - h
        moved = s * g if e.Q is None else _multiply(e.Q, s * _multiply(e.Q.swapaxes(1, 2), g))
        y: Array = x - moved
        return y

    def gradient(self, x: Array) -> Array:
        """H_i x - b_i."""
        self.gradients += self.engine.n
        return np.asarray(self.engine.times(np.broadcast_to(x, (self.engine.n, self.engine.d))) - self.engine.b)

    def own(self, values: Any) -> Any:
        """The entries of all clients, as a column."""
        return values if np.ndim(values) == 0 else np.asarray(values)[:, None]

    def send(self, v: Array, codec: Any = None) -> Array:
        """As it is."""
        return v


class ClosedFormEngine(Engine):
    """An engine for strongly convex quadratics, without cohorts."""

    name = "closed-form"

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Compute the eigenvalues of all clients."""
        self.problem, self.seed = problem, seed
        parts: list[Any] = list(problem.clients)
        if not all(isinstance(f, Quadratic) and f.mu > 0 for f in parts):
            raise InputError("the closed form is for strongly convex quadratics.")
        self.n, self.d = problem.n, problem.d
        self.b = np.stack([f.b for f in parts])
        # diagonal Hessians need no rotation: Q stays None, and a holds their diagonals
        self.Q: Array | None = None
        if all(f.H.ndim == 1 for f in parts):
            self.a = np.stack([f.H for f in parts])
        else:
            self.H = np.stack([f.hessian(f.b) for f in parts])
            self.a, self.Q = np.linalg.eigh(self.H)
        self.kept = {k: v.copy() for k, v in memory.items()}

    def times(self, x: Array) -> Array:
        """H_i x_i for all clients."""
        return self.a * x if self.Q is None else _multiply(self.H, x)

    def run(self, request: Request) -> Work:
        """Run the half once, for all clients together."""
        client = ClosedFormClients(self)
        up, memory = request.half(client, self.kept, request.K, *request.down)
        self.kept |= memory
        return Work(tuple(np.broadcast_to(v, (self.n, self.d)) for v in up), client.gradients)

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        """Run the half that settles the round, for all clients together."""
        self.kept |= half(ClosedFormClients(self), self.kept, *outcome)

    def sum(self, w: Array, U: Array) -> Array:
        """The weighted sum."""
        return np.asarray(w @ U)

    def mix(self, graph: Mixer, U: Array) -> Array:
        """One gossip step."""
        return graph.mix(U) if isinstance(graph, AwakeLinks) else np.asarray(graph.W @ U)

    def memory(self) -> Vectors:
        """A copy of the clients' memory."""
        return {k: np.array(np.broadcast_to(v, (self.n, self.d))) for k, v in self.kept.items()}

    def close(self) -> None:
        """Nothing to release."""


class Stepper:
    """One method on one problem, round by round from x0 = 0 and h0 = 0, with access to its state.

    It is the loop of a run without its records, so that every round can be measured; the random draws are the same.
    """

    def __init__(
        self, method: Method, problem: Problem, seed: int = 0, engine: ClosedFormEngine | CpuEngine | None = None
    ) -> None:
        self.method, self.problem, self.seed = method, problem, seed
        self.engine = ClosedFormEngine() if engine is None else engine
        self.opened = False
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Start again, with another seed."""
        self.seed = seed
        self.set_state(self.method.start(self.problem, np.zeros(self.problem.d)), {})

    def set_state(self, server: Vectors, memory: Vectors) -> None:
        """Continue from this state; vectors that are not given start at zero."""
        zeros = {k: np.zeros((self.problem.n, self.problem.d)) for k in self.method.remembers}
        if self.opened:  # the engine has the data already
            self.engine.kept, self.engine.seed = zeros | memory, self.seed
        else:
            self.engine.open(self.problem, zeros | memory, self.seed)
            self.opened = True
        self.line = Line(self.engine, self.problem, self.seed, Everyone())
        self.server, self.round = server, 0

    def step(self) -> None:
        """Run one communication round."""
        self.line.begin(self.round)
        self.server = self.method.round(self.server, self.line)
        self.round += 1

    def ahead(self, steps: int) -> Array:
        """Every client's iterate after some local steps of the coming round, which is not performed."""
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
    def x(self) -> Array:
        """The solution so far: the server's x, or the mean of the clients' x_i."""
        return self.X if self.X.ndim == 1 else weighted_sum(self.problem.weights, self.X)


def fastest_engine(problem: Problem, threads: int | None = None) -> ClosedFormEngine | CpuEngine:
    """The closed form for quadratics, otherwise the cpu engine."""
    quadratic = all(isinstance(f, Quadratic) for f in problem.clients)
    return ClosedFormEngine() if quadratic else CpuEngine(threads)


def distance2(X: Array, x_star: Array) -> float:
    """|x - x*|^2, or its mean over the clients."""
    apart = np.atleast_2d(X - x_star)
    return float(np.einsum("ij,ij->", apart, apart)) / len(apart)


def rounds_to(method: Method, problem: Problem, eps: float, limit: int, seed: int = 0) -> int | None:
    """The first round after which |x - x*|^2 <= eps |x0 - x*|^2; None if it diverges or takes more than ``limit``."""
    assert problem.solution is not None
    s = Stepper(method, problem, seed)
    start = distance2(s.X, problem.solution.x)
    with np.errstate(all="ignore"):
        while s.round < limit:
            s.step()
            now = distance2(s.X, problem.solution.x)
            if now <= eps * start:
                return s.round
            if not now < 1e12 * start:  # diverged, or nan
                return None
    return None


class AffineMap:
    """The round of a deterministic method on diagonal quadratics: an affine map per coordinate, powered by squaring.

    The map is found by running the method itself: one round from zero, and one from every unit vector of its state.
    The state consists of the server's vectors or the clients' x_i, and of the h_i. The last h_i is minus the sum of
    the others, because rounding would make it drift over millions of rounds. Other memory is rewritten every round.
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

    def after(self, rounds: int) -> Array:
        """x after ``rounds`` rounds, or the clients' x_i as rows."""
        z, power = self.z0, self.M
        for bit in reversed(f"{rounds:b}"):
            z = _multiply(power, z) if bit == "1" else z
            power = power @ power
        return np.asarray(z[:, self.x].T)

    def rounds_to(self, eps: float, most: int = 48) -> tuple[int | None, float]:
        """The first round with error <= eps times the initial error, and the smallest relative error seen.

        None if 2^most rounds are not enough. The error must cross eps only once, as with a linear rate.
        """
        start = self.error(self.z0)
        # double the number of rounds until eps is reached, then bisect with the powers found
        powers, z, floor = [self.M], self.z0, 1.0
        while not (now := self.error(_multiply(powers[-1], self.z0)) / start) <= eps:
            floor = min(floor, now)
            if len(powers) > most or not now < 1e12:
                return None, floor
            powers.append(powers[-1] @ powers[-1])
        # the largest number of rounds after which the error is still above eps, bit by bit
        rounds = 0
        for k in reversed(range(len(powers))):
            ahead = _multiply(powers[k], z)
            if self.error(ahead) > eps * start:
                z, rounds = ahead, rounds + 2**k
        return rounds + 1, eps


class RandomFactors:
    """A method whose round multiplies each coordinate of x - x* by a factor that depends on the drawn K alone.

    This holds for S-Local-GD with q = 1, because only x survives a round. The factors are found by running the method
    itself, one round for every K that is drawn; K is drawn as in a run.
    """

    def __init__(self, method: SLocalGD, problem: Problem) -> None:
        assert problem.solution is not None
        self.method, self.x_star = method, problem.solution.x
        self.stepper = Stepper(method, problem)
        self.known: dict[int, Array] = {}

    def factor(self, K: int) -> Array:
        """The factor by which one round with K local steps multiplies x - x*."""
        if K not in self.known:
            s = self.stepper
            s.set_state({"x": self.x_star + 1.0}, {})
            s.line.begin(0)
            # the uniform number from which the method draws exactly this K
            s.line.rng = _ConstantGenerator(-math.expm1((K - 0.5) * math.log1p(-self.method.p)))  # type: ignore[assignment]
            self.known[K] = self.method.round(s.server, s.line)["x"] - self.x_star
        return self.known[K]

    def rounds_to(self, eps: float, seed: int = 0, limit: int = 10_000_000) -> int | None:
        """The first round with squared error <= eps times the initial one; None if it takes more than ``limit``."""
        coins = stream(seed, 0, "server")  # one generator, set to the key of each round
        error = -self.x_star
        goal = eps * float(error @ error)
        for r in range(limit):
            error = error * self.factor(geometric(stream(seed, r, "server", coins), self.method.p))
            if error @ error <= goal:
                return r + 1
        return None


class _ConstantGenerator:
    """A random generator that always returns the same number."""

    def __init__(self, u: float) -> None:
        self.u = u

    def random(self) -> float:
        return self.u


def _multiply(Q: Array, x: Array) -> Array:
    return np.asarray((Q @ x[..., None])[..., 0])
