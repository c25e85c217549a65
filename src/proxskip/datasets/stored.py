"""Clients whose rows are in a folder that is mapped into memory, so that the data may be larger than it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.problems import oracles
from proxskip.problems.federated import Problem, Smoothness
from proxskip.problems.glm import Logistic
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.packed import Packed
from proxskip.types import AnyArray, Array, Digest, Indices, InputError, Matrix, is_sparse

VERSION = 1
ARRAYS = ("data", "indices", "indptr", "b", "row0")
INDICES_AT_ONCE = 1 << 20
"""Indices that are checked at a time."""
MAX_LABELS = 1000
"""More different labels than this are targets, not classes."""

Piece: TypeAlias = tuple[Matrix, AnyArray, AnyArray]
"""Rows as a CSR matrix, their labels, and the clients that they belong to."""


# -- writing -----------------------------------------------------------------------------------------------------------
def write_clients(folder: str | os.PathLike[str], pieces: Sequence[Piece] | Callable[[], Iterable[Piece]]) -> None:
    """Write rows into a folder, client after client, for ``open_clients``.

    Args:
        folder: a new one; it takes about the size of the rows, 12 bytes per entry.
        pieces: a function that yields the rows piece by piece, each piece as ``(A, b, clients)``: a sparse matrix, a
            label (or target) per row, and the client of each row, a whole number or text. It is called twice, and only
            one piece is held at a time, so that the data may be larger than the memory. A list of pieces works too.
    """
    target = Path(folder)
    if (target / "store.json").exists():
        raise InputError(f"{target} holds clients already; choose another folder.")
    source = pieces if callable(pieces) else lambda: pieces
    owners: list[AnyArray] = []
    lengths: list[AnyArray] = []
    for A, _, clients in _checked(source()):
        owners.append(clients)
        lengths.append(np.diff(A.indptr))
    if not owners:
        raise InputError("there are no rows; give a function that yields pieces (A, b, clients).")
    names, owner = np.unique(np.concatenate(owners), return_inverse=True)
    order = np.argsort(owner, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths)[order], dtype=np.int64)])
    target.mkdir(parents=True, exist_ok=True)
    # scipy wants indptr and indices in one type
    index = np.dtype(np.int32 if indptr[-1] <= np.iinfo(np.int32).max else np.int64)
    np.save(target / "indptr.npy", indptr.astype(index))
    np.save(target / "row0.npy", np.concatenate([[0], np.cumsum(np.bincount(owner))]).astype(np.int64))
    np.save(target / "groups.npy", names)
    kinds: dict[str, npt.DTypeLike] = {"data": np.float64, "indices": index, "b": np.float64}
    sizes = {"data": int(indptr[-1]), "indices": int(indptr[-1]), "b": len(order)}
    arrays = {k: np.lib.format.open_memmap(target / f"{k}.npy", "w+", kind, (sizes[k],)) for k, kind in kinds.items()}
    width, labels = _place(_checked(source()), arrays, indptr, np.argsort(order), names[owner])
    about = {
        "version": VERSION, "rows": len(order), "features": width, "clients": len(names),
        "labels": labels, "sha256": _digest(target),
    }  # fmt: skip
    # last: a folder without it is not finished
    (target / "store.json").write_text(json.dumps(about, indent=1) + "\n")


def _place(
    pieces: Iterator[Piece], arrays: dict[str, np.memmap[Any, Any]], indptr: Indices, place: Indices, owners: AnyArray
) -> tuple[int, list[float] | None]:
    """Write every row at its place; the number of features, and the labels unless there are too many to be classes."""
    differ = InputError("the pieces differ when they are read again; give a list, or a function that yields them.")
    first = width = 0
    labels: set[float] = set()
    for A, b, clients in pieces:
        rows = place[first : first + len(b)]
        lengths = np.diff(A.indptr)
        # a row of another client, or of another length, would be written over others
        if len(rows) < len(b) or not np.array_equal(clients, owners[first : first + len(b)]):
            raise differ
        if not np.array_equal(lengths, np.diff(indptr)[rows]):
            raise differ
        at = np.arange(len(A.data)) + np.repeat(indptr[rows] - A.indptr[:-1], lengths)
        arrays["data"][at] = A.data
        arrays["indices"][at] = A.indices
        arrays["b"][rows] = b
        first += len(b)
        width = A.shape[1]
        if len(labels) <= MAX_LABELS:
            labels |= set(np.unique(b).tolist())
    if first < len(place):
        raise differ
    for v in arrays.values():
        v.flush()
    return width, sorted(labels) if len(labels) <= MAX_LABELS else None


def _checked(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces with sorted rows in double precision; refuses what is no data."""
    width = None
    for k, piece in enumerate(pieces):
        if not isinstance(piece, tuple) or len(piece) != 3 or not is_sparse(piece[0]):
            raise InputError(f"piece {k} is not (A, b, clients) with a sparse matrix A.")
        A = scipy.sparse.csr_matrix(piece[0], dtype=np.float64)
        b, clients = np.asarray(piece[1]), np.asarray(piece[2])
        clients = clients.astype(str) if clients.dtype.kind == "O" else clients  # text of a data frame
        A = A if A.has_sorted_indices else A.sorted_indices()
        width = width or A.shape[1]
        faults = {
            "has two entries with the same index in a row": not A.has_canonical_format,
            f"has {A.shape[1]} features, and the first has {width}": A.shape[1] != width,
            f"has {A.shape[0]} rows, {b.shape} labels and {clients.shape} clients": not (
                (A.shape[0],) == b.shape == clients.shape
            ),
            "has a label that is not a finite number": b.dtype.kind not in "fiub" or not np.isfinite(b).all(),
            "has a value that is not finite": not np.isfinite(A.data).all(),
            f"has clients of type {clients.dtype}; use whole numbers or text": clients.dtype.kind not in "iuUS",
        }
        for fault in (fault for fault, wrong in faults.items() if wrong):
            raise InputError(f"piece {k} {fault}.")
        yield A, b, clients


