"""IDX files, the format of MNIST: arrays of unsigned bytes behind a short header."""

from __future__ import annotations

import hashlib
import math
import os
import struct

import numpy as np
import numpy.typing as npt

from proxskip.data.svmlight import Unreadable, decompressed
from proxskip.types import InputError

MAX_BYTES = 1 << 30


def read_idx(path: str | os.PathLike[str], sha256: str | None = None) -> npt.NDArray[np.uint8]:
    """The array of an IDX file of unsigned bytes, plain or as .gz.

    Args:
        sha256: of the decompressed file, where it is known.
    """
    try:
        content = b"".join(decompressed(os.fspath(path), MAX_BYTES))
    except Unreadable as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    # two zeros, 8 for unsigned bytes, the number of axes, and the length of each as a big-endian word
    axes = content[3] if len(content) > 3 else 0
    first = 4 + 4 * axes
    if content[:3] != b"\0\0\x08" or not axes or len(content) < first:
        raise InputError(f"{path} is no IDX file of unsigned bytes.")
    shape = struct.unpack_from(f">{axes}I", content, 4)
    if math.prod(shape) != len(content) - first:
        expected = " x ".join(map(str, shape))
        raise InputError(f"{path} is damaged: its header says {expected} bytes, and {len(content) - first:,} follow.")
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(f"{path} has another checksum than the published file; remove it and fetch it again.")
    return np.frombuffer(content, np.uint8, offset=first).reshape(shape).copy()
