"""Results from run folders: what ``run`` returned, read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from proxskip.keywords import check_keywords
from proxskip.results import description, folder
from proxskip.results.checkpoint import CheckpointError
from proxskip.results.journal import read_rows
from proxskip.results.result import Result, Results, Status, Summary
from proxskip.results.trace import Trace
from proxskip.types import Array, InputError, Vectors


@check_keywords
def load(path: str | Path) -> Result | Results:
    """The Result of a run folder; a list of them from the folder of a comparison or a sweep.

    The methods come in the order of the comparison or sweep, and the seeds of each method in theirs.

    Args:
        path: a run folder, or a folder of several.

    >>> import tempfile
    >>> import proxskip as ps
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = ps.run("gd", problem, tol=1e-6, out=folder + "/a")
    ...     bool((ps.load(folder + "/a").x == result.x).all())
    True
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; give the folder of a run, a comparison or a sweep.")
    if (path / "spec.toml").is_file():
        return _result(path)
    # a comparison with seeds has its runs two folders below its own
    runs = [file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/spec.toml")]
    if not runs:
        raise InputError(f"{path} holds no run: there is no spec.toml in it or in its folders.")
    order = _compared(path)

    def place(run: Path) -> list[Any]:
        names = run.relative_to(path).parts
        return [(order.index(name) if name in order else len(order), _natural(name)) for name in names]

    return Results(_result(run) for run in sorted(runs, key=place))


def _natural(name: str) -> list[tuple[int, str]]:
    """So that seed-10 follows seed-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _compared(path: Path) -> list[str]:
    """The methods of a comparison in its order; nothing elsewhere."""
    try:
        summaries = json.loads((path / "compare.json").read_text(encoding="utf-8"))
        return list(dict.fromkeys(str(s["method"]) for s in summaries))
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _result(path: Path) -> Result:
    about = _summary(path)
    saved = folder.read(path)
    checkpoint = saved.checkpoint
    assert checkpoint is not None
    if checkpoint.note is not None:  # an older one, which does not belong to the summary
        raise CheckpointError(f"{checkpoint.note} Continue the run with proxskip.resume, then load it.")
    arrays = checkpoint.arrays

    def part(name: str) -> Vectors:
        return {k[len(name) :]: v for k, v in arrays.items() if k.startswith(name)}

    server, memory, participated = part("server."), part("memory."), arrays.get("line.participated")
    if "parts" in checkpoint.meta:
        rows = read_rows(path, checkpoint.meta["parts"], int(about["clients"]), arrays["x0"])
        memory = {k: rows.store.view(k) for k in rows.store.arrays}  # type: ignore[misc]
        participated = rows.numbers["participated"]
    assert participated is not None
    try:
        h = description.revive(saved.config)[0].controls(server, memory)
    except InputError:  # a method from outside the package that is not registered here
        h = memory.get("h")
    return Result(
        _x(path), Status[about["status"]], bool(about["success"]), str(about["message"]),
        Trace.from_arrays(arrays, "trace."), h, server, memory, participated.copy(), tuple(about["warnings"]), about,
    )  # fmt: skip


def _summary(path: Path) -> Summary:
    try:
        about: Any = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        if about["status"] == "MAX_ROUNDS":  # as 0.2 wrote it
            about["status"] = "LIMIT"
        Status[about["status"]], about["success"], about["message"], about["warnings"]
    except FileNotFoundError:
        raise InputError(f"{path} holds a run that has not ended; continue it with proxskip.resume.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path / 'summary.json'} is not the summary of a run ({type(error).__name__}).") from None
    return Summary(about)


def _x(path: Path) -> Array:
    try:
        return np.asarray(np.load(path / "x.npy", allow_pickle=False), dtype=np.float64)
    except (OSError, ValueError) as error:
        raise InputError(f"{path / 'x.npy'} cannot be read ({error}); it belongs to every finished run.") from None
