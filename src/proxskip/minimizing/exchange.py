"""One function without clients: the same methods, with an exchange that costs next to nothing.

``SoloExchange`` is the Exchange for a single client in the same process. It counts gradients and proxes,
checks what a prox returns, ties the accuracy of an inexact prox to that of the iterates, and notes at every prox what
it proves. From  x+ = prox_{t psi}(m)  follows that  s = (m - x+)/t  is a subgradient of psi at x+, so that

    |x+ - prox_{gamma psi}(x+ - gamma grad f(x+))| / gamma  <=  |grad f(x+) + s|      for every gamma > 0,

a bound on the certificate without another prox; from  y+ = prox_{tau psi*}(u)  follows likewise that  (u - y+)/tau  is
a subgradient of psi* at y+. The gradient at x+ is the first one that the next steps need, so it is kept for them.

If x+ is off by e, the bound at that x+ is off by at most  (1 + |1 - gamma/t|) e/gamma:  with s at the exact prox z,
z = prox_{gamma psi}(z + gamma s), a prox is nonexpansive, and  z + gamma s - (x+ - gamma grad f(x+))  is
gamma (grad f(x+) + (m - x+)/t) + (1 - gamma/t)(z - x+).  If the prox in y+ is off by e, then y+ by tau e, and the
residual  |y+ - prox_{psi*}(y+ + D x)|  by at most  (1 + 2 tau) e.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip import prox
from proxskip.codecs import Codec
from proxskip.core.engine import Request
from proxskip.core.exchange import Anchor, ClientHalf, Pull, SettleHalf, checked_answer
from proxskip.core.gossip import Links
from proxskip.engines.local import no_half
from proxskip.minimizing.functions import CURVATURE_SLACK, Smooth, curvature
from proxskip.problems.federated import Problem
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.oracles import dtype_of
from proxskip.problems.prox_check import Call
from proxskip.support.randomness import minibatch, stream
from proxskip.types import Array, Column, Indices, InputError, Prox, Vectors, is_sparse

INNER_ERROR_SHARE = 0.25
"""The share of the certificate that an inexact prox may spoil."""
STEPS_BETWEEN_LIMIT_CHECKS = 256
"""Steps of a long round after which the limits are checked."""
SHORT_STEP = 1e-3
"""A step shorter than this, relative to the points so far, says nothing about L: their rounding may explain it."""
CHECKED_FIRST, CHECK_PERIOD = 64, 256
"""The first proxes (and gradients) are all checked, and after them two of each period."""


class TooSteep(Exception):
    """Two gradients differ by more than L allows; backtracking takes ``steepest`` of the client."""


class LimitReached(Exception):
    """A limit was reached in the middle of a round."""


class Overflow(ArithmeticError):
    """The iterates are no longer finite."""


def _needs_clients(what: str) -> InputError:
    return InputError(f"this method {what}, so it needs clients, which minimize does not have; give it to run.")


class SoloClient:
    """f as the only client; the last gradient is kept, and compared with the one before to check L.

    Args:
        at, g: a point, and the gradient there.
        backtrack: whether L is a guess, which is raised where f is steeper.
    """

    def __init__(self, f: Smooth, at: Array, g: Array, batch: int | None, seed: int, backtrack: bool) -> None:
        self.f = f
        self.batch = batch
        self.seed = seed
        self.backtrack = backtrack
        self.at: Array | None = at
        self.g = g
        self.round = 0
        self.calls = 0
        self.rows = 0
        self.eps = float(np.finfo(dtype_of(f.of)).eps)
        self.steepest = self.farthest = 0.0
        """The largest curvature seen between two points, and the largest norm of a point."""
        self.enough: Callable[[], bool] = lambda: False
        """Whether a limit is reached; called now and then in long rounds."""

    def gradient(self, x: Array, where: Column | None = None, hold: bool = True) -> Array:
        """The full gradient at x, once for the same x.

        Args:
            where: as in ``core.Client``; there is one client only.
            hold: whether a curvature above L counts in backtracking; otherwise it is only noted.
        """
        if where is not None:
            raise _needs_clients("takes gradients at some clients")
        if x is self.at:
            return self.g
        f, calls = self.f, self.calls + 1
        g = f.gradient(x)
        self.calls = calls
        self.rows += f.rows
        often = calls < CHECKED_FIRST or calls % CHECK_PERIOD < 2 or self.backtrack or not hold
        if often and self.at is not None:
            self._steep(self.at, self.g, x, g, hold)
        self.g, self.at = g, x
        return g

    def descend(
        self, x: Array, h: Array | float, gamma: float, K: int, *,
        pull: Pull | None = None, momentum: float = 0.0, anchor: Anchor | None = None, until: float | None = None,
    ) -> Array:  # fmt: skip
        """K times  x <- x - gamma (g(x) - h), or with a pull and momentum as in ``core.Client``."""
        if anchor is not None:
            raise _needs_clients("descends with an anchor")
        if until is not None:
            raise _needs_clients("ends its local steps early (until)")
        return self._descend(x, h, gamma, K, pull, momentum)

    def _descend(
        self, x: Array, h: Array | float, gamma: float, K: int, pull: Pull | None = None, momentum: float = 0.0
    ) -> Array:
        if self.batch is not None and pull is None:
            return self._sample(x, h, gamma, K)
        # y: the iterate; z: the point ahead of it, with its gradient g
        y = x
        z = x
        g = self.gradient(x)
        left = K - 1
        for k in range(K - 1):
            if k and k % STEPS_BETWEEN_LIMIT_CHECKS == 0:
                left -= STEPS_BETWEEN_LIMIT_CHECKS
                self._pause(STEPS_BETWEEN_LIMIT_CHECKS)
            y, ahead = _step(z, g, h, gamma, y, pull, momentum)
            g_ahead = self.f.gradient(ahead)
            if self.backtrack:
                self._steep(z, g, ahead, g_ahead)
            z, g = ahead, g_ahead
        self._count(left)
        return _step(z, g, h, gamma, y, pull, momentum)[0]

    def raise_L(self, L: float) -> None:
        """Go on with a larger L; what was seen of curvatures counts no more."""
        self.f = self.f.with_L(L)
        self.steepest = 0.0
        self.at = None

    def count_gradients(self, number: int) -> None:
        """Count full gradients that were computed elsewhere."""
        self.calls += number
        self.rows += number * self.f.rows

    def _count(self, steps: int) -> None:
        self.calls += steps
        self.rows += steps * (self.batch or self.f.rows)

    def _pause(self, steps: int) -> None:
        """Count these steps of a long round, and leave the round if a limit is reached."""
        self._count(steps)
        if self.enough():
            raise LimitReached

    def _sample(self, x: Array, h: Array | float, gamma: float, K: int) -> Array:
        gradient, b = self.f.batch_gradient, self.batch
        assert gradient is not None
        assert b is not None
        for k in range(K):
            x = x - gamma * (gradient(x, minibatch(self.seed, 0, self.round, k, self.f.rows, b)) - h)
        self._count(K)
        return x

    def _steep(self, x: Array, g: Array, y: Array, k: Array, hold: bool = True) -> None:
        if not self.backtrack:
            self.farthest = max(self.farthest, float(np.linalg.norm(x)), float(np.linalg.norm(y)))
            if np.linalg.norm(x - y) <= SHORT_STEP * self.farthest:
                return
        # a lower bound on L; above the current L, backtracking has to raise it
        self.steepest = max(self.steepest, curvature(x, g, y, k, self.f.L or 0.0, self.eps))
        if hold and self.backtrack and self.f.L is not None and self.steepest > self.f.L * (1 + CURVATURE_SLACK):
            raise TooSteep

    def send(self, v: Array, codec: Codec | None = None) -> Array:
        """v itself: nothing is transmitted."""
        if codec is not None:
            raise _needs_clients("compresses what its clients send")
        return v

    def own(self, values: float | Sequence[float]) -> Any:
        return values if np.ndim(values) == 0 else values[0]  # type: ignore[index]

    def close(self) -> None:
        """Nothing to close."""


class CompiledClient(SoloClient):
    """A linear model: all K steps but the first in one call of the engine's kernel, gradients by the same."""

    def __init__(
        self, f: Smooth, at: Array, g: Array, batch: int | None, seed: int, backtrack: bool, threads: int | None
    ) -> None:
        from proxskip.engines.cpu.engine import CpuEngine

        super().__init__(f, at, g, batch, seed, backtrack)
        self.engine = CpuEngine(threads)
        self.engine.open(Problem([f.of], batch=batch), {}, seed)
        one = np.zeros(1, np.int64)
        self.request = Request(no_half, one, round=0)
        self.kernel = self.engine.client(one, self.request)
        if batch is None and is_sparse(f.of.A):  # numpy's own product with A' is as fast for dense data, if not faster
            self.f = replace(f, gradient=self._gradient)

    def _gradient(self, x: Array) -> Array:
        point = x[None]
        return self._steps(point, point, 0.0, 1, only_gradient=True)

    def _steps(self, x: Array, h: Array | float, gamma: float, K: int, only_gradient: bool = False) -> Array:
        self.request.round = self.round  # minibatches are numbered by it
        return np.asarray(self.kernel.plain_steps(x, h, gamma, K, 0, 0.0, only_gradient)[0])

    def _descend(
        self, x: Array, h: Array | float, gamma: float, K: int, pull: Pull | None = None, momentum: float = 0.0
    ) -> Array:
        if pull is not None or self.backtrack:  # gradients one by one, to compare them
            return super()._descend(x, h, gamma, K, pull, momentum)
        left = K
        if self.batch is None:
            x, left = _step(x, self.gradient(x), h, gamma)[0], K - 1
        if left == 0:
            return x
        some = STEPS_BETWEEN_LIMIT_CHECKS
        while left > some and self.batch is None:  # minibatches are numbered from the beginning of a call
            x, left = self._steps(x, h, gamma, some), left - some
            self._pause(some)
        self._count(left)
        return self._steps(x, h, gamma, left)

    def close(self) -> None:
        self.engine.close()


