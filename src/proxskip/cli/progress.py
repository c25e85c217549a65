"""The progress of a run: a bar on a terminal, otherwise an occasional line."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TextIO

from proxskip.results.result import Result

if TYPE_CHECKING:
    import rich.progress

SECONDS_BEFORE_FIRST = 1.0
"""A run that takes less than this shows no progress."""
SECONDS_BETWEEN_LINES = 5.0
"""If stderr is not a terminal."""


class _Shown:
    """Progress on a stream: a bar on a terminal, which appears at the first update; otherwise lines."""

    def __init__(self, quiet: bool, stream: TextIO | None, label: str = "") -> None:
        self.quiet, self.stream, self.label = quiet, sys.stderr if stream is None else stream, label
        self.terminal = bool(self.stream.isatty())
        self.bar: rich.progress.Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, done: float | None, text: str) -> None:
        """Show the share that is done (None if it is unknown) and a text."""
        if self.bar is None:
            # imported at the first update: a short run never needs rich
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = [BarColumn(24), TextColumn("{task.fields[text]}", markup=False)]
            if self.label:
                columns.insert(0, TextColumn(self.label, markup=False))
            self.bar = Progress(*columns, console=Console(file=self.stream), transient=True, refresh_per_second=5)
            self.task = self.bar.add_task("", total=None, text="")
            self.bar.start()
        self.bar.update(self.task, total=None if done is None else 1.0, completed=done or 0.0, text=text)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class Progress(_Shown):
    """The callback of a run that shows its progress on stderr: a bar on a terminal, otherwise lines.

    Args:
        label: the text before the bar, such as ``2/5 scaffnew``.
        quiet: show nothing.
    """

    def __init__(self, label: str, quiet: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(quiet, stream, label)
        self.stop: dict[str, float | None] = {}

    @property
    def has_tolerance(self) -> bool:
        """Whether the run has a tolerance to reach."""
        return self.stop.get("tol") is not None or self.stop.get("target") is not None

    # -- the callbacks of a run ----------------------------------------------------------------------------------------
    def on_run_start(self, config: dict[str, Any]) -> None:
        """Read the limits from the configuration."""
        self.stop = dict(config["stop"])
        self.began = self.said = time.monotonic()
        self.first: dict[str, float] | None = None

    def on_record(self, step: int, metrics: dict[str, float]) -> None:
        """Show the record if the run has taken long enough."""
        now = time.monotonic()
        # a resumed run starts at a later round, and its speed counts from there
        if self.first is None:
            self.first = dict(metrics)
        if self.quiet or now - self.began < SECONDS_BEFORE_FIRST:
            return
        if self.terminal:
            self.update(self.fraction(metrics), " · ".join(self._words(metrics, now)))
        elif now - self.said >= SECONDS_BETWEEN_LINES:
            self.said = now
            print(f"{self.label}: {', '.join(self._words(metrics, now))}", file=self.stream, flush=True)

    def on_run_end(self, result: Result) -> None:
        """Remove the bar."""
        self.close()

    # -- words ---------------------------------------------------------------------------------------------------------
    def fraction(self, metrics: dict[str, float]) -> float | None:
        """The used share of the limit that is nearest; None without a limit."""
        columns = {"rounds": "round", "iterations": "iterations", "seconds": "seconds"}
        parts = [metrics[column] / limit for k, column in columns.items() if (limit := self.stop.get(k))]
        return min(1.0, max(parts)) if parts else None

    def _words(self, metrics: dict[str, float], now: float) -> list[str]:
        assert self.first is not None
        limit = self.stop.get("rounds")
        words = [f"round {metrics['round']:,.0f}" + (f"/{limit:,.0f}" if limit else "")]
        gap = metrics.get("gap")
        words.append(f"|grad f| {metrics['grad_norm']:.1e}" if gap is None else f"f - f* {gap:.1e}")
        elapsed = now - self.began
        speed = (metrics["round"] - self.first["round"]) / max(elapsed, 1e-9)
        words.append(f"{speed:,.0f} rounds/s" if speed >= 10 else f"{speed:.2g} rounds/s")
        if "share_local" in metrics:
            shares = [f"{100 * metrics[f'share_{k}']:.0f} % {k}" for k in ("local", "communication", "waiting")]
            words.append(", ".join(shares) + f" for actor {metrics['slowest_actor']:.0f}")
        # the rest takes as long per share of the limit as what was done since the start
        done, start = self.fraction(metrics), self.fraction(self.first)
        if done is not None and start is not None and done > start:
            words.append(f"{clock(elapsed * (1 - done) / (done - start))} left")
        return words


class OverallProgress(_Shown):
    """The progress of many experiments: what is running, how much is done, how long the rest takes."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(quiet, stream)
        self.said, self.topic = time.monotonic(), ""

    def __call__(self, text: str, done: float, left: float | None) -> None:
        """Show it; if stderr is not a terminal, a line for every new topic and occasionally one in between."""
        if self.quiet:
            return
        remaining = "" if left is None else f", {clock(left)} left"
        if self.terminal:
            self.update(done, f"{100 * done:.0f} %{remaining} · {text}")
            return
        # a text is "topic, details"; a new topic is shown sooner than new details
        now, topic = time.monotonic(), text.partition(",")[0]
        pause = SECONDS_BEFORE_FIRST if topic != self.topic else SECONDS_BETWEEN_LINES
        if now - self.said >= pause:
            self.said, self.topic = now, topic
            print(f"{text}; {100 * done:.0f} % done{remaining}", file=self.stream, flush=True)


def clock(seconds: float) -> str:
    """A duration as 12 s, 3:05 min or 1:20 h."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    return f"{s // 60}:{s % 60:02d} min" if s < 3600 else f"{s // 3600}:{s % 3600 // 60:02d} h"


@contextmanager
def stage(text: str, quiet: bool) -> Iterator[None]:
    """Show what happens before the run if it takes long, such as reading a file."""
    if quiet:
        yield
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(text):
            yield
    else:
        stream = sys.stderr
        # a line only if the stage takes long; the timer must not keep the process alive
        timer = threading.Timer(SECONDS_BEFORE_FIRST, lambda: print(text, file=stream, flush=True))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class DownloadProgress:
    """The progress of a download, for ``datasets.fetch``."""

    def __init__(self, name: str, quiet: bool) -> None:
        self.name, self.quiet = name, quiet
        self.began = self.said = time.monotonic()

    def __call__(self, have: int, total: int | None) -> None:
        """Called with the bytes that have arrived, and the total if it is known."""
        now = time.monotonic()
        pause = 0.2 if sys.stderr.isatty() else SECONDS_BETWEEN_LINES
        if self.quiet or now - self.began < SECONDS_BEFORE_FIRST or now - self.said < pause:
            return
        self.said = now
        of = f" of {total / 1e6:.1f}" if total else ""
        start, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{start}fetching {self.name}: {have / 1e6:.1f}{of} MB", end=end, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        if not self.quiet and sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
