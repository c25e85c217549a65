"""Data from files: svmlight, CSV and NPZ, by the ending of the name."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from proxskip.support import display
from proxskip.types import Array, Indices, InputError, is_sparse

LABELS = ("label", "target", "y", "b", "class")
"""Names of the column of labels, where none is given."""
MATRICES = ("X", "A", "data", "features")
"""Names of the matrix of features in an NPZ file."""
MISSING = ("", "na", "n/a", "nan", "null")
"""Labels and groups that stand for a missing value, in lower case."""
ROW_NAMES = ("", "id", "index", "row", "unnamed: 0")
"""Names of columns that seldom are features, in lower case."""
OTHER_FORMATS = (
    ".arff", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".mat", ".npy", ".parquet", ".pkl", ".tab", ".tsv", ".xls",
    ".xlsx", ".zip",
)  # fmt: skip
"""Endings of files that are not svmlight, which may have any other one."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(display.Described):
    """Rows ``A`` (CSR or dense, float64) with labels ``b`` as in the file; unpacks to ``A, b``.

    Args:
        A: the rows.
        b: the labels, numbers or text.
        group: an integer per row by which to split the data among clients, if there is one.
        name: of the data set or the file.
        sha256: of the decompressed file; None for data that are not from a file.
        group_names: what the file calls each group; row i belongs to ``group_names[group[i]]``.
    """

    A: Any
    b: Array
    group: Indices | None = None
    name: str = ""
    sha256: str | None = None
    group_names: tuple[Any, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.A, self.b))

    def standardized(self) -> Dataset:
        """The same data with features of mean zero and mean square one; a sparse A is scaled, but not shifted.

        A feature that is constant becomes zero (or stays as it is in a sparse A, where it is zero).

        >>> data = Dataset(np.array([[1.0, 100.0], [3.0, 100.0]]), np.array([0, 1]), name="two")
        >>> data.standardized().A.tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
        """
        name = f"{self.name}, standardized"
        if is_sparse(self.A):
            scale = np.sqrt(np.asarray(self.A.multiply(self.A).mean(axis=0), dtype=np.float64).ravel())
            return replace(self, A=self.A @ scipy.sparse.diags(1.0 / np.where(scale > 0, scale, 1.0)), name=name)
        centered = self.A - self.A.mean(axis=0)
        scale = np.sqrt(np.mean(centered**2, axis=0))
        # the mean of equal numbers may be off by a rounding, which must not become one
        constant = scale <= 1e-12 * np.max(np.abs(self.A), axis=0)
        return replace(self, A=np.where(constant, 0.0, centered / np.where(constant, 1.0, scale)), name=name)

    def _described(self) -> tuple[str, list[tuple[str, str]]]:
        rows, features = self.A.shape
        classes = np.unique(self.b).tolist()
        labels = f"from {classes[0]:.4g} to {classes[-1]:.4g}" if len(classes) > 10 else ", ".join(map(str, classes))
        lines = [("labels", labels)]
        if self.group_names:
            lines.append(("groups", f"{len(self.group_names):,}: {display.short(list(self.group_names))}"))
        return f"Dataset {self.name}: {rows:,} rows, {features:,} features", lines


# -- any file ----------------------------------------------------------------------------------------------------------
def read_file(
    path: str | os.PathLike[str],
    label: str | None = None,
    columns: Sequence[str] | None = None,
    group: str | None = None,
) -> Dataset:
    """Read a file; ``label``, ``columns`` and ``group`` are names of columns of a table, see ``load``."""
    file = os.fspath(path)
    name, ending = _name_and_ending(file)
    if ending in OTHER_FORMATS:
        raise InputError(
            f"{file} has the ending {ending}, and proxskip reads svmlight, .csv and .npz; read it in Python, "
            "such as with pandas, and pass arrays to ps.Logistic(A, b)."
        )
    if ending not in (".csv", ".npz"):
        if label or columns or group:
            raise InputError(f"label, columns and group belong to a CSV or NPZ file, which {file} is not.")
        return read_svmlight(file)
    if isinstance(columns, str):
        raise InputError(f'columns is a list of names, such as ["{columns}"].')
    read = _read_csv if ending == ".csv" else _read_npz
    raw = _content(file)
    A, b, groups = read(file, raw, label, columns, group)
    if b.size == 0:
        raise InputError(f"{file} holds no rows.")
    data = Dataset(A, b, None, name, hashlib.sha256(raw).hexdigest())
    if group is None:
        return data
    codes, group_names = _codes(groups, f"{file}: the column {group!r}")
    return replace(data, group=codes, group_names=group_names)


