"""Run all cases on the package that is imported, and write what they computed; started by ``same_bytes.py``.

python benchmarks/cases.py OUT.npz SRC FOLDERS [--engines cpu,ray] [--quick]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import case_table as table
import cases_protocol
import cases_solo
import numpy as np
from case_table import ENTRIES, NAMED, Case, run, run_entry

import proxskip as ps
from proxskip.methods.registry import METHODS  # releases before 0.3 run this too

RESUMED = (
    "gd", "fista", "scaffold", "scaffold-cohort", "fedlin", "s-local-gd-q", "sproxskip", "scaffnew-own",
    "scaffnew-psi", "scaffnew-cohort", "scaffnew-given", "scaffnew-decaying", "decentralized", "diging", "splitskip",
)  # fmt: skip


# -- every method ------------------------------------------------------------------------------------------------------
def every_method(engine: str) -> Iterator[Case]:
    """Each on dense, sparse and quadratic clients, with full gradients and minibatches."""
    for e in ENTRIES:
        kinds: list[tuple[str, str, int | None]] = [("logistic", "dense", None), ("logistic", "sparse", None)]
        kinds.append(("quadratics", "", None))
        kinds += [("logistic", "sparse", 5), ("logistic", "dense", 5)] if e.batch else []
        for k, (loss, storage, batch) in enumerate(kinds):
            given: dict[str, Any] = {"threads": 1 + k % 2} if engine == "cpu" else {"rounds": 3 if batch else 8}
            name = "-".join(str(v) for v in (e.name, loss, storage, batch and "batch") if v)
            yield Case(engine, name, partial(_entry, e.name, (loss, storage, "float64", batch), engine=engine, **given))


def _entry(name: str, kind: tuple[Any, ...], _: Path, **given: Any) -> Any:
    return run_entry(name, NAMED[name].on(*kind), **given)


# -- losses, storage, precision ----------------------------------------------------------------------------------------
def losses(engine: str) -> Iterator[Case]:
    """Other losses, single precision, matrices of ones."""
    kinds = [(loss, storage, "float64") for loss in ("squared", "softmax") for storage in ("dense", "sparse")]
    kinds += [("logistic", storage, "float32") for storage in ("dense", "sparse")]
    kinds += [("logistic", "ones", "float64"), ("squared", "sparse", "float32"), ("softmax", "dense", "float32")]
    for kind in kinds:
        for batch in (None, 7):
            for name in ("scaffnew-own", "scaffold") if batch is None else ("scaffnew",):
                label = "-".join((name, *kind, *(["batch"] if batch else [])))
                given = {"engine": engine, "rounds": 3 if batch else 8}
                yield Case(engine, f"loss-{label}", partial(_entry, name, (*kind, batch), **given))


# -- where a run starts and ends ---------------------------------------------------------------------------------------
def starts(engine: str) -> Iterator[Case]:
    """x0, h0, a warm start; seeds; tolerances, targets, limits, divergence."""
    draw = np.random.Generator(np.random.Philox(2))
    problem = NAMED["scaffnew-own"].on(storage="sparse")
    x0, h0 = draw.standard_normal(problem.d), draw.standard_normal((problem.n, problem.d))
    h0 -= problem.weights @ h0
    acts: dict[str, Callable[[], Any]] = {
        "x0": lambda: run_entry("scaffnew-own", problem, x0=x0, engine=engine),
        "h0": lambda: run_entry("scaffnew-own", problem, x0=x0, h0=h0, engine=engine),
        "h0-healed": lambda: run_entry("scaffnew", h0=np.ones((4, 6)), engine=engine),
        "warm": lambda: _warm("scaffnew-psi", "scaffnew-psi", engine),
        "warm-other": lambda: _warm("scaffold", "scaffnew", engine),
        "warm-cohort": lambda: _warm("scaffnew-cohort", "scaffnew-cohort", engine),
        "warm-dual": lambda: _warm("splitskip", "splitskip", engine),
        "seed": lambda: run_entry("scaffnew-pairs", seed=2**63 - 1, engine=engine),
        "tol": lambda: run_entry("scaffnew", rounds=None, tol=1e-7, every=None, engine=engine),
        "target": lambda: run_entry("scaffold-cohort", rounds=3000, target=1e-6, every=7, engine=engine),
        "iterations": lambda: run_entry("scaffnew-bernoulli", rounds=None, iterations=300, engine=engine),
        "records": lambda: run_entry("s-local-gd-q", rounds=250, every=None, engine=engine),
        "stalled": lambda: run_entry("local-gd", rounds=3000, tol=1e-12, every=None, engine=engine),
        "diverged": lambda: run(ps.GD(50.0), NAMED["gd"].on("quadratics"), rounds=2000, engine=engine),
        "noisy": lambda: run_entry("scaffold", NAMED["scaffold"].on(batch=3), rounds=60, engine=engine),
        "fixed-K": lambda: run(ps.Scaffnew(0.1, 0.2, K=5), NAMED["scaffnew"].on(), engine=engine),
        "iid": lambda: run_entry("scaffnew", _dealt("iid"), engine=engine),
        "dirichlet": lambda: run_entry("scaffnew", _dealt("dirichlet"), engine=engine),
        "digits": lambda: _digits(engine),
        "sweep": lambda: _sweep(engine, None),
        "sweep-cohort": lambda: _sweep(engine, 2),
    }
    for name, act in acts.items():
        yield Case(engine, f"start-{name}", lambda _, act=act: act())


def _warm(first: str, then: str, engine: str) -> Any:
    before = run_entry(first, engine=engine)
    return run_entry(then, warm=before, seed=9, engine=engine)


def _dealt(by: Any) -> Any:
    return ps.split(table.model("logistic", "sparse", rows=120), clients=7, by=by, seed=3)


def _digits(engine: str) -> Any:
    A, b = ps.datasets.load("digits")
    problem = ps.split(ps.Logistic(A, b, l2_relative=1e-2), clients=10, by="label")
    return run(ps.Scaffnew.theory(problem), problem, rounds=5, engine=engine)


def _sweep(engine: str, cohort: Any) -> Any:
    problem = NAMED["scaffnew"].on(storage="sparse")
    methods = [ps.Scaffnew.theory(problem, cohort=cohort), ps.LocalGD.theory(problem, K=3, figure=True)]
    settings: dict[str, Any] = {"rounds": 12, "engine": engine, "cohort": cohort, "every": 1}
    return [ps.sweep(method, problem, seeds=[seed], **settings)[0] for method in methods for seed in (0, 5)]


# -- large cohorts -----------------------------------------------------------------------------------------------------
def large(engine: str) -> Iterator[Case]:
    """Stacks of 2^18 entries and more, where the cpu engine writes the halves' arithmetic down and does it in one kernel."""
    makes: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "gd": (ps.GD.theory, None),
        "local-gd": (lambda p: ps.LocalGD.theory(p, K=3, figure=True), None),
        "local-gd-cohort": (lambda p: ps.LocalGD.theory(p, K=3, figure=True), 70),
        "scaffold": (lambda p: ps.Scaffold.theory(p, K=3, figure=True), None),
        "scaffold-I": (lambda p: ps.Scaffold.theory(p, K=3, option="I", figure=True), None),
        "scaffold-cohort": (lambda p: ps.Scaffold.theory(p, K=3, figure=True), 70),
        "fedlin": (lambda p: ps.FedLin.theory(p, K=3, figure=True), None),
        "s-local-gd": (ps.SLocalGD.theory, None),
        "scaffnew": (ps.Scaffnew.theory, None),
        "scaffnew-own": (lambda p: ps.Scaffnew.theory(p, own_steps=True), None),
        "scaffnew-cohort": (lambda p: ps.Scaffnew.theory(p, cohort=70), 70),
        "scaffnew-bernoulli": (lambda p: ps.Scaffnew.theory(p, cohort=0.8), 0.8),
        "decentralized": (table.on_graph(ps.DecentralizedScaffnew, "ring"), None),
        "diging": (table.on_graph(ps.DIGing, "ring"), None),
    }
    for name, (make, cohort) in makes.items():
        for diagonal in (False, True) if engine == "cpu" else (True,):
            for threads in (1, 2) if engine == "cpu" else (None,):
                label = "-".join(str(v) for v in (name, diagonal and "diagonal", threads) if v)
                given = {"cohort": cohort, "rounds": 3, "engine": engine, "threads": threads}
                yield Case(engine, f"large-{label}", partial(_large, make, diagonal, **given))
    if engine == "cpu":
        for threads in (1, 2):
            yield Case(engine, f"large-rows-{threads}", partial(_many_rows, None, threads))
            yield Case(engine, f"large-rows-{threads}-batch", partial(_many_rows, 45_000, threads))