def client_of(
    f: Smooth, at: Array, g: Array, batch: int | None, seed: int, backtrack: bool, threads: int | None
) -> SoloClient:
    """f as a client, with the engine's kernel where there is one for it."""
    # the kernel wants one weight for all rows
    if isinstance(f.of, LinearModel) and f.of.has_rows and np.ptp(f.of.s) == 0:
        return CompiledClient(f, at, g, batch, seed, backtrack, threads)
    return SoloClient(f, at, g, batch, seed, backtrack)


class SoloExchange:
    """The Exchange of one round, for one function.

    Args:
        L: of f.
        hope: a certificate that the first prox should not spoil.
    """

    everyone = True
    cohort: Indices = np.zeros(1, np.int64)

    def __init__(
        self, client: SoloClient, problem: Problem, shape: tuple[int, ...], seed: int, L: float, hope: float
    ) -> None:
        self.client = client
        self.problem = problem
        self.seed = seed
        self.memory: Vectors = {}
        self.round = 0
        self.iterations = 0
        self.proxes = 0
        self.inner_failures = 0
        self.inner_iterations = 0
        self.coins = stream(seed, 0, "server")
        self.shape = None if problem.D is not None or len(shape) == 1 else shape
        self.psi = problem.psi
        self.checked = None if problem.psi is None else prox.Checked(problem.psi)
        self.inner = prox.inner_state(problem.psi)
        self.hope = hope
        """The certificate that the next prox should not spoil."""
        self.start: Array | None = None
        self.last: Call | None = None
        self.call: Call | None = None
        self.earlier: Call | None = None
        """The last (x, prox(x, t), t) of psi itself, also where ``last`` is of psi*, and the one before."""
        self.call_error = 0.0
        """The certified error of that call; 0 where psi says nothing about it."""
        self.spoiled = 0.0
        """What the inexactness of the last prox adds to the bound."""
        self.L = L
        self.prox_times: list[float] | None = None
        """Seconds of each prox, if a list is put here."""

    # -- what a descent uses -------------------------------------------------------------------------------------------
    def begin(self, memory: Vectors) -> None:
        """Go on with this memory of the client."""
        self.memory = memory

    def enter(self, round: int) -> None:
        """Begin a round."""
        self.round = self.client.round = round
        self.before = self.memory

    def undo(self) -> None:
        """Take back the round under way."""
        self.memory = self.before

    def raise_L(self, problem: Problem, L: float) -> None:
        """Go on with a larger L."""
        self.problem, self.L = problem, L

    def allow(self, error: float) -> None:
        """Let the checks of the prox pass errors up to this one."""
        if self.checked is not None:
            self.checked.allowed = error

    def hope_for(self, bound: float, tol: float) -> None:
        """Tie the accuracy of the next inner solve to this bound."""
        if self.inner is not None and math.isfinite(bound):
            self.hope = max(bound - self.spoiled, tol or 1e-300)

    # -- the verbs -----------------------------------------------------------------------------------------------------
    @property
    def rng(self) -> np.random.Generator:
        """Keyed by (seed, round), as in a run with clients."""
        return stream(self.seed, self.round, "server", self.coins)

    def __call__(
        self,
        half: ClientHalf,
        *down: Array,
        K: int | Sequence[int] = 0,
        own: Mapping[str, npt.ArrayLike] | None = None,
        weights: Array | None = None,
    ) -> tuple[Array, ...]:
        if own is not None or np.ndim(K) > 0:
            raise _needs_clients("has numbers of each client's own")
        self.start = down[0] if down and K == 1 else None  # for the bound of methods that take a prox at every step
        answer = half(self.client, self.memory, K, *down)
        up, new = checked_answer(half, answer)
        if new:
            self.memory = {**self.memory, **new}
        self.iterations += K  # type: ignore[operator]
        return up

    def settle(self, half: SettleHalf, *outcome: Array) -> None:
        self.memory = {**self.memory, **half(self.client, self.memory, *outcome)}

    def gossip(self, half: ClientHalf, graph: Links, K: int) -> None:
        raise InputError("a graph needs clients; use run.")

    def prox(self, x: Array, t: float) -> Array:
        new = self._prox(x, t, self.L + abs(self.L - 1.0 / t))
        self.earlier, self.last = self.call, Call(x, new, t)
        self.call = self.last
        return new

    def prox_conjugate(self, y: Array, t: float) -> Array:
        u = y / t  # Moreau: prox_{t psi*}(y) = y - t prox_{psi/t}(y/t)
        w = self._prox(u, 1.0 / t, 1.0 + 2.0 * t)
        new = y - t * w
        self.last = Call(y, new, t)
        self.earlier, self.call = self.call, Call(u, w, 1.0 / t)
        return new

    @property
    def subgradient(self) -> Array | float:
        """Of psi at the last x+, or of psi* at the last y+."""
        if self.last is None:
            return 0.0
        m, new, t = self.last
        return (m - new) / t

    # -- one prox ------------------------------------------------------------------------------------------------------
    def _prox(self, x: Array, t: float, spoils: float, check: bool = False) -> Array:
        """The prox of psi; an error e of it moves the bound by at most spoils * e."""
        count = self.proxes
        self.proxes = count + 1
        if self.inner is None:
            # a check costs more than many a prox, so later ones are sampled, in pairs (two points are compared)
            check = check or count < CHECKED_FIRST or count % CHECK_PERIOD < 2
            return self._plain(self.checked if check else self.psi, x, t)
        # the error may take a share of the certificate
        if self.hope < math.inf:
            self.inner.tolerance = INNER_ERROR_SHARE * self.hope / spoils
        missed = self.inner.failures
        new = self._plain(self.checked, x, t)
        self.inner_failures += self.inner.failures - missed
        last = self.inner.last
        if last is not None:
            self.spoiled, self.call_error = spoils * last.accuracy, last.accuracy
            self.inner_iterations += last.iterations
        return new

    def last_prox(self, x: Array, t: float) -> Array:
        """The prox of a certificate: always checked, and not tied to the accuracy of the iterates."""
        (hope, self.hope), error = (self.hope, math.inf), self.call_error
        new = self._prox(x, t, 1.0, check=True)
        self.hope, self.call_error = hope, error
        return new

    def _plain(self, psi: Prox | None, x: Array, t: float) -> Array:
        assert psi is not None
        assert self.checked is not None
        if self.shape is not None:
            x = x.reshape(self.shape)
        try:
            if self.prox_times is None:
                new = psi.prox(x, t)
            else:
                then = time.perf_counter()
                new = psi.prox(x, t)
                self.prox_times.append(time.perf_counter() - then)
            if new.shape != x.shape or not _finite(new):
                self.checked.prox(x, t)  # says what is wrong with it
        except AttributeError:  # no array
            new = self.checked.prox(x, t)
        except InputError:
            if not _finite(x):
                raise Overflow from None
            raise
        flat: Array = new if self.shape is None else new.ravel()
        return flat


def _step(
    z: Array,
    g: Array,
    h: Array | float,
    gamma: float,
    y: Array | None = None,
    pull: Pull | None = None,
    momentum: float = 0.0,
) -> tuple[Array, Array]:
    """y+ = z - gamma (g - h + tau (z - centre)), and the point ahead of it, y+ + momentum (y+ - y)."""
    slope = g if type(h) is float and h == 0.0 else g - h
    new: Array = z - gamma * (slope if pull is None else slope + pull[0] * (z - pull[1]))
    return new, new if y is None or momentum == 0.0 else new + momentum * (new - y)


def _finite(x: Array) -> bool:
    v = x if x.ndim == 1 else x.ravel()
    return math.isfinite(v.dot(v)) or bool(np.isfinite(x).all())