def read_svmlight(path: str | os.PathLike[str], n_features: int | None = None) -> Dataset:
    """Read an svmlight file, plain or as .gz or .bz2; labels are kept as they are, explicit zeros are dropped.

    Args:
        path: the file.
        n_features: the number of columns; the largest index in the file if not given.
    """
    from sklearn.datasets import load_svmlight_file  # here, since scikit-learn is slow to import

    file = os.fspath(path)
    raw = _content(file)
    try:
        A, b = load_svmlight_file(io.BytesIO(raw), n_features=n_features, zero_based=False)
    except ValueError as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"{file} is not an svmlight file ({why}); tables need the ending .csv or .npz.") from None
    if b.size == 0:
        raise InputError(f"{file} holds no rows.")
    if not (np.isfinite(A.data).all() and np.isfinite(b).all()):
        raise InputError(f"{file} holds nan or infinity; fill or leave out such rows.")
    A.eliminate_zeros()  # explicit zeros in the file would count as nonzeros
    name, _ = _name_and_ending(file)
    return Dataset(A, b, None, name, hashlib.sha256(raw).hexdigest())


def _name_and_ending(file: str) -> tuple[str, str]:
    """The name without the endings that say how to read it, and that ending in lower case, such as ".csv"."""
    plain = Path(file.removesuffix(".gz").removesuffix(".bz2"))
    ending = plain.suffix.lower()
    return (plain.stem if ending in (".csv", ".npz") else plain.name), ending


def _content(file: str) -> bytes:
    """The decompressed bytes of a file."""
    if not os.path.isfile(file):
        raise InputError(f"there is no file {file}; check the path.")
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
    try:
        with openers.get(Path(file).suffix, open)(file, "rb") as stream:
            content: bytes = stream.read()
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{file} cannot be read ({why}); copy or download it again.") from None
    return content


# -- tables ------------------------------------------------------------------------------------------------------------
Columns = tuple[Array, Array, Sequence[Any]]
"""Features, labels, and the group of each row, if there is one."""


def _read_csv(file: str, raw: bytes, label: str | None, columns: Sequence[str] | None, group: str | None) -> Columns:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not text in UTF-8 ({error.reason}); save it as UTF-8.") from None
    rows = csv.reader(io.StringIO(text))
    header = [name.strip() for name in next(rows, [])]
    _check_header(file, header)
    label, features = _chosen(file, header, label, columns, group)
    chosen = [header.index(name) for name in features]
    # labels and groups stay text: a float cannot hold every id
    labels: list[str] = []
    groups: list[str] = []

    def numbers() -> Iterator[float]:
        """The features of row after row; the other columns are kept on the way."""
        for row in filter(None, rows):
            if len(row) != len(header):
                raise InputError(f"line {rows.line_num} of {file} has {len(row)} cells under {len(header)} columns.")
            labels.append(row[header.index(label)])
            if group is not None:
                groups.append(row[header.index(group)])
            try:
                yield from [float(row[k]) for k in chosen]
            except ValueError:
                name, cell = next((header[k], row[k]) for k in chosen if not _is_number(row[k]))
                raise InputError(
                    f"line {rows.line_num} of {file} has {cell[:40]!r} in the column {name!r}, which is not a number; "
                    "features must be numbers: choose them with columns=, and fill or leave out rows without a value."
                ) from None

    try:
        A = np.fromiter(numbers(), np.float64).reshape(-1, len(features))
    except csv.Error as error:
        raise InputError(f"line {rows.line_num} of {file} cannot be read: {error}.") from None
    if columns is None:
        _warn_of_row_numbers(file, features)
    parts = [_numbers(values, name, file) for name, values in zip(features, A.T, strict=True)]
    return np.column_stack(parts), _labels(labels, f"{file}: the column {label!r}"), groups


def _check_header(file: str, header: Sequence[str]) -> None:
    """Refuse a first line that does not name the columns."""
    if not header:
        raise InputError(f"{file} is empty; its first line names the columns.")
    for mark, what in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            raise InputError(f"the columns of {file} are separated by {what}; save it with commas.")
    if all(_is_number(name) for name in header):
        raise InputError(f"the first line of {file} holds numbers; write the names of the columns above it.")


