"""Run all experiments in a folder, reusing what it holds already, and write the report."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from proxskip import experiments
from proxskip.data import datasets
from proxskip.experiments import toml_figures
from proxskip.experiments.settings import check_folder
from proxskip.experiments.workspace import VERSION, Workspace
from proxskip.processes import Processes
from proxskip.report import figures, page, plots
from proxskip.report.figures import Claim, Experiment, ReproductionReport
from proxskip.results import checkpoint, description, lock
from proxskip.results.atomic import atomic_write_json, atomic_write_text
from proxskip.running import make_engine
from proxskip.types import InputError

STAMP = "reproduction.json"
RESULTS = "results.json"
PAGE = "index.html"
DEFAULT_DATA = "digits"
Show = Callable[[str, float], None]
"""Called with a text and the share that is done."""


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
        show: is called with a text and the share that is done.
    """
    chosen = check_names(names)
    check_torch(chosen, options)
    claim_folder(options)
    if not set(chosen) <= set(experiments.NETWORKS):
        make_engine(options.engine, options.threads)  # refuse a missing engine before anything is written
    presets = {name: experiments.preset(name, options.quick) for name in chosen}
    began, shares = time.monotonic(), {name: float(preset.get("share", 1.0)) for name, preset in presets.items()}
    finished: list[str] = []

    def say(topic: str, text: str) -> None:
        if show is not None:
            show(f"{topic}: {text}", sum(shares[name] for name in finished) / sum(shares.values()))

    workspace = make_workspace(options)
    write_stamp(options, workspace.data_sha256)  # reads the data first, so that a bad file leaves no folder behind
    spaces = {
        name: replace(workspace, preset=preset, say=partial(say, experiments.id_of(name)))
        for name, preset in presets.items()
    }
    with Processes(options.jobs) if options.jobs > 1 else nullcontext() as pool:
        if pool is None:
            for name, space in spaces.items():
                _one(name, options, space)
                finished.append(name)
        else:
            for name in _at_once({name: replace(space, pool=pool) for name, space in spaces.items()}, shares, options):
                finished.append(name)
        report = add_results(options, workspace, {}, time.monotonic() - began)
        say("figures", "drawing")
        draw(report, options.out, pool)
    atomic_write_text(options.out / PAGE, page(report, files_beside=True))
    return report


def _at_once(
    spaces: Mapping[str, Workspace], shares: Mapping[str, float], options: ReproductionOptions
) -> Iterator[str]:
    """All experiments together, the longest first: a thread of each waits for the processes, which do the work."""
    threads = ThreadPoolExecutor(len(spaces))
    order = sorted(spaces, key=lambda name: -shares[name])
    try:
        waiting = {threads.submit(_one, name, options, spaces[name]): name for name in order}
        for ended in as_completed(waiting):
            ended.result()
            yield waiting[ended]
    finally:
        # after an interrupt their processes end, and they with them
        threads.shutdown(wait=False, cancel_futures=True)


def _one(name: str, options: ReproductionOptions, workspace: Workspace) -> None:
    """Run one experiment and add it to results.json."""
    began = time.monotonic()
    experiment, claims = experiments.function(name)(workspace)
    seconds = time.monotonic() - began
    with workspace.lock:
        # an experiment that is only read again takes little time: the longer of the two counts
        if (before := earlier(options).get(experiment.id)) is not None:
            seconds = max(seconds, before[0].seconds)
        experiment = replace(experiment, seconds=seconds, command=options.command([name]))
        add_results(options, workspace, {experiment.id: (experiment, claims)})


def make_workspace(options: ReproductionOptions) -> Workspace:
    """The workspace for these options."""
    flags = experiments.preset("data")
    base = {"data_dir": options.data_dir, **flags.get(options.data, flags["default"])}
    return Workspace(options.out, options.settings["data"], {}, base, options.quick, options.engine, options.threads)


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
    _check_same(options, {k: v for k, v in stamp.items() if k in options.settings}, options.settings)


def _check_same(options: ReproductionOptions, stamp: dict[str, Any], now: dict[str, Any]) -> None:
    if other := checkpoint.differences(stamp, now):
        raise InputError(f"{options.out} holds another reproduction ({'; '.join(other)}); choose another folder.")


def write_stamp(options: ReproductionOptions, data_sha256: str | None) -> None:
    """Write the settings to the folder, or check that they agree with those it holds."""
    settings = options.settings | {"data_sha256": data_sha256}
    stamp = read_json(options.out / STAMP)
    if stamp is not None:
        _check_same(options, stamp, settings)
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


# -- results -----------------------------------------------------------------------------------------------------------
def title_of(options: ReproductionOptions, kept: set[str]) -> str:
    """The heading of the page."""
    if kept <= set(experiments.NETWORKS):
        return "Control variates on networks"
    return f"{'ProxSkip' if kept - set(experiments.FAMILY) else 'The family'} on {os.path.basename(options.data)}"


def add_results(
    options: ReproductionOptions,
    workspace: Workspace,
    new: dict[str, tuple[Experiment, list[Claim]]],
    seconds: float = 0.0,
) -> ReproductionReport:
    """Add these experiments and seconds to results.json, which another process may have written meanwhile."""
    every = experiments.FUNCTIONS | experiments.FAMILY | experiments.NETWORKS
    with lock.held(options.out, patient=True):
        before = read_json(options.out / RESULTS) or {"about": {}}
        kept = earlier(options) | new
        chosen = [kept[name] for name in (*every, *(name for name in kept if name not in every)) if name in kept]
        only_networks = set(kept) <= set(experiments.NETWORKS)
        results = ReproductionReport(
            title_of(options, set(kept)),
            (about_networks(options, list(kept)) if only_networks else about(options, workspace))
            | {"seconds": seconds + before["about"].get("seconds", 0.0), "jobs": options.jobs},
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


def about_networks(options: ReproductionOptions, names: list[str]) -> dict[str, Any]:
    """The same for a page with networks alone."""
    return {
        "data": "digits and made text",
        "quick": options.quick,
        "engine": options.engine,
        "command": options.command(names),
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


def draw(results: ReproductionReport, out: Path, pool: Processes | None = None) -> None:
    """Write the figures as PNG, PDF, SVG and CSV."""
    work = [(out, e) for e in results.experiments if e.panels]
    list(map(draw_one, work) if pool is None else pool.each(draw_one, work))


def draw_one(work: tuple[Path, Experiment]) -> None:
    """One of them."""
    out, e = work
    plots.save(plots.panel_figure(e.panels, e.title), out / "figures" / f"{e.id}.png", svg=True)
    atomic_write_text(out / "figures" / f"{e.id}.csv", figures.to_csv(e))
