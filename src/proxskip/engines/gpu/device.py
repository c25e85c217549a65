"""The GPU itself: whether there is one, and how much fits on it at once."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from proxskip.types import InputError

CLUSTER_SIZES = (8, 6, 5, 4, 3, 2, 1)
"""Cluster sizes that every GPU with clusters supports."""
PROCESSORS_PER_PART = 16
"""Multiprocessors of one GPC, which holds all blocks of a cluster."""


def need_cupy() -> Any:
    """CuPy with a usable GPU, or an error that says what is missing."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        raise InputError(
            'engine "gpu" needs CuPy, which is not installed; run  pip install "proxskip[gpu]"  '
            '(for CUDA 13: pip install cupy-cuda13x), or use engine="cpu".'
        ) from None
    # without a driver CuPy only fails when it looks for a device
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f'engine "gpu" finds no usable NVIDIA GPU ({error}); use engine="cpu".') from None
    if not devices:
        raise InputError('engine "gpu" finds no NVIDIA GPU on this machine; use engine="cpu".')
    return cupy


@dataclass(frozen=True)
class Card:
    """The properties of a GPU that determine a launch; ``shared`` is in bytes per block."""

    name: str
    processors: int
    shared: int
    clusters: bool

    @staticmethod
    def here() -> Card:
        """The current device."""
        import cupy  # type: ignore[import-not-found]

        device = cupy.cuda.Device()
        attributes = device.attributes
        name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
        clusters = int(device.compute_capability) >= 90
        # the kernels also use a little static shared memory
        shared = attributes["MaxSharedMemoryPerBlockOptin"] - 256
        return Card(name, attributes["MultiProcessorCount"], shared, clusters)

    def blocks(self, n: int) -> int:
        """The largest cluster of which n fit on the GPU at once."""
        if not self.clusters:
            return 1
        parts = max(1, self.processors // PROCESSORS_PER_PART)
        most = {c: min(parts * (PROCESSORS_PER_PART // c), self.processors // c) for c in CLUSTER_SIZES}
        return next((c for c in CLUSTER_SIZES if n <= most[c]), 1)
