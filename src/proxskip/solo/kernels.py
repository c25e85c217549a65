"""Compiled vector work of the loop of ``minimize``: one call where numpy needs five."""

import numpy as np
from numba import njit

_FUSED = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**_FUSED)
def pulled_step(z, g, h, centre, y, tau, gamma, momentum):
    """y+ = z - gamma (g - h + tau (z - centre)), and the point ahead of it, y+ + momentum (y+ - y)."""
    new, ahead = np.empty_like(z), np.empty_like(z)
    for j in range(len(z)):
        v = z[j] - gamma * (g[j] - h[j] + tau * (z[j] - centre[j]))
        new[j] = v
        ahead[j] = v + momentum * (v - y[j])
    return new, ahead
