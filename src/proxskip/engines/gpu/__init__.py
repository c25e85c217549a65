"""The GPU engine: local steps by CUDA kernels, everything else by CuPy arrays."""
