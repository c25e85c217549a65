"""Data sets by name: what each must contain, where it is looked for on this machine, and how it is fetched.

A known data set is always verified. Its number of features comes from the table below, and its contents are compared
with the checksum there or, if none is known, with the number of rows and of labels.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from proxskip.data.idx import read_idx
from proxskip.data.svmlight import DataError, Dataset, read_svmlight
from proxskip.data.tables import Named, is_table, read_table
from proxskip.keywords import check_keywords, closest
from proxskip.types import InputError

if TYPE_CHECKING:
    from proxskip.data.download import Progress

__all__ = [
    "AvailableDataset", "DataError", "Dataset", "NotDownloaded", "available", "content_digest", "fetch", "load",
    "mnist",
]  # fmt: skip
BASE_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
"""Where LIBSVM says what each of its data sets is, and where it is from."""
UCI_PAGES = {
    "digits": "https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    "breast-cancer": "https://archive.ics.uci.edu/dataset/17/breast+cancer+wisconsin+diagnostic",
}
"""The sources of the data sets that come with scikit-learn."""


class NotDownloaded(InputError):
    """A known data set is not on this machine."""


Folder = str | os.PathLike[str]
Bytes = npt.NDArray[np.uint8]
Where = Literal["embedded", "cached", "not downloaded"]


@dataclass(frozen=True)
class Known:
    """A LIBSVM data set: its file at ``BASE_URL`` and what it must contain; None if that was not verified.

    Args:
        file: its name at the source.
        rows, features, nonzeros: their numbers.
        labels: how often each label occurs.
        size: bytes of the decompressed file.
        sha256: of the decompressed file.
        content: sha256 of the parsed rows, which does not depend on line endings and trailing spaces.
    """

    file: str
    rows: int
    features: int
    labels: dict[float, int] | None = None
    sha256: str | None = None
    content: str | None = None
    size: int | None = None


class AvailableDataset(NamedTuple):
    """One data set of ``available()``.

    Args:
        name: for ``load``.
        rows, features: their numbers.
        where: "embedded", "cached" or "not downloaded".
        verified: whether its checksum is known.
        labels: how often each label occurs.
        size: bytes.
        url, page: where it is downloaded from, and where it is described.
    """

    name: str
    rows: int
    features: int
    where: Where
    verified: bool
    labels: dict[float, int] | None = None
    size: int | None = None
    url: str | None = None
    page: str | None = None
    """Where the source describes the data, and who may use them."""


# fmt: off
KNOWN = {
    "w8a": Known(
        "w8a", 49_749, 300, {-1: 48_270, 1: 1_479},
        "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2",
        "7486da074747debf97ff733ff1990ad406d74018e7057e52d0d878f0e54c3e15",
        3_478_238,
    ),
    "mushrooms": Known(
        "mushrooms", 8_124, 112, {1: 3_916, 2: 4_208},
        "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538",
        "cb7ac660f849a9a3338330dec0a88e16f01e479ce526befd49a8c7ac83b3b6ea",
        879_712,
    ),
    "a1a": Known(
        "a1a", 1_605, 123, {-1: 1_210, 1: 395},
        "eb54c45f1bdb51286f803dd092eb8202b44637a858fc6c4e533a2d64a0d94b4e",
        "d6a70819f72fa676b312a7d35d03e73a7a6eb14bfb4deafb1c142be2f5bc8c89",
        114_818,
    ),
    "heart_scale": Known(
        "heart_scale", 270, 13, {-1: 150, 1: 120},
        "5defa0a4c4c5bdaf3f55ae3828310252e8565c13ee37ce279e0b86d82e7f4ce9",
        "d133d0e31e61e9096298c3bafddccc9f35b6aa809e8a8ef0628adc0438f68257",
        27_670,
    ),
    "w7a": Known("w7a", 24_692, 300),
    "a9a": Known("a9a", 32_561, 123),
    "phishing": Known("phishing", 11_055, 68),
    "ijcnn1": Known("ijcnn1.bz2", 49_990, 22),
    "covtype": Known("covtype.libsvm.binary.scale.bz2", 581_012, 54),
    "rcv1": Known("rcv1_train.binary.bz2", 20_242, 47_236),
    "real-sim": Known("real-sim.bz2", 72_309, 20_958),
    "gisette": Known("gisette_scale.bz2", 6_000, 5_000),
    "news20": Known("news20.binary.bz2", 19_996, 1_355_191),
}
MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""The files of MNIST, and the sha256 of each when it is decompressed."""
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
# fmt: on


