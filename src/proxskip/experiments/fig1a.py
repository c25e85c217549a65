"""Figure 1a: every method tuned with the same budget on the same grid, and the bias of LocalGD by step size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from proxskip.experiments import claims
from proxskip.experiments.curves_from_runs import panel, series, with_seeds
from proxskip.experiments.successive_halving import beyond, grid_table, tune, winners_table
from proxskip.experiments.toml_figures import resolved
from proxskip.experiments.workspace import PAPER_DATA, CachedRun, RunRequest, Workspace
from proxskip.problems.federated import Problem
from proxskip.report.figures import Claim, Experiment, Panel, Series
from proxskip.report.method_styles import title
from proxskip.tuning import Candidate, grid, local_steps_flag

METHODS = ("local-gd", "scaffold", "fedlin", "s-local-gd", "scaffnew", "gd", "accelerated")
NOT_SHOWN = ("id", "title", "shows", "notes", "share", "claims", "promised_on", "l2", "l2_relative", "L")
"""Entries of the preset that are no parameters of the experiment, or are shown otherwise."""


MOST_TIMES = 8
"""A grid grows at most this often."""


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Tune, run the winners with several seeds, and run LocalGD with several step sizes to show its bias."""
    preset, flags = workspace.preset, problem_flags(workspace)
    problem = workspace.problem(**flags)
    tried, won = _tuned(workspace, problem)
    runs = with_seeds(workspace, [_job(workspace, m, c) for m, c in won.items()])
    pairs = zip(won.items(), runs, strict=True)
    drawn = [series(title(m), r, gamma_L=c.times, local_steps=c.steps) for (m, c), r in pairs]
    tables = [winners_table("winners", tried, won, drawn, preset["eps"]), grid_table("grid", tried, won)]
    parameters = {"lambda": problem.l2, "L (global)": problem.L_global}
    parameters |= {k: v for k, v in preset.items() if k not in NOT_SHOWN}
    panels = [
        panel("tuned", "each method with its best parameters of the grid", drawn),
        _tradeoff(workspace, flags, problem.L_global),
    ]
    experiment = workspace.experiment("fig1a", parameters, panels, tables)
    experiment = replace(experiment, notes=[*experiment.notes, *_seen(drawn, problem.L_max, preset["eps"])])
    return claims.with_findings(experiment, judged(experiment, resolved(preset)["claims"], workspace.data))


def _tuned(workspace: Workspace, problem: Problem) -> tuple[dict[str, list[Candidate]], dict[str, Candidate]]:
    """All candidates and the winner of each method; grids grow until no winner lies at an end."""
    preset, L = workspace.preset, problem.L_global
    more = {name: {"q": preset["q"]} if name == "s-local-gd" else {} for name in METHODS}
    tried = {name: grid(name, L, preset["powers"], preset["steps"], **more[name]) for name in METHODS}
    won: dict[str, Candidate] = {}
    growing, best = list(METHODS), partial(_order, eps=preset["eps"])
    for again in range(MOST_TIMES + 1):
        grids = {name: tried[name] for name in growing}
        left = tune(workspace, problem_flags(workspace), grids, preset["rungs"])
        # the finalists run to the end: the best after few rounds need not be the first at eps
        finals = [(name, c) for name in growing for c in left[name]]
        runs = workspace.runs([_job(workspace, name, c) for name, c in finals])
        for name in growing:
            won[name] = min(((r, c) for r, (m, c) in zip(runs, finals, strict=True) if m == name), key=best)[1]
        new = {name: beyond(name, tried[name], won[name], L, preset["most_steps"], **more[name]) for name in growing}
        growing = [name for name in growing if new[name]]
        if not growing or again == MOST_TIMES:
            break
        for name in growing:
            tried[name] += new[name]
    return tried, won


