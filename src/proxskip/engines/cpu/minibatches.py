"""Compiled minibatches: the rows of client i at step k of round r, as a function of the seed and (i, r, k) alone.

``randomness.minibatch`` is the plain form and the judge of this one; its module says what is drawn. A table of bytes,
one for each row, says which rows were drawn (``subset``); in between it is all zero.

All of it is arithmetic on unsigned integers, exact on every machine.
"""

from typing import Any, NamedTuple

import numpy as np

from proxskip.lazy.compilation import njit
from proxskip.randomness import REDRAW

_WORD = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
# Philox4x32: multipliers, and the Weyl constants by which the key is moved on after each round
_PHILOX_M0, _PHILOX_M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_PHILOX_W0, _PHILOX_W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_u32, _u64 = np.uint32, np.uint64
_REDRAW = np.uint32(REDRAW)
# the top six bits of this constant times 2^k tell k: a de Bruijn sequence (Leiserson, Prokop, Randall 1998)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_PLACES = np.zeros(64, np.uint64)
_PLACES[[((int(_DE_BRUIJN) << _k) & (2**64 - 1)) >> 58 for _k in range(64)]] = range(64)
ROWS_PER_PICK = 16
"""A minibatch of fewer rows is read in the order of the draws: looking through a bit for each row would take longer."""


class Draws(NamedTuple):
    """What the minibatches of a round are drawn by, for all members of a cohort."""

    batch: int
    """Rows of a minibatch; 0 for full gradients."""
    seed: int
    round: int
    number0: int
    """The number of the first client among all."""
    step0: Any
    """By member the number of its first step: member j draws that of its local step k as that of step0[j] + k."""


@njit(inline="always")
def _trailing_zeros(v):
    """The number of zeros below the lowest one of a 64-bit word that is not zero."""
    return _PLACES[((v & (~v + _u64(1))) * _DE_BRUIJN) >> _u64(58)]


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def philox(c0, c1, c2, c3, seed):
    """The four words of ``randomness.philox4x32``; the counter is of 32-bit words, the seed of 64 bits."""
    k0, k1 = _u32(seed & _WORD), _u32(seed >> _32)
    for _ in range(10):
        p0, p1 = _PHILOX_M0 * _u64(c0), _PHILOX_M1 * _u64(c2)
        c0, c1 = _u32(_u32(p1 >> _32) ^ c1 ^ k0), _u32(p1)
        c2, c3 = _u32(_u32(p0 >> _32) ^ c3 ^ k1), _u32(p0)
        k0, k1 = _u32(k0 + _u32(_PHILOX_W0)), _u32(k1 + _u32(_PHILOX_W1))
    return c0, c1, c2, c3


