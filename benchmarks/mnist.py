"""MNIST from its IDX files: arrays of unsigned bytes behind a short header. They are downloaded once, and verified."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from proxskip import InputError

Bytes = npt.NDArray[np.uint8]
URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""The sha256 of each file when it is decompressed."""


def mnist() -> list[Bytes]:
    """Images (60,000 x 28 x 28) and labels for training, then 10,000 for the test.

    The files, plain or as .gz, are looked for in the folder mnist in $PROXSKIP_DATA, then in pooch's cache.
    """
    return [read_idx(_file(name), sha256) for name, sha256 in FILES.items()]


def _file(name: str) -> Path:
    for suffix in ("", ".gz"):
        path = Path(os.environ.get("PROXSKIP_DATA", "."), "mnist", name + suffix)
        if path.is_file():
            return path
    import pooch

    return Path(pooch.retrieve(URL + name + ".gz", known_hash=None, fname=name + ".gz"))


def read_idx(path: Path, sha256: str) -> Bytes:
    """The array of an IDX file, plain or as .gz; refused unless its decompressed content has this checksum."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read ({error}); remove it, and it is downloaded again.") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(f"{path} has another checksum than the published file; remove it to download it again.")
    # two zeros, 8 for unsigned bytes, the number of axes, and the length of each as a big-endian word
    axes = content[3]
    shape = struct.unpack_from(f">{axes}I", content, 4)
    return np.frombuffer(content, np.uint8, count=math.prod(shape), offset=4 + 4 * axes).reshape(shape).copy()
