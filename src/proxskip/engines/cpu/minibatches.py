"""Compiled minibatches: the rows of client i at step k of round r, as a function of the seed and (i, r, k) alone.

``randomness.minibatch`` is the plain form and the judge of all versions of this one; its module says what they draw.
Version 1 (``minibatch``) computes values of a keyed permutation, any of which can be had without the others. Version 2
(``subset``) is Floyd's algorithm: a table of bytes, one for each row, says which were drawn; in between it is all zero.
Version 3 draws bundles of rows by version 2.

All of it is arithmetic on unsigned integers, exact on every machine.
"""

import numpy as np

from proxskip.on_demand.kernels import njit
from proxskip.randomness import BUNDLES, REDRAW, ROWS_PER_BUNDLE

MIN_BITS = 6
"""The network permutes at least 2^6 numbers: a smaller one is visibly not uniform."""
_WORD = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
# Philox4x32: multipliers, and the Weyl constants by which the key is moved on after each round
_PHILOX_M0, _PHILOX_M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_PHILOX_W0, _PHILOX_W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
# the Feistel network's round function: two odd multipliers and two shifts
_u32, _u64 = np.uint32, np.uint64
_SCRAMBLE_0, _SCRAMBLE_1 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_SHIFT_0, _SHIFT_1 = np.uint32(15), np.uint32(13)
_REDRAW = np.uint32(REDRAW)
# the top six bits of this constant times 2^k tell k: a de Bruijn sequence (Leiserson, Prokop, Randall 1998)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_PLACES = np.zeros(64, np.uint64)
_PLACES[[((int(_DE_BRUIJN) << _k) & (2**64 - 1)) >> 58 for _k in range(64)]] = range(64)
ROWS_PER_PICK = 16
"""A minibatch of fewer rows is read in the order of the draws: looking through a bit for each row would take longer."""


@njit(inline="always")
def scramble(v, key):
    """The Feistel network's round function."""
    v = _u32((v ^ key) * _SCRAMBLE_0)
    v = _u32((v ^ (v >> _SHIFT_0)) * _SCRAMBLE_1)
    return v ^ (v >> _SHIFT_1)


@njit(nogil=True, cache=True, borrows=True)
def _mix(a, b, n, key, mask):
    """Half a round of the network for n numbers at once, a and b their halves."""
    for q in range(n):
        a[q] = _u32(a[q] ^ (scramble(b[q], key) & mask))


