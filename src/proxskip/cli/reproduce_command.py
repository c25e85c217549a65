"""`proxskip reproduce`: the paper's figures, tables and claims with one command."""

from __future__ import annotations

import signal
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from proxskip.cli import output
from proxskip.cli.runs import DONE, FAILED_CLAIM, INTERRUPTED
from proxskip.cores import available_cores
from proxskip.experiments import FAMILY, NETWORKS
from proxskip.experiments.claims import UNDECIDED
from proxskip.experiments.reproduce import DEFAULT_DATA, PAGE, RESULTS, ReproductionOptions, reproduce
from proxskip.experiments.workspace import PAPER_DATA
from proxskip.loop.progress import OverallProgress
from proxskip.report import figures
from proxskip.report.figures import ReproductionReport
from proxskip.types import InputError

if TYPE_CHECKING:
    from rich.table import Table


def command(o: Namespace) -> tuple[int, str]:
    """Run it; returns the exit code, and a sentence if it did not succeed."""
    if (o.family or o.networks) and (o.experiments or o.family == o.networks):
        flag = "--family" if o.family else "--networks"
        raise InputError(f"{flag} has its own experiments; give no names, or leave it out.")
    names = [name for asked, of in ((o.family, FAMILY), (o.networks, NETWORKS)) if asked for name in of]
    names = names or o.experiments
    data = o.data or (PAPER_DATA if o.family and not o.quick else DEFAULT_DATA)
    # every process that trains networks on a card takes a part of its memory
    alone = o.engine == "gpu" and set(names) & set(NETWORKS)
    jobs = o.jobs or (1 if alone else available_cores())
    options = ReproductionOptions(data, Path(o.out), o.quick, o.engine, o.threads, o.data_dir, o.family, jobs)
    try:
        with OverallProgress(o.quiet) as overall, _terminated():
            report = reproduce(names, options, overall)
    except KeyboardInterrupt:
        return INTERRUPTED, f"interrupted; the same command resumes it ({options.command(names)})."
    if o.json:
        output.as_json(figures.to_json(report))
    elif not o.quiet:
        _print(report, options.out)
    # without --strict a failed claim is a result like any other
    failed = [c.id for c in report.claims if c.verdict == "FAIL"]
    if o.strict and failed:
        return FAILED_CLAIM, f"{len(failed)} of {len(report.claims)} claims failed: {', '.join(failed)}."
    return DONE, ""


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM interrupts like Ctrl-C; Ctrl-C also interrupts a process that was started with it ignored."""
    # Python allows handlers of signals in the main thread only
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def caught(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    old = {s: signal.signal(s, caught) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


def _print(report: ReproductionReport, out: Path) -> None:
    output.print_table(claims_table(report))
    notes = [c for c in report.claims if c.note]
    for c in notes:
        print(f"{c.id}: {c.note}.")
    counted = {v: sum(c.verdict == v for c in report.claims) for v in ("PASS", "FAIL", "REPORTED", *UNDECIDED)}
    print(", ".join(f"{n} {v}" for v, n in counted.items() if n) + f" of {len(report.claims)} claims.")
    print(f"written: {out / PAGE}, {out / RESULTS}, {out / 'figures'}")


def claims_table(report: ReproductionReport) -> Table:
    """One row per claim: its verdict, its text, and the measurement."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=report.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "verdict", "claim", "measured"):
        table.add_column(name, no_wrap=name in ("id", "verdict"))
    for c in report.claims:
        table.add_row(Text(c.id), Text(c.verdict, style=_STYLES[c.verdict]), Text(c.text), Text(c.measured))
    return table


_STYLES = {"PASS": "green", "FAIL": "bold red", "REPORTED": "cyan"} | dict.fromkeys(UNDECIDED, "dim")
