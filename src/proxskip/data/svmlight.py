"""Reads svmlight files. A malformed file is refused with its line and column, and no file can exhaust the memory.

The text is read in blocks of whole lines. One regular expression checks a block, and numpy reads its numbers. A block
with anything unusual goes to the line-by-line parser, which returns the same numbers or says what is wrong and where.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import os
import re
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.types import Array, Indices, InputError

MAX_FEATURES = 10_000_000
MAX_BYTES = 8 * 2**30
MAX_ROWS = 100_000_000
MAX_EXPANSION = 200
"""Bytes of text per compressed byte: data compress to a tenth, seldom to a fiftieth; more is made to exhaust memory."""

_BLOCK = 2**20
_LONGEST_LINE = 2**25
_SLACK = 2**24
"""Text that any compressed file may hold."""
_LONGEST_NUMBER = 1000
_INDEX_END = 2**31 - 1
_DECIMAL = b"0123456789+-.eE"

# Every quantifier is possessive (+): the expression never goes back, so that a long block takes no memory.
_NUMBER = rb"[+-]?+(?:[0-9]{1,300}+(?:\.[0-9]{0,300}+)?+|\.[0-9]{1,300}+)(?:[eE][+-]?+[0-9]{1,9}+)?+"
_ROW = rb"[ \t]*+(?:%b(?:[ \t]++[0-9]{1,15}+:%b)*+[ \t]*+)?+" % (_NUMBER, _NUMBER)
_ROWS = re.compile(rb"(?:%b\n)*+%b" % (_ROW, _ROW))
_COMMENT = re.compile(rb"#[^\n]*")
_TOKEN = re.compile(rb"[^ \t]+")
_NOT_TEXT = re.compile(rb"[^\t\x20-\x7e]")


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


class _ParsedRows(NamedTuple):
    """Some rows of the file; ``columns`` are counted from 1, and values may be zero."""

    b: Array
    lengths: Indices
    columns: npt.NDArray[np.int32]
    values: Array


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
    file, line, blocks, digest = os.fspath(path), 1, [], hashlib.sha256()
    exact = _Exact(file, limit, "max_features" if n_features is None else "n_features")
    count = 0
    try:
        for text in whole_lines(file, max_bytes, digest):
            blocks.append(_parse_fast(text, limit) or exact.parse(text, line))
            line += text.count(b"\n")
            count += blocks[-1].b.size
            if count > MAX_ROWS:
                raise Unreadable(f"the file holds more than {MAX_ROWS:,} rows; split it.")
    except Unreadable as error:
        raise DataError(file, line, 1, str(error)) from None
    if sum(rows.b.size for rows in blocks) == 0:
        raise DataError(file, line, 1, "the file holds no rows.")
    d = n_features or max(int(rows.columns.max(initial=0)) for rows in blocks)
    if d == 0:
        raise DataError(file, line, 1, "no row has a feature; give n_features if that is meant.")
    name = Path(file).name.removesuffix(".gz").removesuffix(".bz2")
    return Dataset(_matrix(blocks, d), np.concatenate([r.b for r in blocks]), None, name, digest.hexdigest())


def _matrix(blocks: list[_ParsedRows], d: int) -> Any:
    """The CSR matrix of all blocks, without explicit zeros; no array here has size d, which may be huge."""
    lengths = np.concatenate([rows.lengths for rows in blocks])
    columns = np.concatenate([rows.columns for rows in blocks]) - np.int32(1)
    values = np.concatenate([rows.values for rows in blocks])
    A = scipy.sparse.csr_matrix((values, columns, np.concatenate(([0], np.cumsum(lengths)))), shape=(lengths.size, d))
    A.eliminate_zeros()  # explicit zeros in the file would count as nonzeros
    return A


def whole_lines(file: str, max_bytes: int, digest: Any) -> Iterator[bytes]:
    """The decompressed text in blocks of whole lines."""
    pending: list[bytes] = []
    for block in _decompressed(file, max_bytes):
        digest.update(block)
        cut = block.rfind(b"\n") + 1  # what follows the last line end waits for the next block
        if cut:
            yield b"".join([*pending, block[:cut]])
            pending = []
        pending.append(block[cut:])
        if sum(map(len, pending)) > _LONGEST_LINE:
            raise Unreadable(f"the line is longer than {_LONGEST_LINE} bytes, which no svmlight row should be.")
    yield b"".join(pending)


def _decompressed(file: str, max_bytes: int) -> Iterator[bytes]:
    if not os.path.isfile(file):
        raise InputError(f"{file} is not a file that exists; give the path of an svmlight file.")
    if not os.access(file, os.R_OK):
        raise InputError(f"{file} may not be read by this user; change its permissions.")
    size = 0
    with open(file, "rb") as raw, _unpacked(raw) as stream:
        while block := _next_block(stream):
            size += len(block)
            if size > max(_SLACK, MAX_EXPANSION * os.fstat(raw.fileno()).st_size):
                raise Unreadable(
                    f"the text is more than {MAX_EXPANSION} times the size of the compressed file; unpack it by hand."
                )
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


def _parse_fast(text: bytes, limit: int) -> _ParsedRows | None:
    """The rows of a block, or None if anything in it is unusual."""
    text = text.replace(b"\r\n", b"\n") if b"\r" in text else text
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
    return _ParsedRows(numbers[label], lengths, index.astype(np.int32), pairs[1::2].copy())


class _Exact:
    """The line-by-line parser: the same rows, or a DataError for the first error."""

    def __init__(self, file: str, limit: int, limit_name: str) -> None:
        self.file, self.limit, self.limit_name, self.line = file, limit, limit_name, 0

    def parse(self, text: bytes, first_line: int) -> _ParsedRows:
        """The rows of a block whose first line is the file's ``first_line``."""
        labels, lengths, indices, values = array("d"), array("q"), array("i"), array("d")
        for self.line, line in enumerate(text.split(b"\n"), first_line):
            line = line.removesuffix(b"\r").partition(b"#")[0]
            if wrong := _NOT_TEXT.search(line):
                self.refuse(wrong.start(), f"the byte 0x{wrong[0][0]:02x} has no place in svmlight text.")
            tokens = _TOKEN.finditer(line)
            if (label := next(tokens, None)) is not None:
                labels.append(self.finite(label[0], label.start(), "label"))
                lengths.append(self.row(tokens, indices, values))
        return _ParsedRows(
            np.array(labels, np.float64), np.array(lengths, np.int64), np.array(indices, np.int32),
            np.array(values, np.float64),
        )  # fmt: skip

    def row(self, tokens: Iterator[re.Match[bytes]], indices: array[int], values: array[float]) -> int:
        """Append the indices and the values of one line; how many there are."""
        previous, before = 0, len(values)
        for token in tokens:
            name, colon, text = token[0].partition(b":")
            if not colon or not text:
                self.refuse(token.start(), f"{_show(token[0])} is not index:value; was the line cut?")
            previous = self.index(name, token.start(), previous)
            indices.append(previous)
            values.append(self.finite(text, token.start() + len(name) + 1, "value"))
        return len(values) - before

    def finite(self, token: bytes, column: int, what: str) -> float:
        """The token as a finite number."""
        try:
            # float() itself would take 1_000, nan and spaces
            number = float("" if token.strip(_DECIMAL) or len(token) > _LONGEST_NUMBER else token)
        except ValueError:
            self.refuse(column, f"the {what} {_show(token)} is not a finite decimal number.")
        if isinf(number):
            self.refuse(column, f"the {what} {_show(token)} is too large for a 64-bit float.")
        return number

    def index(self, token: bytes, column: int, previous: int) -> int:
        """The token as a feature index above the previous one."""
        if token == b"qid":
            self.refuse(column, "qid marks ranking data, which are not supported; remove it.")
        if not token.isdigit():
            self.refuse(column, f"the index {_show(token)} is not a whole number.")
        # a longer one is above every limit, and int() is slow for thousands of digits
        index = int(token) if len(token) <= 15 else _INDEX_END + 1
        if index == 0:
            self.refuse(column, "the index is 0, but indices start at 1; add 1 to every index.")
        if index > self.limit:
            self.refuse(column, f"the index {_show(token)} is larger than {self.limit_name} = {self.limit}.")
        if index == previous:
            self.refuse(column, f"the index {index} stands twice in this row.")
        if index < previous:
            self.refuse(column, f"the index {index} comes after {previous}; sort each row by index.")
        return index

    def refuse(self, column: int, reason: str) -> NoReturn:
        """Raise DataError at this column of the current line."""
        raise DataError(self.file, self.line, column + 1, reason)


def _show(token: bytes) -> str:
    return repr(token[:24].decode("ascii") + ("..." if len(token) > 24 else ""))
