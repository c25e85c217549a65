"""A compiled loop over the rows of large sparse matrices."""

from numba import njit


@njit(nogil=True, cache=True)
def add_gram(lo, hi, indptr, indices, values, s, gram):
    """Add A' diag(s) A of the CSR rows lo to hi - 1 to the lower triangle of gram."""
    for r in range(lo, hi):
        for j in range(indptr[r], indptr[r + 1]):
            scaled = s[r] * values[j]
            row = gram[indices[j]]
            for k in range(indptr[r], j + 1):  # indices increase within a row
                row[indices[k]] += scaled * values[k]
