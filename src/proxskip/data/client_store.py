"""Folders that hold the rows of many clients, client after client, as arrays that are mapped into memory.

``write`` makes one from files whose rows are in any order, and never holds more than one piece of them: it reads them
once for the clients and lengths of the rows, and again to write every row at its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from proxskip.data.svmlight import MAX_BYTES
from proxskip.data.tables import open_npz
from proxskip.types import Indices, InputError

VERSION = 1
ROWS_AT_ONCE = 1 << 16
"""Rows of a piece of a Parquet file."""
NUMBERS_AT_ONCE = 1 << 20
"""Indices that are checked at a time."""
ARRAYS = ("data", "indices", "indptr", "b", "row0", "groups")


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the rows are in a file: its columns, or the names of the arrays of an npz file."""

    group: str
    label: str
    indices: str
    values: str
    features: int | None


Piece = tuple[Any, Any, Any]
"""Rows as a CSR matrix, their labels, and the clients that they belong to."""


def write(folder: str | os.PathLike[str], files: Sequence[str | os.PathLike[str]], columns: Columns) -> None:
    """Write the rows of all files into a new folder, sorted by client."""
    target = Path(folder)
    if (target / "store.json").exists():
        raise InputError(f"{target} holds clients already; choose another folder.")
    if not files:
        raise InputError("there are no files to read; give npz or Parquet files.")
    groups, lengths, width = _survey(files, columns)
    target.mkdir(parents=True, exist_ok=True)
    keys, owner = np.unique(groups, return_inverse=True)
    order = np.argsort(owner, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    indptr = np.concatenate([[0], np.cumsum(lengths[order], dtype=np.int64)])
    # scipy wants both in one type
    index = np.dtype(np.int32 if indptr[-1] <= np.iinfo(np.int32).max else np.int64)
    np.save(target / "indptr.npy", indptr.astype(index))
    np.save(target / "row0.npy", np.concatenate([[0], np.cumsum(np.bincount(owner))]).astype(np.int64))
    np.save(target / "groups.npy", keys)
    shapes: dict[str, tuple[Any, Any]] = {
        "data": (indptr[-1], np.float64),
        "indices": (indptr[-1], index),
        "b": (len(order), np.float64),
    }
    arrays = {
        k: np.lib.format.open_memmap(target / f"{k}.npy", "w+", dtype, (int(size),))
        for k, (size, dtype) in shapes.items()
    }
    labels = _place(files, columns, arrays, indptr, place)
    for v in arrays.values():
        v.flush()
    about = {
        "version": VERSION, "rows": len(order), "features": width, "clients": len(keys),
        "labels": sorted(labels) if len(labels) <= 1000 else None, "sha256": _digest(target),
    }  # fmt: skip
    # last: a folder without it is not finished
    (target / "store.json").write_text(json.dumps(about, indent=1) + "\n")


def _survey(files: Sequence[Any], columns: Columns) -> tuple[Any, Indices, int]:
    """The client and the entries of every row, and the number of features."""
    groups, lengths, width = [], [], columns.features or 0
    for A, _, g in _pieces(files, columns):
        groups.append(g)
        lengths.append(np.diff(A.indptr))
        width = max(width, int(A.indices.max(initial=-1)) + 1)
    if not groups:
        raise InputError("the files have no rows.")
    if columns.features is not None and width > columns.features:
        raise InputError(f"an entry has the index {width - 1}, but there are {columns.features} features.")
    return np.concatenate(groups), np.concatenate(lengths), width


def _place(
    files: Sequence[Any], columns: Columns, arrays: dict[str, Any], indptr: Indices, place: Indices
) -> set[float]:
    """Write every row at its place; the different labels."""
    first = 0
    labels: set[float] = set()
    for A, b, _ in _pieces(files, columns):
        rows = place[first : first + len(b)]
        length = np.diff(A.indptr)
        at = np.arange(len(A.data)) + np.repeat(indptr[rows] - A.indptr[:-1], length)
        arrays["data"][at], arrays["indices"][at], arrays["b"][rows] = A.data, A.indices, b
        labels |= set(np.unique(b).tolist()) if len(labels) <= 1000 else set()
        first += len(b)
    return labels


def _pieces(files: Sequence[Any], columns: Columns) -> Iterator[Piece]:
    for file in map(str, files):
        try:
            pieces = _parquet(file, columns) if file.endswith(".parquet") else _npz(file, columns)
            for A, b, g in pieces:
                yield _checked(A, b, g)
        except InputError as error:
            raise InputError(f"{file}: {error}") from None
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror or error}.") from None
        except ValueError as error:  # of scipy or pyarrow
            raise InputError(f"{file} is damaged: {error}.") from None


