"""Problems whose data stay on other machines: here a client is a summary, and its rows are never loaded.

The shards come from a list of svmlight or npz files, or from a function ``load_shard(i)``. The workers that hold them
(see ``engines.ray``) load them in two steps. ``look_at`` reads a shard and reports its features and labels. When all
shards are known, ``load_client`` builds the client and ``fact`` reports what the problem needs to know about it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import scipy

from proxskip.data.svmlight import MAX_BYTES, read_svmlight
from proxskip.data.tables import open_npz
from proxskip.problems import oracles
from proxskip.problems.clients import checked_gradient
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel, Logistic
from proxskip.problems.quadratic import Quadratic
from proxskip.types import Array, InputError, is_sparse

MAX_LABELS = 1000
"""A shard with more different labels than this has targets, not classes, and does not report them."""


# -- where shards come from --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Files:
    """One file per client: svmlight (plain, gzip, bzip2), or npz with ``b`` and ``A`` or the parts of a CSR matrix."""

    paths: tuple[str, ...]
    model: type[LinearModel] = Logistic
    l2: float = 0.0
    intercept: bool = False
    dtype: str = "float64"
    features: int | None = None

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.paths)

    def name(self, i: int) -> str:
        """The path of the file."""
        return self.paths[i]


@dataclass(frozen=True, slots=True)
class Function:
    """A function that builds client i, a linear model or any oracle, on the machine that calls it."""

    load: Callable[[int], Any]
    n: int

    def name(self, i: int) -> str:
        """The call, as in an error message."""
        return f"{getattr(self.load, '__name__', 'load_shard')}({i})"


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """The features and labels of a shard that was read."""

    features: int
    labels: tuple[Any, ...] | None
    fixed: bool
    """Whether the number of features is exact; otherwise it is the largest index that occurs."""


Source: TypeAlias = Files | Function


def look_at(source: Source, i: int) -> tuple[Any, ShardSummary]:
    """Read shard i; an error names the client and its file."""
    try:
        if isinstance(source, Function):
            client = source.load(i)
            return client, ShardSummary(int(client.d), None, True)
        path = source.paths[i]
        if path.endswith(".npz"):
            A, b = read_npz(path)
            if source.features not in (None, A.shape[1]):
                raise InputError(f"it has {A.shape[1]} features, not the {source.features} that were asked for.")
        else:
            A, b = read_svmlight(path, n_features=source.features)
        labels = np.unique(b)
        # an svmlight file does not say how many features there are, only which occur
        fixed = source.features is not None or path.endswith(".npz")
        return (A, b), ShardSummary(A.shape[1], tuple(labels.tolist()) if len(labels) <= MAX_LABELS else None, fixed)
    except Exception as error:
        raise not_loaded(source, i, error) from None


def load_client(source: Source, i: int, data: Any, features: int, classes: tuple[Any, ...] | None) -> Any:
    """Client i from the data that ``look_at`` read, with the features and classes of all shards together."""
    if isinstance(source, Function):
        return data
    try:
        A, b = data
        if is_sparse(A) and A.shape[1] < features:  # an svmlight file shows only the features that occur
            A = scipy.sparse.csr_matrix((A.data, A.indices, A.indptr), shape=(A.shape[0], features))
        return source.model(
            A, b, l2=source.l2, intercept=source.intercept, dtype=np.dtype(source.dtype), classes=classes
        )
    except Exception as error:
        raise not_loaded(source, i, error) from None


def not_loaded(source: Source, i: int, error: Exception) -> InputError:
    """The error as one sentence that names the client and its file."""
    # a MemoryError has no message, an OSError repeats the path
    if isinstance(error, MemoryError):
        reason = "it does not fit into the memory that an actor may use; use more actors, or smaller shards."
    elif isinstance(error, OSError):
        reason = f"{error.strerror or error}."
    elif isinstance(error, InputError):
        reason = str(error)
    else:
        reason = f"{type(error).__name__}: {error}".rstrip(".") + "."
    return InputError(f"the shard of client {i} ({source.name(i)}) cannot be loaded: {' '.join(reason.split())}")


def read_npz(path: str) -> tuple[Any, Any]:
    """Rows and labels from an npz file: ``b`` with ``A``, or with ``data``, ``indices``, ``indptr`` and ``shape``."""
    try:
        with open_npz(path, MAX_BYTES) as arrays:
            if {"A", "b"} <= set(arrays.files):
                return arrays["A"], arrays["b"]
            if not {"data", "indices", "indptr", "shape", "b"} <= set(arrays.files):
                names = ", ".join(sorted(arrays.files))
                raise InputError(f"it holds {names}; it needs b and A, or b and a CSR matrix's parts.")
            shape = tuple(int(k) for k in arrays["shape"])
            A = scipy.sparse.csr_matrix((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
            # products check no indices, and one out of range would read other memory
            A.check_format(full_check=True)
            return A, arrays["b"]
    except OSError as error:
        raise InputError(f"{error.strerror or 'it is not an npz file'}.") from None


def data_held() -> int:
    """Bytes of private memory that this process has allocated (Linux)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))


