"""Personalised objectives: every client mixes the common model with its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.problems import oracles
from proxskip.problems.federated import Problem
from proxskip.types import Array, InputError


class Personal:
    """f(alpha x + (1 - alpha) own): what a client sees of x if it uses a mixture of x and its own model.

    Args:
        f: the client's function.
        alpha: in (0, 1]; 1 is f itself.
        own: the client's own model.
    """

    def __init__(self, f: Any, alpha: float, own: Array) -> None:
        self.f = f
        self.alpha = alpha
        self.own = own
        self.d = len(own)
        self.L = alpha**2 * float(f.L)
        self.mu = None if f.mu is None else alpha**2 * float(f.mu)
        self.thread_safe = oracles.is_thread_safe(f)

    def model(self, x: Array) -> Array:
        """The model that this client uses."""
        return np.asarray(self.alpha * x + (1.0 - self.alpha) * self.own)

    def value(self, x: Array) -> float:
        return float(self.f.value(self.model(x)))

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.alpha * self.f.gradient(self.model(x)))

    def hessp(self, x: Array, v: Array) -> Array:
        return np.asarray(self.alpha**2 * self.f.hessp(self.model(x), v))


def scafflix(problem: Problem, alpha: npt.ArrayLike, own: npt.ArrayLike | None = None) -> Problem:
    """The personalized problem  min_x sum_i w_i f_i(alpha_i x + (1 - alpha_i) x_i*)  of FLIX.

    Scaffnew with own steps on it is Scafflix: K. Yi, L. Condat, P. Richtarik, Explicit personalization and local
    training: double communication acceleration in federated learning, 2023, arXiv:2305.13170, of which we read the
    title; that the two are the same was derived and is tested. ``clients[i].model(x)`` is client i's model.

    >>> import proxskip as ps
    >>> problem = ps.scafflix(ps.Problem(ps.random_quadratics(3, 2, seed=1)), 0.5)
    >>> ps.run(ps.Scaffnew.theory(problem, own_steps=True), problem, tol=1e-8).success
    True

    Args:
        problem: the problem of all clients; its functions need minimizers of their own.
        alpha: how much of the common model, in (0, 1]: one number, or one for each client.
        own: the clients' own models, one row each; the minimizers of their f_i if not given.
    """
    fits = np.shape(alpha) in ((), (1,), (problem.n,))
    alphas = np.broadcast_to(np.asarray(alpha, dtype=np.float64), (problem.n,)) if fits else np.zeros(1)
    if not (np.all(alphas > 0) and np.all(alphas <= 1)):
        raise InputError(f"alpha = {alpha!r} must lie in (0, 1]: one number, or one for each of {problem.n} clients.")
    if problem.batch is not None:
        raise InputError("a personalized problem has no minibatches; leave out the batch.")
    models = _own_models(problem) if own is None else np.asarray(own, dtype=np.float64)
    if models.shape != (problem.n, problem.d):
        raise InputError(f"own has shape {models.shape}; give one model of length {problem.d} for each client.")
    if not np.isfinite(models).all():
        raise InputError("own must be finite numbers.")
    clients = [Personal(f, float(a), m) for f, a, m in zip(problem.clients, alphas, models, strict=True)]
    return Problem(clients, problem.weights, problem.psi, problem.D, smoothness=problem.smoothness, info=problem.info)


def _own_models(problem: Problem) -> Array:
    models = []
    for i, f in enumerate(problem.clients):
        alone = Problem([f], d=problem.d).solution
        if alone is None:
            raise InputError(f"the minimizer of client {i} is too expensive to compute here; give own.")
        models.append(alone.x)
    return np.stack(models)
