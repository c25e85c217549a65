"""Reads tables: CSV, NPZ and Parquet files whose columns have names. Nothing in a file can exhaust the memory.

One column holds the labels, another may hold the group of each row, and the others (or those that are named) are the
features. Every cell must be a number; the first that is not is named with its place.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from proxskip.data.svmlight import (
    MAX_BYTES,
    MAX_EXPANSION,
    MAX_FEATURES,
    MAX_ROWS,
    DataError,
    Dataset,
    Unreadable,
    whole_lines,
)
from proxskip.types import Array, InputError

SUFFIXES = re.compile(r"\.(csv|npz|parquet)(?:\.(?:gz|bz2))?$", re.IGNORECASE)
LABELS = ("label", "target", "y", "b", "class")
"""Names of a column or an array of labels, where none is given."""
_FEATURES = ("X", "A", "data", "features")
_SLACK = 2**24
_NPZ_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError),
    *(ValueError, EOFError, RuntimeError, OverflowError, OSError),
)
"""What zipfile and numpy raise for a damaged file."""


@dataclass(frozen=True, slots=True)
class Named:
    """Which columns are what; None for the usual names."""

    label: str | None = None
    columns: tuple[str, ...] | None = None
    group: str | None = None

    def options(self) -> list[str]:
        """The names of the options that are set."""
        return [name for name, v in (("label", self.label), ("columns", self.columns), ("group", self.group)) if v]

    def chosen(self, names: Sequence[str], file: str) -> tuple[str, list[str]]:
        """The column of labels and those of the features, among these."""
        known = set(names)
        if len(known) < len(names):
            twice, _ = Counter(names).most_common(1)[0]
            raise InputError(f"{file} has two columns with the name {twice!r}; rename one of them.")
        usual = [name for name in LABELS if name in names]
        label = self.label or (usual[0] if usual else None)
        if label is None:
            raise InputError(f"{file} has no column {', '.join(LABELS)}; say which holds the labels with --label NAME.")
        left = [name for name in names if name not in (label, self.group)]
        features = list(self.columns or left)
        for name in (label, *features, *([self.group] if self.group else [])):
            if name not in known:
                shown = ", ".join(list(names)[:20]) + (", ..." if len(names) > 20 else "")
                raise InputError(f"{file} has no column {name!r}; its columns are {shown}.")
        if label in features:
            raise InputError(f"{file}: the column {label!r} cannot be a feature and the label.")
        if not features:
            raise InputError(f"{file} has no column besides the label; there is nothing to learn from.")
        if len(features) > MAX_FEATURES:
            raise InputError(f"{file} has {len(features):,} features; at most {MAX_FEATURES:,} are read.")
        return label, features


def is_table(path: str) -> bool:
    """Whether the file's name says that it is a table."""
    return SUFFIXES.search(path) is not None


def read_table(path: str | os.PathLike[str], named: Named = Named(), *, max_bytes: int = MAX_BYTES) -> Dataset:
    """Read a CSV (plain, gzip or bzip2), NPZ or Parquet file.

    Reading takes at most three times the memory of the data.

    Args:
        named: the columns of the labels, of the features and of the groups.
        max_bytes: refuse a file with more text, or more numbers, than this.
    """
    file = os.fspath(path)
    kind = SUFFIXES.search(file)
    if kind is None:
        raise InputError(f"{file} is not a .csv, .npz or .parquet file.")
    if not os.path.isfile(file):
        raise InputError(f"{file} is not a file that exists; give the path of a table.")
    readers: dict[str, Callable[..., tuple[Any, Array, Array | None, str]]] = {
        "csv": _csv, "npz": _npz, "parquet": _parquet
    }  # fmt: skip
    try:
        A, b, group, digest = readers[kind[1].lower()](file, named, max_bytes)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror or error}).") from None
    codes = None if group is None else np.unique(group, return_inverse=True)[1].astype(np.int64)
    return Dataset(A, b, codes, SUFFIXES.sub("", Path(file).name), digest)


