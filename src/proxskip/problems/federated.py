"""The problem that every method solves,  min_x  sum_i w_i f_i(x) + psi(D x),  with its constants and its solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from proxskip import display, theory
from proxskip.problems import oracles, solve, spectrum
from proxskip.problems.glm import LinearModel
from proxskip.problems.operators import as_operator
from proxskip.problems.quadratic import Quadratic
from proxskip.prox import as_prox
from proxskip.types import Array, InputError, Oracle, Prox

LKind = Literal["max", "global"]
MAX_CLIENTS_ONE_BY_ONE = 64
"""Up to this many clients, f is evaluated client by client."""
MIN_NUMBERS_PER_CLIENT = 10_000
"""With more clients, it still is if their data hold at least this many numbers on average."""


@dataclass(frozen=True)
class Problem:
    """min_x sum_i w_i f_i(x) + psi(x), or psi(D x), over clients i = 0, ..., n-1.

    Args:
        clients: the functions f_i: linear models, quadratics, or your own oracles with value(x), gradient(x), L and mu.
        weights: w_i > 0, scaled to sum to one; equal if not given. What is plotted is the weighted problem too.
        psi: a regularizer at the server with a prox, such as ``prox.L1(0.1)``; pyproximal's operators work as well.
        D: a matrix or linear operator, for psi(D x).
        batch: rows of a minibatch, drawn without replacement; None for full gradients.
        L_kind: which smoothness constant ``problem.L`` is: "max" for max_i L_i, which the theorems need, or "global"
            for that of the sum, which the figures of the paper use.
        whole: sum_i w_i f_i as a single oracle, where there is one; faster for many small clients.
        d: the number of unknowns, needed only if no client has an attribute d.
        info: anything to keep with the problem; it is written to the description of a run.

    >>> problem = Problem([Quadratic([1.0, 2.0], [1.0, 1.0]), Quadratic([3.0, 1.0], [0.0, 1.0])])
    >>> problem.n, problem.d, problem.L, problem.mu
    (2, 2, 3.0, 1.0)
    """

    clients: Sequence[Oracle]
    weights: Array = None  # type: ignore[assignment]
    psi: Prox | None = None
    D: Any = None
    batch: int | None = None
    L_kind: LKind = "max"
    whole: Any = None
    d: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)  # the dataclass is frozen

        # The order matters: weights and d come from the clients, and D needs d.
        put("clients", tuple(self.clients))
        if not self.clients:
            raise InputError("a problem needs at least one client.")
        put("weights", _weights(self.weights, len(self.clients)))
        put("d", _dimension(self.clients, self.d))
        if self.L_kind not in ("max", "global"):
            raise InputError(f'L = "{self.L_kind}" is not known; use "max" (the theorems) or "global" (the figures).')
        put("psi", as_prox(self.psi))
        if self.D is not None and self.psi is None:
            raise InputError("D was given without psi; the problem is f(x) + psi(D x).")
        if self.D is not None:
            put("D", as_operator(self.D, self.d))
        _check_clients(self.clients)
        if self.batch is not None:
            self._check_batch()
        if self.whole is None:
            put("whole", _whole(self.clients, self.weights))

    def _check_batch(self) -> None:
        sizes = self.sizes
        if sizes is None:
            raise InputError("minibatches need clients with rows (Logistic, LeastSquares, Softmax, torch.Model).")
        if self.batch is None or self.batch < 1:
            raise InputError(f"batch = {self.batch} must be at least 1.")
        if self.batch > min(sizes):
            i = int(np.argmin(sizes))
            raise InputError(
                f"batch = {self.batch} is larger than client {i}'s {sizes[i]} rows; choose at most {min(sizes)}."
            )

    # -- how it looks --------------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        return display.text(*self._described())

    def _repr_html_(self) -> str:
        sizes = self.sizes
        picture = "" if sizes is None or self.n < 2 else display.bars(np.array(sizes), "rows of each client")
        return display.html(*self._described(), picture)

    def _described(self) -> tuple[str, list[tuple[str, str]]]:
        """A title and rows; constants only where they are known already, since computing them may take long."""
        count = "one client" if self.n == 1 else f"{self.n:,} clients"
        kinds = " and ".join(sorted({type(f).__name__ for f in self.clients}))
        lam = "" if not self.l2 else f" + lambda/2 |x|^2 with lambda = {self.l2:.4g}"
        rows = [("f", kinds + lam)]
        if self.psi is not None:
            rows.append(("psi", display.short(self.psi) + ("" if self.D is None else f" of D x, D {self.D.shape}")))
        if self.sizes is not None:
            fewest, most = min(self.sizes), max(self.sizes)
            each = f", {fewest:,} to {most:,} of a client" if fewest < most else f", {most:,} of each client"
            each = each if self.n > 1 else ""
            batch = "" if self.batch is None else f", minibatches of {self.batch}"
            rows.append(("rows", f"{self.N:,}{each}{batch}"))
        source = [str(self.info[k]) for k in ("data",) if self.info.get(k)]
        source += [f"split by {self.info['split']}"] if self.info.get("split") else []
        rows += [("data", ", ".join(source))] if source else []
        if self.n > 1:
            low, high = float(self.weights.min()), float(self.weights.max())
            rows.append(("weights", "equal" if low == high else f"{low:.3g} to {high:.3g}"))
        if "L_max" in self.__dict__ or "L_global" in self.__dict__:
            found = [f"{k} = {self.__dict__[k]:.4g}" for k in ("L_max", "L_global", "mu") if self.__dict__.get(k)]
            rows.append(("constants", ", ".join(found)))
        if self.__dict__.get("solution") is not None:
            rows.append(("solution", f"f* = {self.__dict__['solution'].f:.12g}"))
        return f"Problem: {count}, {self.d:,} unknowns", rows

    # -- sizes ---------------------------------------------------------------------------------------------------------
    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.clients)

    @property
    def sizes(self) -> list[int] | None:
        """Rows of each client; None unless all clients are finite sums, such as linear models and networks."""
        if all(isinstance(f, LinearModel) or oracles.can_sample(f) for f in self.clients):
            return [oracles.rows_of(f) for f in self.clients]
        return None

    @property
    def N(self) -> int | None:
        """Rows of all clients together."""
        return None if self.sizes is None else sum(self.sizes)

    @cached_property
    def rows_each(self) -> list[int]:
        """What a full gradient of each client counts: its rows, or 1."""
        return [oracles.rows_of(f) for f in self.clients]

    @cached_property
    def is_random(self) -> bool:
        """Whether a gradient of some client draws numbers, as dropout does."""
        return any(map(oracles.is_random, self.clients))

    @cached_property
    def knows_L(self) -> bool:
        """False where a client, such as a network, has no L: no step size can be derived or checked."""
        return all(map(oracles.knows_L, self.clients))

    @property
    def checks_steps(self) -> bool:
        """Whether step sizes can be checked: L is known and, with minibatches, that of single rows too."""
        return self.knows_L and (self.batch is None or all(isinstance(f, LinearModel) for f in self.clients))

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of what the clients measure besides f."""
        return tuple(dict.fromkeys(name for f in self.clients for name in oracles.metrics_of(f)))

    def measured(self, x: Array) -> dict[str, float]:
        """The weighted means of the clients' metrics at x."""
        return oracles.measured(self.clients, self.weights, x) if self.metrics else {}

    # -- constants -----------------------------------------------------------------------------------------------------
    @cached_property
    def L_i(self) -> Array:
        """Smoothness of each client."""
        return np.array([float(f.L) for f in self.clients])

    @cached_property
    def mu_i(self) -> Array | None:
        """Strong convexity of each client; None if a client does not know its own."""
        mus = [f.mu for f in self.clients]
        return None if any(m is None for m in mus) else np.array([float(m) for m in mus if m is not None])

    @cached_property
    def L_max(self) -> float:
        """max_i L_i, which the theorems need."""
        return _positive_L(float(self.L_i.max()))

    @cached_property
    def L_global(self) -> float:
        """Smoothness of sum_i w_i f_i; the bound sum_i w_i L_i where the clients do not show more."""
        if self.whole is not None:
            return _positive_L(float(self.whole.L))
        if self.L_global_is_bound:
            return _positive_L(float(self.weights @ self.L_i))
        models: list[Any] = list(self.clients)
        reg = sum(w * f.reg for w, f in zip(self.weights, models, strict=True))[: models[0].A.shape[1]]
        parts = [(f.A, w * f.s) for w, f in zip(self.weights, models, strict=True)]
        return _positive_L(spectrum.largest_of_sum(parts, models[0].curvature, reg))

    @property
    def L_global_is_bound(self) -> bool:
        """Whether ``L_global`` is only the bound sum_i w_i L_i: the clients are oracles whose sum is unknown."""
        first = self.clients[0]
        same = isinstance(first, LinearModel) and all(type(f) is type(first) for f in self.clients)
        return self.whole is None and not same

    @property
    def L(self) -> float:
        """``L_max`` or ``L_global``, as ``L_kind`` says."""
        return self.L_max if self.L_kind == "max" else self.L_global

    @cached_property
    def mu(self) -> float | None:
        """min_i mu_i; None if unknown or zero."""
        return None if self.mu_i is None or self.mu_i.min() <= 0 else float(self.mu_i.min())

    @property
    def kappa(self) -> float | None:
        """L / mu."""
        return None if self.mu is None else self.L / self.mu

    @property
    def l2(self) -> float | None:
        """The coefficient lambda of the l2 regularizer; None unless the clients are linear models."""
        f = self.clients[0]
        return f.l2 if isinstance(f, LinearModel) else None

    # -- values and gradients ------------------------------------------------------------------------------------------
    def value(self, x: Array) -> float:
        """sum_i w_i f_i(x) + psi(D x)."""
        smooth = self.smooth_value(x)
        if self.psi is None:
            return smooth
        return smooth + float(self.psi(x if self.D is None else self.D @ x))

    @cached_property
    def by_client(self) -> bool:
        """Whether f is summed over the clients in their order, with the same bytes wherever they are.

        Otherwise it is computed in one pass over all rows, which is much faster for many small clients.
        """
        if self.whole is None or self.n <= MAX_CLIENTS_ONE_BY_ONE:
            return True
        # a loop over clients is slow if each of them has little to do
        return sum(oracles.stored_numbers(f) for f in self.clients) >= MIN_NUMBERS_PER_CLIENT * self.n

    def smooth_value(self, x: Array) -> float:
        """sum_i w_i f_i(x); in double precision, like the gradient, even where the data are single."""
        if not self.by_client:
            return float(oracles.in_double(self.whole).value(x))
        if self.n == 1:
            return float(oracles.in_double(self.clients[0]).value(x))
        return float(sum(w * oracles.in_double(f).value(x) for w, f in zip(self.weights, self.clients, strict=True)))

    def gradient(self, x: Array) -> Array:
        """The gradient of the smooth part."""
        if not self.by_client:
            return np.asarray(oracles.in_double(self.whole).gradient(x))
        if self.n == 1:
            return np.asarray(oracles.in_double(self.clients[0]).gradient(x))
        parts = (w * oracles.in_double(f).gradient(x) for w, f in zip(self.weights, self.clients, strict=True))
        return np.asarray(sum(parts))

    def residual(self, x: Array, gamma: float) -> float:
        """|grad f(x)|; with psi(x), the norm of the prox-gradient step divided by gamma.

        For psi(D x) it is |grad f(x)| too, which does not vanish; see ``solution.certificate``.
        """
        g = self.gradient(x)
        if self.psi is None or self.D is not None:
            return float(np.linalg.norm(g))
        return float(np.linalg.norm(x - self.psi.prox(x - gamma * g, gamma)) / gamma)

    def client_gradients(self, x: Array) -> Array:
        """grad f_i(x), one row per client."""
        return np.stack([checked_gradient(oracles.in_double(f), x, i) for i, f in enumerate(self.clients)])

    @cached_property
    def solution(self) -> solve.Solution | None:
        """x*, f* and h_i* = grad f_i(x*) with a certificate; None if computing them would be too expensive."""
        found = solve.minimize(self)
        if found is None:
            return None
        x, y, certificate = found
        exact = solve.in_double(self)  # f* and h* in double precision even for data in float32
        return solve.Solution(x, exact.value(x), exact.client_gradients(x), y, certificate)

    # -- variants ------------------------------------------------------------------------------------------------------
    def with_batch(self, batch: int | None) -> Problem:
        """The same problem with gradients from minibatches of this many rows, drawn without replacement."""
        other = replace(self, batch=batch)
        if "solution" in self.__dict__:
            other.__dict__["solution"] = self.solution  # sampling does not change the minimizer
        return other

    def with_psi(self, psi: Prox | None, D: Any = None) -> Problem:
        """The same smooth part with a regularizer psi(x), or psi(D x)."""
        return replace(self, psi=psi, D=D)

    @cached_property
    def _sampling(self) -> list[theory.ExpectedSmoothness]:
        """(A, C) of expected smoothness for the minibatches of each client; C is nan if the solution is unknown."""
        out = []
        for i, f in enumerate(self.clients):
            self._rows_of(i)  # refuses a client without constants
            assert isinstance(f, LinearModel)
            # without x* the noise there is unknown, and so is C
            spread = float("nan") if self.solution is None else f.gradient_variance(self.solution.x)
            out.append(theory.expected_smoothness(*self._rows_of(i), spread))
        return out

    @cached_property
    def es_A_i(self) -> Array:
        """A of expected smoothness of each client; L_i for full gradients."""
        return self.L_i if self.batch is None else np.array([c[0] for c in self._sampling])

    @cached_property
    def L_batch_i(self) -> Array:
        """L_b of each client:  E |g_j(x) - g_j(x*)|^2 <= 2 L_b D_f(x, x*)  over minibatches j; L_i with all rows."""
        if self.batch is None:
            return self.L_i
        return np.array([theory.minibatch_smoothness(*self._rows_of(i)) for i in range(self.n)])

    def _rows_of(self, i: int) -> tuple[int, int, float, float]:
        """Client i's rows, the rows of a minibatch, L_i, and the largest smoothness of one row."""
        f = self.clients[i]
        assert self.batch is not None
        if not isinstance(f, LinearModel):
            L = float(f.L)  # says itself that it is unknown, where it is
            raise InputError(f"client {i} knows its L = {L:g} but not that of a minibatch; give the method a gamma.")
        return f.N, self.batch, float(self.L_i[i]), f.L_rows

    @cached_property
    def es_A(self) -> float:
        """A of expected smoothness (Assumption 5.2 of the paper), the largest of all clients; L for full gradients."""
        return self.L if self.batch is None else float(self.es_A_i.max())

    @cached_property
    def es_C(self) -> float:
        """C of the same assumption,  sum_i w_i C_i,  where Psi is an average over clients; 0 for full gradients."""
        if self.batch is None:
            return 0.0
        if self.solution is None:
            return float("nan")
        return float(self.weights @ np.array([c[1] for c in self._sampling]))