def _seen(drawn: Sequence[Series], L_max: float, eps: float) -> list[str]:
    """Remarks on these curves that no claim makes."""
    notes = []
    beyond = [s.label for s in drawn if local_steps_flag(s.method) and s.about["gamma"] > 1 / L_max]
    if beyond:
        notes.append(f"Tuned step sizes above 1/max_i L_i, which no theorem covers: {', '.join(beyond)}.")
    for s in drawn:
        back = claims.relapses(s, eps)
        if back is not None and back > 0.05:
            notes.append(
                f"{s.label} does not stay below {eps:g}: after its first record below, {back:.0%} of the records are "
                f"above, and it ends at {claims.number(s.y[-1])}. This step size is at the edge of stability."
            )
    return notes


def problem_flags(workspace: Workspace) -> dict[str, Any]:
    """The flags of the problem, from the preset."""
    return {k: workspace.preset[k] for k in ("l2", "l2_relative", "L")}


def _order(final: tuple[CachedRun, Candidate], eps: float) -> tuple[float, float]:
    """Fewest rounds to eps; if no run gets there, the smallest f - f* at the end."""
    run, _ = final
    return (run.first(eps) or math.inf, run.summary["gap"] or math.inf)


def _job(workspace: Workspace, name: str, winner: Candidate) -> RunRequest:
    stop = {"rounds": workspace.preset["local_gd_rounds" if name == "local-gd" else "rounds"]}
    if name != "local-gd" and local_steps_flag(name):
        stop["target"] = workspace.preset["target"]
    return RunRequest(title(name), name, winner.flags, problem_flags(workspace), stop)


def _tradeoff(workspace: Workspace, flags: dict[str, Any], L: float) -> Panel:
    """LocalGD with a fixed number of local steps and different step sizes."""
    preset = workspace.preset
    stop = {"rounds": preset["tradeoff_rounds"]}
    jobs = []
    for k in preset["tradeoff_powers"]:
        given = {"gamma": 2.0**k / L, "K": preset["tradeoff_K"]}
        label = f"gamma L = 1/{2**-k}" if k < 0 else f"gamma L = {2**k}"
        jobs.append(RunRequest(label, "local-gd", given, flags, stop))
    runs = workspace.runs(jobs)
    drawn = [series(r.job.label, [r], gamma_L=2.0**k) for r, k in zip(runs, preset["tradeoff_powers"], strict=True)]
    return panel("tradeoff", f"LocalGD, K = {preset['tradeoff_K']}, with different step sizes", drawn)


# -- judging -----------------------------------------------------------------------------------------------------------
def judged(experiment: Experiment, entries: Sequence[Any], data: str) -> list[Claim]:
    """The claims of the file, and that LocalGD is biased."""
    tradeoff = claims.panel_of(experiment, "tradeoff")
    return [*claims.judged(experiment, entries, data), _biased(tradeoff, data == PAPER_DATA)]


def _biased(panel: Panel, asserted: bool, above: float = 1e-4) -> Claim:
    """No step size takes LocalGD to the solution; of the runs that have settled, larger steps settled higher."""
    ends = [(s, s.y[-1], claims.value_at(s, s.x["rounds"][-1] / 2)) for s in panel.series]
    # in the second half of the run it moved by less than five percent
    settled = [(s, end) for s, end, half in ends if half is not None and abs(end / half - 1) < 0.05]
    rising = all(a <= b * 1.001 for (_, a), (_, b) in pairwise(settled))
    arrived = any(end <= above or claims.stays_below(s, above) for s, end, _ in ends)
    holds = False if arrived or not rising else True if len(settled) > 1 else None
    words = ", ".join(f"{claims.number(end)} at gamma L = {s.about['gamma_L']:.3g}" for s, end in settled)
    least, ran = min(end for _, end, _ in ends), max(s.x["rounds"][-1] for s in panel.series)
    within = f"within {ran:.0f} rounds, no run came below {claims.number(least)}."
    text = (
        f"LocalGD stalls above {above:g}: the larger its step size, the higher it stalls; smaller steps only get "
        "there later."
    )
    measured = within[0].upper() + within[1:]
    if settled:
        measured = f"Settled (changing by less than 5 % in the second half of the run) at f - f* = {words}; {within}"
    numbers = {f"gamma_L={s.about['gamma_L']:.4g}": end for s, end, _ in ends}
    short = "the runs are too short to have settled"
    return claims.claim("fig1a-biased", text, holds, measured, numbers, asserted, undecided=short)
