"""The card itself: is there one, how much it holds at once, and oracles of the user's own on it."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
import scipy.sparse

from proxskip.interfaces import look
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
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


class OracleSteps:
    """Local steps of functions that are no linear models, by their own gradients on CuPy arrays."""

    def __init__(self, cupy: Any, problem: Problem) -> None:
        if problem.batch is not None:
            raise InputError(
                'the gpu engine takes minibatches of linear models only; use engine="cpu", or leave the batch out.'
            )
        self.cupy, self.d = cupy, problem.d
        self.oracles = [_on_card(cupy, f) for f in problem.clients]

    def descend(
        self, count: int, X: Any, H: Any, gamma: Any, K: Any, *, members: Any, pull: float = 0.0,
        halt: Event | None = None, **keys_of_minibatches: Any,
    ) -> Any:  # fmt: skip
        """K times  x <- x - gamma (g(x) - h + pull x)  for each member, one step after another."""
        xp, shape = self.cupy, (count, self.d)
        H, gammas = (xp.broadcast_to(xp.asarray(0.0 if v is None else v), shape) for v in (H, gamma))
        out = xp.array(xp.broadcast_to(X, shape))
        for j, (i, steps) in enumerate(zip(self._numbers(count, members), np.broadcast_to(K, count), strict=True)):
            for _ in range(int(steps)):
                look(halt)
                out[j] = out[j] - gammas[j] * (self._gradient(i, out[j]) - (H[j] - pull * out[j]))
        return out

    def gradient(self, count: int, X: Any, wanted: Any, *, members: Any) -> Any:
        """The full gradients of the members; x itself where ``wanted`` is 0."""
        X = self.cupy.broadcast_to(X, (count, self.d))
        wanted = np.broadcast_to(wanted, count)
        numbers = self._numbers(count, members)
        return self.cupy.stack([self._gradient(i, X[j]) if wanted[j] else X[j] for j, i in enumerate(numbers)])

    def _numbers(self, count: int, members: Any) -> list[int]:
        return list(range(count)) if members is None else self.cupy.asnumpy(members).tolist()

    def _gradient(self, i: int, x: Any) -> Any:
        try:
            return self.cupy.asarray(self.oracles[i].gradient(x))
        except (TypeError, ValueError) as problem:
            raise InputError(
                f"the gradient of client {i} ({type(self.oracles[i]).__name__}) does not work on CuPy arrays "
                f'({problem}); use engine="cpu", or write it with operators and methods of the array it is given.'
            ) from problem


def _on_card(cupy: Any, oracle: Any) -> Any:
    """A copy of the oracle with its arrays on the card, so that the user's own methods compute there."""
    if isinstance(oracle, LinearModel):
        raise InputError("clients of different losses or dtypes do not run on the GPU together; make them alike.")
    moved = copy.copy(oracle)
    for name, value in list(getattr(oracle, "__dict__", {}).items()):
        if isinstance(value, np.ndarray):
            moved.__dict__[name] = cupy.asarray(value)
        elif scipy.sparse.issparse(value):
            sparse = importlib.import_module("cupyx.scipy.sparse")
            moved.__dict__[name] = sparse.csr_matrix(value)
    return moved
