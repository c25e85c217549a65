"""Projection onto l <= A y <= u by the dual active-set method of Goldfarb and Idnani (1983), for rows of length 1.

The active rows and an orthogonal factorization of them are kept from one point to the next. A row with sign +1 is held
at its lower bound, with -1 at its upper one. Let N have the active rows, times their signs, as its rows, and N = T J1
with a lower triangular T and the first rows J1 of an orthogonal matrix J. The nearest point y with these rows on their
bounds and its multipliers v are

    T w = bounds - N x,    y = x + J1'w,    T'v = w,

and y is the projection if no v of an inequality is negative and no other row is violated.
"""

import numpy as np

from proxskip.lazy.compilation import njit

_EXACT = {"nogil": True, "cache": True, "error_model": "numpy"}
_FUSED = {**_EXACT, "fastmath": {"reassoc", "contract", "nsz", "arcp"}}

DEPENDENT = 1e-10
"""A row that is nearer than this to a combination of the active ones counts as one."""
ULPS = 4e-15
"""What a product with a row may be off, relative to the points; a row that is violated by less is not added."""
NEARLY = 1e-9
"""A row that the active ones hold outside of its bound by less than this, relative to y, makes no set empty."""
SOLVED, EMPTY, STUCK, GAVE_UP = 0, 1, 2, 3


@njit(**_EXACT)
def project(x, A, l, u, J, T, rows, signs, v, q, most, y):
    """y <- the projection of x, from the q active rows given; (status, q, changes of the active rows)."""
    free = l == u
    changes = 0
    while q > 0:
        _solve(x, A, l, u, J, T, rows, signs, v, q, y)
        k = _most_negative(v, rows, free, q)
        if k < 0:
            break
        q = _drop(J, T, rows, signs, v, q, k)
        changes += 1
    if q == 0:
        y[:] = x
    while True:
        i, sign = _most_violated(A, l, u, x, y, rows, q)
        if i < 0:
            if q > 0 and changes > 0:
                _solve(x, A, l, u, J, T, rows, signs, v, q, y)
            return SOLVED, q, changes
        if changes >= most:
            return GAVE_UP, q, changes
        status, q, more = _take_in(A, l, u, J, T, rows, signs, v, q, i, sign, free, most - changes, y)
        changes += more
        if status == STUCK:
            _solve(x, A, l, u, J, T, rows, signs, v, q, y)
        if status != SOLVED:
            return status, q, changes


@njit(**_EXACT)
def _take_in(A, l, u, J, T, rows, signs, v, q, i, sign, free, most, y):
    """Move y until row i is on its bound; rows whose multiplier would become negative leave on the way."""
    d = A.shape[1]
    n = sign * A[i]
    bound = sign * (l[i] if sign > 0 else u[i])
    mine, changes = 0.0, 0
    while True:
        part = J @ n
        r = _back(T, part, q)
        tail = 0.0
        for j in range(q, d):
            tail += part[j] * part[j]
        # how far the multipliers allow, and how far it is to the bound
        first, k = np.inf, -1
        for j in range(q):
            if r[j] > 0.0 and not free[rows[j]] and v[j] / r[j] < first:
                first, k = v[j] / r[j], j
        lack = bound - n @ y
        whole = lack / tail if tail > DEPENDENT * DEPENDENT else np.inf
        t = min(first, whole)
        if t == np.inf:
            slack = NEARLY * (np.sqrt(_dot(y, y)) + abs(bound))
            return EMPTY if lack > slack else STUCK, q, changes
        if whole < np.inf:
            y += t * (part[q:] @ J[q:])
        v[:q] -= t * r
        mine += t
        changes += 1
        if t == whole:
            q = _add(J, T, part, q)
            rows[q - 1], signs[q - 1], v[q - 1] = i, sign, mine
            return SOLVED, q, changes
        q = _drop(J, T, rows, signs, v, q, k)
        if changes >= most:
            return GAVE_UP, q, changes


@njit(**_EXACT)
def _solve(x, A, l, u, J, T, rows, signs, v, q, y):
    """y and v of the active rows; the second pass takes away what the first has lost to rounding."""
    y[:] = x
    v[:q] = 0.0
    w = np.empty(q)
    for _ in range(2):
        for j in range(q):
            i = rows[j]
            w[j] = signs[j] * ((l[i] if signs[j] > 0 else u[i]) - _dot(A[i], y))
        for j in range(q):
            w[j] = (w[j] - _dot(T[j, :j], w)) / T[j, j]
        y += w @ J[:q]
        v[:q] += _back(T, w, q)


