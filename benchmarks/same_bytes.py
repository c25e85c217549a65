"""Does this tree compute what an earlier one computed? Both run the same cases, and every byte is compared.

    python benchmarks/same_bytes.py                               against release 0.2
    python benchmarks/same_bytes.py --base REV --engines cpu      another revision, some of the engines
    python benchmarks/same_bytes.py --quick                       about every fifth case
    python benchmarks/same_bytes.py --rtol 1e-12                  numbers may differ by rounding

The cases are in ``cases.py``, ``cases_solo.py`` and ``cases_protocol.py``. They run once on the package as it was and
once as it is, each in a process of its own: every column of the trace but ``seconds``, with a record a round; x, the
server's vectors, the clients' memory, the totals and the messages of the result. Folders that the earlier tree wrote in
the middle of a run are also resumed by this one. What this tree has in addition, methods, columns or fields, is not
compared.

The exit status is 1 if anything differs, is missing, or could not be run.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

LAST_RELEASE = "c75dcb44b911957965e6f096a3b97381f33f3c0b"
"""The last commit of release 0.2: what later states are held against unless another one is named."""
ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("reference", "cpu", "minimize", "protocol", "ray", "gpu")
SHOWN = 20
"""Differences that are named one by one."""
REWORDED = (
    (rb"stopped after (.+), as asked\.", rb"reached the limit of \1."),
    (rb"stopped after (.+) without reaching", rb"reached the limit of \1 without reaching"),
    (rb"With cohorts of (.+) the squared error of what clients remember takes about", rb"Cohorts of \1 need about"),
    (rb"rounds whatever p, here (.+) to fall by", rb"rounds for any p, here \1 to reduce the squared error of h by"),
    (rb"it changes only when a client takes part", rb"the h of a client changes only when it takes part"),
)
"""Sentences of 0.2, and what they are now."""


@dataclass
class Tally:
    """What was found in the cases of one engine."""

    cases: set[str] = field(default_factory=set)
    arrays: int = 0
    numbers: int = 0
    different: list[str] = field(default_factory=list)


def load(path: Path) -> dict[str, Any]:
    """Collected arrays by ``engine/case/array``."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def compare(old: Mapping[str, Any], new: Mapping[str, Any], rtol: float = 0.0) -> dict[str, Tally]:
    """Every array that the old tree collected against that of the new one, by engine.

    Args:
        rtol: by how much numbers may differ, relative to the largest of their array, or to 1.

    Returns:
        a tally for each engine; ``different`` holds one sentence for each case that differs, about its first array.
    """
    tallies: dict[str, Tally] = {}
    named: set[str] = set()
    for name, a in old.items():
        engine, case, array = name.split("/", 2)
        tally = tallies.setdefault(engine, Tally())
        tally.cases.add(case)
        tally.arrays += 1
        tally.numbers += a.size
        said = difference(a, new.get(name), rtol)
        if array == "error" and said is None:
            said = f"could not be run by either: {bytes(a).decode()}"
        if said is not None and f"{engine}/{case}" not in named:
            named.add(f"{engine}/{case}")
            tally.different.append(f"{engine}/{case}: {array} {said}")
    for key in sorted(named):  # a case that ended early in the new tree: say why
        if f"{key}/error" in new and f"{key}/error" not in old:
            said = bytes(new[f"{key}/error"]).decode()
            tallies[key.split("/")[0]].different.append(f"{key}: the new tree raised {said}")
    return tallies


def difference(a: Any, b: Any, rtol: float = 0.0) -> str | None:
    """What is different, in words; None where type, shape and all bytes (or numbers up to rtol) agree."""
    if b is None:
        return "is missing in the new tree."
    if a.dtype == b.dtype == np.uint8:
        text = bytes(a)
        for old, new in REWORDED:
            text = re.sub(old, new, text)
        a = np.frombuffer(text, np.uint8)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"is {a.dtype} {a.shape} in the old tree and {b.dtype} {b.shape} in the new one."
    if a.tobytes() == b.tobytes() or _are_close(a, b, rtol):
        return None
    if a.dtype == np.uint8:
        return f'is "{_text(a)}" in the old tree and "{_text(b)}" in the new one.'
    rows = a.reshape(-1, 1).view(np.uint8) != b.reshape(-1, 1).view(np.uint8)
    apart = np.flatnonzero(rows.any(axis=1))
    place = [int(k) for k in np.unravel_index(apart[0], a.shape)]
    values = f"{a.ravel()[apart[0]]!r} in the old tree and {b.ravel()[apart[0]]!r} in the new one"
    return f"differs in {len(apart)} of {a.size} numbers, first at {place}: {values}."