def _large(make: Any, diagonal: bool, _: Path, **given: Any) -> Any:
    problem = table.wide(diagonal=diagonal)
    return run(make(problem), problem, **given)


def _many_rows(batch: Any, threads: int, _: Path) -> Any:
    """One client whose rows are worth dealing to threads."""
    problem = table.tall() if batch is None else table.tall().with_batch(batch)
    return run(ps.GD(1.0 / problem.L), problem, rounds=3, engine="cpu", threads=threads)


def many(engine: str) -> Iterator[Case]:
    """So many clients that their mean is a sum of several blocks."""
    makes: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "gd": (ps.GD.theory, None),
        "local-gd": (lambda p: ps.LocalGD.theory(p, K=2, figure=True), 600),
        "scaffold": (lambda p: ps.Scaffold.theory(p, K=2, figure=True), None),
        "scaffnew": (lambda p: ps.Scaffnew(0.5, 0.5), None),
        "scaffnew-cohort": (lambda p: ps.Scaffnew.theory(p, cohort=600), 600),
        "decentralized": (table.on_graph(ps.DecentralizedScaffnew, "ring"), None),
    }
    for name, (make, cohort) in makes.items():
        yield Case(engine, f"many-{name}", partial(_many, make, cohort=cohort, rounds=2, engine=engine))


