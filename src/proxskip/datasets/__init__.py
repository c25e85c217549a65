"""Data sets by name: what each must contain, where it is looked for on this machine, and how it is fetched.

A known data set is always verified. Its number of features comes from the table below, and its contents are compared
with the checksum there or, if none is known, with the number of rows and of labels.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from proxskip.datasets.files import Dataset, read_file, read_svmlight
from proxskip.datasets.stored import open_clients, write_clients
from proxskip.types import InputError, printable

__all__ = ["AvailableDataset", "Dataset", "available", "fetch", "load", "open_clients", "write_clients"]
BASE_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
"""Where LIBSVM says what each of its data sets is, and where it is from."""
UCI_PAGES = {
    "digits": "https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    "breast-cancer": "https://archive.ics.uci.edu/dataset/17/breast+cancer+wisconsin+diagnostic",
}
"""The sources of the data sets that come with scikit-learn."""
TIMEOUT, RETRIES = 30.0, 4
"""Seconds without an answer after which an attempt to download is given up, and how often it is repeated."""

Folder = str | os.PathLike[str]
Progress = Callable[[int, int | None], None]
"""Called with the bytes received and, if the server tells it, the total."""
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
    """

    file: str
    rows: int
    features: int
    labels: dict[float, int] | None = None
    sha256: str | None = None
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
        3_478_238,
    ),
    "mushrooms": Known(
        "mushrooms", 8_124, 112, {1: 3_916, 2: 4_208},
        "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538",
        879_712,
    ),
    "a1a": Known(
        "a1a", 1_605, 123, {-1: 1_210, 1: 395},
        "eb54c45f1bdb51286f803dd092eb8202b44637a858fc6c4e533a2d64a0d94b4e",
        114_818,
    ),
    "heart_scale": Known(
        "heart_scale", 270, 13, {-1: 150, 1: 120},
        "5defa0a4c4c5bdaf3f55ae3828310252e8565c13ee37ce279e0b86d82e7f4ce9",
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
# fmt: on


def load(
    name_or_path: Folder,
    *,
    data_dir: Folder | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    group: str | None = None,
) -> Dataset:
    """The data set of that name, or the file at that path: CSV or NPZ by its ending, svmlight with any other.

    >>> A, b = load("digits")
    >>> A.shape
    (1797, 64)

    Args:
        name_or_path: such as "digits", or a file, which may be compressed with gzip or bzip2.
        data_dir: looked in first, then ``$PROXSKIP_DATA``, then the cache.
        label, columns, group: of a table, the column of labels (by default label, target, y, b or class), those of the
            features (all others) and that of the groups (none).
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise InputError(f'load needs a name such as "digits", or the path of a file, not {name_or_path!r}.')
    name = os.fspath(name_or_path)
    if name in EMBEDDED or name in KNOWN:
        if label or columns or group:
            raise InputError(f"label, columns and group belong to a CSV or NPZ file, which {name} is not.")
        return EMBEDDED[name].read() if name in EMBEDDED else _load_known(name, data_dir)
    if not os.path.isfile(name):
        raise _unknown(name)
    return read_file(name, label, columns, group)


def available(*, data_dir: Folder | None = None) -> list[AvailableDataset]:
    """Every data set with a name, and whether it is on this machine (or in ``data_dir``); no file is read."""
    rows = []
    for name, embedded in EMBEDDED.items():
        N, d = embedded.rows, embedded.features
        rows.append(AvailableDataset(name, N, d, "embedded", True, size=8 * N * d, page=UCI_PAGES[name]))
    for name, known in KNOWN.items():
        where: Where = "not downloaded" if _find(name, _places(data_dir)) is None else "cached"
        facts = (known.labels, known.size, BASE_URL + known.file, PAGE)
        rows.append(AvailableDataset(name, known.rows, known.features, where, known.sha256 is not None, *facts))
    return rows


def fetch(name: str, *, data_dir: Folder | None = None, progress: Progress | None = None) -> Path:
    """The path of a data set, downloaded into ``data_dir`` or the cache unless it is on this machine.

    Files may be plain or compressed, such as w8a, w8a.gz or w8a.bz2. A file that is not that data set is refused, and
    never replaced.

    Args:
        name: of the data set.
        data_dir: the folder for it; nothing is looked for elsewhere.
        progress: is called with the bytes received and the total.
    """
    if name in EMBEDDED:
        raise InputError(f"{name} comes with scikit-learn; there is nothing to fetch.")
    if name not in KNOWN:
        raise _unknown(name)
    folders = _places(None) if data_dir is None else [Path(data_dir)]
    path = _find(name, folders)
    if path is None:
        return _download(name, folders[-1], progress)
    _verified(name, path)
    return path


def _download(name: str, folder: Path, progress: Progress | None) -> Path:
    """Download the file of a data set; pooch gives it its name once its checksum is right, where one is known."""
    import pooch  # here, since both are slow to import
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    file, sha256 = KNOWN[name].file, KNOWN[name].sha256
    url = BASE_URL + file
    shelf = pooch.create(folder, BASE_URL, registry={file: sha256}, retry_if_failed=RETRIES)
    by_hand = f"fetch it by hand, plain or as .gz or .bz2, into {folder} or a folder named by PROXSKIP_DATA."

    def attempt(url: str, to: str, shelf: pooch.Pooch) -> None:
        pooch.HTTPDownloader(progressbar=_Bar(progress), timeout=TIMEOUT)(url, to, shelf)

    try:
        path = Path(shelf.fetch(file, downloader=attempt))
    except requests.RequestException as error:
        reason = printable(str(error)).split(": ")[-1]
        raise InputError(f"{name} could not be fetched from {url} ({reason}); try again, or {by_hand}") from None
    except ValueError:
        raise InputError(
            f"{url} is not {name}: its checksum is another one, so it was thrown away; {by_hand}"
        ) from None
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error}); give another data_dir.") from None
    path.chmod(0o644)  # temporary files are private, data sets are not
    try:
        _verified(name, path)
    except InputError:
        path.unlink()
        raise
    return path


class _Bar:
    """What pooch takes for a progress bar of one attempt."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.total = 0
        self.received = 0

    def update(self, size: int) -> None:
        self.received += size
        if self.progress is not None:
            self.progress(self.received, self.total or None)

    def reset(self) -> None:
        self.received = 0

    def close(self) -> None:
        """Nothing to do."""


# -- on this machine ---------------------------------------------------------------------------------------------------
def _unknown(name: str) -> InputError:
    if Path(name).name != name or Path(name).suffix:
        return InputError(f"there is no file {name}; check the path.")
    names = [*EMBEDDED, *KNOWN]
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.78)
    guess = f" (did you mean {close[0]!r}?)" if close else ""
    known = ", ".join(names)
    return InputError(f"there is no data set {name!r}{guess}; choose one of {known}, or give the path of a file.")


