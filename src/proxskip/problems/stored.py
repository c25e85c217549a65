"""Clients whose rows are in a folder that is mapped into memory, so that the data may be larger than it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from proxskip.problems import oracles
from proxskip.problems.federated import LKind, Problem
from proxskip.problems.glm import LinearModel, Logistic
from proxskip.problems.packed import Packed
from proxskip.types import Array, Indices, InputError

if TYPE_CHECKING:  # what reads and writes files is loaded when it is needed: every actor of Ray loads this module
    from proxskip.data.client_store import ClientStore


class Stored(Packed):
    """Packed clients whose rows are on disk: those of a folder from number ``first`` on, to ``last`` - 1."""

    mapped = True

    def __init__(
        self, files: ClientStore, model: type[LinearModel], l2: float, classes: Any, first: int, last: int
    ) -> None:
        files.check(first, last)
        row0 = np.array(files.array("row0")[first : last + 1])
        lo, hi = int(row0[0]), int(row0[-1])
        sizes = np.diff(row0)
        rows = model.over(files.matrix(lo, hi), files.array("b")[lo:hi], l2, classes)
        super().__init__(rows.reweighted(np.repeat(1.0 / sizes, sizes)), row0 - lo)
        self.files, self.first = files, first
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="proxskip-reads")

    def part(self, lo: int, hi: int) -> StoredPart:
        """Clients lo to hi - 1, without their data."""
        f, files = self.store, self.files
        classes = oracles.classes_of(f)
        return StoredPart(str(files.folder.absolute()), files.about["sha256"], type(f), f.l2, classes, lo, hi)

    def expect(self, clients: Callable[[], Indices]) -> None:
        """Have the rows of those who come next read on a thread."""
        self.reader.submit(lambda: self.read_ahead(clients()))

    def read_ahead(self, clients: Indices) -> None:
        """Ask the system to read the rows of these clients, and do not wait for it."""
        self.files.read_ahead(clients + self.first)

    def add_to(self, digest: Any) -> None:
        """The digest that was taken when the folder was written, and what the folder does not hold."""
        for part in (type(self.store).__name__, self.files.about["sha256"]):
            digest.update(part.encode())
        digest.update(self.store.reg.tobytes())


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Some clients of a folder, for a process that opens the folder itself."""

    folder: str
    sha256: str
    model: type[LinearModel]
    l2: float
    classes: tuple[Any, ...] | None
    first: int
    last: int

    def open(self) -> Stored:
        """The clients; of the arrays of the folder, only their rows are read."""
        from proxskip.data.client_store import ClientStore

        files = ClientStore(self.folder)
        if files.about["sha256"] != self.sha256:
            raise InputError(f"{self.folder} holds other clients than the problem; open it again.")
        classes = None if self.classes is None else np.asarray(self.classes)
        return Stored(files, self.model, self.l2, classes, self.first, self.last)


def write_clients(
    folder: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    *,
    group: str = "client",
    label: str = "label",
    indices: str = "indices",
    values: str = "values",
    features: int | None = None,
) -> None:
    """Write the rows of Parquet or npz files into a folder, client after client, for ``open_clients``.

    Args:
        folder: a new one; it takes about the size of the rows, 12 bytes per entry.
        files: Parquet files (needs pyarrow) with a row per sample, or npz files with the arrays of a CSR matrix. They
            are read twice, piece by piece, and may be larger than the memory.
        group: the column (or array) that says which client a row belongs to: whole numbers or text.
        label: the column of the labels or targets, which are numbers.
        indices: the column of lists with the features of a row that are not zero, from 0 on.
        values: the column of lists with their values. In npz files ``indptr`` says where rows begin.
        features: how many there are; the largest index that occurs plus one if not given.
    """
    from proxskip.data import client_store

    client_store.write(folder, files, client_store.Columns(group, label, indices, values, features))


def open_clients(
    folder: str | os.PathLike[str],
    model: type[LinearModel] = Logistic,
    l2: float = 0.0,
    *,
    weights: Literal["rows", "equal"] = "rows",
    L: LKind = "max",
    batch: int | None = None,
) -> Problem:
    """The problem of the clients in a folder that ``write_clients`` made; its rows stay on disk until they are used.

    The system reads them when they are needed and forgets them when it needs room, so that the data may be larger than
    the memory. On the cpu and ray engines the rows of the next cohort are read while the cohort before computes. Actors
    of Ray open the folder themselves, which every machine sees at the same path, and read the rows of their clients.

    Args:
        model: Logistic, LeastSquares or Softmax.
        l2: the coefficient lambda of  lambda/2 |x|^2.
        weights: as in ``split``.
        L: as in ``split``.
        batch: rows of a minibatch, see ``Problem``.
    """
    from proxskip.data.client_store import ClientStore

    files = ClientStore(folder)
    classes = None if files.about["labels"] is None else np.asarray(files.about["labels"])
    if weights not in ("rows", "equal"):
        raise InputError(f'weights = "{weights}" is not known; use "rows" or "equal".')
    clients = Stored(files, model, l2, classes, 0, files.about["clients"])
    sizes, N = clients.sizes(), clients.store.N
    equal = weights == "equal"
    w: Array = np.ones(len(sizes)) if equal else sizes.astype(np.float64)
    whole = clients.store.reweighted(np.repeat(1.0 / len(sizes) / sizes, sizes) if equal else np.full(N, 1.0 / N))
    about = {"data": str(files.folder), "data_sha256": files.about["sha256"], "split": "group", "weights": weights}
    return Problem(clients, w, batch=batch, L_kind=L, whole=whole, info=about)
