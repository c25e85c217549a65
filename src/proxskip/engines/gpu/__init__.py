"""The GPU engine: CUDA kernels for local steps, and halves that become part of a launch."""
