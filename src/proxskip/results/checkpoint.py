"""Checkpoints: a sealed container in two generations, so that a crash at any moment leaves at least one of them whole.

``save`` keeps the generation before as NAME.previous. The old file is checked first: a damaged NAME does not push out a
whole NAME.previous.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from proxskip.results import sealed
from proxskip.results.atomic import atomic_write, remove_stale
from proxskip.results.plain import canonical, checked_plain, cut
from proxskip.results.sealed import AnyArray, Damaged, OtherVersion
from proxskip.types import InputError


class CheckpointError(InputError):
    """A checkpoint could not be written or read; the message names the file and the reason."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint: its content, its generation, and a note if the newest one could not be read."""

    arrays: dict[str, AnyArray]
    meta: dict[str, Any]
    generation: Literal["current", "previous"]
    note: str | None


# -- save and load -----------------------------------------------------------------------------------------------------
def save(
    folder: Path,
    arrays: Mapping[str, AnyArray],
    meta: Mapping[str, Any],
    *,
    name: str = "checkpoint",
    keep: bool = True,
) -> Path:
    """Save ``arrays`` and ``meta`` (plain data) as the current generation; the one before is kept.

    Without ``keep`` it is not, since it is known to be worse than NAME.previous.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(Path(folder), {"x": np.ones(2)}, {"round": 7})
    ...     saved = load(Path(folder))
    >>> saved.arrays["x"], saved.meta, saved.generation
    (array([1., 1.]), {'round': 7}, 'current')
    """
    current, previous = _generations(folder, name)
    with in_words(current):
        pieces = sealed.seal(arrays, meta)
        current.parent.mkdir(parents=True, exist_ok=True)
        keeps = keep and _is_whole(current)
        atomic_write(current, *pieces, previous=previous if keeps else None)
    remove_stale(current)
    return current


def load(folder: Path, *, name: str = "checkpoint") -> Checkpoint:
    """The newest generation that is whole, with its parts; CheckpointError with each file and reason without one."""
    current, previous = _generations(folder, name)
    reasons = []
    for path in (current, previous):
        try:
            saved = sealed.read(path)
            _check_parts(Path(folder), saved.meta.get("parts"))
        except OtherVersion as other:  # it may be newer than what we would fall back to
            raise CheckpointError(f"{path} {other}.") from None
        except Damaged as damage:
            reasons.append(f"{path} {damage}")
        except OSError as error:  # it may well be whole: do not go back behind it
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None
        else:
            if path == current:
                return Checkpoint(saved.arrays, saved.meta, "current", None)
            return Checkpoint(saved.arrays, saved.meta, "previous", f"{reasons[0]}; {path} was used instead.")
    if not (current.exists() or previous.exists()):
        raise CheckpointError(f"there is no checkpoint {current}; check the folder, or start a new run.")
    raise CheckpointError("; ".join(reasons) + "; restore one of them from a copy, or start a new run.")


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """What the system says of a folder or a disk, in one sentence."""
    try:
        yield
    except OSError as error:
        where, reason = error.filename or path, error.strerror or str(error)
        hint = "what was saved before is intact. Free some space, or give another folder."
        raise CheckpointError(f"cannot write {where}: {reason}; {hint}") from error


# -- parts -------------------------------------------------------------------------------------------------------------
def write_part(path: Path, arrays: Mapping[str, AnyArray]) -> str:
    """Write arrays to a file of their own, which a checkpoint lists in ``meta["parts"]``; its sha256."""
    pieces = sealed.seal(arrays, {})
    with in_words(path):
        atomic_write(path, *pieces)
    return bytes(pieces[-1]).hex()


def read_part(path: Path, sha256: str) -> dict[str, AnyArray]:
    """The arrays of ``write_part``."""
    try:
        part = sealed.read(path)
        if part.sha256 != sha256:
            raise Damaged("is another file than its checkpoint lists")
    except (Damaged, OSError) as error:
        raise CheckpointError(f"{path} {error}; restore it from a copy, or start a new run.") from None
    return part.arrays


def _check_parts(folder: Path, parts: Any) -> None:
    """Refuse a checkpoint of which a part is damaged or missing."""
    if parts is None:
        return
    for name, sha256 in zip(parts["name"], parts["sha256"], strict=True):
        path = folder / safe_name(name)
        try:
            if sealed.sha256_of(path) != sha256:
                raise Damaged("is another file than its checkpoint lists")
        except Damaged as damage:
            raise Damaged(f"is damaged: of its parts, {path} {damage}") from None


def safe_name(name: str) -> str:
    """``name`` itself if it can be a file name or run id everywhere; InputError otherwise."""
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", name):
        return name
    raise InputError(f"{cut(repr(name))} cannot be a name: use 1 to 64 of A-Z a-z 0-9 . _ - and no dot at the start.")


def _generations(folder: Path, name: str) -> tuple[Path, Path]:
    return Path(folder) / safe_name(name), Path(folder) / f"{name}.previous"


def _is_whole(path: Path) -> bool:
    try:
        sealed.sha256_of(path)
        return sealed.begins_like_one(path)
    except (OSError, Damaged):
        return False


# -- differences -------------------------------------------------------------------------------------------------------
def differences(saved: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """One sentence for each field that differs; empty when a run may be resumed.

    >>> differences({"seed": 0, "method": {"p": 0.1}}, {"seed": 1, "method": {"p": 0.1}})
    ['seed: saved 0, now 1']
    """
    sentences = []
    for key in dict.fromkeys([*wanted, *saved]):
        field = f"{prefix}{key}"
        old, new = (checked_plain(data[key], field) if key in data else None for data in (saved, wanted))
        if isinstance(old, dict) and isinstance(new, dict):
            sentences += differences(old, new, f"{field}.")
        elif key not in saved:
            sentences.append(f"{field}: not saved, now {cut(repr(new))}")
        elif key not in wanted:
            sentences.append(f"{field}: saved {cut(repr(old))}, now absent")
        elif old != new and canonical(old) != canonical(new):  # NaN is NaN, and 1 is 1.0
            a, b = repr(old), repr(new)
            same = (k for k, (u, v) in enumerate(zip(a, b, strict=False)) if u != v)
            start = next(same, min(len(a), len(b)))
            sentences.append(f"{field}: saved {cut(a, start)}, now {cut(b, start)}")
    return sentences
