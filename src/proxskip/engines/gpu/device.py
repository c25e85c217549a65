"""The card itself: is there one, how much it holds at once, and an oracle of the user's own on it."""

from __future__ import annotations

import copy
import ctypes
import importlib
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse

from proxskip.problems.glm import LinearModel
from proxskip.types import InputError


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
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f'engine "gpu" finds no usable NVIDIA GPU ({error}); use engine="cpu".') from None
    if not found:
        raise InputError('engine "gpu" finds no NVIDIA GPU on this machine; use engine="cpu".')
    return cupy


def on_device(oracle: Any) -> Any:
    """The oracle with its arrays on the card."""
    cupy = importlib.import_module("cupy")
    if isinstance(oracle, LinearModel):
        raise InputError("clients of different losses or dtypes do not run on the GPU together; make them alike.")
    # a shallow copy whose arrays are on the card: the user's own methods then compute there
    moved = copy.copy(oracle)
    for name, value in list(getattr(oracle, "__dict__", {}).items()):
        if isinstance(value, np.ndarray):
            moved.__dict__[name] = cupy.asarray(value)
        elif scipy.sparse.issparse(value):
            sparse = importlib.import_module("cupyx.scipy.sparse")
            moved.__dict__[name] = sparse.csr_matrix(value)
    return moved


@cache
def clusters_at_once(function: int, size: int, threads: int, shared: int) -> int:
    """How many clusters of this kernel are on the card together; 0 if the driver does not say."""

    class Config(ctypes.Structure):  # CUlaunchConfig; the kernel itself knows the size of its clusters
        _fields_ = (
            *((f"{what}{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "XYZ"),
            ("shared", ctypes.c_uint),
            ("stream", ctypes.c_void_p),
            ("attributes", ctypes.c_void_p),
            ("count", ctypes.c_uint),
        )

    try:
        ask = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters
    except (OSError, AttributeError):
        return 0
    found = ctypes.c_int(0)
    config = Config(size, 1, 1, threads, 1, 1, shared, None, None, 0)
    failed = ask(ctypes.byref(found), ctypes.c_void_p(function), ctypes.byref(config))
    return 0 if failed else found.value