def _load_known(name: str, data_dir: Folder | None) -> Dataset:
    path = _find(name, _places(data_dir))
    if path is None:
        raise InputError(
            f"{name} is not on this machine; run `proxskip data fetch {name}`, "
            f"or set PROXSKIP_DATA to a folder that holds the file {_stem(name)}, plain or as .gz or .bz2."
        )
    return _verified(name, path)


def _verified(name: str, path: Path) -> Dataset:
    """The data in the file, if they are that data set."""
    repair = f"remove it and run `proxskip data fetch {name}`."
    try:
        data = read_svmlight(path, n_features=KNOWN[name].features)
    except InputError as error:
        raise InputError(f"{str(error).rstrip('.')}; it is not {name}: {repair}") from None
    fault = _fault(KNOWN[name], data)
    if fault is not None:
        raise InputError(f"{path} is not {name}: {fault}; {repair}")
    return replace(data, name=name)


def _places(data_dir: Folder | None) -> list[Path]:
    """The folders in which data sets are looked for."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise InputError(f"data_dir = {os.fspath(data_dir)} is not a folder.")
    folders = (data_dir, os.environ.get("PROXSKIP_DATA"), _cache())
    return [Path(folder) for folder in folders if folder]


def _find(name: str, folders: Sequence[Path]) -> Path | None:
    """The first file of the data set in these folders, plain or compressed."""
    # LIBSVM's own name first, such as covtype.libsvm.binary.scale
    files = [stem + suffix for stem in (_stem(name), name) for suffix in ("", ".gz", ".bz2")]
    for folder in folders:
        for file in files:
            if (folder / file).is_file():
                return folder / file
    return None


def _stem(name: str) -> str:
    return KNOWN[name].file.removesuffix(".bz2")


def _cache() -> Path:
    folder = os.environ.get("PROXSKIP_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "proxskip"


def _fault(known: Known, data: Dataset) -> str | None:
    """How the data differ from what is known about them; None if they do not."""
    if known.sha256 is not None:
        return None if data.sha256 == known.sha256 else "its checksum is another one"
    rows, labels = data.b.size, len(np.unique(data.b))
    if (rows, labels) == (known.rows, 2):
        return None
    return f"it has {rows:,} rows and {labels} labels instead of {known.rows:,} rows and 2 labels"


# -- with scikit-learn -------------------------------------------------------------------------------------------------
def _digits() -> Dataset:
    """Even against odd digits; the digit itself is the group."""
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    digit = np.asarray(digit, np.int64)
    even = np.where(digit % 2 == 0, 1.0, -1.0)
    names = tuple(map(str, range(10)))
    return Dataset(np.asarray(pixels, np.float64) / 16, even, digit, "digits", group_names=names)


def _breast_cancer() -> Dataset:
    """Standardised features; benign is +1."""
    from sklearn.datasets import load_breast_cancer

    A, benign = load_breast_cancer(return_X_y=True)
    return Dataset((A - A.mean(axis=0)) / A.std(axis=0), np.where(benign == 1, 1.0, -1.0), None, "breast-cancer")


class Embedded(NamedTuple):
    """A data set that comes with scikit-learn."""

    rows: int
    features: int
    read: Callable[[], Dataset]


EMBEDDED = {"digits": Embedded(1_797, 64, _digits), "breast-cancer": Embedded(569, 30, _breast_cancer)}
