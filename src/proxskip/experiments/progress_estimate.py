"""The progress of a reproduction: what is running, how much is done, and how long the rest will take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Show = Callable[[str, float, float | None], None]
"""Called with a text, the share that is done, and the remaining seconds (None if unknown)."""


class ProgressEstimate:
    """Progress over several experiments, each weighted by its expected time; cached runs cost nothing.

    Remaining time = (time spent on new work / share of the new work) * share that is left.
    """

    def __init__(self, shares: dict[str, float] | None = None, show: Show | None = None) -> None:
        self.shares = dict(shares or {"": 1.0})
        self.show = show or (lambda text, done, left: None)
        self.total = sum(self.shares.values()) or 1.0
        self.finished = 0.0  # share of the experiments that are complete
        self.fresh = self.spent = 0.0  # share of the work done in this call, and its seconds
        self.title, self.share, self.inside = "", self.total, 0.0  # the experiment that is running
        self.said = ""
        self.branches: dict[str, ProgressEstimate] = {}
        self.lock, self.began = threading.Lock(), time.monotonic()

    # -- experiments ---------------------------------------------------------------------------------------------------
    def enter(self, experiment: str) -> None:
        """Start an experiment."""
        self.title, self.share, self.inside = experiment, self.shares.get(experiment, 0.0), 0.0

    def leave(self) -> None:
        """Finish the experiment."""
        self.finished += self.share
        self.share = self.inside = 0.0

    def branch(self, experiment: str) -> ProgressEstimate:
        """The progress of an experiment that runs at the same time as others."""
        made = ProgressEstimate({experiment: self.shares.get(experiment, 0.0)}, self._told)
        made.enter(experiment)
        self.branches[experiment] = made
        return made

    def _told(self, text: str, done: float, left: float | None) -> None:
        """A branch has something to say."""
        with self.lock:
            self.show(text, self.done, self.left)

    # -- inside --------------------------------------------------------------------------------------------------------
    def say(self, text: str, upto: float | None = None) -> None:
        """Show what is running; ``upto`` is the share of the experiment that is done."""
        if upto is not None:
            self.inside = max(self.inside, min(1.0, upto))
        self.said = f"{self.title}: {text}" if self.title else text
        self.show(self.said, self.done, self.left)

    @property
    def done(self) -> float:
        """The share of all work that is done."""
        others = sum(b.done * self.shares.get(name, 0.0) for name, b in list(self.branches.items()))
        return min(1.0, (self.finished + self.share * self.inside + others) / self.total)

    @property
    def left(self) -> float | None:
        """The remaining seconds; None before any new work was done."""
        if self.branches:
            # they share the time
            fresh = sum(b.fresh * self.shares.get(name, 0.0) for name, b in list(self.branches.items())) / self.total
            return None if fresh <= 0 else (time.monotonic() - self.began) / fresh * (1.0 - self.done)
        return None if self.fresh <= 0 else self.spent / self.fresh * (1.0 - self.done)

    @property
    def worked(self) -> bool:
        """Whether anything was computed in this call, rather than found."""
        return self.spent > 0 or any(b.worked for b in self.branches.values())

    @contextmanager
    def part(self, upto: float | None, count: int) -> Iterator[WorkPart]:
        """Work in ``count`` equal pieces, after which the share ``upto`` of the experiment is done."""
        end = self.inside if upto is None else min(1.0, upto)
        part = WorkPart(self, self.inside, end, max(1, count))
        yield part
        part.close()
        self.inside = max(self.inside, end)


class WorkPart:
    """Several pieces of one experiment; also the callback of the runs in it."""

    def __init__(self, progress: ProgressEstimate, start: float, end: float, count: int) -> None:
        self.progress, self.start, self.piece = progress, start, max(0.0, end - start) / count
        self.label, self.limit, self.number, self.pieces = "", None, 0, 1
        self.count = count
        self.clock: float | None = None

    def skip(self, label: str) -> None:
        """Count a piece that was cached."""
        self.close()
        self.number += 1
        self._at(float(self.number))

    def begin(self, label: str, pieces: int = 1) -> None:
        """Start a piece, or several that run at once."""
        self.close()
        self.number, self.pieces = self.number + pieces, pieces
        self.label = label if self.count == 1 else f"{label} ({self.number} of {self.count})"
        self.clock, self.counted = time.monotonic(), 0.0
        self._at(float(self.number - pieces))
        self.progress.say(self.label)

    def close(self) -> None:
        """Complete the piece that is running."""
        if self.clock is not None:
            self._spent(1.0)
            self.clock = None

    def on_run_start(self, config: dict[str, Any]) -> None:
        """Read the limit of rounds from the configuration."""
        self.limit = config["stop"].get("rounds")

    def on_record(self, step: int, metrics: dict[str, float]) -> None:
        """Show the progress of the run."""
        part = min(1.0, step / self.limit) if self.limit else 0.0
        self._at(self.number - 1.0 + part)
        self._spent(part)
        words = f"round {step:,}" + (f"/{self.limit:,}" if self.limit else "")
        gap = metrics.get("gap", float("nan"))
        self.progress.say(f"{self.label}, {words}" + (f", f - f* {gap:.1e}" if gap == gap else ""))

    def on_run_end(self, result: Any) -> None:
        """Nothing to do: ``close`` counts the piece."""

    def _at(self, pieces: float) -> None:
        self.progress.inside = max(self.progress.inside, min(1.0, self.start + self.piece * pieces))

    def _spent(self, part: float) -> None:
        """Count the time and the work since the last call."""
        assert self.clock is not None
        now = time.monotonic()
        self.progress.spent += now - self.clock
        new = max(0.0, part - self.counted) * self.pieces * self.piece
        self.progress.fresh += new * self.progress.share / self.progress.total
        self.clock, self.counted = now, max(self.counted, part)
