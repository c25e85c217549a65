"""The CPU engine: compiled kernels, packed shards, and whole cohorts as one stack."""
