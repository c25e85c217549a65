"""The card itself: whether there is one, and how much it holds at once."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from proxskip.types import InputError

CLUSTER_SIZES = (8, 6, 5, 4, 3, 2, 1)
"""Blocks that a cluster may have on every card with clusters."""
PROCESSORS_PER_PART = 16
"""Multiprocessors of one part of a card (a "GPC"): the blocks of a cluster are always on one part."""


def need_cupy() -> Any:
    """CuPy with a GPU behind it, or a sentence that says what is missing."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        raise InputError(
            'engine "gpu" needs CuPy, which is not installed; run  pip install "proxskip[gpu]"  '
            '(for CUDA 13: pip install cupy-cuda13x), or use engine="cpu".'
        ) from None
    # CuPy can be installed where there is no driver, which shows only when a device is asked for
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f'engine "gpu" finds no usable NVIDIA GPU ({error}); use engine="cpu".') from None
    if not devices:
        raise InputError('engine "gpu" finds no NVIDIA GPU on this machine; use engine="cpu".')
    return cupy


@dataclass(frozen=True)
class Card:
    """The properties of a GPU on which a launch depends; ``shared`` is in bytes per block."""

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
        # a little less than there is: the kernels have static shared memory too
        shared = attributes["MaxSharedMemoryPerBlockOptin"] - 256
        return Card(name, attributes["MultiProcessorCount"], shared, clusters)

    def blocks(self, n: int) -> int:
        """The largest cluster of which n are on the card at the same time."""
        if not self.clusters:
            return 1
        parts = max(1, self.processors // PROCESSORS_PER_PART)
        most = {c: min(parts * (PROCESSORS_PER_PART // c), self.processors // c) for c in CLUSTER_SIZES}
        return next((c for c in CLUSTER_SIZES if n <= most[c]), 1)