# -- CSV ---------------------------------------------------------------------------------------------------------------
def _csv(file: str, named: Named, max_bytes: int) -> tuple[Any, Array, Array | None, str]:
    digest = hashlib.sha256()
    line = 1
    try:
        text = enumerate(whole_lines(file, max_bytes, digest))
        blocks = (block.decode("utf-8" if k else "utf-8-sig") for k, block in text)
        rows = csv.reader(chain.from_iterable(io.StringIO(block, newline="") for block in blocks), strict=True)
        header = [name.strip() for name in next(rows, [])]
        if not header:
            raise DataError(file, 1, 1, "the file is empty; its first line names the columns.")
        label, features = named.chosen(header, file)
        place = {name: k for k, name in enumerate(header)}
        wanted = [place[name] for name in (*features, label, *([named.group] if named.group else []))]
        numbers, count = array("d"), 0
        for row in rows:
            line = rows.line_num
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(file, line, 1, f"{len(row)} cells under {len(header)} columns.")
            numbers.extend(_numbers(row, wanted, header, file, line))
            count += 1
            if count > MAX_ROWS or 8 * len(numbers) > max_bytes:
                raise DataError(file, line, 1, f"more than {MAX_ROWS:,} rows or {max_bytes} bytes; split the file.")
    except Unreadable as error:
        raise DataError(file, line, 1, str(error)) from None
    except UnicodeDecodeError as error:
        raise DataError(file, line, 1, f"this is not text in UTF-8 ({error.reason}).") from None
    except csv.Error as error:
        raise DataError(file, line, 1, f"this is not CSV ({error}).") from None
    if not count:
        raise DataError(file, line, 1, "the file holds no rows.")
    table = np.frombuffer(numbers, dtype=np.float64).reshape(count, len(wanted))
    d = len(features)
    group = table[:, d + 1].copy() if named.group else None
    return table[:, :d].copy(), table[:, d].copy(), group, digest.hexdigest()


def _numbers(row: Sequence[str], wanted: Sequence[int], header: Sequence[str], file: str, line: int) -> Iterator[float]:
    for k in wanted:
        try:
            value = float(row[k])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            reason = f"{row[k][:24]!r} in the column {header[k]!r} is not a finite number"
            raise DataError(file, line, k + 1, f"{reason}; fill or leave out such rows.")
        yield value


# -- NPZ ---------------------------------------------------------------------------------------------------------------
@contextmanager
def open_npz(file: str | os.PathLike[str], most: int) -> Iterator[tuple[Any, dict[str, tuple[int, ...]]]]:
    """The arrays of an NPZ file and their shapes, if all have exactly the bytes that their shapes need.

    Args:
        most: bytes that the arrays may take together.
    """
    with open(file, "rb") as raw:
        try:
            shapes = _shapes(raw, file, most)
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as arrays:
                yield arrays, shapes
        except InputError:
            raise
        except _NPZ_ERRORS as error:
            raise InputError(f"{file} is damaged, or not an NPZ file of numbers ({error}).") from None


def _shapes(raw: IO[bytes], file: str | os.PathLike[str], most: int) -> dict[str, tuple[int, ...]]:
    form: Any = np.lib.format
    shapes = {}
    with zipfile.ZipFile(raw) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if size > most:
            raise InputError(f"{file} would hold {size:,} bytes, more than {most:,}; it is refused.")
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as data:
                version = form.read_magic(data)
                header = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
                shape, _, dtype = header(data)
                if dtype.hasobject:
                    raise ValueError(f"{name!r} holds objects")
                if math.prod(shape) * dtype.itemsize != member.file_size - data.tell() or name in shapes:
                    raise InputError(f"{file}: {name!r} is there twice, or not as long as its shape {shape} says.")
            shapes[name] = shape
    return shapes