def _are_close(a: Any, b: Any, rtol: float) -> bool:
    if a.dtype.kind != "f" or rtol == 0:
        return False
    largest = np.max(np.abs(a[np.isfinite(a)]), initial=1.0)
    return np.allclose(a, b, rtol=0.0, atol=rtol * largest, equal_nan=True)


def _text(v: Any) -> str:
    return bytes(v).decode("utf-8", "replace")


def report(tallies: Mapping[str, Tally]) -> Iterator[str]:
    """The differences, and a table."""
    found = [line for t in tallies.values() for line in t.different]
    yield from found[:SHOWN]
    if len(found) > SHOWN:
        yield f"and {len(found) - SHOWN} more."
    yield from ("", "| engine | cases | arrays | numbers | cases that differ |", "|---|---|---|---|---|")
    for engine, t in tallies.items():
        count = len({line.split(":")[0] for line in t.different})
        yield f"| {engine} | {len(t.cases)} | {t.arrays:,} | {t.numbers:,} | {count} |"
    cases, arrays = (sum(len(t.cases) for t in tallies.values()), sum(t.arrays for t in tallies.values()))
    yield f"| all | {cases} | {arrays:,} | {sum(t.numbers for t in tallies.values()):,} | {_apart(tallies)} |"


def _apart(tallies: Mapping[str, Tally]) -> int:
    return len({line.split(":")[0] for t in tallies.values() for line in t.different})


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
    named = subprocess.run(command, capture_output=True, text=True)
    if named.returncode:
        raise SystemExit(f"{revision} is no commit of this repository.")
    commit = named.stdout.strip()
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory(prefix="proxskip-") as temporary:
        folder = Path(temporary) if keep is None else keep.resolve() / commit
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield folder / "src"


def collect(source: Path, out: Path, engines: str, quick: bool, folders: Path) -> float:
    """Run all cases on the package in ``source``, BLAS on one thread; seconds."""
    arguments = [str(out), str(source), str(folders), "--engines", engines, *(["--quick"] if quick else [])]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
    start = time.perf_counter()
    command = [sys.executable, str(ROOT / "benchmarks" / "cases.py"), *arguments]
    subprocess.run(command, check=True, env=environment, cwd=folders)
    return time.perf_counter() - start


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--base", default=LAST_RELEASE, metavar="REV", help="the earlier tree (release 0.2)")
    options.add_argument(
        "--new", type=Path, default=ROOT / "src", metavar="SRC", help="the later one (this tree's src)"
    )
    options.add_argument("--engines", default=",".join(ENGINES), help=f"some of {','.join(ENGINES)}")
    options.add_argument("--quick", action="store_true", help="about every fifth case")
    options.add_argument("--trees", type=Path, help="keep the earlier tree and its compiled kernels in this folder")
    options.add_argument("--rtol", type=float, default=0.0, help="by how much numbers may differ (relative)")
    o = options.parse_args()
    unknown = set(o.engines.split(",")) - set(ENGINES)
    if unknown:
        options.error(f"{', '.join(sorted(unknown))} is not among {', '.join(ENGINES)}")
    with exported(o.base, o.trees) as old, tempfile.TemporaryDirectory() as place:
        folders = Path(place) / "runs"  # the old tree writes run folders here, and the new one finds them
        folders.mkdir()
        files = [Path(place) / "old.npz", Path(place) / "new.npz"]
        took = [collect(s, f, o.engines, o.quick, folders) for s, f in zip((old, o.new.resolve()), files, strict=True)]
        tallies = compare(*map(load, files), o.rtol)
    print("\n".join(report(tallies)))
    print(f"\nOld tree {o.base}: {took[0]:.0f} s; new tree: {took[1]:.0f} s.")
    return 1 if _apart(tallies) or not tallies else 0


if __name__ == "__main__":
    sys.exit(main())
