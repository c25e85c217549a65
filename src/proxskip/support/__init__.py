"""What every room uses: rows of memory, sums in order, compiled kernels, numbers as text."""
