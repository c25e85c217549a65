"""Compiled minibatches: the rows of client i at step k of round r, as a function of the seed and (i, r, k) alone.

``randomness.minibatch`` is the plain numpy form and the judge of this one. Twelve Philox words, keyed by the seed and
(i, r, k), are the round keys of a Feistel network, which permutes the numbers below a power of two. Those that land at
m or beyond are sent through it again until they land below ("cycle walking"), which makes it a permutation of 0..m-1.
The minibatch is its first b values; any value can be computed without the others, and no generator has a state.

All of it is arithmetic on unsigned integers, exact on every machine.
"""

import numpy as np

from proxskip.compiled import njit

MIN_BITS = 6
"""The network permutes at least 2^6 numbers: a smaller one is visibly not uniform."""
_WORD = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
# Philox4x32: multipliers, and the Weyl constants by which the key is moved on after each round
_PHILOX_M0, _PHILOX_M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_PHILOX_W0, _PHILOX_W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
# the Feistel network's round function: two odd multipliers and two shifts
_u32 = np.uint32
_SCRAMBLE_0, _SCRAMBLE_1 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_SHIFT_0, _SHIFT_1 = np.uint32(15), np.uint32(13)


@njit(inline="always")
def scramble(v, key):
    """The Feistel network's round function."""
    v = _u32((v ^ key) * _SCRAMBLE_0)
    v = _u32((v ^ (v >> _SHIFT_0)) * _SCRAMBLE_1)
    return v ^ (v >> _SHIFT_1)


@njit(nogil=True, cache=True)
def _mix(a, b, n, key, mask):
    """Half a round of the network for n numbers at once, a and b their halves."""
    for q in range(n):
        a[q] = _u32(a[q] ^ (scramble(b[q], key) & mask))


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def minibatch(seed, client, round, step, m, start, n, out, room):
    """Values start .. start+n-1 of the keyed permutation of 0..m-1, into ``out``.

    ``room`` holds buffers for twelve keys and four times n numbers (``shards.room_to_draw``). All n numbers take each
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


@njit(nogil=True, cache=True)
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
