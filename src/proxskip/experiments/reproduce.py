"""Run experiments in a folder, reuse what it holds already, and write the report."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from proxskip import datasets
from proxskip.experiments.bench import VERSION, Bench
from proxskip.experiments.figures import ALL, FAMILY, PAPER, Figure, experiment, figures_in
from proxskip.experiments.settings import check_folder
from proxskip.methods import registry
from proxskip.problems.federated import Problem
from proxskip.report import figures, plots
from proxskip.report.document import page
from proxskip.report.figures import Claim, Experiment, ReproductionReport
from proxskip.results import checkpoint, description, lock
from proxskip.results.atomic import atomic_write_json, atomic_write_text
from proxskip.running.parallel import EndFile
from proxskip.running.progress import OverallProgress, is_wanted
from proxskip.running.run import make_engine
from proxskip.types import InputError

STAMP = "reproduction.json"
RESULTS = "results.json"
PAGE = "index.html"
DEFAULT_DATA = "digits"
CLIENTS = {"clients": 20, "split": "label", "weights": "rows"}
OF_DATA = {"digits": {"clients": 20, "split": "group", "weights": "equal"}}
"""The clients of a data set; ``CLIENTS`` for all others."""
Results = Mapping[str, tuple[Experiment, list[Claim]]]


def bench_of(
    data: str = DEFAULT_DATA,
    out: str | Path = "report",
    quick: bool = False,
    engine: str = "cpu",
    threads: int | None = None,
    data_dir: str | None = None,
    jobs: int = 1,
) -> Bench:
    """The bench of a reproduction; its arguments are those of ``reproduce``."""
    # files by their absolute path, as in settings.spec_of
    is_known = data in datasets.KNOWN or not os.path.isfile(data)
    base = {"data_dir": data_dir, **OF_DATA.get(data, CLIENTS)}
    return Bench(Path(out), data if is_known else os.path.abspath(data), base, quick, engine, threads, jobs=jobs)


def command_of(bench: Bench, words: Sequence[str] = ()) -> str:
    """The command that makes these figures; without any, those of the paper."""
    line = ["proxskip", "reproduce", *words, "--data", bench.data]
    if bench.quick:
        line.append("--quick")
    if bench.engine != "cpu":
        line += ["--engine", bench.engine]
    if bench.base["data_dir"] is not None:
        line += ["--data-dir", str(bench.base["data_dir"])]
    for path in registry.PLUGINS:
        line += ["--plugin", str(path)]
    return shlex.join([*line, "--out", str(bench.out)])


def reproduce(
    experiments: str | Sequence[str] = (),
    *,
    data: str = DEFAULT_DATA,
    out: str | Path = "report",
    quick: bool = False,
    engine: str = "cpu",
    jobs: int = 1,
    threads: int | None = None,
    data_dir: str | None = None,
    progress: bool | None = None,
) -> ReproductionReport:
    """Reproduce the paper's figures and tables, and check its claims, as `proxskip reproduce` does.

    Args:
        experiments: the name of one, such as "fig1b", or of several, or Python files with figures of your own; all of
            the paper's if not given.
        data: the data set, by name or path.
        out: the folder of the report; a second call finds there what the first has computed.
        quick: shorter runs.
        engine: "cpu", "gpu" or "reference".
        jobs: processes that share the runs.
        threads: threads of the engine; by default one per core.
        data_dir: a folder with data sets, where to look first.
        progress: whether to show progress on stderr; by default in a terminal or a notebook.
    """
    names = [experiments] if isinstance(experiments, str) else experiments
    bench = bench_of(data, out, quick, engine, threads, data_dir, jobs)
    with OverallProgress(quiet=not is_wanted(progress)) as overall:
        return make_report(names, bench, overall)


def figures_of(names: Sequence[str]) -> dict[str, Figure]:
    """The named experiments in the order of the report, then the figures of files; all of the paper's if none is named.

    A file is a name that ends in .py.
    """
    files = [name for name in names if name.endswith(".py")]
    if unknown := [name for name in names if name not in (*ALL, *files)]:
        raise InputError(
            f'there is no experiment "{unknown[0]}"; choose from {", ".join(ALL)}, or give the Python file of a figure.'
        )
    chosen = {name: experiment(name) for name in ALL if name in (names or PAPER)}
    for file in files:
        for own in figures_in(file):
            if own.id in ALL or own.id in chosen:
                raise InputError(f"{file} has a figure {own.id}, as there is already; give it another name.")
            chosen[own.id] = own
    return chosen


def make_report(
    names: Sequence[str], bench: Bench, show: Callable[[str, float], None] = lambda text, share: None
) -> ReproductionReport:
    """Run the named experiments (all of the paper's if none is named) and write the report.

    Args:
        show: called with a text and the share that is done.
    """
    chosen = figures_of(names)
    claim_folder(bench)
    make_engine(bench.engine, bench.threads)  # refuses a missing engine before anything is written
    began = time.monotonic()
    shares = {id: made.share[bench.quick] for id, made in chosen.items()}
    finished: list[str] = []

    def say(topic: str, text: str) -> None:
        show(f"{topic}: {text}", sum(shares[id] for id in finished) / sum(shares.values()))

    sha256 = bench.data_sha256  # reads the data before anything is written
    for made in chosen.values():
        made.rehearse(bench)
    write_stamp(bench, sha256)
    with tempfile.TemporaryDirectory() as place:
        end = EndFile(Path(place) / "end")
        own = {id: replace(bench, end=end, say=partial(say, id)) for id in chosen}
        for id in _each(chosen, own, end):
            finished.append(id)
    report = add_results(bench, {}, time.monotonic() - began)
    say("figures", "drawing")
    draw(report, bench.out)
    atomic_write_text(bench.out / PAGE, page(report))
    return report


def _each(chosen: Mapping[str, Figure], own: Mapping[str, Bench], end: EndFile) -> Iterator[str]:
    """Run one experiment after the other; with processes all at once, in threads that wait for them."""
    first = next(iter(own.values()))
    if first.jobs == 1:
        for id, made in chosen.items():
            _one(made, own[id])
            yield id
        return
    threads = ThreadPoolExecutor(len(chosen))
    order = sorted(chosen, key=lambda id: -chosen[id].share[first.quick])  # the longest first
    try:
        waiting = {threads.submit(_one, chosen[id], own[id]): id for id in order}
        for ended in as_completed(waiting):
            ended.result()
            yield waiting[ended]
    except BaseException:
        end.set()  # the runs under way write their checkpoints
        raise
    finally:
        threads.shutdown(cancel_futures=True)


def _one(made: Figure, bench: Bench) -> None:
    """Run one experiment and add it to results.json."""
    began = time.monotonic()
    experiment, claims = made.make(bench)
    seconds = time.monotonic() - began
    with bench.lock:
        if (before := earlier(bench.out).get(experiment.id)) is not None:
            seconds = max(seconds, before[0].seconds)  # reading its runs again takes little time
        experiment = replace(experiment, seconds=seconds, command=command_of(bench, [made.file or made.id]))
        add_results(bench, {experiment.id: (experiment, claims)})


# -- the folder --------------------------------------------------------------------------------------------------------
def claim_folder(bench: Bench) -> None:
    """Refuse a folder that holds anything but this reproduction."""
    out = bench.out
    check_folder(out)
    if _has_stamp(out, _shared(bench)):
        return
    # these files would be overwritten
    if held := [name for name in (RESULTS, PAGE, "runs", "cache", "figures") if (out / name).exists()]:
        raise InputError(f"{out / held[0]} belongs to no reproduction; choose a new or an empty folder.")


def write_stamp(bench: Bench, data_sha256: str | None) -> None:
    """Write to the folder what its figures share, or check that it is the same."""
    now = _shared(bench) | {"data_sha256": data_sha256}
    if not _has_stamp(bench.out, now):
        bench.out.mkdir(parents=True, exist_ok=True)
        atomic_write_json(bench.out / STAMP, now)


def _shared(bench: Bench) -> dict[str, Any]:
    """What all figures of a folder share."""
    return {"version": VERSION, "data": bench.data, "quick": bench.quick, "engine": bench.engine}


def _has_stamp(out: Path, now: Mapping[str, Any]) -> bool:
    """Whether the folder holds a reproduction that shares this; one that shares anything else is refused."""
    stamp = read_json(out / STAMP)
    if stamp is None:
        return False
    if other := checkpoint.differences({k: stamp.get(k) for k in now}, now):
        raise InputError(f"{out} holds another reproduction ({'; '.join(other)}); choose another folder.")
    return True


def earlier(out: Path) -> Results:
    """The experiments in results.json, if this version wrote it."""
    content = read_json(out / RESULTS)
    if content is None or content["about"].get("versions", {}).get("proxskip") != description.versions()["proxskip"]:
        return {}
    old = figures.from_json(content)
    return {e.id: (e, [c for c in old.claims if c.experiment == e.id]) for e in old.experiments}


def read_json(path: Path) -> Any:
    """The content of a file; None if there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise InputError(f"{path} is damaged; remove it and start again.") from None


# -- results -----------------------------------------------------------------------------------------------------------
def add_results(bench: Bench, new: Results, seconds: float = 0.0) -> ReproductionReport:
    """Add experiments and seconds to results.json, which another process may have changed meanwhile."""
    with lock.held(bench.out, patient=True):
        before = read_json(bench.out / RESULTS) or {"about": {}}
        kept = {**earlier(bench.out), **new}
        chosen = [kept[name] for name in dict.fromkeys([*ALL, *kept]) if name in kept]
        shown = [e for e, _ in chosen]
        title = _title(shown, os.path.basename(bench.data))
        spent = {"seconds": seconds + before["about"].get("seconds", 0.0), "jobs": bench.jobs}
        claims = [claim for _, claims in chosen for claim in claims]
        results = ReproductionReport(title, about(bench, shown) | spent, claims, shown)
        atomic_write_json(bench.out / RESULTS, figures.to_json(results))
    return results


def _title(shown: Sequence[Experiment], data: str) -> str:
    """The title of the page; a single figure of the user's own keeps its title."""
    own = [e for e in shown if e.id not in ALL]
    if own and len(shown) == 1:
        return own[0].title
    if shown and len(own) == len(shown):
        return f"{len(own)} figures on {data}"
    return f"The family on {data}" if _is_family(shown) else f"ProxSkip on {data}"


def _is_family(shown: Sequence[Experiment]) -> bool:
    return {e.id for e in shown} <= set(FAMILY)


def about(bench: Bench, shown: Sequence[Experiment]) -> dict[str, Any]:
    """Data, constants, versions and command."""
    problem = bench.problem()
    facts = {
        "data": problem.info.get("data"),
        "data_sha256": problem.info.get("data_sha256"),
        "rows": problem.N,
        "d": problem.d,
        "clients": problem.n,
        "split": problem.info.get("split"),
        "weights": problem.info.get("weights"),
        "quick": bench.quick,
        "engine": bench.engine,
        "versions": description.versions(),
    }
    if shown and not any(e.id in ALL for e in shown):
        # a figure of one's own chooses its problem, and commands of several files stand beside their figures
        commands = {e.command for e in shown}
        return facts | {"command": commands.pop() if len(commands) == 1 else ""}
    return facts | _constants(problem) | {"command": command_of(bench, ["--family"] if _is_family(shown) else [])}


def _constants(problem: Problem) -> dict[str, Any]:
    solution = problem.solution
    return {
        "lambda": problem.l2,
        "L_average": problem.L_average,
        "L_max": problem.L_max,
        "mu": problem.mu,
        "f_star": None if solution is None else solution.f,
    }


def draw(results: ReproductionReport, out: Path) -> None:
    """Write the figures as PNG, PDF, SVG and CSV."""
    for e in results.experiments:
        if e.panels:
            plots.save(plots.panel_figure(e.panels, e.title), out / "figures" / f"{e.id}.png", svg=True)
            atomic_write_text(out / "figures" / f"{e.id}.csv", figures.to_csv(e))
