"""Types that the whole package shares: arrays, errors, and the interfaces of clients and regularizers."""

from __future__ import annotations

import sys
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]
"""An array of another dtype, or of one that the data determine."""
Label: TypeAlias = float | str
"""A value of a label, as the data have it."""
Counts: TypeAlias = int | Indices
"""A whole number for all clients, or one for each."""
Matrix: TypeAlias = Any
"""An array of numpy, a sparse matrix or a linear operator of scipy, or a data frame: scipy has no types."""
Stack: TypeAlias = Any
"""A vector, or a ``(c, d)`` stack of them: an array of numpy, CuPy or PyTorch, whose types have nothing in common."""
Column: TypeAlias = Any
"""A number, or a ``(c, 1)`` column of such an array."""
Vectors = dict[str, Array]
"""Named vectors: the state of the server (each ``(d,)``) or of clients (each ``(d,)``, or ``(c, d)`` for c of them)."""


def printable(text: str) -> str:
    """Text from elsewhere (a file's name, a server's words) without what a terminal would act on."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def is_sparse(A: object) -> bool:
    """Whether A is a sparse matrix of scipy. False where scipy.sparse, which takes 0.2 s to load, is not loaded."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(A))


class InputError(ValueError):
    """An input cannot be used; the message is one sentence that says which, and what to do."""


class EngineInUse(InputError):
    """An engine that serves a run was given to another one."""


class EngineError(RuntimeError):
    """The machines of an engine failed for good; the message is one sentence that says which."""


class UnsafeStepWarning(UserWarning):
    """A parameter is outside the range of the method's theorem, and the caller allowed that."""


class NoTheoremWarning(UnsafeStepWarning):
    """No theorem covers this combination; the run goes on, and its summary repeats the sentence."""


class GradientWarning(UserWarning):
    """The gradient of a function does not belong to its value."""


class Digest(Protocol):
    """A hash under way, such as ``hashlib.sha256()``."""

    def update(self, data: bytes | memoryview, /) -> None: ...


@runtime_checkable
class Oracle(Protocol):
    """A smooth convex function; anything with these four members can be a client.

    ``problems.oracles`` lists what an oracle may have besides, such as ``d``, its number of unknowns.
    """

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
