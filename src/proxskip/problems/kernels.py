"""Compiled loops over many small clients: an eigenvalue of each matrix, Gram matrices, and bytes for a digest."""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def _call(typing_context, address, pointers):
    """Call the C function at an address with some pointers; numba can cache this, as no address is part of the code."""

    def generate(context, builder, signature, values):
        arguments = cgutils.unpack_tuple(builder, values[1])
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer] * len(arguments))
        function = builder.inttoptr(values[0], kind.as_pointer())
        builder.call(function, [builder.inttoptr(p, pointer) for p in arguments])
        return context.get_dummy_value()

    return types.none(types.intp, pointers), generate


@njit(nogil=True, cache=True)
def eigenvalues(lo, hi, S, k, dsyevr, work, iwork, out, info):
    """The k-th eigenvalue (from 1) of S[lo] to S[hi - 1]; info is not 0 where LAPACK gave up.

    dsyevr is the address of the routine behind ``scipy.linalg.eigh``. It gets the same arguments here, so that its
    eigenvalues are the same to the byte; without Python around every call it takes a fraction of the time.
    """
    m = S.shape[1]
    a, w, z, isuppz = np.empty((m, m)), np.empty(m), np.empty(1), np.empty(2 * m, np.int32)
    letters = np.array([78, 73, 76], np.uint8)  # jobz = N, range = I, uplo = L
    whole = np.array([m, k, k, 0, 1, len(work), len(iwork), 0], np.int32)  # n, il, iu, found, ldz, lwork, liwork, info
    real = np.zeros(3)  # vl, vu, abstol
    c, i, r = letters.ctypes.data, whole.ctypes.data, real.ctypes.data
    for q in range(lo, hi):
        for u in range(m):  # in the order of Fortran
            for v in range(m):
                a[v, u] = S[q, u, v]
        arguments = (
            c, c + 1, c + 2, i, a.ctypes.data, i, r, r + 8, i + 4, i + 8, r + 16, i + 12, w.ctypes.data, z.ctypes.data,
            i + 16, isuppz.ctypes.data, work.ctypes.data, i + 20, iwork.ctypes.data, i + 24, i + 28,
        )  # fmt: skip
        _call(dsyevr, arguments)
        out[q], info[q] = w[0], whole[7]


@njit(nogil=True, cache=True)
def interleave(parts, starts, ends, out):
    """For each i, the bytes starts[p, i] to ends[p, i] - 1 of every part p, end to end."""
    at = 0
    for i in range(starts.shape[1]):
        for p in range(len(parts)):
            lo, hi = starts[p, i], ends[p, i]
            out[at : at + hi - lo] = parts[p][lo:hi]
            at += hi - lo


@njit(nogil=True, cache=True)
def add_gram(lo, hi, indptr, indices, values, s, out):
    """Add A' diag(s) A of the CSR rows lo to hi - 1 to the lower triangle of out."""
    for r in range(lo, hi):
        for j in range(indptr[r], indptr[r + 1]):
            scaled = s[r] * values[j]
            row = out[indices[j]]
            for k in range(indptr[r], j + 1):  # indices increase within a row
                row[indices[k]] += scaled * values[k]
