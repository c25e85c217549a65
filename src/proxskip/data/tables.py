"""Reads tables: CSV and NPZ files whose columns have names. Nothing in a file can exhaust the memory.

One column holds the labels, another may hold the group of each row, and the others (or those that are named) are the
features. Features must be numbers; the first cell that is not is named with its place. Labels and groups may be text.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from proxskip.data import svmlight
from proxskip.data.svmlight import MAX_BYTES, MAX_EXPANSION, MAX_FEATURES, MAX_ROWS, SLACK, DataError, Dataset
from proxskip.types import Array, InputError

Columns: TypeAlias = tuple[Array, Array, Array | None]
"""Features, labels and groups."""
SUFFIXES = re.compile(r"\.(csv|npz)(?:\.(?:gz|bz2))?$", re.IGNORECASE)
LABELS = ("label", "target", "y", "b", "class")
"""Names of a column or an array of labels, where none is given."""
_FEATURES = ("X", "A", "data", "features")
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-", "inf", "-inf", "+inf", "infinity", "-infinity"})
"""Cells that stand for no number, in lower case."""
MAX_TEXTS = 100_000
"""Different texts in a column of labels or groups."""
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

    def chosen(self, names: Sequence[str], file: str) -> tuple[str, list[str]]:
        """The column of labels and those of the features, among these."""
        known = set(names)
        if len(known) < len(names):
            twice, _ = Counter(names).most_common(1)[0]
            raise InputError(f"{file} has two columns with the name {twice!r}; rename one of them.")
        label = self.label or next((name for name in LABELS if name in known), None)
        if label is None:
            raise InputError(f"{file} has no column {', '.join(LABELS)}; say which has the labels with label=.")
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
    """Read a CSV (plain, gzip or bzip2) or NPZ file.

    Reading takes at most three times the memory of the data.

    Args:
        named: the columns of the labels, of the features and of the groups.
        max_bytes: refuse a file with more text, or more numbers, than this.
    """
    file = os.fspath(path)
    try:
        if file.lower().endswith((".csv", ".csv.gz", ".csv.bz2")):
            digest = hashlib.sha256()  # of the text, however it is compressed
            A, b, group = _csv(file, named, max_bytes, digest)
        else:
            with open(file, "rb") as raw:
                digest = hashlib.file_digest(raw, "sha256")
            A, b, group = _npz(file, named, max_bytes)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror or error}).") from None
    codes = None if group is None else np.unique(group, return_inverse=True)[1].astype(np.int64)
    return Dataset(A, b, codes, SUFFIXES.sub("", Path(file).name), digest.hexdigest())


# -- CSV ---------------------------------------------------------------------------------------------------------------
def _csv(file: str, named: Named, max_bytes: int, digest: Any) -> Columns:
    line = 1
    try:
        text = enumerate(svmlight.whole_lines(file, max_bytes, digest))
        blocks = (block.decode("utf-8" if k else "utf-8-sig") for k, block in text)
        rows = csv.reader(chain.from_iterable(io.StringIO(block, newline="") for block in blocks), strict=True)
        header = [name.strip() for name in next(rows, [])]
        if not header:
            raise DataError(file, 1, 1, "the file is empty; its first line names the columns.")
        label, features = named.chosen(header, file)
        place = {name: k for k, name in enumerate(header)}
        wanted = [place[name] for name in (*features, label, *([named.group] if named.group else []))]
        numbers, count, texts = array("d"), 0, {}  # type: array[float], int, dict[int, dict[str, int]]
        for row in rows:
            line = rows.line_num
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(file, line, 1, f"{len(row)} cells under {len(header)} columns.")
            if not count:  # the first row says whether labels and groups are text
                texts = {k: {} for k in wanted[len(features) :] if row[k].strip() and not _is_number(row[k])}
            numbers.extend(_numbers(row, wanted, header, file, line, texts, len(features)))
            count += 1
            if count > MAX_ROWS or 8 * len(numbers) > max_bytes:
                raise DataError(file, line, 1, f"more than {MAX_ROWS:,} rows or {max_bytes} bytes; split the file.")
    except svmlight.Unreadable as error:
        raise DataError(file, line, 1, str(error)) from None
    except UnicodeDecodeError as error:
        raise DataError(file, line, 1, f"this is not text in UTF-8 ({error.reason}).") from None
    except csv.Error as error:
        raise DataError(file, line, 1, f"this is not CSV ({error}).") from None
    if not count:
        raise DataError(file, line, 1, "the file holds no rows.")
    table = np.frombuffer(numbers, dtype=np.float64).reshape(count, len(wanted))
    d = len(features)
    columns = [
        np.array(list(texts[k]))[table[:, at].astype(np.intp)] if k in texts else table[:, at].copy()
        for at, k in enumerate(wanted[d:], start=d)
    ]
    return table[:, :d].copy(), columns[0], columns[1] if named.group else None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(
    row: Sequence[str], wanted: Sequence[int], header: Sequence[str], file: str, line: int,
    texts: dict[int, dict[str, int]], d: int,
) -> Iterator[float]:  # fmt: skip
    """The cells of a row, features first; of a column of text the place of each text among those that came before."""
    for at, k in enumerate(wanted):
        cell = f"{row[k][:24]!r} in the column {header[k]!r}"
        if k in texts:
            text = row[k].strip()
            if not text or _is_number(text):
                raise DataError(file, line, k + 1, f"{cell} is not a text, as those above it are; repair such rows.")
            if len(texts[k]) > MAX_TEXTS:
                raise DataError(file, line, k + 1, f"{header[k]!r} has more than {MAX_TEXTS:,} different texts.")
            yield texts[k].setdefault(text, len(texts[k]))
            continue
        value = float(row[k]) if _is_number(row[k]) else math.nan
        if not math.isfinite(value):
            if at < d and row[k].strip().lower() not in MISSING:
                raise DataError(
                    file, line, k + 1, f"{cell} is not a number; features must be numbers, choose them with columns=."
                )
            raise DataError(file, line, k + 1, f"{cell} is not a finite number; fill or leave out such rows.")
        yield value


# -- NPZ ---------------------------------------------------------------------------------------------------------------
@contextmanager
def open_npz(file: str | os.PathLike[str], most: int) -> Iterator[Any]:
    """The arrays of an NPZ file that holds at most this many bytes, each as long as its shape says."""
    form: Any = np.lib.format
    with open(file, "rb") as raw:
        try:
            with zipfile.ZipFile(raw) as archive:
                size = sum(member.file_size for member in archive.infolist())
                if size > most:
                    raise InputError(f"{file} would hold {size:,} bytes, more than {most:,}; it is refused.")
                for member in archive.infolist():
                    with archive.open(member) as data:
                        first = form.read_magic(data) == (1, 0)
                        shape, _, kind = (form.read_array_header_1_0 if first else form.read_array_header_2_0)(data)
                        if math.prod(shape) * kind.itemsize != member.file_size - data.tell():
                            raise ValueError(f"{member.filename} is not as long as its shape {shape} says")
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as arrays:
                yield arrays
        except InputError:
            raise
        except _NPZ_ERRORS as error:
            raise InputError(f"{file} is damaged, or not an NPZ file of numbers ({error}).") from None


def _npz(file: str, named: Named, max_bytes: int) -> Columns:
    """Arrays by name: labels, and a matrix or several columns of features; the other arrays are not read."""
    with open_npz(file, min(max_bytes, max(SLACK, MAX_EXPANSION * os.path.getsize(file)))) as arrays:
        matrix = next((name for name in _FEATURES if name in arrays.files), None)
        if named.columns is None and matrix is not None:
            named = Named(named.label, (matrix,), named.group)
        label, features = named.chosen(arrays.files, file)
        parts: list[Any] = []
        for name in (*features, label, *([named.group] if named.group else [])):
            values = arrays[name]
            if 8 * values.size > max_bytes:
                raise InputError(f"{file}: {name!r} holds more than {max_bytes} bytes of numbers; split the file.")
            is_feature = len(parts) < len(features)
            is_text = values.dtype.kind == "U" and not is_feature
            parts.append(values if is_text else _real(values, name, file))
            if parts[-1].shape[:1] != parts[0].shape[:1] or (not is_feature and parts[-1].ndim > 1):
                raise InputError(f"{file}: {name!r} has shape {parts[-1].shape}, not {len(parts[0])} rows.")
        d = len(features)
        return np.column_stack(parts[:d]), parts[d], parts[d + 1] if named.group else None


def _real(values: Any, name: str, file: str) -> Array:
    if values.dtype.kind == "U":
        raise InputError(f"{file}: {name!r} is not a number; features must be numbers, choose them with columns=.")
    if values.dtype.kind not in "fiub" or values.ndim not in (1, 2) or not values.size:
        raise InputError(f"{file}: {name!r} is {values.ndim}-D {values.dtype}; give numbers in one or two dimensions.")
    if not np.isfinite(values).all():
        raise InputError(f"{file}: {name!r} holds nan or infinity; fill or leave out such rows.")
    return np.asarray(values, dtype=np.float64)
