"""A run folder: a checkpoint, from which a run is resumed and its result is read, and files for people.

A checkpoint holds a whole result: x, the trace, the summary, and the state of the run, all of one moment. The files for
people (``EXPORTS``) are written when the run ends, and removed before a continued run writes anything: they never
belong to another moment than the checkpoint beside them.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from proxskip.results import atomic, checkpoint
from proxskip.results.checkpoint import Checkpoint, in_words
from proxskip.results.journal import RowsState, remove_parts, write_rows
from proxskip.results.lock import held, refuse_if_held
from proxskip.results.sealed import AnyArray
from proxskip.results.trace import Trace
from proxskip.types import Array, InputError

EXPORTS = ("summary.json", "trace.csv", "x.npy")
"""Files of a run that has ended, for people and other programs."""
GENERATIONS = ("checkpoint.previous", "checkpoint")
FILES = ("spec.json", *EXPORTS, *GENERATIONS)
"""In the order in which they are removed: the newest checkpoint last."""
SECONDS_BETWEEN_CHECKPOINTS = 30.0
SHARE_OF_CHECKPOINTS = 0.1
"""Of the time, at most, unless ``checkpoint_every`` asks for more."""
MAX_LIST_IN_HEADER = 32
"""Longer lists of numbers are stored as arrays of the checkpoint, and not in its header."""
ARRAY_KEY = "__array__"
"""Marks, in the header, a list that is stored as the array of this name."""


@dataclass(frozen=True, slots=True)
class State:
    """The content of a checkpoint: the result so far, and the arrays and plain data that a resumed run needs."""

    x: Array
    summary: Mapping[str, Any]
    arrays: dict[str, AnyArray]
    meta: dict[str, Any]
    rows: RowsState | None = None


@dataclass
class Folder:
    """An open run folder."""

    path: Path
    config: dict[str, Any]
    every: int | None = None
    checkpoint: Checkpoint | None = None
    last: float = field(default_factory=time.monotonic)
    lock: ExitStack = field(default_factory=ExitStack)
    """What holds the lock until it is closed."""
    listed: frozenset[str] = frozenset()
    """The parts of the checkpoint."""
    took: float = 0.0

    def close(self) -> None:
        """Release the lock."""
        self.lock.close()

    def due(self, round: int) -> bool:
        """Whether it is time for another checkpoint; when they are written never changes what the run computes."""
        if self.every is not None:
            return round % self.every == 0
        return time.monotonic() - self.last > max(SECONDS_BETWEEN_CHECKPOINTS, self.took / SHARE_OF_CHECKPOINTS)

    def save(self, state: State) -> None:
        began = time.monotonic()
        with in_words(self.path):
            for name in EXPORTS:
                (self.path / name).unlink(missing_ok=True)
        lists: dict[str, AnyArray] = {}
        meta = _lists_to_arrays(state.meta | {"config": self.config, "summary": dict(state.summary)}, lists)
        if state.rows is not None:
            meta["parts"] = write_rows(self.path, state.rows)
        # a generation that was passed over when this run was resumed must not push out the one that was taken
        passed_over = self.checkpoint is not None and self.checkpoint.generation == "previous"
        checkpoint.save(self.path, state.arrays | lists | {"x": state.x}, meta, keep=not passed_over)
        self.checkpoint = None
        if state.rows is not None:
            listed = frozenset(meta["parts"]["name"])
            remove_parts(self.path, listed | self.listed)
            self.listed = listed
        self.last = time.monotonic()
        self.took = self.last - began

    def begin(self, state: State) -> None:
        """Write a checkpoint, and spec.json, the configuration."""
        self.save(state)
        with in_words(self.path):
            atomic.atomic_write_json(self.path / "spec.json", self.config)

    def finish(self, trace: Trace, state: State) -> None:
        """Write the last checkpoint, with which the run has ended, and then the files for people."""
        self.begin(state)
        export(self.path, state.x, trace, state.summary)


def export(path: Path, x: Array, trace: Trace, summary: Mapping[str, Any]) -> None:
    """Write the files for people; the summary comes last, so that the others are there if it is."""
    with in_words(path):
        trace.to_csv(path / "trace.csv")
        buffer = io.BytesIO()
        np.save(buffer, x, allow_pickle=False)
        atomic.atomic_write(path / "x.npy", buffer.getvalue())
        atomic.atomic_write_json(path / "summary.json", dict(summary))


def has_begun(path: Path) -> bool:
    """Whether the folder holds a run that can be read and continued."""
    return any((path / name).is_file() for name in GENERATIONS)


def clear(path: Path) -> None:
    """Remove the run in a folder; what else is there belongs to the user."""
    for name in FILES:
        (path / name).unlink(missing_ok=True)
    remove_parts(path)


def create(out: str | Path, config: dict[str, Any], force: bool, every: int | None) -> Folder:
    """Make the folder of a new run, and lock it; one that already holds a run is refused unless ``force``."""
    check(out, force, every)
    path = Path(out)
    with in_words(path), ExitStack() as lock:
        path.mkdir(parents=True, exist_ok=True)
        lock.enter_context(held(path))
        clear(path)
        return Folder(path, config, every, lock=lock.pop_all())


def check_every(every: int | None) -> None:
    """Refuse a number of rounds between checkpoints that is not positive."""
    if every is not None and every < 1:
        raise InputError(f"checkpoint_every = {every} must be at least 1.")


def check(out: str | Path, force: bool, every: int | None) -> None:
    """Refuse a folder that holds a run, unless ``force``, and always one that is being written."""
    check_every(every)
    if str(out) == "":
        raise InputError('out = "" is no folder; give its name, or None.')
    path = Path(out)
    with in_words(path):
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; give a folder.")
        refuse_if_held(path)
        old = [name for name in FILES if (path / name).exists()]
    if old and not force:
        raise InputError(
            f"{path} already holds a run ({old[0]}); choose another folder, resume it, or overwrite it with force=True."
        )


def reopen(path: Path) -> Folder:
    """Open the folder of a run to resume, and lock it."""
    with ExitStack() as lock:
        if path.is_dir():
            with in_words(path):
                lock.enter_context(held(path))
        return replace(read(path), lock=lock.pop_all())


def read(path: Path) -> Folder:
    """A run folder with its checkpoint, read-only."""
    if not path.is_dir():
        raise InputError(f"{path} is not a run folder; there is nothing to resume.")
    saved = checkpoint.load(path)
    try:
        meta = _arrays_to_lists(saved.meta, saved.arrays)
        if not isinstance(meta["config"], dict) or not isinstance(meta["summary"], dict):
            raise TypeError("it has no configuration or no summary")
        listed = frozenset(meta.get("parts", {"name": ()})["name"])
    except (KeyError, TypeError, ValueError) as error:
        raise checkpoint.CheckpointError(f"{path / 'checkpoint'} is not the checkpoint of a run ({error}).") from None
    return Folder(path, meta["config"], None, replace(saved, meta=meta), listed=listed)


def _lists_to_arrays(data: Any, lists: dict[str, AnyArray]) -> Any:
    """Plain data with its long lists of numbers moved to ``lists``, so that a checkpoint's header stays short."""
    if isinstance(data, Mapping):
        return {k: _lists_to_arrays(v, lists) for k, v in data.items()}
    if not isinstance(data, (list, tuple)):
        return data
    numbers = len(data) > MAX_LIST_IN_HEADER and all(isinstance(v, (int, float)) for v in data)
    flat = np.asarray(data) if numbers else None
    if flat is None or flat.dtype.kind not in "if":
        return [_lists_to_arrays(v, lists) for v in data]
    lists[f"list.{len(lists)}"] = flat
    return {ARRAY_KEY: f"list.{len(lists) - 1}"}


def _arrays_to_lists(data: Any, arrays: Mapping[str, AnyArray]) -> Any:
    """The inverse of ``_lists_to_arrays``."""
    if isinstance(data, Mapping):
        if ARRAY_KEY in data:
            return arrays[data[ARRAY_KEY]].tolist()
        return {k: _arrays_to_lists(v, arrays) for k, v in data.items()}
    return [_arrays_to_lists(v, arrays) for v in data] if isinstance(data, list) else data


def same_run(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume another problem, method or seed."""
    # not the limits: to go on further is what most runs are resumed for
    kept = ("method", "parameters", "problem", "seed", "cohort", "engine")
    changes = checkpoint.differences({k: saved.get(k) for k in kept}, {k: now.get(k) for k in kept})
    if changes:
        raise InputError("this checkpoint belongs to another run: " + "; ".join(changes) + ".")