def _matrix(values: Any, indices: Any, indptr: Any, columns: Columns) -> Any:
    """Rows as a CSR matrix; scipy would round indices that are not whole."""
    for name, v in ((columns.indices, indices), ("indptr", indptr)):
        if v.dtype.kind not in "iu":
            raise InputError(f"{name} holds numbers of type {v.dtype}; indices are whole numbers.")
    width = max(int(indices.max(initial=-1)) + 1, columns.features or 1)
    A = scipy.sparse.csr_matrix((values, indices, indptr), shape=(len(indptr) - 1, width))
    A.check_format(full_check=True)
    return A


def _checked(A: Any, b: Any, g: Any) -> Piece:
    """Sorted rows without duplicates, and labels that are numbers."""
    A = scipy.sparse.csr_matrix(A, dtype=np.float64)
    A = A if A.has_sorted_indices else A.sorted_indices()
    if not A.has_canonical_format:
        raise InputError("a row has two entries with the same index; add them up, or keep one of them.")
    b, g = np.asarray(b), np.asarray(g)
    if not (A.shape[0] == len(b) == len(g)):
        raise InputError(f"there are {A.shape[0]} rows, {len(b)} labels and {len(g)} clients; they must match.")
    if b.dtype.kind not in "fiub" or not np.isfinite(b.astype(np.float64)).all():
        raise InputError("a label is not a finite number; turn labels into numbers first.")
    if not np.isfinite(A.data).all():
        raise InputError("a value is not finite; remove or repair those rows.")
    if g.dtype.kind not in "iuUS":
        raise InputError(f"clients of type {g.dtype} cannot be told apart; use whole numbers or text.")
    return A, b, g


def _npz(file: str, columns: Columns) -> Iterator[Piece]:
    names = (columns.label, columns.group, columns.values, columns.indices, "indptr")
    with open_npz(file, MAX_BYTES) as (arrays, shapes):
        if missing := [name for name in names if name not in shapes]:
            raise InputError(f"there is no array {missing[0]}; it has {', '.join(sorted(shapes))}.")
        b, g, data, indices, indptr = (arrays[name] for name in names)
    yield _matrix(data, indices, indptr, columns), b, g


def _parquet(file: str, columns: Columns) -> Iterator[Piece]:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise InputError('Parquet files need pyarrow; run  pip install "proxskip[frames]".') from None
    source = pa.parquet.ParquetFile(file)
    wanted = [columns.group, columns.label, columns.indices, columns.values]
    missing = [name for name in wanted if name not in source.schema_arrow.names]
    if missing:
        raise InputError(f"there is no column {missing[0]}; it has {', '.join(source.schema_arrow.names)}.")
    for batch in source.iter_batches(ROWS_AT_ONCE, columns=wanted):
        g, b, indices, values = (batch.column(k) for k in range(4))
        lengths = np.diff(values.offsets.to_numpy())
        if not np.array_equal(lengths, np.diff(indices.offsets.to_numpy())):
            raise InputError("a row has more indices than values, or fewer.")
        text = pa.types.is_string(g.type) or pa.types.is_large_string(g.type)
        owner = np.asarray(g.to_pylist()) if text else g.to_numpy(zero_copy_only=False)
        at, entries = indices.flatten().to_numpy(), values.flatten().to_numpy()
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        yield _matrix(entries, at, indptr, columns), b.to_numpy(zero_copy_only=False), owner


def _digest(folder: Path) -> str:
    """Of the bytes of all arrays."""
    digest = hashlib.sha256()
    for name in ARRAYS:
        with open(folder / f"{name}.npy", "rb") as file:
            while piece := file.read(1 << 24):
                digest.update(piece)
    return digest.hexdigest()


