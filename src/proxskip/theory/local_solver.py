"""The theorems of a primal-dual method whose clients solve a proximal problem by accelerated steps (``FiveGCS``).

With F_m = w_m (f_m - (mu/2) |.|^2), u_m = w_m v_m and tau_m the client's step in the units of v_m. All functions take
one number for each client, or one for all.

Exact local solves. If  gamma E|sum_{m in S} a_m/pi_m|^2 <= sum_m |a_m|^2/(w_m tau_m)  for all a, then

    Psi = |z - x*|^2/gamma + sum_m (w_m/pi_m) (1/tau_m + 2/(L_m - mu)) |v_m - v_m*|^2

contracts in expectation by  max( 1/(1 + 2 gamma mu), max_m 1 - pi_m 2 tau_m/(L_m - mu + 2 tau_m) ).  (Add the
monotonicity of the subdifferential of psi at xhat and the cocoercivity of each grad F_m; this is the argument for the
primal-dual method of A. Chambolle and T. Pock, 2011, with a cocoercive dual.)

Inexact ones. Let e_m be the gradient of the local problem at y_m, |e_m| <= theta tau_m |y_m - xhat|, and let the
condition above hold with sigma < 1 times its right-hand side. If

    theta^2 sigma/(gamma mu) + 2 theta + 2 theta^2 max_m tau_m/(L_m - mu) <= 1 - sigma,

then Psi with 1/(L_m - mu) in the place of 2/(L_m - mu) contracts by the same maximum without its factors of 2.
"""

from __future__ import annotations

import math

import numpy as np

from proxskip.types import Array

__all__ = [
    "inexact_rate", "local_accuracy", "local_dual_steps", "local_momentum", "local_radius", "local_sigma",
    "local_steps_for", "local_theta",
]  # fmt: skip


def local_dual_steps(gamma: float, L: Array, w: Array, pi: Array, rho: float, sigma: float) -> Array:
    """tau_m: the steps for which the theorems' condition holds with sigma, in proportion to (L_m - mu)/pi_m.

    Args:
        gamma: the server's step size.
        w: the weights.
        L: L_m - mu.
        pi, rho: the probability that m takes part, and  P(m and k) = rho pi_m pi_k.
    """
    share = L / pi
    alone = share / (gamma * float(w @ share))  # gamma sum_m w_m alone_m = 1
    return np.asarray(sigma / (rho / alone + gamma * w * (1.0 / pi - rho)))


def local_sigma(gamma: float, tau: Array, w: Array, pi: Array, rho: float) -> float:
    """The smallest sigma for which the theorems' condition holds; gamma sum_m w_m tau_m with everybody.

    Args:
        tau, w: the dual step and the weight of each client.
        pi, rho: as in ``local_dual_steps``.
    """
    alone = gamma * w * (1.0 / pi - rho)
    low = float(np.max(tau * alone, initial=0.0))
    if rho <= 0.0 or np.all(alone == 0.0):
        return low + gamma * rho * float(w @ tau)
    high = low + gamma * rho * float(w @ tau)
    for _ in range(60):
        middle = (low + high) / 2
        room = middle / tau - alone
        enough = bool(np.all(room > 0)) and float(np.sum(gamma * rho * w / np.maximum(room, 1e-300))) <= 1
        low, high = (low, middle) if enough else (middle, high)
    return high


def local_momentum(L: Array, tau: Array) -> Array:
    """(1 - q)/(1 + q) with q = sqrt(tau/(L + tau)): Nesterov's for the local problem; L is L_m - mu."""
    q = np.sqrt(tau / (L + tau))
    return np.asarray((1.0 - q) / (1.0 + q))


def local_accuracy(L: Array, tau: Array, K: int) -> float:
    """theta that K accelerated steps from xhat are sure to reach; infinite if they are too few.

    From Nesterov, Lectures on Convex Optimization, 2018, Theorem 2.2.3:  after K steps the value is within
    (1 - q)^K (L + 2 tau)/2 |xhat - y*|^2  of the least.
    """
    r = (1.0 - np.sqrt(tau / (L + tau))) ** (K / 2)
    moved = 1.0 - np.sqrt((L + 2 * tau) / tau) * r
    theta = np.sqrt((L + tau) * (L + 2 * tau)) * r / (tau * np.maximum(moved, 1e-300))
    return float(np.max(np.where(moved > 0, theta, np.inf)))


