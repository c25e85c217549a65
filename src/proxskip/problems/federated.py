"""The problem that every method solves,  min_x  sum_i w_i f_i(x) + psi(D x),  with its constants and its solution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from proxskip import theory
from proxskip.problems import oracles, personal, solve
from proxskip.problems.clients import Clients, RemoteValues, ValuesElsewhere, checked_dimension, checked_value
from proxskip.problems.cox import Cox
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.model_inputs import shares
from proxskip.problems.operators import as_operator
from proxskip.problems.packed import as_clients
from proxskip.prox import as_prox
from proxskip.support import display
from proxskip.theory import minibatches
from proxskip.types import Array, Indices, InputError, Matrix, Oracle, Prox

Smoothness = Literal["max", "average"]
MAX_CLIENTS_ONE_BY_ONE = 64
"""Up to this many clients, f is evaluated client by client."""
MIN_NUMBERS_PER_CLIENT = 10_000
"""With more clients, it still is if their data hold at least this many numbers on average."""


@dataclass(frozen=True, eq=False)
class Problem:
    """min_x sum_i w_i f_i(x) + psi(x), or psi(D x), over clients i = 0, ..., n-1.

    Args:
        clients: the functions f_i: linear models, quadratics, or your own oracles with value(x), gradient(x), L and mu.
        weights: w_i > 0, scaled to sum to one; equal if not given. What is plotted is the weighted problem too.
        psi: a regularizer at the server with a prox, such as ``prox.L1(0.1)``; pyproximal's operators work as well.
        D: a matrix or linear operator, for psi(D x).
        batch: rows of a minibatch, drawn without replacement; None for full gradients.
        smoothness: which constant ``problem.L`` is: "max" for max_i L_i, which the theorems need, or "average"
            for that of the sum, which the figures of the paper use.
        whole: sum_i w_i f_i as a single oracle, where there is one; faster for many small clients.
        d: the number of unknowns, needed only if no client has an attribute d.
        info: anything to keep with the problem; it is written to the description of a run.
        find_minimum: whether ``solution`` is computed, which f - f* needs; see ``without_minimum``.

    >>> from proxskip.problems.quadratic import Quadratic
    >>> problem = Problem([Quadratic([1.0, 2.0], [1.0, 1.0]), Quadratic([3.0, 1.0], [0.0, 1.0])])
    >>> problem.n, problem.d, problem.L, problem.mu
    (2, 2, 3.0, 1.0)
    """

    clients: Sequence[Oracle]
    weights: Array = None  # type: ignore[assignment]
    psi: Prox | None = None
    D: Matrix | None = None
    batch: int | None = None
    smoothness: Smoothness = "max"
    whole: Any = None
    d: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    find_minimum: bool = True
    sibling: Problem | None = field(default=None, init=False)
    """The problem of which this one is a variant with the same solution."""
    elsewhere: ValuesElsewhere | None = field(default=None, init=False)
    """Where values and gradients come from, unless they are computed here."""

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)  # the dataclass is frozen

        # The order matters: weights and d come from the clients, and D needs d.
        if not isinstance(self.clients, Clients) and oracles.is_oracle(self.clients):
            raise InputError("clients must be a list; for one function write Problem([f]).")
        if not isinstance(self.clients, Iterable):
            raise InputError(f"clients must be a list of functions, not {self.clients!r:.40}.")
        put("clients", as_clients(self.clients))
        if not self.clients:
            raise InputError("a problem needs at least one client.")
        put("weights", shares("weights", self.weights, len(self.clients), zeros=False))
        self.weights.setflags(write=False)
        put("d", checked_dimension(self._clients, self.d))
        if self.smoothness not in ("max", "average"):
            raise InputError(
                f'smoothness = "{self.smoothness}" is not known; use "max" (the theorems) or "average" (the figures).'
            )
        put("psi", as_prox(self.psi))
        if self.D is not None and self.psi is None:
            raise InputError("D was given without psi; the problem is f(x) + psi(D x).")
        if self.D is not None:
            put("D", as_operator(self.D, self.d))
        if self.batch is not None:
            self._check_batch(self.batch)
        if self.whole is None:
            put("whole", self._clients.whole(self.weights))

    def _check_batch(self, batch: int) -> None:
        sizes = self._clients.sizes()
        if sizes is None or not all(oracles.attribute(f, "minibatch_gradient") for f in self._clients.distinct()):
            raise InputError("minibatches need linear models, or functions with N and minibatch_gradient(x, rows).")
        i = int(np.argmin(sizes))
        if theory.whole("batch", batch) > sizes[i]:
            raise InputError(f"batch = {batch} is larger than client {i}'s {sizes[i]} rows.")

    # -- how it looks --------------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        return display.text(*self._described())

    def _repr_html_(self) -> str:
        return display.html(*self._described())

    def _described(self) -> tuple[str, list[tuple[str, str]]]:
        """A title and rows; constants only where they are known already, since computing them may take long."""
        count = "one client" if self.n == 1 else f"{self.n:,} clients"
        kinds = " and ".join(sorted({kind.__name__ for kind in self.kinds}))
        lam = "" if not self.l2 else f" + lambda/2 |x|^2 with lambda = {self.l2:.4g}"
        rows = [("f", kinds + lam)]
        if self.psi is not None:
            rows.append(("psi", display.short(self.psi) + ("" if self.D is None else f" of D x, D {self.D.shape}")))
        sizes = self._clients.sizes()
        if sizes is not None:
            fewest, most = int(sizes.min()), int(sizes.max())
            each = f", {fewest:,}-{most:,} per client" if fewest < most else f", {most:,} per client"
            batch = "" if self.batch is None else f", minibatches of {self.batch}"
            rows.append(("rows", f"{self.N:,}{each if self.n > 1 else ''}{batch}"))
        source = [
            text.format(self.info[k]) for k, text in (("data", "{}"), ("split", "split by {}")) if self.info.get(k)
        ]
        rows += [("data", ", ".join(source))] if source else []
        if self.n > 1:
            low, high = float(self.weights.min()), float(self.weights.max())
            rows.append(("weights", "equal" if low == high else f"{low:.3g} to {high:.3g}"))
        known = vars(self)
        if "L_max" in known or "L_average" in known:
            constants = [f"{k} = {known[k]:.4g}" for k in ("L_max", "L_average", "mu") if known.get(k)]
            rows.append(("constants", ", ".join(constants)))
        if known.get("solution") is not None:
            rows.append(("solution", f"f* = {known['solution'].f:.12g}"))
        return f"Problem: {count}, {self.d:,} unknowns", rows

    @property
    def _clients(self) -> Clients:
        """The clients as one object, which answers for all of them."""
        assert isinstance(self.clients, Clients)
        return self.clients

    # -- sizes ---------------------------------------------------------------------------------------------------------
    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.clients)

    @property
    def sizes(self) -> list[int] | None:
        """Rows of each client; None unless all clients are finite sums, such as linear models and networks."""
        sizes = self._clients.sizes()
        return None if sizes is None else sizes.tolist()

    @property
    def N(self) -> int | None:
        """Rows of all clients together."""
        sizes = self.sizes
        return None if sizes is None else sum(sizes)

    @cached_property
    def rows_each(self) -> Indices:
        """What a full gradient of each client counts: its rows, or 1."""
        return self._clients.rows()

    @property
    def work_each(self) -> Array:
        """Roughly how much work a gradient of each client is, in entries of its data."""
        return self._clients.entries()

    @property
    def kinds(self) -> set[type]:
        """The classes of the clients' functions."""
        return {type(f) for f in self._clients.distinct()}

    @cached_property
    def is_random(self) -> bool:
        """Whether a gradient of some client draws numbers, as dropout does."""
        return any(map(oracles.is_random, self._clients.distinct()))

    @property
    def is_thread_safe(self) -> bool:
        """Whether several threads may compute gradients of the clients at once."""
        return all(map(oracles.is_thread_safe, self._clients.distinct()))

    @property
    def has_hessian(self) -> bool:
        """Whether every client has a dense Hessian."""
        return all(map(oracles.has_hessian, self._clients.distinct()))

    @cached_property
    def knows_L(self) -> bool:
        """False where a client, such as a network, has no L: no step size can be derived or checked."""
        return all(map(oracles.knows_L, self._clients.distinct()))

    @property
    def checks_steps(self) -> bool:
        """Whether step sizes can be checked: L is known and, with minibatches, that of single rows too."""
        if self.batch is None or not self.knows_L:
            return self.knows_L
        # not the L_rows of a linear model, which would be computed
        return all(isinstance(f, LinearModel) or oracles.attribute(f, "L_rows") for f in self._clients.distinct())

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of what the clients measure besides f."""
        first, *others = map(oracles.metrics_of, self._clients.distinct())
        for i, names in enumerate(others, 1):
            if set(names) != set(first):  # a mean over some of the clients would look like one over all
                raise InputError(f"client {i} has other metrics than client 0; give all clients the same.")
        return first

    def own_start(self) -> Array | None:
        """The clients' own starting point, such as a network's weights; None without one."""
        first = oracles.start_of(self._clients.distinct()[0])
        for f in self._clients.distinct():  # one at a time: they may be large, and many
            other = oracles.start_of(f)
            if not (first is other or (first is not None and other is not None and np.array_equal(first, other))):
                raise InputError("the clients start from different weights; pass x0.")
        return first

    def measured(self, x: Array) -> dict[str, float]:
        """The weighted means of the clients' metrics at x."""
        return oracles.measured(self.clients, self.weights, x) if self.metrics else {}

    # -- constants -----------------------------------------------------------------------------------------------------
    @cached_property
    def L_i(self) -> Array:
        """Smoothness of each client; refused where one has none."""
        for f in self._clients.distinct():
            oracles.check_L(f)
        return self._clients.L_i()

    @cached_property
    def mu_i(self) -> Array | None:
        """Strong convexity of each client; None if a client does not know its own."""
        return self._clients.mu_i()

    @cached_property
    def L_max(self) -> float:
        """max_i L_i, which the theorems need."""
        return _positive_L(float(self.L_i.max()))

    @cached_property
    def L_average(self) -> float:
        """Smoothness of sum_i w_i f_i; the bound sum_i w_i L_i where the clients do not show more."""
        L = self.weights @ self.L_i if self.L_average_is_bound else self.whole.L
        return _positive_L(float(L))

    @property
    def L_average_is_bound(self) -> bool:
        """Whether ``L_average`` is only the bound sum_i w_i L_i: the clients are oracles whose sum is unknown."""
        return self.whole is None

    @property
    def L(self) -> float:
        """``L_max`` or ``L_average``, as ``smoothness`` says."""
        return self.L_max if self.smoothness == "max" else self.L_average

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
        """The coefficient lambda of the l2 regularizer; None unless the clients are models of the library."""
        f = self.clients[0]
        return f.l2 if isinstance(f, (LinearModel, Cox)) else None

    # -- values and gradients ------------------------------------------------------------------------------------------
    def value(self, x: Array) -> float:
        """sum_i w_i f_i(x) + psi(D x)."""
        return self.smooth_value(x) + self.regularizer(x)

    def regularizer(self, x: Array) -> float:
        """psi(D x); zero without psi."""
        if self.psi is None:
            return 0.0
        return float(self.psi(x if self.D is None else self.D @ x))

    @cached_property
    def by_client(self) -> bool:
        """Whether f is summed over the clients in their order, with the same bytes wherever they are.

        Otherwise it is computed in one pass over all rows, which is much faster for many small clients.
        """
        if oracles.attribute(self.whole, "in_one_pass"):
            return False
        if self.whole is None or self.n <= MAX_CLIENTS_ONE_BY_ONE:
            return True
        # a loop over clients is slow if each of them has little to do
        return sum(map(oracles.stored_numbers, self._clients.distinct())) >= MIN_NUMBERS_PER_CLIENT * self.n

    @property
    def _single(self) -> Any:
        """The one oracle that f is evaluated with, in double precision; None if it is a sum over clients."""
        if not self.by_client:
            return oracles.in_double(self.whole)
        return oracles.in_double(self.clients[0]) if self.n == 1 else None

    def smooth_value(self, x: Array) -> float:
        """sum_i w_i f_i(x); in double precision, like the gradient, even where the data are single."""
        if self.elsewhere is not None:
            return float(sum(w * v for w, v in zip(self.weights, self.elsewhere.values(x), strict=True)))
        if self._single is not None:
            return checked_value(self._single, x, 0)
        values = (checked_value(oracles.in_double(f), x, i) for i, f in enumerate(self.clients))
        return float(sum(w * value for w, value in zip(self.weights, values, strict=True)))

    def gradient(self, x: Array) -> Array:
        """The gradient of the smooth part."""
        if self.elsewhere is not None:
            return np.asarray(sum(w * g for w, g in zip(self.weights, self.elsewhere.gradients(x), strict=True)))
        if self._single is not None:
            return np.asarray(self._single.gradient(x))
        parts = (
            w * np.asarray(oracles.in_double(f).gradient(x)) for w, f in zip(self.weights, self.clients, strict=True)
        )
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
        if self.elsewhere is not None:
            return self.elsewhere.gradients(x)
        return self._clients.gradients(x, 0, self.n)

    def gradient_blocks(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """grad f_i(x) of some clients at a time: which ones, and one row each."""
        return self._clients.gradient_blocks(x)

    @cached_property
    def solution(self) -> solve.Solution | None:
        """x*, f* and h_i* = grad f_i(x*) with a certificate; None if computing them would be too expensive."""
        if not self.find_minimum:
            return None
        if self.sibling is not None:
            return self.sibling.solution
        words = f"proxskip: computing f* with {self.d:,} unknowns, which problem.without_minimum() leaves out"
        with display.said_if_slow(words), solve.blas_threads(self):
            minimum = solve.minimize(self)
        if minimum is None:
            return None
        x, y, certificate = minimum
        exact = solve.in_double(self)  # f* in double precision even for data in float32, as h* is
        return solve.Solution(x, exact.value(x), partial(self.client_gradients, x), y, certificate)

    # -- variants ------------------------------------------------------------------------------------------------------
    def with_batch(self, batch: int | None) -> Problem:
        """The same problem with gradients from minibatches of this many rows, drawn without replacement."""
        return replace(self, batch=batch)._solved_as(self)

    def with_smoothness(self, smoothness: Smoothness) -> Problem:
        """The same problem with another ``L``, and so with other step sizes."""
        return replace(self, smoothness=smoothness)._solved_as(self)

    def _solved_as(self, sibling: Problem) -> Self:
        object.__setattr__(self, "sibling", sibling)
        return self

    def evaluated_by(self, holder: RemoteValues) -> Problem:
        """The same problem with values and gradients from an engine; what was computed of it before stays known."""
        _ = self.solution  # its own Newton steps would go through the engine
        return copy(self)._take_values_from(holder)

    def _take_values_from(self, holder: RemoteValues) -> Self:
        object.__setattr__(self, "elsewhere", ValuesElsewhere(holder, self.clients))
        return self

    def without_minimum(self) -> Problem:
        """The same problem without x* and f*, which may take long to compute; f - f* is then unknown."""
        return replace(self, find_minimum=False)

    def with_psi(self, psi: Prox | None, D: Matrix | None = None) -> Problem:
        """The same smooth part with a regularizer psi(x), or psi(D x)."""
        return replace(self, psi=psi, D=D)

    def personalized(self, alpha: npt.ArrayLike, own: npt.ArrayLike | None = None) -> Problem:
        """The problem  min_x sum_i w_i f_i(alpha_i x + (1 - alpha_i) x_i*)  of FLIX.

        Scaffnew with own steps on it is Scafflix: K. Yi, L. Condat, P. Richtarik, Explicit personalization and local
        training: double communication acceleration in federated learning, 2023, arXiv:2305.13170, of which we read the
        title; that the two are the same was derived and is tested. ``clients[i].model(x)`` is client i's model.

        >>> import proxskip as ps
        >>> problem = ps.Problem(ps.random_quadratics(3, 2, seed=1)).personalized(0.5)
        >>> ps.run(ps.Scaffnew.theory(problem, own_steps=True), problem, tol=1e-8).success
        True

        Args:
            alpha: how much of the common model, in (0, 1]: one number, or one for each client.
            own: the clients' own models, one row each; the minimizers of their f_i if not given.
        """
        if self.batch is not None:
            raise InputError("a personalized problem has no minibatches; leave out the batch.")
        alphas = personal.shares(alpha, self.n)
        models = np.stack(list(self._own_minimizers())) if own is None else personal.models(own, self.n, self.d)
        mixed = [personal.Personal(f, float(a), m) for f, a, m in zip(self.clients, alphas, models, strict=True)]
        return replace(self, clients=mixed, whole=None)

    def _own_minimizers(self) -> Iterator[Array]:
        for i, f in enumerate(self.clients):
            alone = Problem([f], d=self.d).solution
            if alone is None:
                raise InputError(f"the minimizer of client {i} is too expensive to compute here; give own.")
            yield alone.x

    @cached_property
    def _sampling(self) -> tuple[Array, Array]:
        """(A, C) of expected smoothness for the minibatches of each client; C is nan if the solution is unknown."""
        # without x* the noise there is unknown, and so is C
        x = None if self.solution is None else self.solution.x
        spreads = np.full(self.n, np.nan) if x is None else self._clients.spreads(x)
        variances = minibatches.variance_each(self.rows_each, self.batch or 1, spreads)
        return minibatches.expected_smoothness_each(self.L_batch_i, variances)

    @cached_property
    def es_A_i(self) -> Array:
        """A of expected smoothness of each client; L_i for full gradients."""
        return self.L_i if self.batch is None else self._sampling[0]

    @cached_property
    def L_batch_i(self) -> Array:
        """L_b of each client:  E |g_j(x) - g_j(x*)|^2 <= 2 L_b D_f(x, x*)  over minibatches j; L_i with all rows."""
        if self.batch is None:
            return self.L_i
        smoothness: Array = minibatches.smoothness_each(self.rows_each, self.batch, self.L_i, self._clients.L_rows())
        return smoothness

    @cached_property
    def es_A(self) -> float:
        """A of expected smoothness (Assumption 5.2 of the paper), the largest of all clients; L for full gradients."""
        return self.L if self.batch is None else float(self.es_A_i.max())

    @cached_property
    def es_C(self) -> float:
        """C of the same assumption,  sum_i w_i C_i,  where Psi is an average over clients; 0 for full gradients.

        It is nan where the solution, or the smoothness of the rows, is unknown.
        """
        if self.batch is None:
            return 0.0
        if self.solution is None or not self.checks_steps:
            return float("nan")
        return float(self.weights @ self._sampling[1])


def _positive_L(L: float) -> float:
    if not L > 0:
        raise InputError("L is zero: the data are all zero, or so small that their squares are; rescale them.")
    return L
