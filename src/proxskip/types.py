"""The ground: arrays, errors, and what a function must offer to be a client or a regulariser. It imports nothing."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Vectors = dict[str, Array]
"""Named vectors: what the server holds (each ``(d,)``), or what clients remember (each ``(d,)`` or ``(c, d)``)."""


class InputError(ValueError):
    """Something the caller gave cannot be used; the message is one sentence that says what and what to do."""


class EngineError(RuntimeError):
    """The machines behind an engine failed and could not be mended; the message is one sentence that says which."""


class UnsafeStepWarning(UserWarning):
    """A parameter lies outside what the method's theorem allows, and the run goes on because it was asked to."""


@runtime_checkable
class Oracle(Protocol):
    """A smooth convex function: anything with these four is a client (``d`` is asked for where it is missing)."""

    @property
    def L(self) -> float: ...
    @property
    def mu(self) -> float | None: ...
    def value(self, x: Array) -> float: ...
    def gradient(self, x: Array) -> Array: ...


@runtime_checkable
class Prox(Protocol):
    """A convex function with a proximity operator: ``prox(x, t) = argmin_y  psi(y) + |y - x|^2 / (2 t)``."""

    def __call__(self, x: Array) -> float: ...
    def prox(self, x: Array, t: float) -> Array: ...
