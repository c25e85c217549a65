"""Problems whose data stay on other machines: here a client is a summary, and its rows are never loaded.

A function ``load_shard(i)`` makes client i on the worker that holds it (see ``engines.ray``), and ``loaded`` reports
what the problem needs to know about it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import scipy

from proxskip.problems import gradient_check, oracles
from proxskip.problems.clients import RemoteValues, ValuesElsewhere, checked_gradient
from proxskip.problems.cox import Cox
from proxskip.problems.federated import Problem
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.quadratic import Quadratic
from proxskip.types import AnyArray, Array, Digest, InputError, Label, Matrix, Oracle, is_sparse


@dataclass(frozen=True, slots=True)
class Shards:
    """A function that makes client i of n, a linear model or any oracle, on the machine that calls it."""

    load: Callable[[int], Oracle]
    n: int

    def __post_init__(self) -> None:
        if not callable(self.load):
            raise InputError("give a function load_shard(i) that reads the data of client i and makes its model.")
        if self.n < 1:
            raise InputError("a function that loads shards needs n, the number of clients.")

    def name(self, i: int) -> str:
        """The call, as in an error message."""
        return f"{getattr(self.load, '__name__', 'load_shard')}({i})"


# -- what is known about a client --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RemoteClient:
    """A client whose data are on another machine: all that a problem needs to know about it."""

    name: str
    d: int
    N: int
    """The number of rows; 1 for an oracle without rows."""
    has_rows: bool
    L_known: bool
    L: float
    mu: float | None
    L_rows: float | None
    loss: str
    dtype: np.dtype[Any]
    l2: float | None
    classes: tuple[Label, ...] | None
    digest: str
    has_hessian: bool = False
    contradiction: str | None = None
    """How its gradient and its value contradict each other; None if they do not."""
    columns: tuple[str, ...] | None = None
    """The names of its columns, if somebody gave them."""

    def value(self, x: Array, *rows: object) -> NoReturn:
        """Refused: the data are not here."""
        raise InputError(
            f"{self.name} is in a Ray actor; use the engine that loaded it, or load all with problem.here()."
        )

    gradient = minibatch_gradient = value


def loaded(source: Shards, i: int) -> tuple[Oracle, RemoteClient]:
    """Client i, and what a problem needs to know about it; an error names the client."""
    try:
        f: Any = source.load(i)
        linear, L_known = isinstance(f, LinearModel), oracles.knows_L(f)
        has_rows = linear or isinstance(f, Cox)
        digest = hashlib.sha256()
        d, mu = int(f.d), None if f.mu is None else float(f.mu)
        add_client(digest, f, d)
        L, L_rows = (float(f.L) if L_known else math.nan), (float(f.L_rows) if linear and L_known else None)
        N, loss, l2 = (f.N, f.loss, f.l2) if has_rows else (1, type(f).__name__, None)
        dtype, classes = f.dtype if linear else np.dtype(np.float64), oracles.attribute(f, "classes")
        known = RemoteClient(
            source.name(i), d, N, has_rows, L_known, L, mu, L_rows, loss, dtype, l2, classes, digest.hexdigest(),
            oracles.has_hessian(f), gradient_check.of_client(f, np.zeros(d), i), oracles.given_columns(f),
        )  # fmt: skip
        return f, known
    except Exception as error:
        # an OSError repeats the path
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}".rstrip(".") + "."
        reason = f"{error.strerror or error}." if isinstance(error, OSError) else reason
        raise InputError(
            f"the shard of client {i} ({source.name(i)}) cannot be loaded: {' '.join(reason.split())}"
        ) from None


def add_client(digest: Digest, f: Oracle, d: int) -> None:
    """Add the data of a client to a digest; for an oracle of the user's own, L, mu and two gradients."""
    digest.update(type(f).__name__.encode())
    own = oracles.attribute(f, "fingerprint")
    if callable(own):
        parts: tuple[AnyArray, ...] = (np.frombuffer(own(), np.uint8),)
    elif isinstance(f, LinearModel) and f.has_rows:
        parts = (f.b, f.reg, f.s, *matrix_parts(f.A), *(getattr(f, name) for name in f.also_per_row))
    elif isinstance(f, Quadratic):
        parts = (f.H, f.b)
    else:  # its data cannot be read, so what it says at two points stands for them
        points = (np.zeros(d), np.cos(np.arange(d, dtype=np.float64)))
        known = np.array([f.L, np.nan if f.mu is None else f.mu], dtype=np.float64)
        parts = (known, *(checked_gradient(f, x, 0) for x in points))
    for p in parts:
        digest.update(np.ascontiguousarray(p).tobytes())


def matrix_parts(A: Matrix) -> tuple[AnyArray, ...]:
    """The arrays of a dense or sparse matrix."""
    if not is_sparse(A):
        return (A,)
    M = scipy.sparse.csr_matrix(A)
    return (M.indptr.astype(np.int64), M.indices.astype(np.int64), M.data)


# -- the problem -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Sharded(Problem):
    """A problem whose data were never on this machine: its values and gradients are computed where its clients are.

    Args:
        holder: the engine that holds the shards.
        source: what it loaded them with.
    """

    holder: RemoteValues | None = None
    source: Shards | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.holder is not None
        object.__setattr__(self, "elsewhere", ValuesElsewhere(self.holder, self.clients))

    @property
    def l2(self) -> float | None:
        l2: float | None = oracles.attribute(self.clients[0], "l2")
        return l2

    @cached_property
    def solution(self) -> None:
        """Not computed: it would take thousands of passes over all shards."""
        return None

    def here(self) -> Problem:
        """The same problem with all shards loaded into this process."""
        assert self.source is not None
        clients = [loaded(self.source, i)[0] for i in range(self.n)]
        return Problem(clients, self.weights, self.psi, self.D, self.batch, self.smoothness, info=self.info)
