"""Which method is fastest for how many unknowns, and whether ``plan`` knows it.

    python benchmarks/unknowns.py                             both tables
    python benchmarks/unknowns.py --picture docs/unknowns.png the first one, also as a picture
    python benchmarks/unknowns.py --seed 7                    other problems for plan
    python benchmarks/unknowns.py --quick                     small sizes, to see that it works

Newton's method, Scaffnew, 5GCS and Nesterov's method run to the end over simulated networks. What they take are
simulated seconds to a gradient norm of a given share of that at zero. Scaffnew counts with the best of several p, 5GCS
with two local steps, and for plan also with those of its theorem.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

import proxskip as ps
from proxskip.methods.registry import named
from proxskip.networks import NAMED, Network
from proxskip.support.display import duration

METHODS = ("newton", "scaffnew", "5gcs", "accelerated")
SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 100_000)
MOST_OF_NEWTON = 3_000
"""Newton's method is not run beyond, where a round on this machine takes longer than all other runs."""
ROWS, CLIENTS = 1_000, 10
L2, SHARE = 1e-2, 1e-4
"""l2 as a share of L, and the gradient norm to reach as a share of that at zero, of the first table."""
MOST_SECONDS = 300.0
"""On this machine, for one run; none has needed them."""
PROBLEMS = 10
"""For plan."""
PLAN_SECONDS = 300.0
SEEDS = (101, 102, 103, 104, 105)
"""Of the runs that plan is judged by; it knows other coins."""

Seconds = dict[str, float | None]
"""Simulated seconds by method."""
Found = dict[str, list[tuple[int, str, Seconds]]]
"""For each network: unknowns, data and seconds."""


# -- problems ----------------------------------------------------------------------------------------------------------
def sparse_rows(rows: int, d: int, rng: np.random.Generator) -> Any:
    """Zeros and ones as in LIBSVM's data of texts: few in a row, and columns that are ever rarer."""
    each = min(75, max(3, round(d**0.45)))
    rarity = 1.0 / (10.0 + np.arange(d))
    columns = rng.choice(d, size=(rows, each), p=rarity / rarity.sum())
    where = np.repeat(np.arange(rows), each), columns.ravel()
    A = scipy.sparse.csr_matrix((np.ones(rows * each), where), shape=(rows, d))
    A.data[:] = 1.0
    return A


def classes(A: Any, rng: np.random.Generator) -> Any:
    """Labels of a random linear model, with noise."""
    margins = A @ rng.standard_normal(A.shape[1])
    return np.asarray(margins - np.median(margins) + margins.std() * rng.logistic(size=len(margins)) / 2 > 0)


def of_size(d: int, seed: int = 0) -> ps.Problem:
    """A problem of the first table."""
    rng = np.random.default_rng([seed, d])
    A = sparse_rows(ROWS, d, rng)
    return ps.split(ps.Logistic(A, classes(A, rng), l2_relative=L2), CLIENTS, by="label")


def of_data(name: str) -> ps.Problem:
    """Real data in the same setting."""
    return ps.split(ps.Logistic(*ps.datasets.load(name), l2_relative=L2), CLIENTS, by="label")


class Drawn(NamedTuple):
    """A problem for plan, in words, and the network."""

    words: str
    problem: ps.Problem
    share: float
    network: Network


def drawn(seed: int, k: int, quick: bool) -> Drawn:
    """Problem k of a seed: everything about it is random."""
    rng = np.random.default_rng([seed, k])
    d = round(10 ** rng.uniform(1, 2 if quick else 3.4))
    rows, clients = round(10 ** rng.uniform(2.5, 3.5)), int(rng.integers(3, 20))
    l2 = float(10 ** rng.uniform(-4, -2) if not quick else 1e-2)
    kind, by = str(rng.choice(["logistic", "squared"])), str(rng.choice(["label", "iid"]))
    dense = d <= 300 and rng.random() < 0.5
    A = rng.standard_normal((rows, d)) * np.geomspace(1, 0.1, d) if dense else sparse_rows(rows, d, rng)
    labels = classes(A, rng)
    model = ps.Logistic(A, labels, l2_relative=l2) if kind == "logistic" else ps.LeastSquares(A, labels, l2_relative=l2)
    name, network = network_of(rng)
    share = float(10 ** rng.uniform(-6, -3))
    words = f"{kind}, {'dense' if dense else 'sparse'}, d = {d:,}, {clients} clients by {by}, {name}"
    return Drawn(words, ps.split(model, clients, by=by), share, network)