def _digest(folder: Path) -> str:
    """Of the bytes of all arrays."""
    digest = hashlib.sha256()
    for name in (*ARRAYS, "groups"):
        with open(folder / f"{name}.npy", "rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------------
class ClientStore:
    """A memory-mapped folder of clients: the system reads the rows in use, and drops them when it needs room."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self.about = json.loads((self.folder / "store.json").read_text())
        except (OSError, ValueError):
            raise InputError(f"{self.folder} holds no clients; write_clients makes such a folder.") from None
        if not isinstance(self.about, dict) or self.about.get("version") != VERSION:
            raise InputError(f"{self.folder} was written by another version of proxskip; write it again.")
        # read-only: pages that may be written to would have to fit into memory
        try:
            self.arrays = {k: np.load(self.folder / f"{k}.npy", mmap_mode="r") for k in ARRAYS}
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(str(error).splitlines()[0]) from None
        self._check_shapes()

    def _damaged(self, why: str) -> InputError:
        return InputError(f"{self.folder} is damaged ({why}); write it again with write_clients.")

    def _check_shapes(self) -> None:
        kinds: dict[str, Any] = dict.fromkeys(("rows", "features", "clients"), int)
        kinds |= {"sha256": str, "labels": (list, type(None))}
        for name, kind in kinds.items():
            if name not in self.about or not isinstance(self.about[name], kind):
                raise self._damaged(f"store.json lacks {name}")
        rows = self.about["rows"]
        entries = self.arrays["data"].size
        index = self.arrays["indptr"].dtype
        sizes = {"data": entries, "indices": entries, "indptr": rows + 1, "b": rows, "row0": self.about["clients"] + 1}
        types = {"data": np.float64, "b": np.float64, "row0": np.int64}
        for k, v in self.arrays.items():
            if v.shape != (sizes[k],) or v.dtype != types.get(k, index) or index not in (np.int32, np.int64):
                raise self._damaged(f"{k}.npy holds {v.dtype} of shape {v.shape}, not {sizes[k]} numbers as written")

    def check(self, first: int, last: int) -> None:
        """Refuse rows of clients ``first`` to ``last`` - 1 that point outside the folder; products check nothing."""
        indices, features = self.arrays["indices"], self.about["features"]
        lo, hi = first, last
        for name, end, least in (("row0", self.about["rows"], 1), ("indptr", indices.size, 0)):
            ends = self.arrays[name]
            some = ends[lo : hi + 1]
            if ends[0] != 0 or ends[-1] != end or (np.diff(some) < least).any() or some[0] < 0 or some[-1] > end:
                raise self._damaged(f"{name}.npy does not increase from 0 to {end}")
            lo, hi = int(some[0]), int(some[-1])
        for start in range(lo, hi, INDICES_AT_ONCE):
            block = indices[start : min(start + INDICES_AT_ONCE, hi)]
            if block.min() < 0 or block.max() >= features:
                raise self._damaged(f"indices.npy holds an index outside its {features} features")

    def matrix(self, lo: int, hi: int) -> Matrix:
        """Rows lo to hi - 1, without copying them."""
        data, indices, indptr = (np.asarray(self.arrays[k]) for k in ("data", "indices", "indptr"))
        indptr = indptr[lo : hi + 1]
        A = scipy.sparse.csr_matrix((hi - lo, self.about["features"]))
        # not by the constructor, which copies indices of 64 bits where 32 would do
        A.data, A.indices = (v[indptr[0] : indptr[-1]] for v in (data, indices))
        A.indptr = indptr - indptr[0] if lo else indptr
        return A


class Stored(Packed):
    """Packed clients whose rows are on disk: those of a folder from number ``first`` on, to ``last`` - 1."""

    mapped = True

    def __init__(
        self,
        files: ClientStore,
        model: type[LinearModel],
        l2: float,
        classes: npt.ArrayLike | None,
        first: int,
        last: int,
    ) -> None:
        files.check(first, last)
        row0 = np.array(files.arrays["row0"][first : last + 1])
        lo, hi = int(row0[0]), int(row0[-1])
        sizes = np.diff(row0)
        rows = model.over(files.matrix(lo, hi), np.asarray(files.arrays["b"])[lo:hi], l2, classes)
        super().__init__(rows.reweighted(np.repeat(1.0 / sizes, sizes)), row0 - lo)
        self.files = files

    def part(self, lo: int, hi: int) -> Callable[[], Stored]:
        """Clients lo to hi - 1, without their data: a function that opens the folder, for another process."""
        f, about = self.store, self.files.about
        folder = str(self.files.folder.absolute())
        return partial(_open_part, folder, about["sha256"], type(f), f.l2, oracles.attribute(f, "classes"), lo, hi)

    def add_to(self, digest: Digest) -> None:
        """The digest that was taken when the folder was written, and what the folder does not hold."""
        for part in (type(self.store).__name__, self.files.about["sha256"]):
            digest.update(part.encode())
        digest.update(self.store.reg.tobytes())


def _open_part(
    folder: str, sha256: str, model: type[LinearModel], l2: float, classes: npt.ArrayLike | None, first: int, last: int
) -> Stored:
    files = ClientStore(folder)
    if files.about["sha256"] != sha256:
        raise InputError(f"{folder} holds other clients than the problem; open it again.")
    return Stored(files, model, l2, classes, first, last)


def open_clients(
    folder: str | os.PathLike[str],
    model: type[LinearModel] = Logistic,
    l2: float = 0.0,
    *,
    weights: Literal["rows", "equal"] = "rows",
    smoothness: Smoothness = "max",
    batch: int | None = None,
) -> Problem:
    """The problem of the clients in a folder that ``write_clients`` made; its rows stay on disk until they are used.

    The system reads them when they are needed and forgets them when it needs room, so that the data may be larger than
    the memory. Actors of Ray open the folder themselves, which every machine sees at the same path, and read the rows
    of their clients.

    Args:
        folder: the one that ``write_clients`` filled.
        model: Logistic, LeastSquares or Softmax.
        l2: the coefficient lambda of  lambda/2 |x|^2.
        weights: as in ``split``.
        smoothness: as in ``split``.
        batch: rows of a minibatch, see ``Problem``.
    """
    files = ClientStore(folder)
    if weights not in ("rows", "equal"):
        raise InputError(f'weights = "{weights}" is not known; use "rows" or "equal".')
    if not (isinstance(model, type) and issubclass(model, LinearModel)):
        raise InputError("model must be a class, such as proxskip.Logistic.")
    clients = Stored(files, model, l2, files.about["labels"], 0, files.about["clients"])
    sizes, N = clients.sizes(), clients.store.N
    equal = weights == "equal"
    w: Array = np.ones(len(sizes)) if equal else sizes.astype(np.float64)
    whole = clients.store.reweighted(np.repeat(1.0 / len(sizes) / sizes, sizes) if equal else np.full(N, 1.0 / N))
    about = {"data": str(files.folder), "data_sha256": files.about["sha256"], "split": "group", "weights": weights}
    return Problem(clients, w, batch=batch, smoothness=smoothness, whole=whole, info=about)
