"""Results from run folders: what ``run`` returned, read back."""

from __future__ import annotations

import re
from pathlib import Path

from proxskip.results import checkpoint, description, folder, inference, several
from proxskip.results.checkpoint import CheckpointError
from proxskip.results.journal import read_rows
from proxskip.results.result import RunResult, Status, Summary
from proxskip.results.table import Results
from proxskip.results.trace import Trace
from proxskip.types import InputError, Vectors

FEDERATION = "server"
"""The checkpoint of a federation's server."""
INFORMATION = "information"
"""The server's vector with what the clients said of their Hessians, if they were asked."""


def load(path: str | Path) -> RunResult | Results:
    """The RunResult of the folder of a run, a training or a federation; a list of them from that of a sweep.

    The methods come in the order of the sweep, and the seeds of each method in theirs. Of a run that has
    not ended it is the result at its last checkpoint, with the status INTERRUPTED.

    Folders hold no code, so a training comes back without its module, and without its buffers and the numbers of each
    client; ``proxskip.torch.resume`` with the same limits gives these back. A federation comes back without what its
    clients remember, and without Flower's parts.

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
        raise InputError(f"{path} is not a folder; give the folder of a run or a sweep.")
    if folder.has_begun(path):
        return _result(path)
    if (path / FEDERATION).exists():
        return _of_a_federation(path)
    runs = several.listed(path)
    if runs is None:  # folders that nobody listed, such as those of a loop over ``run``
        runs = sorted((run for depth in ("*", "*/*") for run in path.glob(depth)), key=_natural)
    runs = [run for run in runs if folder.has_begun(run)]
    if not runs:
        raise InputError(f"{path} holds no run: there is no checkpoint in it or in its folders.")
    return Results(map(_result, runs))


def _natural(path: Path) -> list[tuple[int, str]]:
    """So that seed-10 follows seed-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path)) if part]


def _result(path: Path) -> RunResult:
    saved = folder.read(path)
    last = saved.checkpoint
    assert last is not None
    arrays = last.arrays

    def part(name: str) -> Vectors:
        return {k[len(name) :]: v for k, v in arrays.items() if k.startswith(name)}

    server, memory, participated = part("server."), part("memory."), arrays.get("line.participated")
    try:
        about = Summary(last.meta["summary"])
        if "parts" in last.meta:
            rows = read_rows(path, last.meta["parts"], int(about["clients"]), arrays["x0"])
            memory = dict(rows.memory)
            participated = rows.numbers["participated"]
        assert participated is not None
        if last.note is not None:
            about["warnings"] = [*about["warnings"], last.note]
        try:
            h = description.revive(saved.config)[0].controls(server, memory)
        except InputError:  # a method from outside the package that is not registered here
            h = memory.get("h")
        return RunResult(
            arrays["x"], Status[about["status"]], str(about["message"]), Trace.from_arrays(arrays, "trace."), h,
            server, memory, participated.copy(), about, tuple(about["warnings"]),
        )  # fmt: skip
    except (KeyError, TypeError, AssertionError) as error:
        raise CheckpointError(f"{path} holds no result that proxskip wrote ({error!r:.80}).") from None


def _of_a_federation(path: Path) -> RunResult:
    """The result of a federation, from the state that its server saved; the clients keep their memory."""
    saved = checkpoint.load(path, name=FEDERATION)
    try:
        about = Summary(saved.meta["summary"])
        vectors = {k.removeprefix("vectors."): v for k, v in saved.arrays.items() if k.startswith("vectors.")}
        trace = Trace.from_arrays(saved.arrays, "trace.")
        means, told = vectors.get(INFORMATION), None
        if means is not None:
            told = inference.pooled(means, vectors["x"], about["samples"], tuple(saved.meta["columns"]))
        return RunResult(
            vectors["x"], Status[about["status"]], str(about["message"]), trace, None, vectors, {},
            saved.arrays["participated"], about, tuple(about["warnings"]), told,
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path} holds no federation that proxskip wrote ({error!r:.80}).") from None