def _read_npz(file: str, raw: bytes, label: str | None, columns: Sequence[str] | None, group: str | None) -> Columns:
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{file} is damaged, or not an NPZ file of numbers ({error}).") from None
    if columns is None:
        matrices = [name for name in MATRICES if name in arrays]
        columns = matrices[:1] or None
    label, features = _chosen(file, list(arrays), label, columns, group)
    parts = [_numbers(arrays[name], name, file) for name in features]
    labels, groups = arrays[label], arrays[label if group is None else group]
    N = len(parts[0])
    if any(len(part) != N for part in parts) or not labels.shape == groups.shape == (N,):
        shapes = ", ".join(f"{name} {v.shape}" for name, v in arrays.items())
        raise InputError(f"the arrays of {file} do not have one entry per row: {shapes}.")
    return np.column_stack(parts), _labels(labels.tolist(), f"{file}: the array {label!r}"), groups.tolist()


def _chosen(
    file: str, names: Sequence[str], label: str | None, columns: Sequence[str] | None, group: str | None
) -> tuple[str, list[str]]:
    """The column of labels and those of the features."""
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{file} has two columns with the name {name!r}; rename one of them.")
    if label is None:
        usual = [name for name in LABELS if name in names]
        if not usual:
            raise InputError(f"{file} has no column {', '.join(LABELS)}; say which has the labels with label=.")
        label = usual[0]
    features = [name for name in names if name not in (label, group)] if columns is None else list(columns)
    for name in (label, *features, *([] if group is None else [group])):
        if name not in names:
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise InputError(f"{file} has no column {name!r}; its columns are {shown}.")
    if label in features:
        raise InputError(f"{file}: the column {label!r} cannot be a feature and the label.")
    if not features:
        raise InputError(f"{file} has no column besides the label; there is nothing to learn from.")
    return label, features


def _warn_of_row_numbers(file: str, features: Sequence[str]) -> None:
    for name in features:
        if name.lower() in ROW_NAMES:
            warnings.warn(
                f"the column {name!r} of {file} is used as a feature; if it numbers the rows, choose the features with "
                "columns=.",
                stacklevel=5,
            )


# -- columns -----------------------------------------------------------------------------------------------------------
def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(values: Any, name: str, file: str) -> Array:
    """A column of features."""
    if values.dtype.kind not in "fiub" or values.ndim not in (1, 2):
        raise InputError(
            f"{file}: {name!r} is {values.ndim}-D {values.dtype}; features are numbers in one or two dimensions, "
            "choose them with columns=."
        )
    if not np.isfinite(values).all():
        raise InputError(f"{file}: {name!r} holds nan or infinity; fill or leave out such rows.")
    return np.asarray(values, dtype=np.float64)


def _texts(values: Any, where: str) -> list[str]:
    """Labels or groups as text; refuses missing ones."""
    texts = [str(value).strip() for value in values]
    for row, text in enumerate(texts):
        if text.lower() in MISSING:
            raise InputError(f"{where} has {text!r} in row {row + 1}; fill or leave out such rows.")
    return texts


def _labels(values: Any, where: str) -> Array:
    """Numbers, or text if no label is a number."""
    texts = _texts(values, where)
    numeric = [_is_number(text) for text in texts]
    if not any(numeric):
        return np.array(texts)
    if not all(numeric):
        row = numeric.index(False)
        raise InputError(
            f"{where} has numbers, and {texts[row][:40]!r} in row {row + 1}; write all or none as numbers."
        )
    numbers = np.array([float(text) for text in texts])
    if not np.isfinite(numbers).all():
        raise InputError(f"{where} holds infinity; fill or leave out such rows.")
    whole = {text for text in texts if text.lstrip("+-").isdigit()}
    if any(int(text) != int(float(text)) for text in whole):
        return np.array(texts)  # floats would take different numbers above 2^53 for one class
    return numbers


def _codes(values: Any, where: str) -> tuple[Indices, tuple[str, ...]]:
    """The number of each row's group, and the groups: in the order of numbers if all are, else of the alphabet."""
    texts = _texts(values, where)
    names = sorted(set(texts))
    if all(name.lstrip("+-").isdigit() for name in names):
        names.sort(key=int)
    elif all(map(_is_number, names)):
        names.sort(key=float)
    place = {name: k for k, name in enumerate(names)}
    return np.array([place[text] for text in texts], dtype=np.int64), tuple(names)
