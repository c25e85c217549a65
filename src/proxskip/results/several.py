"""A folder of several runs: which of its folders hold them, in their order."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from proxskip.results import folder
from proxskip.results.atomic import atomic_write_json
from proxskip.types import InputError

NAME = "sweep.json"


def listed(out: Path) -> list[Path] | None:
    """The run folders that a sweep listed, whether they hold a run by now or not; None without a list."""
    path = out / NAME
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["runs"]
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a name is no text")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not the list of a sweep ({error!r:.80}); remove it, and load runs one by one."
        ) from None
    runs = [out / name for name in names]
    for run in runs:
        check_inside(out, run)
    return runs


def enter(out: Path, runs: Sequence[Path], force: bool) -> None:
    """List these runs after those that are listed already, or with ``force`` in their place: they are removed."""
    old = listed(out) or []
    if force:
        for run in old:
            clear(run)
        old = []
    names = dict.fromkeys(run.relative_to(out).as_posix() for run in [*old, *runs])
    atomic_write_json(out / NAME, {"runs": list(names)})


def clear(run: Path) -> None:
    """Remove a run and, if nothing else is in it, its folder."""
    if run.is_dir():
        folder.clear(run)
        with contextlib.suppress(OSError):  # it holds something else
            run.rmdir()


def check_inside(out: Path, run: Path) -> None:
    """Refuse a run folder that is a link, or leads through one: what it points to may not be ours to overwrite."""
    place = out
    for name in run.relative_to(out).parts:
        place = place / name
        if name == ".." or place.is_symlink():
            raise InputError(f"{place} leads out of {out}, so no run of a sweep can be in it; remove it.")