@njit(**_EXACT)
def _back(T, w, q):
    """The v with T'v = w."""
    v = w[:q].copy()
    for j in range(q - 1, -1, -1):
        v[j] /= T[j, j]
        for k in range(j):
            v[k] -= v[j] * T[j, k]
    return v


@njit(**_FUSED)
def _dot(a, b):
    """a'b over the length of a, without the start of a call of BLAS."""
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@njit(**_EXACT)
def _most_negative(v, rows, free, q):
    k, least = -1, 0.0
    for j in range(q):
        if v[j] < least and not free[rows[j]]:
            k, least = j, v[j]
    return k


@njit(**_EXACT)
def _most_violated(A, l, u, x, y, rows, q):
    """The row that is farthest outside its bounds, and the side; -1 if all are inside up to rounding."""
    near = ULPS * np.sqrt(len(y)) * (np.sqrt(x @ x) + np.sqrt(y @ y))
    active = np.zeros(len(l), np.bool_)
    active[rows[:q]] = True
    products = A @ y
    where, sign, most = -1, 1.0, 0.0
    for i in range(len(l)):
        if active[i]:
            continue
        below, above = l[i] - products[i], products[i] - u[i]
        lack = max(below, above)
        if lack > most and lack > near + ULPS * abs(products[i]):
            where, sign, most = i, 1.0 if below > above else -1.0, lack
    return where, sign


@njit(**_EXACT)
def _add(J, T, part, q):
    """Turn the rows of J beyond q so that the new row n, with part = J n, has one entry there: T's new diagonal."""
    for j in range(len(part) - 1, q, -1):
        a, b = part[j - 1], part[j]
        if b != 0.0:
            part[j - 1] = np.hypot(a, b)
            _turn(J[j - 1], J[j], a / part[j - 1], b / part[j - 1])
    T[q, : q + 1] = part[: q + 1]
    return q + 1


@njit(**_EXACT)
def _drop(J, T, rows, signs, v, q, k):
    """Take the k-th active row out, and make T triangular again."""
    for j in range(k, q - 1):
        T[j, : j + 2] = T[j + 1, : j + 2]
        rows[j], signs[j], v[j] = rows[j + 1], signs[j + 1], v[j + 1]
    for j in range(k, q - 1):
        a, b = T[j, j], T[j, j + 1]
        if b != 0.0:
            h = np.hypot(a, b)
            _turn(J[j], J[j + 1], a / h, b / h)
            _turn(T[j : q - 1, j], T[j : q - 1, j + 1], a / h, b / h)
    return q - 1


@njit(**_FUSED)
def _turn(f, g, c, s):
    """f, g <- c f + s g, c g - s f."""
    for i in range(len(f)):
        a, b = f[i], g[i]
        f[i], g[i] = c * a + s * b, c * b - s * a


@njit(**_EXACT)
def error_bound(x, A, l, u, J, T, rows, signs, v, q, y):
    """To first order, how far y is from the projection: twice the least change that puts every row where it belongs.

    The active rows go to their bounds, and the violated ones to theirs without moving the active ones. What is left of
    y - x - N'v counts too.
    """
    w, gap = np.empty(q), x - y
    for j in range(q):
        i = rows[j]
        if v[j] < 0.0 and l[i] < u[i]:
            return np.inf
        w[j] = signs[j] * ((l[i] if signs[j] > 0 else u[i]) - _dot(A[i], y))
        gap += (signs[j] * v[j]) * A[i]
    for j in range(q):
        w[j] = (w[j] - _dot(T[j, :j], w)) / T[j, j]
    total = np.sqrt(w @ w)
    products = A @ y
    active = np.zeros(len(l), np.bool_)
    active[rows[:q]] = True
    for i in range(len(l)):
        lack = max(l[i] - products[i], products[i] - u[i])
        if lack > 0.0 and not active[i]:
            tail = J[q:] @ A[i]
            size = np.sqrt(tail @ tail)
            # a combination of the active rows is on its bound when they are
            total += lack / size if size > DEPENDENT else lack
    return 2.0 * total + np.sqrt(gap @ gap)
