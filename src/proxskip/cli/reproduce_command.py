"""`proxskip reproduce`: the paper's figures, tables and claims with one command."""

from __future__ import annotations

import signal
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proxskip.cli import output
from proxskip.cli.commands import DONE, FAILED_CLAIM, INTERRUPTED
from proxskip.experiments.bench import PAPER_DATA
from proxskip.experiments.figures import FAMILY
from proxskip.experiments.reproduce import DEFAULT_DATA, PAGE, bench_of, command_of, make_report
from proxskip.report import figures
from proxskip.report.figures import ReproductionReport, Verdict
from proxskip.results.plain_table import Table
from proxskip.running.progress import OverallProgress
from proxskip.support.cores import available_cores
from proxskip.types import InputError

VERDICTS: dict[Verdict, tuple[str, str, str]] = {
    "PASS": ("passed", "green", "passed"),
    "FAIL": ("FAILED", "bold red", "FAILED"),
    "INCONCLUSIVE": ("not decided", "yellow", "not decided (the runs are too short)"),
    "REPORTED": ("measured, no claim", "cyan", "measured, with no claim for this data"),
}
"""In the order of the table: each verdict in words, its color, and its words in the last line."""


def command(o: Namespace) -> int:
    """Run it; returns the exit code."""
    if o.family and o.experiments:
        raise InputError("--family has its own experiments; give no names, or leave it out.")
    names = list(FAMILY) if o.family else o.experiments
    data = o.data or (PAPER_DATA if o.family and not o.quick else DEFAULT_DATA)
    jobs = o.jobs or available_cores()
    bench = bench_of(data, o.out, o.quick, o.engine, o.threads, o.data_dir, jobs)
    try:
        with OverallProgress(o.quiet) as overall, _terminated():
            report = make_report(names, bench, overall)
    except KeyboardInterrupt:
        return output.fail(f"interrupted; to continue, run: {command_of(bench, names)}", INTERRUPTED)
    if o.json:
        output.as_json(figures.to_json(report))
    elif not o.quiet:
        _print(report, bench.out)
    # without --strict a failed claim is a result like any other
    failed = [c.id for c in report.claims if c.verdict == "FAIL"]
    if o.strict and failed:
        sentence = f"{len(failed)} of {len(report.claims)} claims failed: {', '.join(failed)}."
        return output.fail(sentence, FAILED_CLAIM)
    return DONE


@contextmanager
def _terminated() -> Iterator[None]:
    """Let SIGTERM interrupt like Ctrl-C, and Ctrl-C also a process that was started with it ignored."""
    # Python allows handlers of signals in the main thread only
    main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if main else ()
    handlers = {s: signal.signal(s, _interrupt) for s in signals}
    try:
        yield
    finally:
        for s, handler in handlers.items():
            signal.signal(s, handler)


def _interrupt(*_: object) -> None:
    # ``timeout`` sends two, and the second would hit one of Python's locks while the first unwinds
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _print(report: ReproductionReport, out: Path) -> None:
    """The verdicts, and where the page is."""
    if report.claims:
        _print_claims(report)
    else:
        print("Nothing is claimed; in a figure of your own, write yield before each of its claims.")
    print(f"Open {out / PAGE} in a browser; all numbers are in {out / 'results.json'}.")


def _print_claims(report: ReproductionReport) -> None:
    """What passed first, then what failed, what is open, and what was only measured."""
    cells, counts = [], []
    for verdict, (word, _, words) in VERDICTS.items():
        claims = [c for c in report.claims if c.verdict == verdict]
        cells += [(c.id, word, c.text, f"{c.measured} ({c.note})" if c.note else c.measured) for c in claims]
        counts += [f"{len(claims)} {words}"] if claims else []
    styles = {word: style for word, style, _ in VERDICTS.values()}
    output.print_table(Table(report.title, ("id", "verdict", "claim", "measured"), cells), styles)
    total = len(report.claims)
    print(f"{total} {'claim' if total == 1 else 'claims'}: {', '.join(counts)}.")
