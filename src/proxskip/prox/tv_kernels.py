"""Compiled inner loops of total variation; the GIL is released, and sums run in one order for any number of threads.

Every kernel works on rows (or columns) lo to hi-1 of an image, which threads share. Sums over them are one number per
row, added by the caller in the order of the rows.
"""

import numpy as np
from numba import njit

# the exact algorithm and the gaps are computed as written; the iterations' sums may be reordered, and multiply-adds
# fused, in the same way for every thread
_EXACT = {"nogil": True, "cache": True, "error_model": "numpy"}
_FUSED = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}


# -- one dimension, exact ----------------------------------------------------------------------------------------------
@njit(**_EXACT)
def tv1d(x, lam, y, place, slope, shift, low, high):
    """y <- argmin |y - x|^2/2 + lam sum_i |y_{i+1} - y_i|  by dynamic programming, in time proportional to len(x).

    Forward: the derivative of the least cost of the first i entries as a function of the i-th is piecewise linear and
    clipped to [-lam, lam]; it is kept as its knots, where slope and intercept jump, in a double-ended queue. low[i]
    and high[i] are where the clipping starts and ends. Backward: y_i is y_{i+1} clipped to [low_i, high_i] (Johnson,
    "A dynamic programming algorithm for the fused lasso", 2013). Last, each constant stretch is set to its mean plus
    what its two ends pull, so that no rounding error is carried from one stretch to another.
    """
    n = len(x)
    if n == 0:
        return
    if lam == 0.0 or n == 1:
        y[:] = x
        return
    # an empty queue in the middle of its room, since it grows by one knot at either end in every step
    first, last = n, n - 1
    for i in range(n - 1):
        # the derivative's leftmost piece is a y + b, its rightmost c y + d: that of the entry's own term, plus the
        # clipped one of the entries before, which is -lam on the far left and +lam on the far right
        a, b = 1.0, -x[i] - (lam if i > 0 else 0.0)
        c, d = 1.0, -x[i] + (lam if i > 0 else 0.0)
        # from the left, drop knots below the level -lam: there the derivative is clipped
        while first <= last and a * place[first] + b <= -lam:
            a += slope[first]
            b += shift[first]
            first += 1
        left = (-lam - b) / a
        # from the right, drop those above +lam
        while last >= first and c * place[last] + d >= lam:
            c -= slope[last]
            d -= shift[last]
            last -= 1
        right = (lam - d) / c
        # the two ends of the clipping are knots of the next derivative
        first -= 1
        place[first] = left
        slope[first] = a
        shift[first] = b + lam
        last += 1
        place[last] = right
        slope[last] = -c
        shift[last] = lam - d
        low[i], high[i] = left, right
    # the last entry: where the derivative is zero
    a, b = 1.0, -x[n - 1] - lam
    while first <= last and a * place[first] + b <= 0.0:
        a += slope[first]
        b += shift[first]
        first += 1
    y[n - 1] = -b / a
    for i in range(n - 2, -1, -1):
        y[i] = min(max(y[i + 1], low[i]), high[i])
    _means(x, lam, y)


@njit(**_EXACT)
def _means(x, lam, y):
    """Each constant stretch of y <- the mean of x on it, moved by the pull of its ends."""
    n = len(x)
    start, pull = 0, 0.0
    while start < n:
        # the mean from differences to the stretch's first entry, which are smaller than the entries and lose fewer bits
        level = y[start]
        total = 0.0
        end = start + 1  # at least one: NaN equals nothing
        while end < n and y[end] == level:
            total += x[end] - x[start]
            end += 1
        # optimality: the jump to the next stretch pulls this one up or down by lam, and that one the other way
        ahead = 0.0
        if end < n:
            ahead = lam if y[end] > level else -lam
        y[start:end] = x[start] + (total + ahead - pull) / (end - start)
        start, pull = end, ahead


@njit(**_EXACT)
def rows(x, c, lam, u, lo, hi):
    """u_i <- v - prox of the 1-D total variation of v = x_i - c_i, for the rows lo <= i < hi."""
    n = x.shape[1]
    place = np.empty(2 * n + 2)
    slope = np.empty(2 * n + 2)
    shift = np.empty(2 * n + 2)
    low = np.empty(n)
    high = np.empty(n)
    v = np.empty(n)
    y = np.empty(n)
    for i in range(lo, hi):
        for j in range(n):
            v[j] = x[i, j] - c[i, j]
        tv1d(v, lam, y, place, slope, shift, low, high)
        for j in range(n):
            u[i, j] = v[j] - y[j]


@njit(**_EXACT)
def columns(x, u, lam, y, c, ahead, beta, turn, lo, hi):
    """The columns' half of an accelerated step, for lo <= j < hi, eight columns at a time.

    v = x - u;  y <- prox of the columns' total variation of v;  c+ = v - y;  ahead <- c+ + beta (c+ - c);  c <- c+.
    turn[j] is the inner product of (ahead before - c+) with (c+ - c): positive where the momentum points uphill.
    """
    m = x.shape[0]
    place = np.empty(2 * m + 2)
    slope = np.empty(2 * m + 2)
    shift = np.empty(2 * m + 2)
    low, high = np.empty(m), np.empty(m)
    # columns are copied eight at a time, one cache line of each row of the image
    v, z = np.empty((8, m)), np.empty((8, m))
    for start in range(lo, hi, 8):
        width = min(8, hi - start)
        for i in range(m):
            for k in range(width):
                v[k, i] = x[i, start + k] - u[i, start + k]
        for k in range(width):
            tv1d(v[k], lam, z[k], place, slope, shift, low, high)
            turn[start + k] = 0.0
        for i in range(m):
            for k in range(width):
                j = start + k
                new = v[k, i] - z[k, i]
                moved = new - c[i, j]
                turn[j] += (ahead[i, j] - new) * moved
                y[i, j] = z[k, i]
                ahead[i, j] = new + beta * moved
                c[i, j] = new


