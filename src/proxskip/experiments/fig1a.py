"""Figure 1a: every method tuned by the same budget on the same grid; and what step sizes do to LocalGD."""

from __future__ import annotations

from typing import Any

from proxskip.experiments import claims
from proxskip.experiments.bench import Bench, Job
from proxskip.experiments.curves import panel, series
from proxskip.experiments.tune import STEPLESS, Candidate, grid, grid_table, tune, winners_table
from proxskip.figures import Claim, Experiment, Panel
from proxskip.plots import NAMES

METHODS = ("local-gd", "scaffold", "fedlin", "s-local-gd", "scaffnew", "gd", "accelerated")
KEYS = ("powers", "steps", "q", "rungs", "rounds", "target", "tradeoff_powers", "tradeoff_K", "tradeoff_rounds")


def run(bench: Bench) -> tuple[Experiment, list[Claim]]:
    """Tune, run the winners, and let LocalGD show its bias."""
    asked, flags = bench.preset, problem_flags(bench)
    problem = bench.problem(**flags)
    tried: dict[str, list[Candidate]] = {}
    won: dict[str, Candidate] = {}
    for k, name in enumerate(METHODS):
        more = {"q": asked["q"]} if name == "s-local-gd" else {}
        tried[name] = grid(name, problem.L_global, asked["powers"], asked["steps"], **more)
        won[name] = tune(bench, problem, name, tried[name], asked["rungs"], 0.6 * (k + 1) / len(METHODS))
    runs = bench.runs([_job(bench, name, won[name]) for name in METHODS], 0.85)
    drawn = [
        series(NAMES[name], [r], gamma_L=won[name].times, local_steps=won[name].steps)
        for name, r in zip(METHODS, runs, strict=True)
    ]
    tables = [winners_table("winners", tried, won), grid_table("grid", tried, won)]
    parameters = {"lambda": problem.l2, "L (global)": problem.L_global, **{k: asked[k] for k in KEYS}}
    panels = [panel("tuned", "each method at its best of the grid", drawn), _tradeoff(bench, flags, problem.L_global)]
    experiment = bench.experiment("fig1a", parameters, panels, tables)
    return claims.said(experiment, claims.fig1a(experiment, bench.asserted))


def problem_flags(bench: Bench) -> dict[str, Any]:
    """What the preset says of the problem."""
    return {k: bench.preset[k] for k in ("l2", "l2_relative", "L")}


def _job(bench: Bench, name: str, winner: Candidate) -> Job:
    stop = {"rounds": bench.preset["rounds"]}
    if name not in ("local-gd", *STEPLESS):
        stop["target"] = bench.preset["target"]
    return Job(NAMES[name], name, winner.flags, problem_flags(bench), stop)


def _tradeoff(bench: Bench, flags: dict[str, Any], L: float) -> Panel:
    """LocalGD with one number of local steps: the larger the step, the sooner it stalls, and the higher."""
    asked = bench.preset
    stop = {"rounds": asked["tradeoff_rounds"]}
    jobs = []
    for k in asked["tradeoff_powers"]:
        given = {"gamma": 2.0**k / L, "K": asked["tradeoff_K"]}
        jobs.append(
            Job(
                f"LocalGD, gamma L = 1/{2**-k:d}" if k < 0 else f"LocalGD, gamma L = {2**k}",
                "local-gd",
                given,
                flags,
                stop,
            )
        )
    runs = bench.runs(jobs, 1.0)
    drawn = [series(r.job.label, [r], gamma_L=2.0**k) for r, k in zip(runs, asked["tradeoff_powers"], strict=True)]
    return panel("tradeoff", f"LocalGD, K = {asked['tradeoff_K']}: larger steps stall higher", drawn)