@njit(nogil=True, cache=True, borrows=True)
def permute(v, n, keys, bits, left, right):
    """The network's value for each of v's first n numbers, in their place.

    ``left`` and ``right`` are buffers for the numbers' halves. With an odd number of bits the left half has one more.
    """
    low = _u32(bits // 2)
    low_mask, high_mask = _u32((1 << (bits // 2)) - 1), _u32((1 << (bits - bits // 2)) - 1)
    for q in range(n):
        left[q], right[q] = _u32(v[q] >> low), _u32(v[q] & low_mask)
    # six rounds of two halves: each half is changed by a function of the other, so that every step can be undone
    for k in range(0, 12, 2):
        _mix(left, right, n, _u32(keys[k]), high_mask)
        _mix(right, left, n, _u32(keys[k + 1]), low_mask)
    for q in range(n):
        v[q] = _u32((left[q] << low) | right[q])


# -- version 2: subsets ------------------------------------------------------------------------------------------------
@njit(inline="always")
def _trailing_zeros(v):
    """The number of zeros below the lowest one of a 64-bit word that is not zero."""
    return _PLACES[((v & (~v + _u64(1))) * _DE_BRUIJN) >> _u64(58)]


@njit(nogil=True, cache=True, borrows=True)
def _word(c0, c1, c2, c3, seed, which):
    """One of the four words of ``philox4x32``, without room for the others."""
    k0, k1 = _u32(seed & _WORD), _u32(seed >> _32)
    for _ in range(10):
        p0, p1 = _PHILOX_M0 * _u64(c0), _PHILOX_M1 * _u64(c2)
        c0, c1 = _u32(_u32(p1 >> _32) ^ c1 ^ k0), _u32(p1)
        c2, c3 = _u32(_u32(p0 >> _32) ^ c3 ^ k1), _u32(p0)
        k0, k1 = _u32(k0 + _u32(_PHILOX_W0)), _u32(k1 + _u32(_PHILOX_W1))
    return _u64(c0 if which == 0 else c1 if which == 1 else c2 if which == 2 else c3)


@njit(nogil=True, cache=True, borrows=True)
def _redrawn(product, side, i, step, round, client, seed):
    """``randomness._redrawn``: a number below ``side``, all of them equally likely."""
    attempt, least = 0, (_u64(0x100000000) - side) % side
    while product & _WORD < least:
        key = _u64(seed + (_u64(attempt // 4) << _32))
        word = _word(_u32(_REDRAW | _u32(i)), _u32(step), _u32(round), _u32(client), key, attempt % 4)
        product = word * side
        attempt += 1
    return product >> _32


@njit(nogil=True, cache=True, borrows=True)
def numbers_below(seed, client, round, step, m, n, out):
    """Floyd's numbers for n rows of m into ``out``, which has room for three more: the i-th is at most m - n + i."""
    seed = _u64(seed)
    blocks = (n + 3) // 4
    key0, key1 = _u32(seed & _WORD), _u32(seed >> _32)
    for q in range(blocks):
        c0, c1, c2, c3 = _u32(q), _u32(step), _u32(round), _u32(client)
        k0, k1 = key0, key1
        for _ in range(10):
            p0, p1 = _PHILOX_M0 * _u64(c0), _PHILOX_M1 * _u64(c2)
            c0, c1 = _u32(_u32(p1 >> _32) ^ c1 ^ k0), _u32(p1)
            c2, c3 = _u32(_u32(p0 >> _32) ^ c3 ^ k1), _u32(p0)
            k0, k1 = _u32(k0 + _u32(_PHILOX_W0)), _u32(k1 + _u32(_PHILOX_W1))
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
def pick_rows(seed, client, round, step, m, b, place, room, out):
    """The places of a minibatch's b rows of m into ``out``, which has room for three more.

    Args:
        place: where each row lies; without entries, where its number says.
        room: m zero bytes, and a word of zeros for every 64 rows; both are zero again afterwards.
    """
    seen, marks = room
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


# -- version 1: a permutation ------------------------------------------------------------------------------------------
@njit(nogil=True, cache=True, borrows=True)
def minibatch(seed, client, round, step, m, start, n, out, room):
    """Values start .. start+n-1 of the keyed permutation of 0..m-1, into ``out``.

    ``room`` holds buffers for twelve keys and four times n numbers. All n numbers take each
    step of the network together, so that the loops are vectorized.
    """
    keys, v, left, right, at = room
    for block in range(3):
        philox4x32(block, step, round, client, seed, keys[4 * block : 4 * block + 4])
    bits = MIN_BITS
    while (1 << bits) < m:
        bits += 1
    for q in range(n):
        out[q] = _u32(start + q)
    permute(out, n, keys, bits, left, right)
    # collect the numbers that landed at m or beyond, with their places; written always, counted only where needed,
    # since a branch would be mispredicted up to half of the time
    beyond = 0
    for q in range(n):
        v[beyond], at[beyond] = out[q], _u32(q)
        beyond += out[q] >= m
    # these alone walk on until all are below m
    while beyond > 0:
        n, beyond = beyond, 0
        permute(v, n, keys, bits, left, right)
        for q in range(n):
            out[at[q]] = v[q]
            v[beyond], at[beyond] = v[q], at[q]
            beyond += v[q] >= m


# -- version 3: bundles ------------------------------------------------------------------------------------------------
@njit(nogil=True, cache=True, borrows=True)
def pick_bundles(seed, client, round, step, m, b, seen, marks, out):
    """The numbers of b/8 of the bundles of m rows into ``out``, which has room for three more; returns how many."""
    bundles, n = (m + ROWS_PER_BUNDLE - 1) // ROWS_PER_BUNDLE, b // ROWS_PER_BUNDLE
    pick_rows(seed, client, round, step, bundles, n, out[:0], (seen, marks), out)
    return n


@njit(inline="always")
def row_share(sampling, m, b):
    """The weight of a row in the gradient of a minibatch of b of m rows; of all of them, if b is 0."""
    if sampling == BUNDLES:
        return ((m + ROWS_PER_BUNDLE - 1) // ROWS_PER_BUNDLE) / (m * (b // ROWS_PER_BUNDLE))
    return 1.0 / (b if b > 0 else m)


@njit(nogil=True, cache=True, borrows=True)
def draw_rows(seed, client, round, step, first, m, b, out, room):
    """The places of b of the client's m rows into ``out``, by the version that ``room`` says (``drawing.Drawing``).

    ``first`` is the number of its first row among all clients'. Returns how many there are: b, or fewer where the last
    bundle is drawn, which may be shorter.
    """
    sampling, keys, v, left, right, at, seen, marks, place = room
    if sampling == 1:
        minibatch(seed, client, round, step, m, 0, b, out, (keys, v, left, right, at))
        return b
    if sampling != BUNDLES:
        pick_rows(seed, client, round, step, m, b, place[first : first + m], (seen, marks), out)
        return b
    count = 0
    for a in range(pick_bundles(seed, client, round, step, m, b, seen, marks, v)):
        for q in range(ROWS_PER_BUNDLE * v[a], min(ROWS_PER_BUNDLE * (v[a] + 1), m)):
            out[count] = place[first + q]
            count += 1
    return count


@njit(nogil=True, cache=True, borrows=True, error_model="numpy")
def weigh_rows(i, k, lo, hi, row0, place, count, batch, seed, round, number0, share, picks, room):
    """share <- how often each tiled row (lo .. hi-1) of client i is in its minibatch of step k.

    A tiled row stands for ``count`` equal rows of the data, and place[r] says which one stands for row r (or for the
    r-th in the order of bundles). The rows of the minibatch or the others, whichever are fewer, are drawn: counted from
    zero up, or from all rows down. Returns the factor by which the gradient is to be multiplied.
    """
    sampling, keys, v, left, right, at, seen, _, _ = room
    each = ROWS_PER_BUNDLE if sampling == BUNDLES else 1
    first, m = row0[i], row0[i + 1] - row0[i]
    parts, start, n = (m + each - 1) // each, 0, batch // each
    one = share.dtype.type(1.0)
    if 2 * n <= parts:
        for r in range(hi - lo):
            share[r] = 0.0
    else:
        start, n, one = n, parts - n, -one
        for r in range(hi - lo):
            share[r] = count[lo + r]
    if sampling == 1:
        minibatch(seed, number0 + i, round, k, m, start, n, picks, (keys, v, left, right, at))
    else:
        subset(seed, number0 + i, round, k, parts, n, seen, picks)
    if each == 1:
        for q in range(n):
            share[place[first + picks[q]]] += one
    else:
        for q in range(n):
            for r in range(each * picks[q], min(each * (picks[q] + 1), m)):
                share[place[first + r]] += one
    part = share.dtype.type(row_share(sampling, m, batch))
    if sampling > 1:  # the gradient has fewer entries to multiply
        return part
    for r in range(hi - lo):
        share[r] *= part
    return share.dtype.type(1.0)


@njit(nogil=True, cache=True, borrows=True)
def philox4x32(a, b, c, d, seed, out):
    """Philox4x32-10 words for counter (a, b, c, d)."""
    c0, c1 = np.uint64(a) & _WORD, np.uint64(b) & _WORD
    c2, c3 = np.uint64(c) & _WORD, np.uint64(d) & _WORD
    k0, k1 = np.uint64(seed) & _WORD, (np.uint64(seed) >> _32) & _WORD
    for _ in range(10):
        p0, p1 = _PHILOX_M0 * c0, _PHILOX_M1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _WORD, (p0 >> _32) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + _PHILOX_W0) & _WORD, (k1 + _PHILOX_W1) & _WORD
    out[0], out[1], out[2], out[3] = c0, c1, c2, c3
