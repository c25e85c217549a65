"""Progress displays: a line rewritten in a terminal or notebook, an occasional line elsewhere."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TextIO

from proxskip.results.description import cohort_floor
from proxskip.results.result import RunResult
from proxskip.support.display import in_notebook

SECONDS_BEFORE_FIRST = 1.0
"""A run that takes less than this shows no progress."""
SECONDS_BETWEEN_UPDATES = 0.2
"""In a terminal or a notebook."""
SECONDS_BETWEEN_LINES = 5.0
"""Elsewhere."""

_ON_SCREEN: list[object] = []
"""What is on the screen: a second line would garble the first."""


def is_wanted(progress: bool | None) -> bool:
    """Whether to show progress; None means in a terminal or notebook, one display at a time."""
    if progress is not None:
        return bool(progress)
    free = not _ON_SCREEN and threading.current_thread() is threading.main_thread()
    return free and (sys.stderr.isatty() or in_notebook())


@contextmanager
def shown(label: str, progress: bool | None) -> Iterator[tuple[Progress, ...]]:
    """The callback that shows a run's progress, if wanted."""
    if not is_wanted(progress):
        yield ()
        return
    with Progress(label) as line:
        yield (line,)


class StatusLine:
    """Progress on a stream, as text.

    Args:
        label: the text before the rest, such as ``2/5 scaffnew``.
        quiet: show nothing.
    """

    def __init__(self, label: str = "", quiet: bool = False, stream: TextIO | None = None) -> None:
        self.label = label
        self.quiet = quiet
        self.stream = sys.stderr if stream is None else stream
        self.rewrites = self.stream.isatty() or (stream is None and in_notebook())
        self.began = self.last_shown = time.monotonic()
        self.width = 0
        """Characters on the screen that can be overwritten."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, words: Sequence[str], now: float | None = None) -> None:
        """Show some words, if enough time has passed."""
        now = time.monotonic() if now is None else now
        pause = SECONDS_BETWEEN_UPDATES if self.rewrites else SECONDS_BETWEEN_LINES
        if self.quiet or now - self.began < SECONDS_BEFORE_FIRST or now - self.last_shown < pause:
            return
        self.last_shown, text = now, (f"{self.label}: " if self.label else "") + ", ".join(words)
        if not self.rewrites:
            print(text, file=self.stream, flush=True)
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        self.close()
        _ON_SCREEN.append(self)
        self.width = len(text)
        print(text, end="", file=self.stream, flush=True)

    def close(self) -> None:
        if self.width:
            _ON_SCREEN.remove(self)
            print(f"\r{'':{self.width}}\r", end="", file=self.stream, flush=True)
            self.width = 0


class Progress(StatusLine):
    """Shows a run's progress on stderr; a callback."""

    stop: dict[str, float | None] = {}  # noqa: RUF012  replaced when the run begins

    @property
    def has_tolerance(self) -> bool:
        """Whether the run has a tolerance to reach."""
        return self.stop.get("tol") is not None or self.stop.get("target") is not None

    # -- the callbacks of a run ----------------------------------------------------------------------------------------
    def on_run_start(self, config: dict[str, Any]) -> None:

        self.stop, self.config = dict(config["stop"]), config
        self.began = self.last_shown = time.monotonic()
        self.first: dict[str, float] = {}

    def on_record(self, step: int, metrics: dict[str, float]) -> None:

        # a resumed run starts at a later round: measure its speed from there
        if not self.first:
            self.first = dict(metrics)
            # say in advance how many rounds such cohorts need
            floor = cohort_floor(self.config, metrics) if metrics.get("round") == 0 else None
            if floor is not None and not self.quiet:
                print(floor, file=self.stream, flush=True)
        now = time.monotonic()
        self.show(self._words(metrics, now - self.began), now)

    def on_run_end(self, result: RunResult) -> None:
        self.close()

    def on_run_error(self, error: BaseException) -> None:
        self.close()

    # -- words ---------------------------------------------------------------------------------------------------------
    def fraction(self, metrics: dict[str, float]) -> float | None:
        """The used share of the nearest limit; None without a limit."""
        columns = {"rounds": "round", "iterations": "iterations", "seconds": "seconds"}
        parts = [metrics[column] / limit for k, column in columns.items() if (limit := self.stop.get(k))]
        return min(1.0, max(parts)) if parts else None

    def _words(self, metrics: dict[str, float], elapsed: float) -> list[str]:
        limit = self.stop.get("rounds")
        # the training of a network knows f alone
        columns = (("gap", "f - f*"), ("grad_norm", "|grad f|"), ("f", "f"))
        measure = next(f"{name} {metrics[k]:.1e}" for k, name in columns if metrics.get(k) is not None)
        speed = (metrics["round"] - self.first["round"]) / max(elapsed, 1e-9)
        words = [
            f"round {metrics['round']:,.0f}" + (f"/{limit:,.0f}" if limit else ""),
            measure,
            f"{speed:,.0f} rounds/s" if speed >= 10 else f"{speed:.2g} rounds/s",
        ]
        # assume that the speed stays the same
        done, start = self.fraction(metrics), self.fraction(self.first)
        if done is not None and start is not None and done > start:
            words.append(f"{clock(elapsed * (1 - done) / (done - start))} left")
        return words


class MinimizeProgress(StatusLine):
    """Shows how the certificate of ``minimize`` approaches the tolerance."""

    def on_record(self, step: int, metrics: dict[str, float]) -> None:
        words = f"iteration {step:,}", f"{metrics['nprox']:,.0f} proxes"
        self.show([*words, f"certificate {metrics['certificate']:.1e}"])


class OverallProgress(StatusLine):
    """Shows which of many experiments runs, how much is done, and how long the rest takes."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(quiet=quiet, stream=stream)

    def __call__(self, text: str, done: float) -> None:
        left = (time.monotonic() - self.began) * (1 - done) / done if done > 0 else None
        self.show([f"{text}; {100 * done:.0f} % done", *([] if left is None else [f"{clock(left)} left"])])


class DownloadProgress(StatusLine):
    """Shows the progress of a download, for ``datasets.fetch``."""

    def __call__(self, have: int, total: int | None) -> None:
        """Called with the bytes that have arrived, and the total if known."""
        of = f" of {total / 1e6:.1f}" if total else ""
        self.show([f"{have / 1e6:.1f}{of} MB"])


def clock(seconds: float) -> str:
    """A duration such as 12 s, 3:05 min or 1:20 h."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    return f"{s // 60}:{s % 60:02d} min" if s < 3600 else f"{s // 3600}:{s % 3600 // 60:02d} h"


@contextmanager
def stage(text: str, quiet: bool) -> Iterator[None]:
    """Say what happens before the run, such as reading a file, if it takes long."""
    # the timer must not keep the process alive
    stream = sys.stderr
    timer = threading.Timer(SECONDS_BEFORE_FIRST, lambda: print(text, file=stream, flush=True))
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
