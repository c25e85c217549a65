"""Figure 2c: Scaffnew with minibatches and M clients, with a fixed batch per client and with a fixed total batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxskip.experiments import claims
from proxskip.experiments.curves_from_runs import panel, series, with_seeds
from proxskip.experiments.toml_figures import parameters, problem_flags, smoothness
from proxskip.experiments.workspace import CachedRun, RunRequest, Workspace
from proxskip.report.figures import Claim, Experiment, Series, Table


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Scaffnew with M clients: with a fixed batch per client, then with a fixed total batch."""
    q = workspace.preset
    most = max(q["clients"])
    flags = {k: q[k] for k in ("l2", "l2_relative", "L", "batch", "batch_share")}
    # the smallest client occurs with the most clients; the total batch is its batch when all clients take part
    total = problem_flags(workspace, flags | {"clients": most})["batch"]
    del flags["batch_share"]
    own = {M: flags | {"clients": M, "batch": total} for M in q["clients"]}
    shared = {M: own[M] | {"batch": max(1, total // M)} for M in q["clients"]}
    steps = {M: 1 / smoothness(workspace.problem(**own[M])) for M in own}
    # the smallest step size is safe for every M, so that only M changes
    least = min(1 / smoothness(workspace.problem(**one)) for one in shared.values())
    parts = [
        ("decaying", "a decaying step, a fixed batch per client", own, steps, True),
        ("constant", "a constant step, a fixed batch per client", own, steps, False),
        ("total", "a constant step, a fixed total batch", shared, dict.fromkeys(own, least), False),
    ]
    requests = {
        (id, M): _request(workspace, M, problems[M], gammas[M], decays)
        for id, _, problems, gammas, decays in parts
        for M in problems
    }
    runs = dict(zip(requests, with_seeds(workspace, list(requests.values())), strict=True))
    drawn = {id: [_series(workspace, M, problems[M], runs[id, M]) for M in problems] for id, _, problems, *_ in parts}
    panels = [panel(id, heading, drawn[id]) for id, heading, *_ in parts]
    columns = ["clients", "batch per client", "share of a client's rows", "gamma", "floor",
               "fixed total batch: batch per client", "gamma", "floor"]  # fmt: skip
    rows = [_floor_row(a, b) for a, b in zip(drawn["constant"], drawn["total"], strict=True)]
    note = "The median of f - f* over the last third of the runs with a constant step size."
    table = Table("floors", "Noise floors", columns, rows, note)
    shown = {k: q[k] for k in ("clients", "p", "rounds", "decaying_rounds", "seeds")} | {"total_batch": total}
    about = parameters(workspace.problem(**own[most])) | shown
    experiment = workspace.experiment("fig2c", about, panels, [table])
    return claims.with_findings(experiment, judged(experiment, q["claims"], workspace.data))


def _request(workspace: Workspace, M: int, problem: dict[str, Any], gamma: float, decays: bool) -> RunRequest:
    q = workspace.preset
    flags = {"gamma": gamma, "p": q["p"]}
    if decays:
        flags["decay"] = (workspace.problem(**problem).l2 or 0.0) / (2 * q["p"])
    return RunRequest(f"M = {M}", "scaffnew", flags, problem, {"rounds": q["decaying_rounds" if decays else "rounds"]})


def _series(workspace: Workspace, M: int, problem: dict[str, Any], runs: Sequence[CachedRun]) -> Series:
    rows = min(workspace.problem(**problem).sizes or [0])
    return series(f"M = {M}", runs, M=M, rows=rows, share=problem["batch"] / rows)


def _floor_row(own: Series, total: Series) -> list[str | float | int | None]:
    cells = [own.about[k] for k in ("M", "batch", "share", "gamma")]
    return [*cells, claims.floor(own), total.about["batch"], total.about["gamma"], claims.floor(total)]


def judged(experiment: Experiment, entries: Sequence[Any], data: str) -> list[Claim]:
    """The claims of the file, with the speedup after the first."""
    floor, total = claims.judged(experiment, entries, data)
    return [floor, _speedup(claims.panel_of(experiment, "decaying").series), total]


def _speedup(drawn: Sequence[Series]) -> Claim:
    """The speedup that the paper sees in its figure, in the paper's own setting."""
    ends = {s.about["M"]: s.y[-1] for s in drawn}
    few, many = min(ends), max(ends)
    gain, rounds = ends[few] / ends[many], min(s.x["rounds"][-1] for s in drawn)
    text = "With a decaying step and a fixed batch per client the speedup is linear in M, as the paper says."
    words = ", ".join(f"{s.label}: {claims.number(s.y[-1])}" for s in drawn)
    measured = f"f - f* after {rounds:.0f} rounds: {words}. The value for M = {few} is {gain:.2f} times "
    measured += f"that for M = {many}; a linear speedup would give {many / few:g}."
    numbers = {f"M={M}": v for M, v in ends.items()}
    return claims.claim("fig2c-speedup", text, gain >= 0.5 * many / few, measured, numbers, asserted=False)