def _positive_L(L: float) -> float:
    if not L > 0:
        raise InputError("L is zero: the data are all zero, or so small that their squares are; rescale them.")
    return L


def checked_gradient(f: Oracle, x: Array, i: int) -> Array:
    """The gradient of client i at x as a new ``(d,)`` array; the oracle sees x read-only."""
    if type(f) is Quadratic:  # ours: it leaves x alone, and what follows would take longer than the gradient
        return f.gradient(x)
    x_seen = x.view()
    x_seen.flags.writeable = False
    try:
        g = np.array(f.gradient(x_seen), dtype=np.float64)
    except ValueError as error:
        if "read-only" in str(error):
            raise InputError(f"the gradient of client {i} changes the x it is given; let it work on a copy.") from None
        raise
    if g.shape != x.shape:
        raise InputError(f"the gradient of client {i} has shape {g.shape}; it must have shape {x.shape}.")
    return g


def _check_clients(clients: Sequence[Oracle]) -> None:
    """Refuse constants that make no sense, and clients with different classes."""
    first = oracles.classes_of(clients[0])
    for i, f in enumerate(clients):
        classes = oracles.classes_of(f)
        if classes != first:
            raise InputError(
                f"client {i} has the classes {classes} but client 0 has {first}; map the labels alike first."
            )
        if isinstance(f, LinearModel):
            continue  # its constants are right, and computing them here would be expensive
        if not oracles.knows_L(f):
            continue  # whoever needs L is refused
        L, mu = f.L, f.mu
        if not (np.isfinite(L) and L > 0):
            raise InputError(f"client {i} says L = {L}; it must be a positive number.")
        if mu is not None and not 0 <= mu <= L * (1 + 1e-9):
            raise InputError(f"client {i} says mu = {mu} and L = {L}; it must be 0 <= mu <= L.")