def local_theta(gamma: float, mu: float, L: Array, tau: Array, sigma: float) -> float:
    """The largest theta that the theorem on inexact solves allows.

    Args:
        gamma: the server's step size.
        mu, L: the strong convexity, and L_m - mu.
        tau: the dual step of each client.
        sigma: see ``local_sigma``.
    """
    a, b = sigma / (gamma * mu) + 2 * float(np.max(tau / L)), 1.0 - sigma
    return b / (1.0 + math.sqrt(1.0 + a * b))  # the largest with  a theta^2 + 2 theta <= 1 - sigma


def local_steps_for(theta: float, L: Array, tau: Array) -> int:
    """The fewest accelerated steps that are sure to reach theta.

    Args:
        L, tau: L_m - mu and the dual step of each client.
    """
    r = theta * tau / (np.sqrt((L + tau) * (L + 2 * tau)) + theta * np.sqrt(tau * (L + 2 * tau)))
    steps = 2 * np.log(r) / np.log1p(-np.sqrt(tau / (L + tau)))
    K = max(1, math.ceil(float(np.max(steps))))
    return K if local_accuracy(L, tau, K) <= theta else K + 1


def inexact_rate(gamma: float, mu: float, L: Array, tau: Array, pi: Array, sigma: float, theta: float) -> float | None:
    """The contraction of Psi per round with local solves of accuracy theta; None outside the theorem.

    Args:
        gamma: the server's step size.
        mu, L: the strong convexity, and L_m - mu.
        tau, pi: the dual step and the probability of each client.
        sigma: see ``local_sigma``.
    """
    if not (mu > 0 and math.isfinite(theta) and np.all(L > 0)):
        return None
    lost = theta**2 * sigma / (gamma * mu) + 2 * theta + 2 * theta**2 * float(np.max(tau / L))
    if lost > (1.0 - sigma) * (1 + 1e-12):
        return None
    return max(1.0 / (1.0 + gamma * mu), float(np.max(1.0 - pi * tau / (L + tau))))


def local_radius(gamma: float, mu: float, L: float, tau: float, K: int, eigenvalues: Array | None = None) -> float:
    """The spectral radius of a round on quadratics with like clients, whose eigenvalues lie between mu and mu + L.

    K accelerated steps leave the share P(l) of the distance to y*, so that with  g = tau (1 - P)/(l + tau)
    v+ = v + g (l xhat - v);  clients that differ in v alone follow v+ = (1 - g) v.

    Args:
        gamma: the server's step size.
    """
    # P oscillates evenly in the arc sine of sqrt(l/L), about K/2 times
    arc = np.linspace(0.0, np.pi / 2, min(max(400, 8 * K), 30_000))
    grid = np.concatenate([L * np.sin(arc) ** 2, np.geomspace(1e-9 * L, L, 400)])
    l = grid if eigenvalues is None else np.asarray(eigenvalues) - mu
    beta = float(local_momentum(np.asarray(L), np.asarray(tau)))
    # the next P is  left ((1 + beta) P - beta (the P before)),  and both begin with 1
    left = 1.0 - (l + tau) / (L + tau)
    step = np.zeros((len(l), 2, 2))
    step[:, 0, 0] = (1.0 + beta) * left
    step[:, 0, 1] = -beta * left
    step[:, 1, 0] = 1.0
    P = np.linalg.matrix_power(step, K)[:, 0].sum(axis=1)
    g = tau * (1.0 - P) / (l + tau)
    shrink = 1.0 + gamma * mu
    # (z, v) -> (xhat - gamma g (l xhat - v), v + g (l xhat - v)),  xhat = (z - gamma v)/shrink
    M = np.empty((len(l), 2, 2))
    M[:, 0, 0] = (1.0 - gamma * g * l) / shrink
    M[:, 0, 1] = -gamma * (1.0 - gamma * g * l) / shrink + gamma * g
    M[:, 1, 0] = g * l / shrink
    M[:, 1, 1] = 1.0 - g - gamma * g * l / shrink
    together = np.abs(np.linalg.eigvals(M)).max()
    return float(max(together, np.abs(1.0 - g).max()))