@contextmanager
def no_more_than(most: int | None) -> Iterator[None]:
    """Limit the private memory of this process to ``most`` bytes; allocating more raises MemoryError (Linux)."""
    if most is None:
        yield
        return
    import resource

    # Never below what is allocated already, or the next allocation of any size would fail.
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (max(most, data_held()), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


# -- what is known about a client --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RemoteClient:
    """A client whose data are on another machine: all that a problem needs to know about it."""

    name: str
    d: int
    N: int
    """The number of rows; 1 for an oracle without rows."""
    has_rows: bool
    L: float
    mu: float | None
    L_rows: float | None
    loss: str
    dtype: np.dtype[Any]
    l2: float | None
    classes: tuple[Any, ...] | None
    digest: str

    def value(self, x: Array, *rows: Any) -> NoReturn:
        """Refused: the data are not here."""
        raise InputError(
            f"the data of {self.name} lie in Ray actors; run with the engine that loaded them, or take "
            "problem.here(), which loads all of them into this process."
        )

    gradient = minibatch_gradient = value


def remote_client(source: Source, i: int, f: Any) -> RemoteClient:
    """What is known about client i; runs where its data are."""
    try:
        linear = isinstance(f, LinearModel)
        digest = hashlib.sha256()
        d, mu = int(f.d), None if f.mu is None else float(f.mu)
        add_client(digest, f, d)
        about = (f.loss, f.dtype, f.l2) if linear else (type(f).__name__, np.dtype(np.float64), None)
        rows = (f.N, True, float(f.L), mu, float(f.L_rows)) if linear else (1, False, float(f.L), mu, None)
        return RemoteClient(source.name(i), d, *rows, *about, oracles.classes_of(f), digest.hexdigest())
    except Exception as error:
        raise not_loaded(source, i, error) from None


def add_client(digest: Any, f: Any, d: int) -> None:
    """Add the data of a client to a digest; for an oracle of the user's own, L, mu and two gradients."""
    digest.update(type(f).__name__.encode())
    own = oracles.fingerprint_of(f)
    if own is not None:
        parts: tuple[Any, ...] = (np.frombuffer(own, np.uint8),)
    elif isinstance(f, LinearModel) and f.has_rows:
        parts = (f.b, f.reg, f.s, *matrix_parts(f.A))
    elif isinstance(f, Quadratic):
        parts = (f.H, f.b)
    else:  # its data cannot be read, so what it says at two points stands for them
        points = (np.zeros(d), np.cos(np.arange(d, dtype=np.float64)))
        known = np.array([f.L, np.nan if f.mu is None else f.mu], dtype=np.float64)
        parts = (known, *(checked_gradient(f, x, 0) for x in points))
    for p in parts:
        digest.update(np.ascontiguousarray(p).tobytes())


def matrix_parts(A: Any) -> tuple[Any, ...]:
    """The arrays of a dense or sparse matrix."""
    if not is_sparse(A):
        return (A,)
    M = scipy.sparse.csr_matrix(A)
    return (M.indptr.astype(np.int64), M.indices.astype(np.int64), M.data)


# -- the problem -------------------------------------------------------------------------------------------------------
class Holder(Protocol):
    """An engine that holds the shards."""

    def evaluate(self, x: Array, clients: Any) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of these clients, in their order; refused if the engine holds others."""
        ...


@dataclass(frozen=True)
class Elsewhere(Problem):
    """A problem whose values and gradients are computed where its clients are."""

    holder: Holder | None = None

    @staticmethod
    def of(problem: Problem, holder: Holder) -> Problem:
        """The same problem, evaluated by the holder; its solution is computed here, before."""
        elsewhere = object.__new__(Elsewhere)
        # Not by the constructor, which would check the clients again and lose what is cached.
        elsewhere.__dict__.update(problem.__dict__, solution=problem.solution, holder=holder)
        return elsewhere

    def _at(self, x: Array) -> tuple[list[float], Array]:
        """Values and gradients at x; the last ones are kept, since a record needs both."""
        last = self.__dict__.get("_last")
        assert self.holder is not None
        if last is None or not np.array_equal(last[0], x):
            last = (x.copy(), *self.holder.evaluate(x, self.clients))
            self.__dict__["_last"] = last
        return last[1], last[2]

    def smooth_value(self, x: Array) -> float:
        """sum_i w_i f_i(x)."""
        return float(sum(w * v for w, v in zip(self.weights, self._at(x)[0], strict=True)))

    def gradient(self, x: Array) -> Array:
        """The gradient of the smooth part."""
        return np.asarray(sum(w * g for w, g in zip(self.weights, self._at(x)[1], strict=True)))

    def client_gradients(self, x: Array) -> Array:
        """grad f_i(x), one row per client."""
        return self._at(x)[1]


@dataclass(frozen=True)
class Sharded(Elsewhere):
    """A problem whose data were never on this machine."""

    source: Source | None = None

    @property
    def l2(self) -> float | None:
        """The coefficient lambda of the l2 regularizer; None unless the clients are linear models."""
        return oracles.attribute(self.clients[0], "l2")

    @cached_property
    def solution(self) -> None:
        """Not computed: it would take thousands of passes over all shards."""
        return None

    def here(self) -> Problem:
        """The same problem with all shards loaded into this process."""
        source, clients = self.source, []
        assert source is not None
        for i, f in enumerate(self.clients):
            assert isinstance(f, RemoteClient)
            # softmax has one coefficient per class and feature
            width = f.d // len(f.classes) if f.loss == "softmax" and f.classes else f.d
            width -= int(isinstance(source, Files) and source.intercept)
            clients.append(load_client(source, i, look_at(source, i)[0], width, f.classes))
        return Problem(clients, self.weights, self.psi, self.D, self.batch, self.L_kind, info=self.info)


def agree(source: Source, summaries: Sequence[ShardSummary]) -> tuple[int, tuple[Any, ...] | None]:
    """The number of features and the classes of all shards together."""
    width = max(s.features for s in summaries)
    for i, s in enumerate(summaries):
        if s.fixed and s.features != width:
            raise InputError(
                f"the shard of client {i} ({source.name(i)}) has {s.features} features but another has {width}; "
                "every shard needs the same number."
            )
    if not isinstance(source, Files) or source.model.loss == "squared":
        return width, None
    if any(s.labels is None for s in summaries):
        raise InputError("the labels take thousands of values; they are not classes.")
    return width, tuple(sorted({v for s in summaries for v in s.labels or ()}))


def as_source(shards: Any, n: int | None, **settings: Any) -> Source:
    """Files, or a function with the number of clients."""
    if callable(shards):
        if n is None or n < 1:
            raise InputError("a function that loads shards needs n, the number of clients.")
        usual = {f.name: f.default for f in fields(Files)}
        if ignored := [k for k, v in settings.items() if v != usual[k]]:
            raise InputError(
                f"a function makes its clients itself, so {' and '.join(ignored)} would be ignored; set it there."
            )
        return Function(shards, n)
    if isinstance(shards, (str, os.PathLike)):
        raise InputError("give a list of files, one per client; a single file is read with proxskip.datasets.load.")
    paths = tuple(os.path.abspath(os.fspath(p)) for p in shards)
    if not paths:
        raise InputError("the list of shards is empty.")
    if n is not None and n != len(paths):
        raise InputError(f"n = {n} but there are {len(paths)} files, one per client.")
    return Files(paths, **settings)