@check_keywords
def load(
    name_or_path: Folder,
    *,
    data_dir: Folder | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    group: str | None = None,
) -> Dataset:
    """The data set of that name, or the file at that path: svmlight, CSV or NPZ, by its ending.

    >>> A, b = load("digits")
    >>> A.shape
    (1797, 64)

    Args:
        name_or_path: such as "digits", or a file.
        data_dir: looked in first, then ``$PROXSKIP_DATA``, then the cache.
        label, columns, group: of a table, the column of labels (by default label, target, y, b or class), those of the
            features (all others) and that of the groups (none).
    """
    name = os.fspath(name_or_path)
    named = Named(label, None if columns is None else tuple(columns), group)
    if is_table(name) and os.path.isfile(name):
        return read_table(name, named)
    if named.label or named.columns or named.group:
        raise InputError(f"label, columns and group belong to a CSV or NPZ file, which {name} is not.")
    if name in _EMBEDDED:
        return _EMBEDDED[name][2]()
    if name in KNOWN:
        return _load_known(name, data_dir)
    if os.path.isfile(name):
        return read_svmlight(name)
    raise _unknown(name)


def mnist(
    *, data_dir: Folder | None = None, download: bool = False, progress: Progress | None = None
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """MNIST: images (60,000 x 28 x 28) and labels for training, then 10,000 for the test, as unsigned bytes.

    Args:
        data_dir: a folder with a folder ``mnist`` in it, which has the four IDX files, plain or as .gz. It is looked in
            first, then ``$PROXSKIP_DATA``, then the cache.
        download: fetch the files that are missing into the cache, or ``data_dir``.
        progress: is called with the bytes received and the total.
    """
    folders = [Path(folder) for folder in (data_dir, os.environ.get("PROXSKIP_DATA"), _cache()) if folder]
    arrays = []
    for name, sha256 in MNIST.items():
        files = [folder / "mnist" / (name + suffix) for folder in folders for suffix in ("", ".gz")]
        path = next(filter(Path.is_file, files), None)
        if path is None and download:
            path = (folders[0] if data_dir else _cache()) / "mnist" / f"{name}.gz"
            _download_idx(name, path, progress)
        if path is None:
            where = "call mnist(download=True), or set PROXSKIP_DATA to the folder that has mnist"
            raise InputError(f"mnist is not on this machine: no folder has mnist/{name} or {name}.gz; {where}.")
        arrays.append(read_idx(path, sha256))
    return arrays[0], arrays[1], arrays[2], arrays[3]


def _download_idx(name: str, target: Path, progress: Progress | None) -> None:
    from proxskip.data.download import download  # here, since requests is slow to import

    def fault(path: Path) -> str | None:
        content = gzip.decompress(path.read_bytes())
        return None if hashlib.sha256(content).hexdigest() == MNIST[name] else "its checksum is another one"

    download(MNIST_URL + target.name, target, fault, progress)


def available(*, data_dir: Folder | None = None) -> list[AvailableDataset]:
    """Every data set with a name, and whether it is on this machine (or in ``data_dir``); no file is read."""
    rows = [
        AvailableDataset(name, N, d, "embedded", True, size=8 * N * d, page=UCI_PAGES[name])
        for name, (N, d, _) in _EMBEDDED.items()
    ]
    for name, known in KNOWN.items():
        where: Where = "cached" if _find(name, data_dir) else "not downloaded"
        facts = (known.labels, known.size, BASE_URL + known.file, PAGE)
        rows.append(AvailableDataset(name, known.rows, known.features, where, known.sha256 is not None, *facts))
    return rows


def fetch(
    name: str,
    *,
    data_dir: Folder | None = None,
    base_url: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """The path of a data set, downloaded into ``data_dir`` or the cache unless a correct file is there.

    Without ``data_dir``, a correct file in the folder named by ``PROXSKIP_DATA`` is taken too. Files may be plain or
    compressed, such as w8a, w8a.gz or w8a.bz2. A download gets its name only after its contents have been verified.

    Args:
        name: of the data set.
        data_dir: the folder for it.
        base_url: the address of the folder that has the file.
        progress: is called with the bytes received and the total.
    """
    if name in _EMBEDDED:
        raise InputError(f"{name} comes with scikit-learn; there is nothing to fetch.")
    if name not in KNOWN:
        raise _unknown(name)
    folder = Path(data_dir) if data_dir is not None else _cache()
    target = folder / KNOWN[name].file
    present = _find_in(name, [folder] if data_dir is not None else [os.environ.get("PROXSKIP_DATA"), folder])
    if present is not None:
        fault = _fault(name, present)
        if not fault:
            return present
        if present != target:  # which would still be used after the download
            raise _wrong(present, name, fault)
    url = (base_url or BASE_URL).rstrip("/") + "/" + KNOWN[name].file
    from proxskip.data.download import download  # here, since requests is slow to import

    plain = not target.name.endswith(".bz2")
    download(url, target, lambda path: _fault(name, path), progress, KNOWN[name].size if plain else None)
    return target


def _unknown(name: str) -> InputError:
    if Path(name).name != name or Path(name).suffix:
        return InputError(f"there is no file {name}; check the path.")
    names = [*_EMBEDDED, *KNOWN]
    close = closest(name, names)
    guess = f" (did you mean {close[0]!r}?)" if close else ""
    known = ", ".join(names)
    return InputError(f"there is no data set {name!r}{guess}; choose one of {known}, or give the path of a file.")


def _load_known(name: str, data_dir: Folder | None) -> Dataset:
    path = _find(name, data_dir)
    if path is None:
        raise NotDownloaded(
            f"{name} is not on this machine; run `proxskip data fetch {name}`, "
            f"or set PROXSKIP_DATA to a folder that holds the file {_stem(name)}, plain or as .gz or .bz2."
        )
    data = read_svmlight(path, n_features=KNOWN[name].features)
    if fault := _difference(KNOWN[name], data):
        raise _wrong(path, name, fault)
    return replace(data, name=name)


def _wrong(path: Path, name: str, fault: str) -> InputError:
    return InputError(f"{path} is not {name}: {fault}; remove it and run `proxskip data fetch {name}`.")


def _find(name: str, data_dir: Folder | None) -> Path | None:
    """The first file of the data set in ``data_dir``, ``$PROXSKIP_DATA`` or the cache, plain or compressed."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise InputError(f"data_dir = {os.fspath(data_dir)} is not a folder.")
    return _find_in(name, [data_dir, os.environ.get("PROXSKIP_DATA"), _cache()])


def _find_in(name: str, folders: Sequence[Folder | None]) -> Path | None:
    for folder in folders:
        # LIBSVM's own name first, such as covtype.libsvm.binary.scale
        for file in (_stem(name), name) if folder else ():
            for suffix in ("", ".gz", ".bz2"):
                path = Path(folder or "", file + suffix)
                if path.is_file():
                    return path
    return None


def _stem(name: str) -> str:
    return KNOWN[name].file.removesuffix(".bz2")


def _cache() -> Path:
    folder = os.environ.get("PROXSKIP_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "proxskip"


def _fault(name: str, path: Path) -> str | None:
    """How the file differs from that data set; None if it does not."""
    try:
        return _difference(KNOWN[name], read_svmlight(path, n_features=KNOWN[name].features))
    except DataError as error:
        return f"line {error.line}, column {error.column}: {error.reason.rstrip('.')}"


def _difference(known: Known, data: Dataset) -> str | None:
    """How the data differ from what is known about them; None if they do not."""
    if known.sha256 is not None and data.sha256 == known.sha256:
        return None
    # Another checksum may be due to line endings alone, so the contents decide.
    if known.content is not None:
        return None if content_digest(data) == known.content else "it has other rows, labels or values"
    rows, labels = data.b.size, len(np.unique(data.b))
    right = f"{known.rows:,} rows and 2 labels"
    return None if (rows, labels) == (known.rows, 2) else f"it has {rows:,} rows and {labels} labels instead of {right}"


def content_digest(data: Dataset) -> str:
    """The sha256 of the rows and labels of ``data``, which does not depend on how the text was formatted."""
    digest = hashlib.sha256()
    for array, kind in ((data.A.indptr, "<i8"), (data.A.indices, "<i8"), (data.A.data, "<f8"), (data.b, "<f8")):
        # one byte order and width on every machine
        digest.update(np.ascontiguousarray(array, kind).tobytes())
    return digest.hexdigest()


def _digits() -> Dataset:
    """Even against odd digits; the digit itself is the group."""
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    digit = np.asarray(digit, np.int64)
    return Dataset(np.asarray(pixels, np.float64) / 16, np.where(digit % 2 == 0, 1.0, -1.0), digit, "digits")


def _breast_cancer() -> Dataset:
    """Standardised features; benign is +1."""
    from sklearn.datasets import load_breast_cancer

    A, benign = load_breast_cancer(return_X_y=True)
    return Dataset((A - A.mean(axis=0)) / A.std(axis=0), np.where(benign == 1, 1.0, -1.0), None, "breast-cancer")


_EMBEDDED: dict[str, tuple[int, int, Callable[[], Dataset]]] = {
    "digits": (1_797, 64, _digits),
    "breast-cancer": (569, 30, _breast_cancer),
}