@njit(**_EXACT)
def rows_gap(y, u, lam, gap, lo, hi):
    """gap[i] <- lam TV(y_i) - <u_i, y_i>, summed edge by edge from terms that are never negative."""
    n = y.shape[1]
    for i in range(lo, hi):
        # p is the dual variable of edge (j, j + 1), from  u = D' p;  |p| <= lam makes each term nonnegative, up to
        # rounding, which is cut off
        p, total = 0.0, 0.0
        for j in range(n - 1):
            p -= u[i, j]
            step = y[i, j + 1] - y[i, j]
            total += max(lam * abs(step) - p * step, 0.0)
        gap[i] = total


# -- two dimensions, isotropic -----------------------------------------------------------------------------------------
@njit(**_FUSED)
def _primal_row(x, l1, low, high, p, q, i, y):
    """y <- row i of h's prox of x - D'(p, q), h = l1 |.| within [low, high]; p's last row and q's last column are 0."""
    n = x.shape[1]
    here = x[i]
    over = p[i]
    side = q[i]
    above = p[max(i - 1, 0)]
    known = 1.0 if i > 0 else 0.0  # the first row has none above; a factor instead of a branch in the loop
    y[0] = here[0] + over[0] + side[0] - known * above[0]
    before = side[: n - 1]
    for j in range(1, n):
        y[j] = here[j] + over[j] - known * above[j] + side[j] - before[j - 1]
    # soft threshold, then box: the prox of h
    if l1 > 0.0:
        for j in range(n):
            y[j] -= min(max(y[j], -l1), l1)
    if low > -np.inf or high < np.inf:
        for j in range(n):
            y[j] = min(max(y[j], low), high)


@njit(**_FUSED)
def iso_step(x, lam, l1, low, high, beta, p, q, r, s, r_new, s_new, turn, lo, hi):
    """One accelerated projected-gradient step on the dual, rows lo <= i < hi.

    (p, q)+ = the projection of (r, s) + D y(r, s)/8 onto |(p, q)_ij| <= lam, with y as in ``_primal_row``;
    (r, s)+ = (p, q)+ + beta times what it moved. turn[i] is the inner product of ((r, s) - (p, q)+) with what it moved.
    """
    m, n = x.shape
    # y is computed row by row as it is needed, and only this row and the next are kept; the last row's difference to
    # the next is zero, and so is the last entry's in a row, for which ``here`` repeats its last entry
    here = np.empty(n + 1)
    below = np.empty(n + 1)
    a = np.empty(n)
    b = np.empty(n)
    _primal_row(x, l1, low, high, r, s, lo, here)
    for i in range(lo, hi):
        if i + 1 < m:
            _primal_row(x, l1, low, high, r, s, i + 1, below)
        else:
            below[:n] = here[:n]
        here[n] = here[n - 1]
        _ascend(r[i], below, here, a)
        _ascend(s[i], here[1:], here, b)
        _project(a, b, lam)
        turn[i] = _advance(a, p[i], r[i], beta, r_new[i]) + _advance(b, q[i], s[i], beta, s_new[i])
        here, below = below, here


@njit(**_FUSED)
def _ascend(r, ahead, here, a):
    """a <- r + (ahead - here)/8; 8 bounds the square of D's norm."""
    for j in range(len(a)):
        a[j] = r[j] + 0.125 * (ahead[j] - here[j])


@njit(**_FUSED)
def _project(a, b, lam):
    """Every (a_j, b_j) onto the disc of radius lam."""
    for j in range(len(a)):
        scale = lam / max(lam, np.sqrt(a[j] * a[j] + b[j] * b[j]), 1e-300)
        a[j] *= scale
        b[j] *= scale


@njit(**_FUSED)
def _advance(a, p, r, beta, r_new):
    """p <- a, r_new <- a + beta (a - p); returns <r - a, a - p>."""
    total = 0.0
    for j in range(len(a)):
        moved = a[j] - p[j]
        total += (r[j] - a[j]) * moved
        p[j] = a[j]
        r_new[j] = a[j] + beta * moved
    return total


@njit(**_EXACT)
def iso_gap(x, lam, l1, low, high, p, q, y, gap, lo, hi):
    """y <- y(p, q) and gap[i] <- sum_j lam |(D y)_ij| - <(p, q)_ij, (D y)_ij>, rows lo <= i < hi."""
    m, n = x.shape
    here, below = np.empty(n), np.empty(n)
    _primal_row(x, l1, low, high, p, q, lo, here)
    for i in range(lo, hi):
        if i + 1 < m:
            _primal_row(x, l1, low, high, p, q, i + 1, below)
        else:
            below[:] = here
        total = 0.0
        for j in range(n):
            a = below[j] - here[j]
            b = here[j + 1] - here[j] if j + 1 < n else 0.0
            # nonnegative by Cauchy-Schwarz, since |(p, q)_ij| <= lam; rounding errors below zero are cut off
            total += max(lam * np.sqrt(a * a + b * b) - p[i, j] * a - q[i, j] * b, 0.0)
        gap[i] = total
        y[i] = here
        here, below = below, here