def _weights(given: npt.ArrayLike | None, n: int) -> Array:
    """n positive weights that sum to one, read-only."""
    w = np.full(n, 1.0) if given is None else np.asarray(given, dtype=np.float64).copy()
    if w.shape != (n,) or not np.isfinite(w).all() or w.min() <= 0:
        raise InputError(f"weights must be {n} positive finite numbers, one per client.")
    w = np.asarray(w / w.sum())  # so that f is a weighted mean, whatever the scale of the given weights
    w.setflags(write=False)
    return w


def _dimension(clients: Sequence[object], d: int) -> int:
    """The number of unknowns, from ``d`` if it is given and from the clients; all must agree."""
    # oracles of users need not know their dimension
    known = [(i, di) for i, f in enumerate(clients) if (di := oracles.dimension_of(f)) is not None]
    for f in clients:
        if not oracles.is_oracle(f):
            raise InputError(
                f"a client of type {type(f).__name__} is not an oracle; it needs value(x), gradient(x), L and mu."
            )
    for i, di in known:
        if di != (d or known[0][1]):
            j, dj = known[0] if not d else ("given", d)
            raise InputError(
                f"client {i} has {di} unknowns but client {j} has {dj}; every shard needs the same dimension."
            )
    if not known and not d:
        raise InputError("the dimension is unknown; give d, or clients with an attribute d.")
    return d or known[0][1]


def _whole(clients: Sequence[Any], weights: Array) -> Any:
    """sum_i w_i f_i as a single oracle, where it has a closed form."""
    if len(clients) == 1:
        return clients[0]
    if all(isinstance(f, Quadratic) for f in clients):
        return Quadratic.average(list(clients), weights)
    return None
