"""Things loaded on first use: public names, compiled kernels, and kernels as files of machine code."""