def network_of(rng: np.random.Generator) -> tuple[str, Network]:
    """A named network, or one of random latency, bandwidth and computers."""
    name = str(rng.choice([*NAMED, "random", "random"]))
    if name != "random":
        return name, Network.named(name)
    latency, bandwidth, gradient = 10 ** rng.uniform([-4, 4, -4], [0, 9, -1])
    shown = f"{duration(latency)} latency, {8e-6 * bandwidth:.2g} Mbit/s, {duration(gradient)} a gradient"
    return shown, Network(latency=float(latency), bandwidth=float(bandwidth), gradient=float(gradient))


# -- measuring ---------------------------------------------------------------------------------------------------------
def contenders(name: str, problem: ps.Problem) -> list[Any]:
    """The method: Scaffnew with p around that of the theorem, 5GCS also with two local steps."""
    method = named(name).theory(problem)
    if name == "scaffnew":
        return [replace(method, p=p) for p in (3 * method.p, method.p, method.p / 3) if p < 0.9] or [method]
    return [ps.FiveGCS.theory(problem, figure=True), method] if name == "5gcs" else [method]


def seconds_of_best(
    methods: Sequence[Any], problem: ps.Problem, network: Network, share: float, seeds: Sequence[int] = (0,)
) -> float | None:
    """Simulated seconds of the best of the methods, medians over seeds; inf if none gets there, None if not run."""
    if methods[0].name == "newton" and problem.d > MOST_OF_NEWTON:
        return None
    tol = tolerance(problem, share)
    return min(statistics.median(seconds_of(m, problem, network, tol, seed) for seed in seeds) for m in methods)


def seconds_of(method: Any, problem: ps.Problem, network: Network, tol: float, seed: int) -> float:
    """Simulated seconds of a run."""
    result = ps.run(method, problem, tol=tol, network=network, seed=seed, seconds=MOST_SECONDS, progress=False)
    return float(result.summary["sim_seconds"]) if result.success else math.inf


def tolerance(problem: ps.Problem, share: float) -> float:
    """The gradient norm to reach."""
    return share * float(np.linalg.norm(problem.gradient(np.zeros(problem.d))))


def fastest(found: Seconds) -> str:
    """The name of the fastest method."""
    return min(METHODS, key=lambda name: math.inf if found[name] is None else found[name])


def shown(seconds: float | None) -> str:
    if seconds is None:
        return "not run"
    return "not reached" if seconds == math.inf else duration(seconds)


# -- the tables --------------------------------------------------------------------------------------------------------
def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    """A table in Markdown, line by line as it is measured."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
    print()


def by_unknowns(quick: bool, found: Found) -> Iterator[Sequence[str]]:
    """The rows of the first table, kept in ``found``."""
    problems: list[tuple[str, Any]] = [("", lambda d=d: of_size(d)) for d in (SIZES[:2] if quick else SIZES)]
    problems += [(name, lambda name=name: of_data(name)) for name in (["digits"] if quick else ["digits", "w8a"])]
    for data, make in problems:
        problem = make()
        for network in NAMED:
            over = Network.named(network)
            seconds = {}
            for name in METHODS:
                # what is fastest among them nearly always, to save time
                methods = contenders(name, problem)[: 1 if name == "5gcs" else 2]
                seconds[name] = seconds_of_best(methods, problem, over, SHARE)
            found.setdefault(network, []).append((problem.d, data, seconds))
            best = fastest(seconds)
            cells = [f"**{shown(t)}**" if name == best else shown(t) for name, t in seconds.items()]
            yield [f"{problem.d:,}" + (f" ({data})" if data else ""), network, *cells]


def of_plan(seed: int, quick: bool, right: list[bool]) -> Iterator[Sequence[str]]:
    """The rows of the second table; ``right`` tells where plan's choice is the fastest."""
    for k in range(2 if quick else PROBLEMS):
        words, problem, share, network = drawn(seed, k, quick)
        plan = ps.plan(problem, tol=tolerance(problem, share), network=network, seconds=PLAN_SECONDS)
        choice = next(row.name for row in plan.rows if row.name in METHODS)
        seconds: Seconds = {}
        for name in METHODS:
            seconds[name] = seconds_of_best(contenders(name, problem), problem, network, share, SEEDS)
        best = fastest(seconds)
        right.append(choice == best)
        cells = [f"**{shown(t)}**" if name == best else shown(t) for name, t in seconds.items()]
        yield [words, f"{share:.0e}", *cells, choice if right[-1] else f"{choice}: wrong"]


