"""The progress of runs: a bar in a terminal or a notebook, otherwise an occasional line."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Self, TextIO

from proxskip.results.description import cohort_floor
from proxskip.results.result import Result

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


class Bar:
    """Progress on a stream: a bar in a terminal or a notebook, which appears at the first update; otherwise lines.

    Args:
        label: the text before the bar, such as ``2/5 scaffnew``.
        quiet: show nothing.
    """

    def __init__(self, label: str = "", quiet: bool = False, stream: TextIO | None = None) -> None:
        self.label, self.quiet, self.stream = label, quiet, sys.stderr if stream is None else stream
        self.notebook = stream is None and in_notebook()
        self.terminal = self.notebook or bool(self.stream.isatty())
        self.began = self.said = time.monotonic()
        self.bar: Any = None
        """That of rich, or the output of a notebook's cell."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, done: float | None, words: Sequence[str], now: float | None = None) -> None:
        """Show the share that is done (None if it is unknown) and some words, if it has taken long enough."""
        now = time.monotonic() if now is None else now
        if self.quiet or now - self.began < SECONDS_BEFORE_FIRST:
            return
        if self.terminal:
            self.draw(done, " · ".join(words))
        elif now - self.said >= SECONDS_BETWEEN_LINES:
            self.say(f"{self.label}: {', '.join(words)}", now)

    def say(self, line: str, now: float) -> None:
        """A line, where there is no bar."""
        self.said = now
        print(line, file=self.stream, flush=True)

    def draw(self, done: float | None, text: str) -> None:
        """The bar."""
        if self.bar is None:
            _BARS.append(self)
            self.bar = self._in_notebook() if self.notebook else self._in_terminal()
        if self.notebook:
            value = "" if done is None else f' value="{done:.4f}"'
            self.bar.update(self.html(f"{escape(self.label)} <progress max=1{value}></progress> {escape(text)}"))
        else:
            self.bar.update(self.task, total=None if done is None else 1.0, completed=done or 0.0, text=text)

    def _in_notebook(self) -> Any:
        from IPython.display import HTML, display

        self.html = HTML
        return display(HTML(""), display_id=True)

    def _in_terminal(self) -> Any:
        # imported at the first update: a short run never needs rich
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = TextColumn(self.label, markup=False), BarColumn(24), TextColumn("{task.fields[text]}", markup=False)
        console = Console(file=self.stream)
        bar = RichProgress(*columns[not self.label :], console=console, transient=True, refresh_per_second=5)
        self.task = bar.add_task("", total=None, text="")
        bar.start()
        return bar

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            _BARS.remove(self)
            if self.notebook:
                self.bar.update(self.html(""))
            else:
                self.bar.stop()
            self.bar = None


class Progress(Bar):
    """The callback of a run that shows its progress on stderr."""

    stop: dict[str, float | None] = {}  # noqa: RUF012  replaced when the run begins

    @property
    def has_tolerance(self) -> bool:
        """Whether the run has a tolerance to reach."""
        return self.stop.get("tol") is not None or self.stop.get("target") is not None

    # -- the callbacks of a run ----------------------------------------------------------------------------------------
    def on_run_start(self, config: dict[str, Any]) -> None:
        """Read the limits from the configuration."""
        self.stop, self.config = dict(config["stop"]), config
        self.began = self.said = time.monotonic()
        self.first: dict[str, float] = {}

    def on_record(self, step: int, metrics: dict[str, float]) -> None:
        """Show the record if the run has taken long enough."""
        # a resumed run starts at a later round, and its speed counts from there
        if not self.first:
            self.first = dict(metrics)
            # before anybody waits: how many rounds such cohorts need
            floor = cohort_floor(self.config, metrics) if metrics.get("round") == 0 else None
            if floor is not None and not self.quiet:
                print(floor, file=self.stream, flush=True)
        now = time.monotonic()
        self.show(self.fraction(metrics), self._words(metrics, now - self.began), now)

    def on_run_end(self, result: Result) -> None:
        """Remove the bar."""
        self.close()

    # -- words ---------------------------------------------------------------------------------------------------------
    def fraction(self, metrics: dict[str, float]) -> float | None:
        """The used share of the limit that is nearest; None without a limit."""
        columns = {"rounds": "round", "iterations": "iterations", "seconds": "seconds"}
        parts = [metrics[column] / limit for k, column in columns.items() if (limit := self.stop.get(k))]
        return min(1.0, max(parts)) if parts else None

    def _words(self, metrics: dict[str, float], elapsed: float) -> list[str]:
        limit, gap = self.stop.get("rounds"), metrics.get("gap")
        speed = (metrics["round"] - self.first["round"]) / max(elapsed, 1e-9)
        words = [
            f"round {metrics['round']:,.0f}" + (f"/{limit:,.0f}" if limit else ""),
            f"|grad f| {metrics['grad_norm']:.1e}" if gap is None else f"f - f* {gap:.1e}",
            f"{speed:,.0f} rounds/s" if speed >= 10 else f"{speed:.2g} rounds/s",
        ]
        if "share_local" in metrics:
            shares = [f"{100 * metrics[f'share_{k}']:.0f} % {k}" for k in ("local", "communication", "waiting")]
            words.append(", ".join(shares) + f" for actor {metrics['slowest_actor']:.0f}")
        # the rest takes as long per share of the limit as what was done since the start
        done, start = self.fraction(metrics), self.fraction(self.first)
        if done is not None and start is not None and done > start:
            words.append(f"{clock(elapsed * (1 - done) / (done - start))} left")
        return words


