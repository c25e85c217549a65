"""The progress of runs: a bar in a terminal or a notebook, otherwise an occasional line."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, Self, TextIO

from proxskip.results.description import cohort_floor
from proxskip.results.result import Result

if TYPE_CHECKING:
    import rich.progress

SECONDS_BEFORE_FIRST = 1.0
"""A run that takes less than this shows no progress."""
SECONDS_BETWEEN_LINES = 5.0
"""If stderr is not a terminal."""


_BARS: list[object] = []
"""The bars that are on the screen: a second one at the same time would tear the first."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    return module is not None and type(module.get_ipython()).__name__ == "ZMQInteractiveShell"


def is_wanted(progress: bool | None) -> bool:
    """Whether to show progress; None means in a terminal or a notebook, for one thing at a time."""
    if progress is not None:
        return bool(progress)
    free = not _BARS and threading.current_thread() is threading.main_thread()
    return free and (sys.stderr.isatty() or in_notebook())


@contextmanager
def shown(label: str, progress: bool | None) -> Iterator[tuple[Progress, ...]]:
    """The callback that shows a run's progress, if it is wanted."""
    if not is_wanted(progress):
        yield ()
        return
    with Progress(label) as bar:
        yield (bar,)


class _NotebookBar:
    """A bar in the output of a notebook's cell."""

    def __init__(self, label: str) -> None:
        from IPython.display import HTML, display

        self.html, self.label, self.said = HTML, label, 0.0
        self.handle = display(HTML(""), display_id=True)

    def update(self, done: float | None, text: str) -> None:
        """Draw it anew, at most five times a second."""
        if time.monotonic() - self.said < 0.2:
            return
        self.said = time.monotonic()
        value = "" if done is None else f' value="{done:.4f}"'
        self.handle.update(self.html(f"{escape(self.label)} <progress max=1{value}></progress> {escape(text)}"))

    def close(self) -> None:
        """Remove it."""
        self.handle.update(self.html(""))


class _Shown:
    """Progress on a stream: a bar on a terminal, which appears at the first update; otherwise lines."""

    def __init__(self, quiet: bool, stream: TextIO | None, label: str = "") -> None:
        self.quiet, self.stream, self.label = quiet, sys.stderr if stream is None else stream, label
        self.notebook = stream is None and in_notebook()
        self.terminal = self.notebook or bool(self.stream.isatty())
        self.bar: rich.progress.Progress | None = None
        self.page: _NotebookBar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, done: float | None, text: str) -> None:
        """Show the share that is done (None if it is unknown) and a text."""
        if self not in _BARS:
            _BARS.append(self)
        if self.notebook:
            self.page = self.page or _NotebookBar(self.label)
            self.page.update(done, text)
            return
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
        if self in _BARS:
            _BARS.remove(self)
        if self.page is not None:
            self.page.close()
            self.page = None
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
        self.stop, self.config = dict(config["stop"]), config
        self.began = self.said = time.monotonic()
        self.first: dict[str, float] | None = None

    def on_record(self, step: int, metrics: dict[str, float]) -> None:
        """Show the record if the run has taken long enough."""
        now = time.monotonic()
        # a resumed run starts at a later round, and its speed counts from there
        if self.first is None:
            self.first = dict(metrics)
            self._say_floor(metrics)
        if self.quiet or now - self.began < SECONDS_BEFORE_FIRST:
            return
        if self.terminal:
            self.update(self.fraction(metrics), " · ".join(self._words(metrics, now)))
        elif now - self.said >= SECONDS_BETWEEN_LINES:
            self.said = now
            print(f"{self.label}: {', '.join(self._words(metrics, now))}", file=self.stream, flush=True)

    def _say_floor(self, metrics: dict[str, float]) -> None:
        """Say before anybody waits how many rounds such cohorts need."""
        floor = cohort_floor(self.config, metrics) if metrics.get("round") == 0 else None
        if floor is not None and not self.quiet:
            print(floor, file=self.stream, flush=True)

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


class MinimizeProgress(_Shown):
    """The progress of ``minimize``: the certificate on its way to the tolerance, or the nearest limit."""

    def __init__(self, label: str, tol: float, limits: dict[str, float | None], stream: TextIO | None = None) -> None:
        super().__init__(False, stream, label)
        self.tol, self.limits = tol, limits
        self.began = self.said = time.monotonic()
        self.first = math.nan

    def around(self, callback: Callable[..., Any] | None) -> Callable[..., Any]:
        """The callback for ``minimize`` that shows each record, and then calls the given one."""

        def both(row: dict[str, float], x: Any) -> None:
            self.show(row)
            if callback is not None:
                callback(row, x)

        return both

    def show(self, row: dict[str, float]) -> None:
        """Show the record if the run has taken long enough."""
        now, bound = time.monotonic(), row["certificate"]
        if not math.isfinite(self.first) and math.isfinite(bound):
            self.first = bound
        if now - self.began < SECONDS_BEFORE_FIRST:
            return
        words = f"iteration {row['iteration']:,.0f} · {row['nprox']:,.0f} proxes · certificate {bound:.1e}"
        if self.terminal:
            self.update(self.fraction(row), words)
        elif now - self.said >= SECONDS_BETWEEN_LINES:
            self.said = now
            print(f"{self.label}: {words.replace(' ·', ',')}", file=self.stream, flush=True)

    def fraction(self, row: dict[str, float]) -> float | None:
        """The share of the way, in logarithms, from the first certificate to the tolerance; or of a limit."""
        parts = [row[column] / limit for column, limit in self.limits.items() if limit]
        bound = row["certificate"]
        if self.first > self.tol and 0 < bound < math.inf:
            parts.append(math.log(self.first / bound) / math.log(self.first / self.tol))
        return min(1.0, max(0.0, *parts)) if parts else None


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