@njit(nogil=True, cache=True, borrows=True)
def _redrawn(product, side, i, step, round, client, seed):
    """``randomness._redrawn``: a number below ``side``, all of them equally likely."""
    attempt, least = 0, (_u64(0x100000000) - side) % side
    while product & _WORD < least:
        key = _u64(seed + (_u64(attempt // 4) << _32))
        words = philox(_u32(_REDRAW | _u32(i)), _u32(step), _u32(round), _u32(client), key)
        product = _u64(words[attempt % 4]) * side
        attempt += 1
    return product >> _32


@njit(nogil=True, cache=True, borrows=True)
def numbers_below(seed, client, round, step, m, n, out):
    """Floyd's numbers for n rows of m into ``out``, which has room for three more: the i-th is at most m - n + i."""
    seed = _u64(seed)
    blocks = (n + 3) // 4
    for q in range(blocks):
        c0, c1, c2, c3 = philox(_u32(q), _u32(step), _u32(round), _u32(client), seed)
        # word r of the block is that of draw q + r * blocks, a number below its side
        for r in range(4):
            word = c0 if r == 0 else c1 if r == 1 else c2 if r == 2 else c3
            i = q + r * blocks
            side = _u64(m - n + 1 + i)
            product = _u64(word) * side
            if product & _WORD < side and i < n:  # rare, and not even then always to be drawn again
                out[i] = _u32(_redrawn(product, side, i, step, round, client, seed))
            else:
                out[i] = _u32(product >> _32)


@njit(nogil=True, cache=True, borrows=True)
def subset(seed, client, round, step, m, n, seen, out):
    """n different rows of m into ``out``, which has room for three more; ``seen`` holds m zeros, and does again."""
    numbers_below(seed, client, round, step, m, n, out)
    # Floyd: a number that was drawn already becomes the last one that could be drawn, which was not
    for i in range(n):
        row = out[i]
        row = _u32(row + seen[row] * _u32(m - n + i - row))  # no branch, which would often be mispredicted
        seen[row] = 1
        out[i] = row
    for i in range(n):
        seen[out[i]] = 0


@njit(nogil=True, cache=True, borrows=True)
def draw_rows(seed, client, round, step, first, m, b, out, room):
    """The places of b of the client's m rows into ``out``, which has room for three more.

    Args:
        first: the number of the client's first row among all clients'.
        room: m zero bytes, a word of zeros for every 64 rows, both zero again afterwards; and where each row of all
            clients lies among its client's, or no entries if it lies where its number says (``drawing.Drawing``).
    """
    seen, marks, places = room
    place = places[first : first + m]
    rest, placed = 2 * b > m, place.shape[0] > 0
    n = m - b if rest else b
    if not rest and m > ROWS_PER_PICK * b:
        subset(seed, client, round, step, m, n, seen, out)
        if placed:
            for i in range(n):
                out[i] = place[out[i]]
        return
    # Floyd's algorithm with a bit for each place: one pass draws and sorts
    numbers_below(seed, client, round, step, m, n, out)
    for i in range(n):
        row, last = out[i], _u32(m - n + i)
        at, other = (place[row], place[last]) if placed else (row, last)
        word, bit = marks[at >> _u32(6)], _u64(1) << _u64(at & _u32(63))
        if word & bit != 0:
            marks[other >> _u32(6)] |= _u64(1) << _u64(other & _u32(63))
        else:
            marks[at >> _u32(6)] = word | bit
    # in the order of their places: neighbours in memory, and where these are sorted by length, rows of equal length
    flip, at = _u64(0xFFFFFFFFFFFFFFFF) if rest else _u64(0), 0
    for v in range((m + 63) // 64):
        bits = marks[v] ^ flip
        marks[v] = 0
        if m - 64 * v < 64:
            bits &= (_u64(1) << _u64(m - 64 * v)) - _u64(1)
        while bits != 0:
            out[at] = _u32(64 * v) + _u32(_trailing_zeros(bits))
            bits &= bits - _u64(1)
            at += 1


@njit(nogil=True, cache=True, borrows=True, error_model="numpy")
def weigh_rows(i, k, lo, hi, tiled, draws, share, picks, room):
    """share <- how often each tiled row (lo .. hi-1) of client i is in its minibatch of step k.

    ``tiled`` is (row0, place, count). A tiled row stands for ``count`` equal rows of the data, and place[r] says which
    one stands for row r. The rows of the minibatch or the others, whichever are fewer, are drawn: counted from zero up,
    or from all rows down. Returns the factor by which the gradient is to be multiplied.
    """
    row0, place, count = tiled
    seen, batch = room[0], draws.batch
    first, m = row0[i], row0[i + 1] - row0[i]
    n, one = batch, share.dtype.type(1.0)
    if 2 * batch <= m:
        for r in range(hi - lo):
            share[r] = 0.0
    else:
        n, one = m - batch, -one
        for r in range(hi - lo):
            share[r] = count[lo + r]
    subset(draws.seed, draws.number0 + i, draws.round, k, m, n, seen, picks)
    for q in range(n):
        share[place[first + picks[q]]] += one
    return share.dtype.type(1.0 / batch)