class MinimizeProgress(Bar):
    """The progress of ``minimize``: the certificate on its way to the tolerance, or the nearest limit."""

    def __init__(self, label: str, tol: float, limits: dict[str, float | None], stream: TextIO | None = None) -> None:
        super().__init__(label, stream=stream)
        self.tol, self.limits, self.first = tol, limits, math.nan

    def around(self, callback: Callable[..., Any] | None) -> Callable[..., Any]:
        """The callback for ``minimize`` that shows each record, and then calls the given one."""

        def both(row: dict[str, float], x: Any) -> None:
            words = f"iteration {row['iteration']:,.0f}", f"{row['nprox']:,.0f} proxes"
            self.show(self.fraction(row), [*words, f"certificate {row['certificate']:.1e}"])
            if callback is not None:
                callback(row, x)

        return both

    def fraction(self, row: dict[str, float]) -> float | None:
        """The share of the way, in logarithms, from the first certificate to the tolerance; or of a limit."""
        parts, bound = [row[column] / limit for column, limit in self.limits.items() if limit], row["certificate"]
        if not math.isfinite(self.first) and math.isfinite(bound):
            self.first = bound
        if self.first > self.tol and 0 < bound < math.inf:
            parts.append(math.log(self.first / bound) / math.log(self.first / self.tol))
        return min(1.0, max(0.0, *parts)) if parts else None


class OverallProgress(Bar):
    """The progress of many experiments: what is running, how much is done, how long the rest takes."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(quiet=quiet, stream=stream)
        self.topic = ""

    def __call__(self, text: str, done: float) -> None:
        """Show it; if stderr is not a terminal, a line for every new topic and occasionally one in between."""
        if self.quiet:
            return
        now = time.monotonic()
        # the rest takes as long per share as what is done
        remaining = f", {clock((now - self.began) * (1 - done) / done)} left" if done > 0 else ""
        if self.terminal:
            self.draw(done, f"{100 * done:.0f} %{remaining} · {text}")
            return
        # a text is "topic, details"; a new topic is shown sooner than new details
        topic = text.partition(",")[0]
        if now - self.said >= (SECONDS_BEFORE_FIRST if topic != self.topic else SECONDS_BETWEEN_LINES):
            self.topic = topic
            self.say(f"{text}; {100 * done:.0f} % done{remaining}", now)


class DownloadProgress(Bar):
    """The progress of a download, for ``datasets.fetch``."""

    def __init__(self, name: str, quiet: bool) -> None:
        super().__init__(f"fetching {name}", quiet)

    def __call__(self, have: int, total: int | None) -> None:
        """Called with the bytes that have arrived, and the total if it is known."""
        of = f" of {total / 1e6:.1f}" if total else ""
        self.show(have / total if total else None, [f"{have / 1e6:.1f}{of} MB"])


def clock(seconds: float) -> str:
    """A duration as 12 s, 3:05 min or 1:20 h."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    return f"{s // 60}:{s % 60:02d} min" if s < 3600 else f"{s // 3600}:{s % 3600 // 60:02d} h"


@contextmanager
def stage(text: str, quiet: bool) -> Iterator[None]:
    """Show what happens before the run if it takes long, such as reading a file."""
    # a line only if the stage takes long; the timer must not keep the process alive
    stream = sys.stderr
    timer = threading.Timer(SECONDS_BEFORE_FIRST, lambda: print(text, file=stream, flush=True))
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