def _many(make: Any, _: Path, **given: Any) -> Any:
    problem = table.wide(800, 5, diagonal=True)
    return run(make(problem), problem, **given)


# -- run folders -------------------------------------------------------------------------------------------------------
def resumed(engine: str) -> Iterator[Case]:
    """Cut in the middle and resumed: a folder of this tree, and one that the first tree has left here."""
    for name in RESUMED:
        batch = 5 if name in ("scaffold", "sproxskip", "scaffnew-cohort", "decentralized") else None
        kind = ("logistic", "sparse", "float64", batch)
        yield Case(engine, f"resume-{name}", partial(_resume, name, kind, engine, False))
        yield Case(engine, f"old-folder-{name}", partial(_resume, name, kind, engine, True))


def _resume(name: str, kind: tuple[Any, ...], engine: str, inherited: bool, folders: Path) -> Any:
    written = folders / f"{'kept' if inherited else 'own'}-{engine}-{name}"
    problem = NAMED[name].on(*kind)
    if not inherited:
        shutil.rmtree(written, ignore_errors=True)
    if not written.exists():
        run_entry(name, problem, rounds=5, engine=engine, out=written, checkpoint_every=2)
    mine = folders / "resumed"
    shutil.rmtree(mine, ignore_errors=True)
    shutil.copytree(written, mine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        result = ps.resume(mine, problem, rounds=11)
    files = {name: (mine / name).read_bytes() for name in ("x.npy",)}
    return {"result": result, "files": files}


# -- ray and gpu -------------------------------------------------------------------------------------------------------
def on_ray() -> Iterator[Case]:
    """One local Ray with two actors."""
    names = ("gd", "local-gd-cohort", "scaffold-I", "scaffold-cohort", "fedlin", "s-local-gd-q", "scaffnew-own",
             "scaffnew-psi", "scaffnew-cohort", "scaffnew-bernoulli", "decentralized", "diging", "extra-psd")  # fmt: skip
    engine = ps.RayEngine(2, stay=True, deadline=120)
    for name in names:
        for batch in (None, 5) if name in ("scaffnew-cohort", "decentralized", "scaffold-I") else (None,):
            kind = ("logistic", "sparse", "float64", batch)
            yield Case("ray", f"{name}{'-batch' if batch else ''}", partial(_entry, name, kind, engine=engine))
    yield Case("ray", "where", lambda _: _is_here(engine))


def _is_here(engine: Any) -> Any:
    """The actors have the package that this process has."""
    import ray

    ask = ray.remote(num_cpus=0)(lambda: __import__("proxskip").__file__)  # the actors have all CPUs
    where = ray.get(ask.remote(), timeout=120)
    engine.shutdown()
    ray.shutdown()
    if Path(where).resolve() != Path(ps.__file__).resolve():
        raise RuntimeError(f"the actors import {where}.")
    return "here"


def on_gpu() -> Iterator[Case]:
    """A subset of the cpu engine's cases."""
    names = ("gd", "proxgd", "local-gd-cohort", "scaffold", "scaffold-cohort", "fedlin-own", "s-local-gd-q", "scaffnew-own",
             "scaffnew-psi", "scaffnew-cohort", "scaffnew-bernoulli", "decentralized", "diging")  # fmt: skip
    for name in names:
        for batch in (None, 5) if name in ("scaffold-cohort", "scaffnew-cohort", "decentralized") else (None,):
            kind = ("logistic", "sparse", "float64", batch)
            yield Case("gpu", f"{name}{'-batch' if batch else ''}", partial(_entry, name, kind, engine="gpu"))
    for kind in (("softmax", "dense", "float64", None), ("squared", "sparse", "float32", None)):
        yield Case("gpu", "-".join(("scaffnew", *kind[:3])), partial(_entry, "scaffnew", kind, engine="gpu"))
    yield Case("gpu", "sweep", lambda _: _sweep("gpu", None))


# -- all ---------------------------------------------------------------------------------------------------------------
def every_case(engine: str) -> list[Case]:
    """The cases of an engine, in order; none, with a sentence, where it is not installed."""
    if engine in ("reference", "cpu"):
        return [c for family in (every_method, losses, starts, large, many, resumed) for c in family(engine)]
    if engine == "minimize":
        return list(cases_solo.cases())
    if engine == "protocol":
        return list(cases_protocol.cases())
    try:
        if engine == "gpu":
            run_entry("gd", rounds=1, engine="gpu")
        return list(on_ray() if engine == "ray" else on_gpu())
    except ps.InputError as missing:
        print(f"{engine} is left out: {missing}", file=sys.stderr)
        return []


def collect(cases: list[Case], folders: Path) -> dict[str, Any]:
    """Everything that the cases computed, by ``engine/case/array``."""
    found: dict[str, Any] = {}
    for case in cases:
        key = f"{case.engine}/{case.name}"
        if f"{key}/done" in found:
            raise ValueError(f"two cases have the name {key}.")
        try:
            arrays = dict(table.flat(case.act(folders)))
        except Exception as error:  # a case that cannot be run is a finding
            arrays = dict(table.flat({"error": f"{type(error).__name__}: {error}"}))
        found |= {f"{key}/{name}": v for name, v in arrays.items()} | {f"{key}/done": np.zeros(0)}
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("out", "source", "folders"):
        options.add_argument(name, type=Path)
    options.add_argument("--engines", default="reference,cpu,minimize,protocol")
    options.add_argument("--quick", action="store_true")
    o = options.parse_args()
    here = Path(ps.__file__).resolve()
    if not here.is_relative_to(o.source.resolve()):
        raise SystemExit(f"proxskip was imported from {here.parent}, not from {o.source}.")
    untried = set(METHODS) - {e.make(e.on("quadratics")).name for e in ENTRIES}
    if untried:
        raise SystemExit(f"no case has {', '.join(sorted(untried))}.")
    found: dict[str, Any] = {}
    for engine in o.engines.split(","):
        # by name: an earlier tree has fewer cases, and must take the same ones
        some = [c for c in every_case(engine) if not o.quick or zlib.crc32(c.name.encode()) % 5 == 0]
        found |= collect(some, o.folders)
    np.savez(o.out, **found)


if __name__ == "__main__":
    main()
