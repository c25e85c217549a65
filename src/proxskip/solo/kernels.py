"""Compiled vector work of the loop of ``minimize``: one call where numpy needs five."""

from proxskip.engines.cpu.kernels import distance
from proxskip.on_demand.kernels import njit

_FUSED = {"nogil": True, "cache": True, "borrows": True, "error_model": "numpy"}


@njit(**_FUSED)
def pulled_step(z, g, h, centre, y, tau, gamma, momentum, new, ahead):
    """new <- z - gamma (g - h + tau (z - centre)), and the point ahead of it, new + momentum (new - y).

    The caller makes ``new`` and ``ahead``, faster than a compiled function returns an array.
    """
    for j in range(len(z)):
        v = z[j] - gamma * (g[j] - h[j] + tau * (z[j] - centre[j]))
        new[j] = v
        ahead[j] = v + momentum * (v - y[j])


@njit(**_FUSED)
def plain_step(y, g, gamma, new):
    """new <- y - gamma g."""
    for j in range(len(y)):
        new[j] = y[j] - gamma * g[j]


@njit(fastmath={"reassoc", "nsz"}, **_FUSED)
def _turn(x, before, y):
    """<y - x, x - before>; only its sign is used, so its sum may be reordered."""
    turn = 0.0
    for j in range(len(x)):
        turn += (y[j] - x[j]) * (x[j] - before[j])
    return turn


@njit(**_FUSED)
def look_ahead(x, before, y, momentum, ahead):
    """ahead <- x + momentum (x - before); returns |y - x|."""
    for j in range(len(x)):
        ahead[j] = x[j] + momentum * (x[j] - before[j])
    return distance(y, x)


@njit(**_FUSED)
def look_ahead_or_turn(x, before, y, momentum, ahead):
    """The same; but if <y - x, x - before> > 0, a restart is due: ``ahead`` is left alone and -|y - x| returned."""
    if _turn(x, before, y) > 0.0:
        return -distance(y, x)
    return look_ahead(x, before, y, momentum, ahead)
