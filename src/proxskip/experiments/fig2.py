"""Figures 2a, 2b and 2c: minibatches, with a decaying step as in the authors' notebook and with a constant one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxskip import theory
from proxskip.experiments import claims, claims_fig2
from proxskip.experiments.curves_from_runs import panel, series
from proxskip.experiments.successive_halving import grid_table, tune
from proxskip.experiments.workspace import CachedRun, RunRequest, Workspace
from proxskip.problems.federated import Problem
from proxskip.report.figures import Claim, Experiment, Series, Table
from proxskip.report.method_styles import title
from proxskip.tuning import Candidate, grid, local_steps

METHODS = ("local-gd", "scaffold", "fedlin", "s-local-gd", "scaffnew")
STEP_KINDS = {"decaying": "a decaying step, as in the notebook", "constant": "a constant step, as in the theorem"}


# -- Figure 2a ---------------------------------------------------------------------------------------------------------
def tuned(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Each method with its first step size tuned, for the decaying step and for the constant one."""
    asked, flags = workspace.preset, problem_flags(workspace)
    problem = workspace.problem(**flags)
    L_b = smoothness(problem)
    panels, tables = [], []
    for k, kind in enumerate(STEP_KINDS):
        more = {"decay": decay(workspace, problem)} if kind == "decaying" else {}
        tried = {m: grid(m, L_b, asked["powers"], [asked["K"]], **more) for m in METHODS}
        won = {m: left[0] for m, left in tune(workspace, flags, tried, asked["rungs"], (k + 0.4) / 2).items()}
        drawn = _drawn(workspace, {m: c.flags for m, c in won.items()}, flags, (k + 1) / 2, won)
        heading = STEP_KINDS[kind] if kind == "decaying" else "a constant step"
        panels.append(panel(kind, heading, drawn))
        tables += [_ends(kind, heading, drawn), grid_table(f"{kind}-grid", tried, won)]
    experiment = workspace.experiment("fig2a", _parameters(workspace, problem), panels, tables)
    return claims.with_findings(experiment, claims_fig2.fig2_ends(experiment))


