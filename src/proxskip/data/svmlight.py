"""Reads svmlight files. A malformed file is refused with its line and column, and no file can exhaust the memory.

The text is read in blocks of whole lines. One regular expression checks a block, and numpy reads its numbers. A block
that does not pass is searched token by token for its first error.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy

from proxskip.types import Array, Indices, InputError

MAX_FEATURES = 10_000_000
MAX_BYTES = 8 * 2**30
MAX_ROWS = 100_000_000
MAX_EXPANSION = 200
"""Bytes of text per compressed byte: data compress to a tenth, seldom to a fiftieth; more is made to exhaust memory."""

_BLOCK = 2**20
_LONGEST_LINE = 2**25
SLACK = 2**24
"""Text that any compressed file may hold."""
_INDEX_END = 2**31 - 1

# Every quantifier is possessive (+): the expression never goes back, so that a long block takes no memory.
# A number has at most 1,000 digits before its point and as many after it: longer ones take float() long.
_NUMBER = rb"[+-]?+(?:[0-9]{1,1000}+(?:\.[0-9]{0,1000}+)?+|\.[0-9]{1,1000}+)(?:[eE][+-]?+[0-9]{1,1000}+)?+"
_ROW = rb"[ \t]*+(?:%b(?:[ \t]++[0-9]{1,15}+:%b)*+[ \t]*+)?+" % (_NUMBER, _NUMBER)
_ROWS = re.compile(rb"(?:%b\n)*+%b" % (_ROW, _ROW))
_COMMENT = re.compile(rb"#[^\n]*")
_PAIR = rb"([0-9]{1,15}+):%b" % _NUMBER
_TOKEN = re.compile(rb"[^ \t]+")


class DataError(InputError):
    """A data file cannot be used: ``file:line:column: reason``, counted from 1, with the column in bytes."""

    def __init__(self, file: str, line: int, column: int, reason: str) -> None:
        super().__init__(f"{file}:{line}:{column}: {reason}")
        self.file, self.line, self.column, self.reason = file, line, column, reason

    def __reduce__(self) -> tuple[type[DataError], tuple[str, int, int, str]]:
        return DataError, (self.file, self.line, self.column, self.reason)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows ``A`` (CSR or dense, float64) with labels ``b`` as in the file; unpacks to ``A, b``.

    Args:
        A: the rows.
        b: the labels.
        name: of the data set or the file.
        group: an integer per row by which to split the data among clients, if there is one.
        sha256: of the decompressed file; None for data that are not from a file.
    """

    A: Any
    b: Array
    group: Indices | None = None
    name: str = ""
    sha256: str | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.A, self.b))


class Unreadable(Exception):
    """The bytes cannot be read at all, so there is no column to point at."""


def read_svmlight(
    path: str | os.PathLike[str],
    *,
    n_features: int | None = None,
    max_features: int = MAX_FEATURES,
    max_bytes: int = MAX_BYTES,
) -> Dataset:
    """Read an svmlight file (plain, gzip or bzip2); labels are kept as they are, explicit zeros are dropped.

    Args:
        n_features: the number of columns; if not given, the largest index in the file, at most ``max_features``.
        max_bytes: refuse a file with more text than this after decompression.

    Reading takes at most three times the memory of the data. A file of more than MAX_ROWS rows, or whose text is more
    than MAX_EXPANSION times its compressed size, is refused.
    """
    limit = max_features if n_features is None else n_features
    if not 1 <= limit <= _INDEX_END:
        raise InputError(f"the number of features must lie between 1 and {_INDEX_END}, not {limit}.")
    file, line, digest = os.fspath(path), 1, hashlib.sha256()
    blocks: list[Any] = []
    labels: list[Array] = []
    try:
        for text in whole_lines(file, max_bytes, digest):
            rows = _parse(text, limit)
            if rows is None:
                raise _first_error(file, text, line, limit, "max_features" if n_features is None else "n_features")
            blocks.append(rows[0])
            labels.append(rows[1])
            line += text.count(b"\n")
            if sum(map(len, labels)) > MAX_ROWS:
                raise Unreadable(f"the file holds more than {MAX_ROWS:,} rows; split it.")
    except Unreadable as error:
        raise DataError(file, line, 1, str(error)) from None
    b = np.concatenate(labels)
    if not b.size:
        raise DataError(file, line, 1, "the file holds no rows.")
    d = n_features or max(int(A.indices.max(initial=-1)) for A in blocks) + 1
    if d == 0:
        raise DataError(file, line, 1, "no row has a feature; give n_features if that is meant.")
    A = scipy.sparse.vstack(blocks, format="csr")
    A = scipy.sparse.csr_matrix((A.data, A.indices, A.indptr), shape=(len(b), d))
    A.eliminate_zeros()  # explicit zeros in the file would count as nonzeros
    name = Path(file).name.removesuffix(".gz").removesuffix(".bz2")
    return Dataset(A, b, None, name, digest.hexdigest())


