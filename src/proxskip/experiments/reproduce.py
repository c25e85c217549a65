"""Run experiments in a folder, reuse what it holds already, and write the report."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class ReproductionOptions:
    """The options of a reproduction.

    Args:
        family: whether the page compares the methods with each other instead of reproducing the paper.
        jobs: processes that share the runs.
    """

    data: str = DEFAULT_DATA
    out: Path = Path("report")
    quick: bool = False
    engine: str = "cpu"
    threads: int | None = None
    data_dir: str | None = None
    family: bool = False
    jobs: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        # files by their absolute path, as in settings.spec_of
        known = self.data in datasets.KNOWN or not os.path.isfile(self.data)
        data = self.data if known else os.path.abspath(self.data)
        return {"version": VERSION, "data": data, "quick": self.quick, "engine": self.engine}

    def command(self, names: Sequence[str] = ()) -> str:
        words = ["proxskip", "reproduce", *(names or (["--family"] if self.family else [])), "--data", self.data]
        words += ["--quick"] if self.quick else []
        words += [] if self.engine == "cpu" else ["--engine", self.engine]
        words += [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        for path in registry.PLUGINS:
            words += ["--plugin", str(path)]
        return shlex.join([*words, "--out", str(self.out)])


def reproduce(
    experiments: str | Sequence[str] = (),
    *,
    data: str = "digits",
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
    options = ReproductionOptions(data, Path(out), quick, engine, threads, data_dir, jobs=jobs)
    with OverallProgress(quiet=not is_wanted(progress)) as overall:
        return make_report(names, options, overall)


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
    names: Sequence[str], options: ReproductionOptions, show: Callable[[str, float], None] = lambda text, share: None
) -> ReproductionReport:
    """Run the named experiments (all of the paper's if none is named) and write the report.

    Args:
        show: called with a text and the share that is done.
    """
    chosen = figures_of(names)
    claim_folder(options)
    make_engine(options.engine, options.threads)  # refuses a missing engine before anything is written
    began = time.monotonic()
    shares = {id: made.share[options.quick] for id, made in chosen.items()}
    finished: list[str] = []

    def say(topic: str, text: str) -> None:
        show(f"{topic}: {text}", sum(shares[id] for id in finished) / sum(shares.values()))

    bench = Bench(
        options.out, options.settings["data"], {"data_dir": options.data_dir, **OF_DATA.get(options.data, CLIENTS)},
        options.quick, options.engine, options.threads,
    )  # fmt: skip
    sha256 = bench.data_sha256  # reads the data before anything is written
    for made in chosen.values():
        made.rehearse(bench)
    write_stamp(options, sha256)
    with tempfile.TemporaryDirectory() as place:
        end = EndFile(Path(place) / "end")
        own = {id: replace(bench, jobs=options.jobs, end=end, say=partial(say, id)) for id in chosen}
        for id in _each(chosen, own, options, end):
            finished.append(id)
    report = add_results(options, bench, {}, time.monotonic() - began)
    say("figures", "drawing")
    draw(report, options.out)
    atomic_write_text(options.out / PAGE, page(report, files_beside=True))
    return report


def _each(
    chosen: Mapping[str, Figure], own: Mapping[str, Bench], options: ReproductionOptions, end: EndFile
) -> Iterator[str]:
    """Run one experiment after the other; with processes all at once, in threads that wait for them."""
    if options.jobs == 1:
        for id, made in chosen.items():
            _one(made, options, own[id])
            yield id
        return
    threads = ThreadPoolExecutor(len(chosen))
    order = sorted(chosen, key=lambda id: -chosen[id].share[options.quick])  # the longest first
    try:
        waiting = {threads.submit(_one, chosen[id], options, own[id]): id for id in order}
        for ended in as_completed(waiting):
            ended.result()
            yield waiting[ended]
    except BaseException:
        end.set()  # the runs under way write their checkpoints
        raise
    finally:
        threads.shutdown(cancel_futures=True)


def _one(made: Figure, options: ReproductionOptions, bench: Bench) -> None:
    """Run one experiment and add it to results.json."""
    began = time.monotonic()
    experiment, claims = made.make(bench)
    seconds = time.monotonic() - began
    with bench.lock:
        if (before := earlier(options).get(experiment.id)) is not None:
            seconds = max(seconds, before[0].seconds)  # reading its runs again takes little time
        command = options.command([made.file or made.id])
        experiment = replace(experiment, seconds=seconds, command=command)
        add_results(options, bench, {experiment.id: (experiment, claims)})


# -- the folder --------------------------------------------------------------------------------------------------------
def claim_folder(options: ReproductionOptions) -> None:
    """Refuse a folder that holds anything but this reproduction."""
    out = options.out
    check_folder(out)
    stamp = read_json(out / STAMP)
    if stamp is None:
        # these files would be overwritten
        if held := [name for name in (RESULTS, PAGE, "runs", "cache", "figures") if (out / name).exists()]:
            raise InputError(f"{out / held[0]} belongs to no reproduction; choose a new or an empty folder.")
        return
    _check_same(options, {k: v for k, v in stamp.items() if k in options.settings}, options.settings)


def _check_same(options: ReproductionOptions, stamp: dict[str, Any], now: dict[str, Any]) -> None:
    if other := checkpoint.differences(stamp, now):
        raise InputError(f"{options.out} holds another reproduction ({'; '.join(other)}); choose another folder.")


def write_stamp(options: ReproductionOptions, data_sha256: str | None) -> None:
    """Write the settings to the folder, or check that they are those of the folder."""
    settings = options.settings | {"data_sha256": data_sha256}
    stamp = read_json(options.out / STAMP)
    if stamp is not None:
        _check_same(options, stamp, settings)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    atomic_write_json(options.out / STAMP, settings)


def earlier(options: ReproductionOptions) -> Results:
    """The experiments in results.json, if this version wrote it."""
    content = read_json(options.out / RESULTS)
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
def add_results(options: ReproductionOptions, bench: Bench, new: Results, seconds: float = 0.0) -> ReproductionReport:
    """Add experiments and seconds to results.json, which another process may have changed meanwhile."""
    with lock.held(options.out, patient=True):
        before = read_json(options.out / RESULTS) or {"about": {}}
        kept = {**earlier(options), **new}
        chosen = [kept[name] for name in dict.fromkeys([*ALL, *kept]) if name in kept]
        title = _title([e for e, _ in chosen], os.path.basename(options.data))
        facts = about(options, bench, [e for e, _ in chosen])
        spent = {"seconds": seconds + before["about"].get("seconds", 0.0), "jobs": options.jobs}
        claims = [claim for _, claims in chosen for claim in claims]
        results = ReproductionReport(title, facts | spent, claims, [e for e, _ in chosen])
        atomic_write_json(options.out / RESULTS, figures.to_json(results))
    return results


def _title(shown: Sequence[Experiment], data: str) -> str:
    """The title of the page; a single figure of the user's own keeps its title."""
    own = [e for e in shown if e.id not in ALL]
    if own and len(shown) == 1:
        return own[0].title
    if shown and len(own) == len(shown):
        return f"{len(own)} figures on {data}"
    return f"The family on {data}" if {e.id for e in shown} <= set(FAMILY) else f"ProxSkip on {data}"


def about(options: ReproductionOptions, bench: Bench, shown: Sequence[Experiment]) -> dict[str, Any]:
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
        "quick": options.quick,
        "engine": options.engine,
        "versions": description.versions(),
    }
    if shown and not any(e.id in ALL for e in shown):
        # a figure of one's own chooses its problem, and commands of several files stand beside their figures
        commands = {e.command for e in shown}
        return facts | {"command": commands.pop() if len(commands) == 1 else ""}
    return facts | _constants(problem) | {"command": options.command()}


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
