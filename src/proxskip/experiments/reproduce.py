"""Run all experiments in a folder, reusing what it holds already, and write the report."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proxskip import experiments, report
from proxskip.data import datasets
from proxskip.experiments import toml_figures
from proxskip.experiments.progress_estimate import ProgressEstimate, Show
from proxskip.experiments.settings import check_folder
from proxskip.experiments.workspace import VERSION, Workspace
from proxskip.processes import Processes
from proxskip.report import figures, plots
from proxskip.report.figures import Claim, Experiment, ReproductionReport
from proxskip.results import checkpoint, description, lock
from proxskip.results.atomic import atomic_write_json, atomic_write_text
from proxskip.running import make_engine
from proxskip.types import InputError

STAMP = "reproduction.json"
RESULTS = "results.json"
PAGE = "index.html"
DEFAULT_DATA = "digits"


@dataclass(frozen=True, slots=True)
class ReproductionOptions:
    """The options of a reproduction."""

    data: str = DEFAULT_DATA
    out: Path = Path("report")
    quick: bool = False
    engine: str = "cpu"
    threads: int | None = None
    data_dir: str | None = None
    family: bool = False
    """Whether it is the page of the family, not of the paper."""
    jobs: int = 1
    """Processes that share the runs."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that all results in a folder share."""
        # files by their absolute path, as in settings.spec_of
        known = self.data in datasets.KNOWN or not os.path.isfile(self.data)
        data = self.data if known else os.path.abspath(self.data)
        return {"version": VERSION, "data": data, "quick": self.quick, "engine": self.engine}

    def command(self, names: Sequence[str] = ()) -> str:
        """The command line with these options."""
        words = ["proxskip", "reproduce", *(names or (["--family"] if self.family else [])), "--data", self.data]
        words += ["--quick"] if self.quick else []
        words += [] if self.engine == "cpu" else ["--engine", self.engine]
        words += [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        return shlex.join([*words, "--out", str(self.out)])


def available() -> list[str]:
    """The experiments, in the order of the report."""
    return list(experiments.FUNCTIONS)


def check_names(names: Sequence[str]) -> list[str]:
    """The named experiments in the order of the report, then the figures of files; all experiments if none is named."""
    more = experiments.FAMILY | experiments.NETWORKS
    known = [*available(), *(name for name in more if name in names)]
    files = [name for name in names if experiments.is_file(name)]
    for name in names:
        if name not in known and name not in files:
            raise InputError(
                f'experiment "{name}" is not known; the experiments are {", ".join(known)}, or give the TOML file of a '
                "figure."
            )
    for name in files:
        if (id := experiments.id_of(name)) in (*experiments.FUNCTIONS, *more):
            raise InputError(f"{name} has the name of the experiment {id}; give the file another name.")
        for quick in (False, True):
            toml_figures.check(toml_figures.resolved(experiments.preset(name, quick)))
    return [name for name in known if not names or name in names] + files


def check_torch(names: Sequence[str], options: ReproductionOptions) -> None:
    """Refuse networks without PyTorch, on data of their own, or on a card that is not there."""
    if not set(names) & set(experiments.NETWORKS):
        return
    if importlib.util.find_spec("torch") is None:
        raise InputError('networks need PyTorch; install it with: pip install "proxskip[torch]"')
    if options.data != DEFAULT_DATA:
        raise InputError("networks learn the digits and text that the page makes; leave out --data.")
    if options.threads is not None:
        raise InputError("networks train with one thread per process; give --jobs in place of --threads.")
    if options.engine == "gpu":
        import torch

        if not torch.cuda.is_available():
            raise InputError("PyTorch finds no GPU on this machine; leave out --engine.")


def reproduce(names: Sequence[str], options: ReproductionOptions, show: Show | None = None) -> ReproductionReport:
    """Run the named experiments (all if none is named) and write the report.

    Args:
        show: is called with a text, the share that is done, and the remaining seconds.
    """
    chosen = check_names(names)
    check_torch(chosen, options)
    claim_folder(options)
    if not set(chosen) <= set(experiments.NETWORKS):
        make_engine(options.engine, options.threads)  # refuse a missing engine before anything is written
    presets = {name: experiments.preset(name, options.quick) for name in chosen}
    progress = ProgressEstimate(
        {experiments.id_of(name): float(p.get("share", 1.0)) for name, p in presets.items()}, show
    )
    workspace = make_workspace(options, progress)
    write_stamp(options, workspace.data_sha256)  # reads the data first, so that a bad file leaves no folder behind
    spaces = [replace(workspace, preset=presets[name]) for name in chosen]
    with clock(options.out, progress), Processes(options.jobs) if options.jobs > 1 else nullcontext() as pool:
        if pool is None:
            for name, space in zip(chosen, spaces, strict=True):
                report = _one(name, options, space)
        else:
            report = _at_once(chosen, options, spaces, pool)
        draw(report, options.out, progress, pool)
    return write_page(options, workspace)


def _at_once(
    names: Sequence[str], options: ReproductionOptions, spaces: Sequence[Workspace], pool: Processes
) -> ReproductionReport:
    """All experiments together: a thread of each waits for the processes, which do the work."""
    threads = ThreadPoolExecutor(len(names))
    try:
        waiting = [
            threads.submit(_one, name, options, replace(space, pool=pool, spent=[]))
            for name, space in zip(names, spaces, strict=True)
        ]
        for ended in as_completed(waiting):
            report = ended.result()
    finally:
        # after an interrupt their processes end, and they with them
        threads.shutdown(wait=False, cancel_futures=True)
    return report


def _one(name: str, options: ReproductionOptions, workspace: Workspace) -> ReproductionReport:
    """Run one experiment and add it to results.json."""
    # a thread that waits for processes has little time of its own
    cpu_clock = time.thread_time if workspace.pool is not None else time.process_time
    began = time.monotonic(), cpu_clock()
    experiment, claims = experiments.function(name)(workspace)
    seconds, cpu_seconds = time.monotonic() - began[0], cpu_clock() - began[1] + sum(workspace.spent)
    workspace.progress.advance(experiment.id, 1.0)
    with workspace.lock:
        # an experiment that is only read again takes little time: the longer of the two counts
        if (before := earlier(options).get(experiment.id)) is not None:
            seconds, cpu_seconds = max(seconds, before[0].seconds), max(cpu_seconds, before[0].cpu_seconds)
        experiment = replace(experiment, seconds=seconds, cpu_seconds=cpu_seconds, command=options.command([name]))
        return add_results(options, workspace, {experiment.id: (experiment, claims)})


def make_workspace(options: ReproductionOptions, progress: ProgressEstimate | None = None) -> Workspace:
    """The workspace for these options."""
    flags = experiments.preset("data")
    base = {"data_dir": options.data_dir, **flags.get(options.data, flags["default"])}
    data, progress = options.settings["data"], progress or ProgressEstimate()
    return Workspace(options.out, data, {}, base, options.quick, options.engine, options.threads, progress)


# -- the folder --------------------------------------------------------------------------------------------------------
def claim_folder(options: ReproductionOptions) -> None:
    """Refuse a folder that holds something other than this reproduction."""
    out = options.out
    check_folder(out)
    stamp = read_json(out / STAMP)
    if stamp is None:
        # without the stamp nobody knows what made these files, and they would be overwritten
        held = [name for name in (RESULTS, PAGE, "runs", "cache", "figures") if (out / name).exists()]
        if held:
            raise InputError(f"{out / held[0]} belongs to no reproduction; choose a new or an empty folder.")
        return
    _same(options, {k: v for k, v in stamp.items() if k in options.settings}, options.settings)


def _same(options: ReproductionOptions, stamp: dict[str, Any], now: dict[str, Any]) -> None:
    if other := checkpoint.differences(stamp, now):
        raise InputError(f"{options.out} holds another reproduction ({'; '.join(other)}); choose another folder.")


def write_stamp(options: ReproductionOptions, data_sha256: str | None) -> None:
    """Write the settings to the folder, or check that they agree with those it holds."""
    settings = options.settings | {"data_sha256": data_sha256}
    stamp = read_json(options.out / STAMP)
    if stamp is not None:
        _same(options, stamp, settings)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    atomic_write_json(options.out / STAMP, settings)


def earlier(options: ReproductionOptions) -> dict[str, tuple[Experiment, list[Claim]]]:
    """The experiments that results.json holds already, if this version wrote it."""
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
        raise InputError(f"{path} is damaged; remove it, and run the command again.") from None


@contextmanager
def clock(out: Path, progress: ProgressEstimate) -> Iterator[None]:
    """Adds up the seconds of all calls that computed something, on the clock and by all processors."""
    began = time.monotonic(), _cpu_seconds()
    try:
        yield
    finally:
        if progress.worked:
            path, (seconds, cpu_seconds) = out / "cache" / "seconds.json", total(out)
            seconds, cpu_seconds = seconds + time.monotonic() - began[0], cpu_seconds + _cpu_seconds() - began[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_json(path, {"seconds": seconds, "cpu_seconds": cpu_seconds})


def total(out: Path) -> tuple[float, float]:
    """The seconds of all calls up to now."""
    seconds = read_json(out / "cache" / "seconds.json") or {"seconds": 0.0, "cpu_seconds": 0.0}
    return seconds["seconds"], seconds["cpu_seconds"]


def _cpu_seconds() -> float:
    """User and system time of this process and of its children that have ended."""
    return sum(os.times()[:4])


# -- results -----------------------------------------------------------------------------------------------------------
def add_results(
    options: ReproductionOptions, workspace: Workspace, new: dict[str, tuple[Experiment, list[Claim]]]
) -> ReproductionReport:
    """Add these experiments to results.json, which another process may have written meanwhile."""
    with lock.held(options.out, patient=True):
        return write_results(options, workspace, earlier(options) | new)


def title_of(options: ReproductionOptions, kept: set[str]) -> str:
    """The heading of the page."""
    if kept <= set(experiments.NETWORKS):
        return "Control variates on networks"
    return f"{'ProxSkip' if kept - set(experiments.FAMILY) else 'The family'} on {os.path.basename(options.data)}"


def write_results(
    options: ReproductionOptions, workspace: Workspace, kept: dict[str, tuple[Experiment, list[Claim]]]
) -> ReproductionReport:
    """Write results.json with these experiments."""
    every = experiments.FUNCTIONS | experiments.FAMILY | experiments.NETWORKS
    chosen = [kept[name] for name in (*every, *(name for name in kept if name not in every)) if name in kept]
    seconds, cpu_seconds = total(options.out)
    only_networks = set(kept) <= set(experiments.NETWORKS)
    results = ReproductionReport(
        title_of(options, set(kept)),
        (about_networks(options) if only_networks else about(options, workspace))
        | {"seconds": seconds, "cpu_seconds": cpu_seconds, "jobs": options.jobs},
        [claim for _, claims in chosen for claim in claims],
        [e for e, _ in chosen],
    )
    atomic_write_json(options.out / RESULTS, figures.to_json(results))
    return results


def about(options: ReproductionOptions, workspace: Workspace) -> dict[str, Any]:
    """Data, constants, versions and command."""
    problem = workspace.problem()
    solution = problem.solution
    return {
        "data": problem.info.get("data"),
        "data_sha256": problem.info.get("data_sha256"),
        "rows": problem.N,
        "d": problem.d,
        "clients": problem.n,
        "split": problem.info.get("split"),
        "weights": problem.info.get("weights"),
        "lambda": problem.l2,
        "L_global": problem.L_global,
        "L_max": problem.L_max,
        "mu": problem.mu,
        "f_star": None if solution is None else solution.f,
        "quick": options.quick,
        "engine": options.engine,
        "command": options.command(),
        "versions": description.versions(),
    }


def about_networks(options: ReproductionOptions) -> dict[str, Any]:
    """The same for a page with networks alone."""
    return {
        "data": "digits and made text",
        "quick": options.quick,
        "engine": options.engine,
        "command": options.command(list(experiments.NETWORKS)),
        "versions": description.versions() | {"torch": importlib.metadata.version("torch")},
    }


def is_reproduction(folder: Path) -> bool:
    """Whether this folder holds a reproduction with results."""
    return (folder / STAMP).is_file() and (folder / RESULTS).is_file()


def redraw(folder: Path, x: str, out: Path | None = None) -> list[Path]:
    """Draw the figures of a reproduction against another x axis, in its own folder unless ``out`` is given.

    Panels without such an axis are left out.
    """
    results = figures.from_json(read_json(folder / RESULTS))
    written: list[Path] = []
    for e in results.experiments:
        # all axes of a panel are in results.json
        panels = [replace(p, x=x) for p in e.panels if x in p.xs]
        if panels:
            target = (folder / "figures" if out is None else out) / f"{e.id}-{x}.png"
            written += plots.save(plots.panel_figure(panels, e.title), target)
    if not written:
        raise InputError(f"no figure of {folder} can be drawn against {x}.")
    return written


def draw(results: ReproductionReport, out: Path, progress: ProgressEstimate, pool: Processes | None = None) -> None:
    """Write the figures as PNG, PDF, SVG and CSV."""
    shown = [e for e in results.experiments if e.panels]
    if pool is not None:
        progress.say("", "drawing")
        list(pool.each(draw_one, [(out, e) for e in shown]))
        return
    for e in shown:
        progress.say("", f"drawing {e.id}")
        draw_one((out, e))


def draw_one(work: tuple[Path, Experiment]) -> None:
    """One of them."""
    out, e = work
    plots.save(plots.panel_figure(e.panels, e.title), out / "figures" / f"{e.id}.png", svg=True)
    atomic_write_text(out / "figures" / f"{e.id}.csv", figures.to_csv(e))


def write_page(options: ReproductionOptions, workspace: Workspace) -> ReproductionReport:
    """Write the page, and results.json with the time that it took."""
    results = add_results(options, workspace, {})
    atomic_write_text(options.out / PAGE, report.page(results, files_beside=True))
    return results
