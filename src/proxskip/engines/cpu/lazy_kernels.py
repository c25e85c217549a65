"""The compiled interpreter of the programs that ``lazy`` writes: ``+ - * /`` on the stacked vectors of a cohort.

No fused multiply-add and no reordering: the bytes are those of numpy, which does one operation after another.
"""

import numpy as np

from proxskip.lazy.compilation import njit

STACK, KEPT, ROW, TEMPORARY, COLUMN, NUMBER, RESULT, SUM = range(8)
"""Kinds of operands. Vectors: a row per member of the cohort, a row per client of the problem (of which the members'
are read), one row for all, an intermediate result. Numbers: one per member, one for all. Then the array that the line
itself writes to; and, as the kind of a result, that only its weighted sums are wanted."""
ADD, SUBTRACT, MULTIPLY, DIVIDE, ADD_MULTIPLE, SUBTRACT_MULTIPLE, ADD_DIFFERENCE = range(7)
"""Operations: a + b, a - b, a * b, a / b, a + s * b, a - s * b, a + s * (b - c)."""
MEMBERS_AT_A_TIME = 32
"""Members whose rows one line of a program works on before the next line: their intermediate results stay in cache."""
_AS_NUMPY = {"nogil": True, "cache": True, "borrows": True, "error_model": "numpy"}


@njit(inline="always")
def _at(kind, r, lo, members):
    """Where the row of member r is in an operand of this kind; intermediate results hold members lo, lo + 1, ..."""
    if kind == STACK:
        return r
    if kind == KEPT:
        return members[r]
    return 0 if kind == ROW else r - lo


# The test of the operation stands outside the loop over the d entries, so that each of these loops is vectorized.
# Row numbers are unsigned: a signed one may be negative, which numba would check at every access.
@njit(**_AS_NUMPY)
def _two_vectors(op, ka, A, kb, B, lo, hi, members, out, own):
    """out <- A op B for members lo .. hi-1; ``ka``, ``kb`` and ``own`` are the kinds of A, B and out."""
    d = out.shape[1]
    for r in range(lo, hi):
        i, j = np.uint64(_at(ka, r, lo, members)), np.uint64(_at(kb, r, lo, members))
        q = np.uint64(_at(own, r, lo, members))
        if op == ADD:
            for c in range(d):
                out[q, c] = A[i, c] + B[j, c]
        elif op == SUBTRACT:
            for c in range(d):
                out[q, c] = A[i, c] - B[j, c]
        elif op == MULTIPLY:
            for c in range(d):
                out[q, c] = A[i, c] * B[j, c]
        else:
            for c in range(d):
                out[q, c] = A[i, c] / B[j, c]


@njit(**_AS_NUMPY)
def _vector_and_number(op, ka, A, numbers, lo, hi, members, out, own):
    """out <- A op b, where ``numbers`` has one b per member or one for all."""
    d = out.shape[1]
    for r in range(lo, hi):
        q = np.uint64(_at(own, r, lo, members))
        i, b = np.uint64(_at(ka, r, lo, members)), numbers[r, 0] if numbers.shape[0] > 1 else numbers[0, 0]
        if op == ADD:
            for c in range(d):
                out[q, c] = A[i, c] + b
        elif op == SUBTRACT:
            for c in range(d):
                out[q, c] = A[i, c] - b
        elif op == MULTIPLY:
            for c in range(d):
                out[q, c] = A[i, c] * b
        else:
            for c in range(d):
                out[q, c] = A[i, c] / b


@njit(**_AS_NUMPY)
def _number_and_vector(op, numbers, kb, B, lo, hi, members, out, own):
    """out <- a op B, where ``numbers`` has one a per member or one for all."""
    d = out.shape[1]
    for r in range(lo, hi):
        q = np.uint64(_at(own, r, lo, members))
        j, a = np.uint64(_at(kb, r, lo, members)), numbers[r, 0] if numbers.shape[0] > 1 else numbers[0, 0]
        if op == ADD:
            for c in range(d):
                out[q, c] = a + B[j, c]
        elif op == SUBTRACT:
            for c in range(d):
                out[q, c] = a - B[j, c]
        elif op == MULTIPLY:
            for c in range(d):
                out[q, c] = a * B[j, c]
        else:
            for c in range(d):
                out[q, c] = a / B[j, c]


# A row that is changed in place is read from ``out``, not from A: a loop in which two arrays overlap is not vectorized.
@njit(**_AS_NUMPY)
def _plus_scaled(op, ka, A, kb, B, numbers, lo, hi, members, out, own):
    """out <- A + s B or A - s B in one pass, the product rounded before it is added."""
    d = out.shape[1]
    for r in range(lo, hi):
        i, j = np.uint64(_at(ka, r, lo, members)), np.uint64(_at(kb, r, lo, members))
        q, s = np.uint64(_at(own, r, lo, members)), numbers[r, 0] if numbers.shape[0] > 1 else numbers[0, 0]
        # without fast-math flags no compiler may fuse the product with the sum
        if op == ADD_MULTIPLE and ka == RESULT:
            for c in range(d):
                out[q, c] = out[q, c] + s * B[j, c]
        elif op == ADD_MULTIPLE:
            for c in range(d):
                out[q, c] = A[i, c] + s * B[j, c]
        elif ka == RESULT:
            for c in range(d):
                out[q, c] = out[q, c] - s * B[j, c]
        else:
            for c in range(d):
                out[q, c] = A[i, c] - s * B[j, c]


