"""The progress of a reproduction: what is running, how much is done, and how long the rest will take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

Show = Callable[[str, float, float | None], None]
"""Called with a text, the share that is done, and the remaining seconds (None if unknown)."""


class ProgressEstimate:
    """Progress over several experiments, each weighted by its expected time, in turn or at once.

    Remaining time = (time since the first new work / share of the new work) * share that is left. What is found in the
    folder is no new work.
    """

    def __init__(self, shares: dict[str, float] | None = None, show: Show | None = None) -> None:
        self.shares = dict(shares or {"": 1.0})
        self.show = show or (lambda text, done, left: None)
        self.inside = dict.fromkeys(self.shares, 0.0)
        """The share of each experiment that is done."""
        self.found = 0.0
        self.began: float | None = None
        self.lock = threading.RLock()

    def start(self) -> None:
        """New work begins."""
        self.began = time.monotonic() if self.began is None else self.began

    def advance(self, experiment: str, upto: float, is_found: bool = False) -> None:
        """So much of the experiment is done."""
        with self.lock:
            step = max(0.0, min(1.0, upto) - self.inside.get(experiment, 0.0))
            self.inside[experiment] = self.inside.get(experiment, 0.0) + step
            self.found += step * self._weight(experiment) if is_found else 0.0

    def _weight(self, experiment: str) -> float:
        return self.shares.get(experiment, 0.0) / (sum(self.shares.values()) or 1.0)

    def say(self, experiment: str, text: str) -> None:
        """Show what is running."""
        with self.lock:
            self.show(f"{experiment}: {text}" if experiment else text, self.done, self.left)

    @property
    def done(self) -> float:
        """The share of all work that is done."""
        return min(1.0, sum(self._weight(name) * inside for name, inside in self.inside.items()))

    @property
    def left(self) -> float | None:
        """The remaining seconds; None before any new work was done."""
        new = self.done - self.found
        if self.began is None or new <= 0:
            return None
        return (time.monotonic() - self.began) / new * (1.0 - self.done)

    @property
    def worked(self) -> bool:
        """Whether anything was computed in this call, rather than found."""
        return self.began is not None


class WorkPart:
    """Equal pieces of an experiment, after which the share ``upto`` of it is done; the callback of the runs in them."""

    def __init__(self, progress: ProgressEstimate, experiment: str, upto: float | None, labels: Sequence[str]) -> None:
        self.progress, self.experiment, self.labels = progress, experiment, labels
        self.start = progress.inside.get(experiment, 0.0)
        self.piece = max(0.0, (self.start if upto is None else upto) - self.start) / max(1, len(labels))
        self.number, self.limit = 0, None

    def skip(self) -> None:
        """Count a piece that was found."""
        self.number += 1
        self._advance(self.number, is_found=True)

    def begin(self) -> None:
        """Start a piece."""
        self.progress.start()
        self.number += 1
        self.progress.say(self.experiment, self._label())

    def end(self) -> None:
        """Complete the piece that is running."""
        self._advance(self.number)

    def _label(self) -> str:
        total = len(self.labels)
        return self.labels[self.number - 1] + (f" ({self.number} of {total})" if total > 1 else "")

    def _advance(self, pieces: float, is_found: bool = False) -> None:
        self.progress.advance(self.experiment, self.start + self.piece * pieces, is_found)

    def on_run_start(self, config: dict[str, Any]) -> None:
        """Read the limit of rounds from the configuration."""
        self.limit = config["stop"].get("rounds")

    def on_record(self, step: int, metrics: dict[str, float]) -> None:
        """Show the progress of the run."""
        self._advance(self.number - 1 + (min(1.0, step / self.limit) if self.limit else 0.0))
        words = f"round {step:,}" + (f"/{self.limit:,}" if self.limit else "")
        gap = metrics.get("gap", float("nan"))
        self.progress.say(self.experiment, f"{self._label()}, {words}" + (f", f - f* {gap:.1e}" if gap == gap else ""))

    def on_run_end(self, result: Any) -> None:
        """Nothing to do: ``end`` counts the piece."""