# -- the picture -------------------------------------------------------------------------------------------------------
def picture(found: Found, path: Path) -> None:
    """Seconds against unknowns, a panel for each network; the strip below has the color of the fastest method."""
    from matplotlib.figure import Figure

    looks: dict[str, Any] = {name: named(name).about.style for name in METHODS}
    figure = Figure(figsize=(11.0, 7.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True).ravel()
    for axes, (network, rows) in zip(panels, found.items(), strict=True):
        line = [row for row in rows if not row[1]]
        sizes = [d for d, _, _ in line]
        ends = [sizes[0] / 1.5, *(math.sqrt(a * b) for a, b in itertools.pairwise(sizes)), sizes[-1] * 1.5]
        for k, (_, _, seconds) in enumerate(line):
            axes.axvspan(ends[k], ends[k + 1], ymax=0.04, color=looks[fastest(seconds)].color, lw=0)
        for name in METHODS:
            style = looks[name]
            points = [(d, s[name]) for d, _, s in line if s[name] is not None and s[name] < math.inf]
            axes.loglog(*zip(*points, strict=True), style.dashes, color=style.color, marker=style.marker, label=name)
            real = [(d, s[name]) for d, data, s in rows if data and s[name] is not None and s[name] < math.inf]
            axes.loglog(*zip(*real, strict=True), style.marker, color=style.color, mfc="white", ms=9)
        for d, data, _ in rows:
            if data:
                axes.annotate(data, (d, 0.06), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
        axes.margins(y=0.15)
        axes.set_title(network, fontsize=11)
        axes.set_xlim(ends[0], ends[-1])
    for axes in panels[2:]:
        axes.set_xlabel("unknowns")
    for axes in panels[::2]:
        axes.set_ylabel("simulated seconds")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--picture", type=Path, help="draw the first table")
    parser.add_argument("--only", choices=("methods", "plan"), help="one of the tables")
    parser.add_argument("--seed", type=int, default=2024, help="of the problems for plan")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    if o.only != "plan":
        print_methods(o.quick, o.picture)
    if o.only != "methods":
        print_plan(o.seed, o.quick)


def print_methods(quick: bool, path: Path | None) -> None:
    """The first table, and its picture."""
    found: Found = {}
    print("## Unknowns against the fastest method\n")
    print(
        f"Logistic regression, {ROWS:,} sparse rows as in LIBSVM's data, {CLIENTS} clients by label, l2 = {L2:g} L, to "
        f"{SHARE:g} of the gradient norm at zero. Simulated seconds, Scaffnew with the better of p and 3p of its theorem, "
        f"5GCS with two local steps; Newton's method was not run beyond {MOST_OF_NEWTON:,} unknowns.\n"
    )
    table(["unknowns", "network", *METHODS], by_unknowns(quick, found))
    if path is not None:
        picture(found, path)


def print_plan(seed: int, quick: bool) -> None:
    """The second table, and how often plan is right."""
    right: list[bool] = []
    print(f"## What plan takes, on problems of the seed {seed}\n")
    table(["problem", "to", *METHODS, "plan"], of_plan(seed, quick, right))
    print(f"plan takes the fastest of the four in {sum(right)} of {len(right)} problems.")


if __name__ == "__main__":
    main()