class ClientStore:
    """A folder of clients, mapped into memory: the system reads what is used, and gives it back when it needs room."""

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
            self.arrays = {k: np.load(self.folder / f"{k}.npy", mmap_mode="r") for k in ARRAYS[:5]}
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(str(error).splitlines()[0]) from None
        self._check_shapes()
        self._files: dict[str, int] = {}

    def _damaged(self, why: str) -> InputError:
        return InputError(f"{self.folder} is damaged ({why}); write it again with write_clients.")

    def _check_shapes(self) -> None:
        about = self.about
        counts = [about.get(k) for k in ("rows", "features", "clients")]
        if not all(type(v) is int and v > 0 for v in counts) or not isinstance(about.get("sha256"), str):
            raise self._damaged("store.json lacks the number of rows, features or clients, or the sha256")
        if not isinstance(about.get("labels", 0), list | None):
            raise self._damaged("store.json lacks the labels")
        entries = self.arrays["data"].size
        sizes = {"data": entries, "indices": entries, "indptr": counts[0] + 1, "b": counts[0], "row0": counts[2] + 1}
        index = self.arrays["indptr"].dtype
        kinds = {"data": np.float64, "b": np.float64, "row0": np.int64, "indices": index}
        if index not in (np.int32, np.int64):
            raise self._damaged(f"indptr.npy holds {index}")
        for k, v in self.arrays.items():
            if v.shape != (sizes[k],) or v.dtype != kinds.get(k, index):
                raise self._damaged(f"{k}.npy holds {v.dtype} of shape {v.shape}, not {sizes[k]} numbers as written")

    def check(self, first: int, last: int) -> None:
        """Refuse rows of clients ``first`` to ``last`` - 1 that point outside the folder; products check nothing."""
        row0, indptr, indices = (self.arrays[k] for k in ("row0", "indptr", "indices"))
        for name, v, end in (("row0", row0, self.about["rows"]), ("indptr", indptr, indices.size)):
            if v[0] != 0 or v[-1] != end:
                raise self._damaged(f"{name}.npy goes from {v[0]} to {v[-1]}, not from 0 to {end}")
        clients = row0[first : last + 1]
        if (clients[1:] <= clients[:-1]).any() or clients[0] < 0 or clients[-1] > self.about["rows"]:
            raise self._damaged("row0.npy does not increase")
        rows = indptr[clients[0] : clients[-1] + 1]
        if (rows[1:] < rows[:-1]).any() or rows[0] < 0 or rows[-1] > indices.size:
            raise self._damaged("indptr.npy does not increase")
        for lo in range(int(rows[0]), int(rows[-1]), NUMBERS_AT_ONCE):
            some = indices[lo : min(lo + NUMBERS_AT_ONCE, int(rows[-1]))]
            if some.min() < 0 or some.max() >= self.about["features"]:
                raise self._damaged(f"indices.npy holds an index outside its {self.about['features']} features")

    def array(self, name: str) -> Any:
        """One of data, indices, indptr, b and row0 as a plain array."""
        return np.asarray(self.arrays[name])

    def matrix(self, lo: int = 0, hi: int | None = None) -> Any:
        """Rows lo to hi - 1, by default all, without copying them."""
        hi = self.about["rows"] if hi is None else hi
        indptr = self.array("indptr")[lo : hi + 1]
        A = scipy.sparse.csr_matrix((hi - lo, self.about["features"]))
        # not by the constructor, which copies indices of 64 bits where 32 would do
        A.data, A.indices = (self.array(k)[indptr[0] : indptr[-1]] for k in ("data", "indices"))
        A.indptr = indptr - indptr[0] if lo else indptr
        return A

    def read_ahead(self, clients: Indices) -> None:
        """Ask the system to read the rows of these clients, and do not wait for it."""
        if not hasattr(os, "posix_fadvise"):
            return
        row0, indptr = self.arrays["row0"], self.arrays["indptr"]
        lo, hi = row0[clients], row0[clients + 1]
        for name, start, stop in (("data", indptr[lo], indptr[hi]), ("indices", indptr[lo], indptr[hi]), ("b", lo, hi)):
            v = self.arrays[name]
            if name not in self._files:
                self._files[name] = os.open(self.folder / f"{name}.npy", os.O_RDONLY)
                weakref.finalize(self, os.close, self._files[name])
            for first, last in zip(start.tolist(), stop.tolist(), strict=True):
                begin = v.offset + first * v.itemsize
                os.posix_fadvise(self._files[name], begin, (last - first) * v.itemsize, os.POSIX_FADV_WILLNEED)