def _npz(file: str, named: Named, max_bytes: int) -> tuple[Any, Array, Array | None, str]:
    """Arrays by name: one of labels, and a matrix or several columns of features; no other is read."""
    with open(file, "rb") as raw:
        digest = hashlib.file_digest(raw, "sha256").hexdigest()
    with open_npz(file, min(max_bytes, max(_SLACK, MAX_EXPANSION * os.path.getsize(file)))) as (arrays, shapes):
        matrix = next((name for name in _FEATURES if len(shapes.get(name, ())) == 2), None)
        if named.columns is None and matrix is not None:
            named = Named(named.label, (matrix,), named.group)
        label, features = named.chosen(list(shapes), file)
        A = _side_by_side(arrays, features, shapes, file, max_bytes)
        b = _real(arrays[label], label, file)
        group = _real(arrays[named.group], named.group, file) if named.group else None
    for name, v in ((label, b), (named.group, group)):
        if v is not None and v.shape != (len(A),):
            raise InputError(f"{file}: the array {name!r} has shape {v.shape}; it needs one number for {len(A)} rows.")
    return A, b, group, digest


def _side_by_side(arrays: Any, names: Sequence[str], shapes: dict[str, Any], file: str, max_bytes: int) -> Array:
    """Columns and matrices as one matrix."""
    rows = next(iter(shapes[names[0]]), 0)
    widths = [shapes[name][1] if len(shapes[name]) == 2 else 1 for name in names]
    if 8 * rows * sum(widths) > max_bytes:
        raise InputError(f"{file} holds {rows:,} rows, more than {max_bytes} bytes of numbers; split it.")
    parts = [_real(arrays[name], name, file) for name in names]
    for name, part in zip(names, parts, strict=True):
        if len(part) != rows:
            raise InputError(f"{file}: the array {name!r} has {len(part)} rows, and {names[0]!r} has {rows}.")
    return np.column_stack(parts)


def _real(values: Any, name: str, file: str) -> Array:
    if values.dtype.kind not in "fiub" or values.ndim not in (1, 2) or not values.size:
        raise InputError(f"{file}: {name!r} is {values.ndim}-D {values.dtype}; give numbers in one or two dimensions.")
    if not np.isfinite(values).all():
        raise InputError(f"{file}: {name!r} holds nan or infinity; fill or leave out such rows.")
    return np.asarray(values, dtype=np.float64)


# -- Parquet -----------------------------------------------------------------------------------------------------------
def _parquet(file: str, named: Named, max_bytes: int) -> tuple[Any, Array, Array | None, str]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet files need pyarrow; install it with pip install pyarrow.") from None
    with open(file, "rb") as raw:
        digest = hashlib.file_digest(raw, "sha256").hexdigest()
    try:
        about = pyarrow.parquet.ParquetFile(file)
        label, features = named.chosen(about.schema_arrow.names, file)
        wanted = [*features, label, *([named.group] if named.group else [])]
        rows = about.metadata.num_rows
        if rows > MAX_ROWS or 8 * rows * len(wanted) > max_bytes:
            raise InputError(f"{file} has {rows:,} rows, more than {max_bytes} bytes of numbers; split it.")
        if not rows:
            raise InputError(f"{file} holds no rows.")
        table = pyarrow.parquet.read_table(file, columns=wanted)
        columns = [_real(_full(table, name, file), name, file) for name in wanted]
    except pyarrow.ArrowException as error:
        raise InputError(f"{file} is not a Parquet file ({str(error).splitlines()[0]}).") from None
    d = len(features)
    return np.column_stack(columns[:d]), columns[d], columns[d + 1] if named.group else None, digest


def _full(table: Any, name: str, file: str) -> Any:
    column = table.column(name)
    if column.null_count:
        raise InputError(f"{file}: {name!r} has {column.null_count} empty cells; fill or leave out such rows.")
    return column.to_numpy()