# -- Figure 2b ---------------------------------------------------------------------------------------------------------
def theoretical(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """The figure's step sizes, which decay, and the theorems' own, which are constant."""
    asked = workspace.preset
    flags = problem_flags(workspace, L="global")
    problem = workspace.problem(**flags)
    L_b, falling = smoothness(problem), {"decay": decay(workspace, problem)}
    figure = {m: _figure_flags(m, asked["K"], L_b) | falling for m in METHODS}
    theorem: dict[str, dict[str, Any]] = {m: {} for m in METHODS}
    drawn = {
        "decaying": _drawn(workspace, figure, flags, 0.4),
        "constant": _drawn(workspace, theorem, problem_flags(workspace, L="max"), 1.0),
    }
    panels = [panel(kind, STEP_KINDS[kind], drawn[kind]) for kind in STEP_KINDS]
    tables = [_ends(kind, STEP_KINDS[kind], drawn[kind]) for kind in STEP_KINDS]
    experiment = workspace.experiment("fig2b", _parameters(workspace, problem), panels, tables)
    return claims.with_findings(experiment, claims_fig2.fig2_ends(experiment, "scaffnew"))


def _figure_flags(method: str, K: int, L_b: float) -> dict[str, Any]:
    # only for Scaffnew the step size is independent of the number of local steps
    gamma = 1 / L_b if method == "scaffnew" else 1 / (K * L_b)
    return {"gamma": gamma, **local_steps(method, K)}


# -- Figure 2c ---------------------------------------------------------------------------------------------------------
def clients(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Scaffnew with M clients: with a fixed batch per client, then with a fixed total batch."""
    asked = workspace.preset
    most = max(asked["clients"])
    own = {M: problem_flags(workspace, clients=M) for M in asked["clients"]}
    # the total batch is the batch of one client when all clients take part
    total = own[most]["batch"]
    shared = {M: own[M] | {"batch": max(1, total // M)} for M in asked["clients"]}
    steps = {M: 1 / smoothness(workspace.problem(**own[M])) for M in own}
    # the smallest step size is safe for every M, so that only M changes
    least = min(1 / smoothness(workspace.problem(**flags)) for flags in shared.values())
    parts = [
        ("decaying", "a decaying step, a fixed batch per client", own, steps, True),
        ("constant", "a constant step, a fixed batch per client", own, steps, False),
        ("total", "a constant step, a fixed total batch", shared, dict.fromkeys(own, least), False),
    ]
    jobs = {
        (id, M): _with_clients(workspace, M, flags[M], gammas[M], falling)
        for id, _, flags, gammas, falling in parts
        for M in flags
    }
    runs = dict(zip(jobs, _by_seeds(workspace, list(jobs.values()), 1.0), strict=True))
    found = {id: [_series(workspace, M, flags[M], runs[id, M]) for M in flags] for id, _, flags, _, _ in parts}
    panels = [panel(id, heading, found[id]) for id, heading, *_ in parts]
    columns = ["clients", "batch per client", "share of a client's rows", "gamma", "floor",
               "fixed total batch: batch per client", "gamma", "floor"]  # fmt: skip
    rows = [_floor_row(a, b) for a, b in zip(found["constant"], found["total"], strict=True)]
    note = "The median of f - f* over the last third of the runs with a constant step size."
    table = Table("floors", "Noise floors", columns, rows, note)
    parameters = _parameters(workspace, workspace.problem(**own[most]))
    parameters |= {"clients": asked["clients"], "total_batch": total}
    experiment = workspace.experiment("fig2c", parameters, panels, [table])
    return claims.with_findings(experiment, claims_fig2.fig2c(experiment, workspace.asserted))


def _with_clients(workspace: Workspace, M: int, flags: dict[str, Any], gamma: float, falling: bool) -> list[RunRequest]:
    asked = workspace.preset
    given = {"gamma": gamma, "p": asked["p"]}
    if falling:
        given["decay"] = (workspace.problem(**flags).l2 or 0.0) / (2 * asked["p"])
    return _seeds(workspace, f"M = {M}", "scaffnew", given, flags, "decaying_rounds" if falling else "rounds")


def _series(workspace: Workspace, M: int, flags: dict[str, Any], runs: Sequence[CachedRun]) -> Series:
    rows = min(workspace.problem(**flags).sizes or [0])
    return series(f"M = {M}", runs, M=M, rows=rows, share=flags["batch"] / rows)


def _floor_row(own: Series, total: Series) -> list[str | float | int | None]:
    cells = [own.about[k] for k in ("M", "batch", "share", "gamma")]
    return [*cells, claims_fig2.floor(own), total.about["batch"], total.about["gamma"], claims_fig2.floor(total)]


# -- common ------------------------------------------------------------------------------------------------------------
def problem_flags(workspace: Workspace, **more: Any) -> dict[str, Any]:
    """The flags of the problem; the batch is the paper's, or for small clients a share of their rows."""
    asked = workspace.preset
    flags = {k: asked[k] for k in ("l2", "l2_relative", "L") if k in asked} | more
    most = max(asked["clients"]) if "clients" in asked else None
    widest = {"clients": most} if most is not None else {}
    # the smallest client occurs with the most clients
    smallest = min(workspace.problem(**flags | widest).sizes or [0])
    batch = asked["batch"] if smallest >= asked["batch"] else max(1, int(asked["batch_share"] * smallest))
    return flags | {"batch": batch}


def smoothness(problem: Problem) -> float:
    """L_b of the minibatches with the L of the average, as in the authors' notebook."""
    assert problem.batch is not None
    assert problem.sizes is not None
    rows = max(float(f.L_rows) for f in problem.clients)  # type: ignore[attr-defined]
    return theory.minibatch_smoothness(min(problem.sizes), problem.batch, problem.L_global, rows)


def decay(workspace: Workspace, problem: Problem) -> float:
    """The decay K lambda/2 per round, as in the authors' notebook."""
    return float(workspace.preset["K"]) * (problem.l2 or 0.0) / 2


def _seeds(
    workspace: Workspace, label: str, method: str, given: Any, flags: Any, rounds: str = "rounds"
) -> list[RunRequest]:
    q, stop = workspace.preset, {"rounds": workspace.preset[rounds]}
    return [RunRequest(label, method, given, flags, stop, seed) for seed in range(q["seeds"])]


def _by_seeds(workspace: Workspace, asked: Sequence[Sequence[RunRequest]], upto: float) -> list[list[CachedRun]]:
    """The runs of each group of requests."""
    runs = iter(workspace.runs([job for group in asked for job in group], upto))
    return [[next(runs) for _ in group] for group in asked]


def _drawn(
    workspace: Workspace, given: dict[str, Any], flags: Any, upto: float, won: dict[str, Candidate] | None = None
) -> list[Series]:
    runs = _by_seeds(workspace, [_seeds(workspace, title(m), m, given[m], flags) for m in METHODS], upto)
    about: list[dict[str, Any]] = [{} if won is None else {"gamma_L_b": won[m].times} for m in METHODS]
    return [series(title(m), found, **more) for m, found, more in zip(METHODS, runs, about, strict=True)]


def _ends(kind: str, heading: str, drawn: list[Series]) -> Table:
    columns = ["method", "gamma", "local steps", "rounds", "f - f* at the end (median)", "smallest", "largest"]
    rows: list[list[str | float | int | None]] = []
    for s in drawn:
        steps = s.about.get("K") or round(1 / s.about["p"], 1)
        low, high = s.low or s.y, s.high or s.y
        rows.append([s.label, s.about["gamma"], steps, s.x["rounds"][-1], s.y[-1], low[-1], high[-1]])
    return Table(kind, f"Final values with {heading}", columns, rows)


def _parameters(workspace: Workspace, problem: Problem) -> dict[str, Any]:
    shown = ("K", "p", "powers", "rungs", "rounds", "decaying_rounds", "seeds")
    about = {"lambda": problem.l2, "L (global)": problem.L_global, "L_b": smoothness(problem), "batch": problem.batch}
    about |= {"rows of the smallest client": min(problem.sizes or [0]), "A": problem.es_A, "C": problem.es_C}
    return about | {k: workspace.preset[k] for k in shown if k in workspace.preset}