@njit(**_AS_NUMPY)
def _plus_scaled_difference(ka, A, kb, B, kc, C, numbers, lo, hi, members, out, own):
    """out <- A + s (B - C) in one pass, each of the three operations rounded."""
    d = out.shape[1]
    for r in range(lo, hi):
        i, j = np.uint64(_at(ka, r, lo, members)), np.uint64(_at(kb, r, lo, members))
        k, q = np.uint64(_at(kc, r, lo, members)), np.uint64(_at(own, r, lo, members))
        s = numbers[r, 0] if numbers.shape[0] > 1 else numbers[0, 0]
        if ka == RESULT:
            for c in range(d):
                out[q, c] = out[q, c] + s * (B[j, c] - C[k, c])
        else:
            for c in range(d):
                out[q, c] = A[i, c] + s * (B[j, c] - C[k, c])


@njit(**_AS_NUMPY)
def _add_weighted(op, ka, A, kb, B, numbers, lo, hi, members, weights, total):
    """total <- total + w (A + s B), total + w (A - s B) or total + w A, member after member, each operation rounded."""
    d = total.shape[0]
    for r in range(lo, hi):
        i, j = np.uint64(_at(ka, r, lo, members)), np.uint64(_at(kb, r, lo, members))
        w, s = weights[r], numbers[r, 0] if numbers.shape[0] > 1 else numbers[0, 0]
        if op == ADD_MULTIPLE:
            for c in range(d):
                total[c] += w * (A[i, c] + s * B[j, c])
        elif op == SUBTRACT_MULTIPLE:
            for c in range(d):
                total[c] += w * (A[i, c] - s * B[j, c])
        else:
            for c in range(d):
                total[c] += w * A[i, c]


@njit(inline="always")
def _operand(kind, k, arrays, numbers, temporary):
    """The array that operand (kind, k) stands for; a number for all as a 1 x 1 array, so that all have one type."""
    if kind == TEMPORARY:
        return temporary[k]
    if kind == NUMBER:
        return numbers[k : k + 1]
    return arrays[k]


@njit(**_AS_NUMPY)
def _program(lo, hi, codes, members, arrays, numbers, outs, temporary, weights, totals, block):
    """The whole program for members lo .. hi-1, MEMBERS_AT_A_TIME at most.

    A line of ``codes`` is (operation, kind and place of the result, kind and place of a, of b, of the factor s, of c).
    It writes to a temporary or, where its kind is STACK or KEPT, to one of ``outs``, or adds to the totals of a block.
    """
    for q in range(codes.shape[0]):
        # a line's parts; the kernels' choice below depends on what are vectors and what are numbers
        op, own, ka, kb, kc = codes[q, 0], codes[q, 1], codes[q, 3], codes[q, 5], codes[q, 9]
        a = _operand(ka, codes[q, 4], arrays, numbers, temporary)
        b = _operand(kb, codes[q, 6], arrays, numbers, temporary)
        factor = _operand(codes[q, 7], codes[q, 8], arrays, numbers, temporary)
        if own == SUM:
            for m in range(weights.shape[0]):
                total = totals[codes[q, 2], m, block]
                _add_weighted(op, ka, a, kb, b, factor, lo, hi, members, weights[m], total)
            continue
        out = temporary[codes[q, 2]] if own == TEMPORARY else outs[codes[q, 2]]
        if op == ADD_DIFFERENCE:
            c = _operand(kc, codes[q, 10], arrays, numbers, temporary)
            _plus_scaled_difference(ka, a, kb, b, kc, c, factor, lo, hi, members, out, own)
        elif op >= ADD_MULTIPLE:
            _plus_scaled(op, ka, a, kb, b, factor, lo, hi, members, out, own)
        elif ka >= COLUMN:
            _number_and_vector(op, a, kb, b, lo, hi, members, out, own)
        elif kb >= COLUMN:
            _vector_and_number(op, ka, a, b, lo, hi, members, out, own)
        else:
            _two_vectors(op, ka, a, kb, b, lo, hi, members, out, own)


@njit(**_AS_NUMPY)
def evaluate(start, stop, codes, members, arrays, numbers, outs, temporary, weights, totals):
    """Run a program without sums on members start .. stop-1."""
    for lo in range(start, stop, MEMBERS_AT_A_TIME):
        hi = min(lo + MEMBERS_AT_A_TIME, stop)
        _program(lo, hi, codes, members, arrays, numbers, outs, temporary, weights, totals, 0)


@njit(**_AS_NUMPY)
def evaluate_sums(first, last, block, codes, members, arrays, numbers, outs, temporary, weights, totals):
    """Run a program on blocks first .. last-1 of members.

    ``totals[k, m, q]`` is sum k of block q with row m of the weights, member after member as in ``kernels.block_sums``.
    """
    for q in range(first, last):
        stop = min((q + 1) * block, members.shape[0])
        totals[:, :, q] = 0.0
        for lo in range(q * block, stop, MEMBERS_AT_A_TIME):
            hi = min(lo + MEMBERS_AT_A_TIME, stop)
            _program(lo, hi, codes, members, arrays, numbers, outs, temporary, weights, totals, q)
