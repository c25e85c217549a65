"""Compiled loops over many small clients: bytes for a digest, and Gram matrices."""

from proxskip.lazy.compilation import njit


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
