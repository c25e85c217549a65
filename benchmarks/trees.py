"""Two states of the package side by side: an earlier revision exported into a folder, and the tree that this file is in."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LAST_RELEASE = "c75dcb44b911957965e6f096a3b97381f33f3c0b"
"""The last commit of release 0.2: what later states are held against unless another one is named."""
ROOT = Path(__file__).resolve().parents[1]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def exported(revision: str, keep: Path | None = None) -> Iterator[Path]:
    """The folder ``src`` of a revision of this repository, or of a folder that holds another state of it.

    Args:
        keep: a folder that holds the tree, and its compiled kernels, for the next time; by default it is temporary.
    """
    if (Path(revision) / "src").is_dir():
        yield Path(revision).resolve() / "src"
        return
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"{revision} is no commit of this repository.")
    commit = found.stdout.strip()
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory(prefix="proxskip-") as temporary:
        folder = Path(temporary) if keep is None else keep.resolve() / commit
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield folder / "src"


def python(source: Path, script: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment that run a script of this folder on the package in ``source``, BLAS on one thread."""
    environment = os.environ | dict.fromkeys(THREADS, "1") | {"PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
    return [sys.executable, str(ROOT / "benchmarks" / script), *arguments], environment


def insist_on(source: Path) -> None:
    """Refuse to go on with a package from anywhere else than ``source``."""
    import proxskip

    here = Path(proxskip.__file__).resolve()
    if not here.is_relative_to(source.resolve()):
        raise SystemExit(f"proxskip was imported from {here.parent}, not from {source}.")