def whole_lines(file: str, max_bytes: int, digest: Any) -> Iterator[bytes]:
    """The decompressed text in blocks of whole lines."""
    pending: list[bytes] = []
    for block in decompressed(file, max_bytes):
        digest.update(block)
        cut = block.rfind(b"\n") + 1  # what follows the last line end waits for the next block
        if cut:
            yield b"".join([*pending, block[:cut]])
            pending = []
        pending.append(block[cut:])
        if sum(map(len, pending)) > _LONGEST_LINE:
            raise Unreadable(f"the line is longer than {_LONGEST_LINE} bytes, which no svmlight row should be.")
    yield b"".join(pending)


def decompressed(file: str, max_bytes: int) -> Iterator[bytes]:
    """The bytes of a plain, gzip or bzip2 file, block by block."""
    if not os.path.isfile(file):
        raise InputError(f"there is no file {file}; check the path.")
    if not os.access(file, os.R_OK):
        raise InputError(f"{file} may not be read by this user; change its permissions.")
    size = 0
    with open(file, "rb") as raw, _unpacked(raw) as stream:
        while block := _next_block(stream):
            size += len(block)
            if size > max(SLACK, MAX_EXPANSION * os.fstat(raw.fileno()).st_size):
                raise Unreadable(f"the text is more than {MAX_EXPANSION} times the size of its file; unpack it first.")
            if size > max_bytes:
                raise Unreadable(f"the file holds more than max_bytes = {max_bytes} bytes of text.")
            yield block


def _unpacked(raw: IO[bytes]) -> IO[bytes] | gzip.GzipFile | bz2.BZ2File:
    """The decompressed stream; the magic bytes decide, not the name of the file."""
    magic = raw.read(3)
    raw.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=raw, mode="rb")
    return bz2.BZ2File(raw, "rb") if magic == b"BZh" else raw


def _next_block(stream: IO[bytes] | gzip.GzipFile | bz2.BZ2File) -> bytes:
    try:
        return stream.read(_BLOCK)
    except EOFError:
        raise Unreadable("the compressed data end early; fetch or copy the file again.") from None
    except (OSError, zlib.error) as error:
        raise Unreadable(f"the data after here cannot be read ({error}); copy the file again.") from None


def _parse(text: bytes, limit: int) -> tuple[Any, Array] | None:
    """The rows of a block as a CSR matrix, and their labels; None if anything in it is wrong."""
    text = text.replace(b"\r\n", b"\n").removesuffix(b"\r") if b"\r" in text else text
    text = _COMMENT.sub(b"", text) if b"#" in text else text
    if not _ROWS.fullmatch(text):
        return None
    lengths = np.array([line.count(b":") for line in text.split(b"\n") if line.strip()], np.int64)
    # what is left are labels, indices and values in turn, which numpy rounds as float() does
    numbers = np.fromstring(text.replace(b":", b" "), sep=" ") if lengths.size else np.empty(0)
    if not np.isfinite(numbers).all():
        return None
    ends = np.cumsum(lengths)
    label = 2 * (ends - lengths) + np.arange(lengths.size)
    pairs = np.delete(numbers, label)
    index = pairs[::2]
    step = np.diff(index, prepend=0.0)
    step[(ends - lengths)[lengths > 0]] = 1.0  # an index follows the one before it in the same row only
    if index.size and (index.min() < 1 or index.max() > limit or step.min() <= 0):
        return None
    indptr = np.concatenate([[0], ends])
    A = scipy.sparse.csr_matrix((pairs[1::2].copy(), index.astype(np.int32) - 1, indptr), shape=(lengths.size, limit))
    return A, numbers[label]


def _first_error(file: str, text: bytes, first_line: int, limit: int, limit_name: str) -> DataError:
    """What is wrong with a block that does not pass."""
    for number, line in enumerate(text.split(b"\n"), first_line):
        previous = -1  # before the label
        for token in _TOKEN.finditer(line.removesuffix(b"\r").partition(b"#")[0]):
            pair = re.fullmatch(_NUMBER if previous < 0 else _PAIR, token[0])
            index = int(pair[1]) if pair and previous >= 0 else 0
            shown = repr(token[0][:24].decode("ascii", "backslashreplace") + ("..." if len(token[0]) > 24 else ""))
            if pair is None and previous < 0:
                fault = f"the label {shown} is not a finite decimal number."
            elif pair is None:
                fault = f"{shown} is not index:value with a whole index and a finite decimal value; was the line cut?"
            elif previous >= 0 and not previous < index <= limit:
                fault = f"the index {index} must be larger than {previous} and at most {limit_name} = {limit}."
            elif isinf(float(token[0].rpartition(b":")[2])):
                fault = f"the number in {shown} is too large for a 64-bit float."
            else:
                previous = index
                continue
            return DataError(file, number, token.start() + 1, fault)
    raise AssertionError("a block without an error must pass")
