"""Clients whose rows are in a folder that is mapped into memory, so that the data may be larger than it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from proxskip.data import client_store
from proxskip.data.client_store import ClientStore, Columns
from proxskip.problems.clients import Clients
from proxskip.problems.federated import LKind, Problem
from proxskip.problems.glm import LinearModel, Logistic
from proxskip.problems.packed import Packed
from proxskip.types import Array, Indices, InputError


class Stored(Packed):
    """Packed clients whose rows are on disk."""

    mapped = True

    def __init__(self, store: LinearModel, row0: Indices, files: ClientStore) -> None:
        super().__init__(store, row0)
        self.files = files
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="proxskip-reads")

    def expect(self, clients: Callable[[], Indices]) -> None:
        """Have the rows of those who come next read on a thread."""
        self.reader.submit(lambda: self.read_ahead(clients()))

    def read_ahead(self, clients: Indices) -> None:
        """Ask the system to read the rows of these clients, and do not wait for it."""
        self.files.read_ahead(clients)

    def add_to(self, digest: Any) -> None:
        """The digest that was taken when the folder was written, and what the folder does not hold."""
        for part in (type(self.store).__name__, self.files.about["sha256"]):
            digest.update(part.encode())
        digest.update(self.store.reg.tobytes())


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
    client_store.write(folder, files, Columns(group, label, indices, values, features))


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
    the memory. On the cpu engine the rows of the next cohort are read while the cohort before computes.

    Args:
        model: Logistic, LeastSquares or Softmax.
        l2: the coefficient lambda of  lambda/2 |x|^2.
        weights: as in ``split``.
        L: as in ``split``.
        batch: rows of a minibatch, see ``Problem``.
    """
    files = ClientStore(folder)
    classes = None if files.about["labels"] is None else np.asarray(files.about["labels"])
    whole = model.over(files.matrix(), files.array("b"), l2, classes)
    row0 = np.array(files.array("row0"))
    sizes = np.diff(row0)
    if weights not in ("rows", "equal"):
        raise InputError(f'weights = "{weights}" is not known; use "rows" or "equal".')
    store = whole.reweighted(np.repeat(1.0 / sizes, sizes))
    w: Array = sizes.astype(np.float64) if weights == "rows" else np.ones(len(sizes))
    if weights == "equal":
        whole = whole.reweighted(np.repeat(1.0 / len(sizes) / sizes, sizes))
    about = {"data": str(files.folder), "data_sha256": files.about["sha256"], "split": "group", "weights": weights}
    clients: Clients = Stored(store, row0, files)
    return Problem(clients, w, batch=batch, L_kind=L, whole=whole, info=about)
