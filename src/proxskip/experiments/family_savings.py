"""What the methods that followed Scaffnew save, each against Scaffnew on the same problem: bits, gradients, noise."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proxskip.experiments import claims
from proxskip.experiments.curves_from_runs import column, panel, series
from proxskip.experiments.workspace import CachedRun, RunRequest, Workspace
from proxskip.methods import GradSkip, Scaffnew
from proxskip.problems.federated import Problem
from proxskip.problems.glm import Logistic
from proxskip.report.figures import Claim, Experiment, Panel, Series, Table
from proxskip.report.method_styles import title
from proxskip.report.plots import Y_AXES
from proxskip.running import run

AXES = ("bits-up", "bits-down", "rounds", "passes", "iterations", "seconds")


def _flags(workspace: Workspace, **more: Any) -> dict[str, Any]:
    return {k: workspace.preset[k] for k in ("l2", "l2_relative", "split", "weights", "clients")} | more


def _seeds(workspace: Workspace) -> range:
    return range(workspace.preset["seeds"])


def asserted(workspace: Workspace) -> bool:
    """Whether these claims are made for this data."""
    return workspace.data in ("w8a", "digits")


# -- bits --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Contender:
    """One curve: a method by its theorem, with these flags."""

    label: str
    method: str
    flags: Mapping[str, Any]


def bits(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Uplink bits to eps: LoCoDL against Scaffnew in float32 with everybody, TAMUNA against Scaffnew on cohorts."""
    asked = workspace.preset
    everybody = [Contender("Scaffnew, float32", "scaffnew", {"codec": "float32"})]
    everybody += [Contender(f"LoCoDL, {codec}", "locodl", {"codec": codec}) for codec in asked["codecs"]]
    c = asked["cohort"]
    sampled = [Contender(f"Scaffnew, cohorts of {c}", "scaffnew", {"cohort": c})]
    sampled += [Contender(f"TAMUNA, s = {s}", "tamuna", {"cohort": c, "s": s}) for s in asked["owners"]]
    panels, tables, found = [], [], []
    # bar: the part of Scaffnew's bits that the claim allows; upto: the share of progress when the runs are done
    for id, heading, contenders, clients, bar, upto in (
        ("locodl", "all clients take part", everybody, asked["clients"], 0.5, 0.5),
        ("tamuna", f"cohorts of {c} clients", sampled, asked["many_clients"], 1.0, 1.0),
    ):
        runs = _contest(workspace, contenders, clients, upto)
        drawn = [series(k.label, r, axes=AXES) for k, r in zip(contenders, runs, strict=True)]
        name = f"{clients} clients, {heading}"
        panels.append(panel(id, name, drawn, "bits-up", AXES))
        tables.append(_bits_table(id, name, contenders, runs, asked["eps"]))
        found.append(_fewer_bits(workspace, f"bits-{id}", runs, bar))
    parameters = {k: asked[k] for k in ("eps", "l2", "l2_relative", "seeds", "rounds")}
    return claims.with_findings(workspace.experiment("bits", parameters, panels, tables), found)


def _contest(workspace: Workspace, contenders: Sequence[Contender], clients: int, upto: float) -> list[list[CachedRun]]:
    """All seeds of all contenders; nothing is tuned."""
    stop = {k: workspace.preset[k] for k in ("rounds", "every")} | {"target": workspace.preset["eps"]}
    jobs = [
        RunRequest(c.label, c.method, c.flags, _flags(workspace, clients=clients), stop, seed)
        for c in contenders
        for seed in _seeds(workspace)
    ]
    # jobs go through the seeds first: equal slices, one per contender
    runs, each = workspace.runs(jobs, upto), workspace.preset["seeds"]
    return [runs[k : k + each] for k in range(0, len(runs), each)]


def cost(runs: Sequence[CachedRun], eps: float, axis: str) -> float | None:
    """The median over the seeds of a cost to eps; None if a seed did not get there."""
    found = [r.first(eps, axis) for r in runs]
    return None if None in found else float(statistics.median(v for v in found if v is not None))


def _bits_table(
    id: str, name: str, contenders: Sequence[Contender], runs: Sequence[Sequence[CachedRun]], eps: float
) -> Table:
    rows: list[list[str | float | int | None]] = []
    for k, found in zip(contenders, runs, strict=True):
        up, down = (cost(found, eps, axis) for axis in ("bits_up", "bits_down"))
        base = cost(runs[0], eps, "bits_up")
        share = None if up is None or base is None else round(up / base, 3)
        megabits = [None if v is None else round(v / 1e6, 3) for v in (up, down)]
        rows.append([k.label, found[0].summary["p"], cost(found, eps, "round"), *megabits, share])
    columns = ["method", "p", "rounds", "Mbit up", "Mbit down", "up, of Scaffnew's"]
    return Table(f"{id}-bits", f"To {eps:g}: {name}", columns, rows, "All clients together; medians over the seeds.")


def _fewer_bits(workspace: Workspace, id: str, runs: Sequence[Sequence[CachedRun]], bar: float) -> Claim:
    """The best after Scaffnew, each by its theorem, needs less than this part of its bits."""
    eps, name = workspace.preset["eps"], {"bits-locodl": "LoCoDL", "bits-tamuna": "TAMUNA"}[id]
    base = cost(runs[0], eps, "bits_up")
    best = min((v for found in runs[1:] if (v := cost(found, eps, "bits_up")) is not None), default=None)
    ratio = None if base is None or best is None else best / base
    # "at most half" may be met with equality, "fewer" may not
    ok = None if ratio is None else ratio <= bar if bar < 1 else ratio < bar
    text = {
        "bits-locodl": f"To {eps:g}, LoCoDL needs at most half the uplink bits of Scaffnew in float32.",
        "bits-tamuna": f"To {eps:g}, TAMUNA needs fewer uplink bits than Scaffnew on the same cohorts.",
    }[id]
    said = "no figure" if ratio is None else f"{name} needs {ratio:.2f} of the bits"
    numbers = {"scaffnew": base, name.lower(): best, "ratio": ratio}
    return claims.claim(id, text, ok, said, numbers, asserted(workspace), undecided="the limit of rounds came first")


# -- gradients ---------------------------------------------------------------------------------------------------------
def scaled(problem: Problem, spread: float) -> Problem:
    """The rows of client i scaled, so that the L_i fall from the largest to a part ``spread`` of it."""
    factors = np.geomspace(1.0, 1.0 / spread, problem.n)
    parts: list[Any] = list(problem.clients)
    # L of a logistic loss without l2 grows with the square of its rows
    largest = max(f.L0 for f in parts)
    made = [
        Logistic(f.A * np.sqrt(t * largest / f.L0), f.b, l2=f.l2, classes=(-1.0, 1.0))
        for t, f in zip(factors, parts, strict=True)
    ]
    return Problem(made, problem.weights)


def sleep_curve(workspace: Workspace, asked: Mapping[str, Any]) -> dict[str, Any]:
    """One run on the scaled problem as plain data."""
    problem = scaled(workspace.problem(**_flags(workspace)), asked["spread"])
    kind: Any = {"scaffnew": Scaffnew, "gradskip": GradSkip}[asked["method"]]
    found = run(kind.theory(problem), problem, target=asked["eps"], rounds=asked["rounds"], seed=asked["seed"], every=1,
                engine=workspace.engine, threads=workspace.threads)  # fmt: skip
    curve = plain_curve(found, ("rounds", "local-steps", "passes"))
    return curve | {"passes": float(found.summary()["passes"])}


def plain_curve(found: Any, axes: Sequence[str]) -> dict[str, Any]:
    """A result's curve as plain data."""
    out: dict[str, Any] = {"x": {a: [float(v) for v in column(found.trace, a)] for a in axes}}
    # infinities are not JSON
    return out | {
        "gap": [float(v) if np.isfinite(v) else None for v in found.trace["gap"]],
        "rounds": found.rounds,
        "status": found.status.name.lower(),
    }


def plain_panel(id: str, heading: str, drawn: Sequence[Series], x: str, labels: Mapping[str, str]) -> Panel:
    """A panel of such curves."""
    label, floor = Y_AXES["gap"]
    return Panel(id, heading, list(drawn), x, dict(labels), label, y_floor=floor)


def sleeping(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """GradSkip against Scaffnew where the L_i differ: the same rounds, fewer gradients."""
    asked, names = workspace.preset, ("scaffnew", "gradskip")
    jobs = [
        {"method": name, "seed": seed, **{k: asked[k] for k in ("spread", "eps", "rounds", "clients", "l2")}}
        for name in names
        for seed in _seeds(workspace)
    ]
    found = workspace.cached_values("sleeping", jobs, sleep_curve, 1.0)
    each = asked["seeds"]
    curves = {name: found[k * each : (k + 1) * each] for k, name in enumerate(names)}
    drawn = [
        Series(label, curves[name][0]["x"], curves[name][0]["gap"], name, about={"status": curves[name][0]["status"]})
        for name, label in zip(names, ("Scaffnew", "GradSkip"), strict=True)
    ]
    axes = {"local-steps": "local gradient steps, all clients", "rounds": "communication rounds"}
    heading = f"{asked['clients']} clients whose L_i differ by {asked['spread']:g}"
    means = {name: (_mean(c, "rounds"), _mean(c, "passes")) for name, c in curves.items()}
    rows: list[list[Any]] = [[title(name), *means[name]] for name in names]
    columns = ["method", "rounds", "full gradients per client"]
    table = Table("sleeping-costs", f"To {asked['eps']:g}: {heading}", columns, rows, "Means over the seeds.")
    r, g = (means["gradskip"][k] / means["scaffnew"][k] for k in (0, 1))
    done = all(c["status"] == "converged" for c in found)
    text = (
        f"Where the L_i differ by {asked['spread']:g}, GradSkip needs fewer gradients than Scaffnew in as many rounds."
    )
    said = f"GradSkip needs {g:.2f} of the gradients and {r:.2f} of the rounds"
    numbers = {"rounds": r, "gradients": g}
    # as many rounds: within a tenth, since both methods draw their local steps
    ok = g < 1 and 0.9 <= r <= 1.1 if done else None
    made = claims.claim("sleeping-gradients", text, ok, said, numbers, asserted(workspace), undecided="too few rounds")
    parameters = {k: asked[k] for k in ("eps", "spread", "clients", "l2", "seeds")}
    panels = [plain_panel("sleeping", heading, drawn, "local-steps", axes)]
    experiment = workspace.experiment("sleeping", parameters, panels, [table])
    return claims.with_findings(experiment, [made])


def _mean(curves: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(np.mean([c[name] for c in curves]))


# -- minibatches -------------------------------------------------------------------------------------------------------
def minibatches(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Scaffnew-VR reaches the solution with minibatches, at which Scaffnew stops in its ball."""
    asked = workspace.preset
    flags = _flags(workspace, batch=asked["batch"])
    exact = RunRequest("Scaffnew-VR", "scaffnew-vr", {}, flags, {"target": asked["eps"], "rounds": asked["rounds"]})
    (vr,) = workspace.runs([exact], 0.7)
    # Scaffnew runs as long as the other did, at its own step and at the other's
    stop = {"rounds": vr.summary["rounds"]}
    step = {k: vr.summary[k] for k in ("gamma", "p")}
    jobs = [replace(exact, label="Scaffnew", method="scaffnew", stop=stop)]
    jobs.append(replace(jobs[0], label="Scaffnew, the step of Scaffnew-VR", flags=step))
    runs = [vr, *workspace.runs(jobs, 1.0)]
    drawn = [series(r.job.label, [r], axes=AXES[2:]) for r in runs]
    heading = f"minibatches of {asked['batch']} rows, {asked['clients']} clients"
    # the ball: the median of the last tenth of the records
    ends = [r.trace["gap"][-max(1, len(r.trace["gap"]) // 10) :] for r in runs[1:]]
    ball, smaller = (float(np.median(end)) for end in ends)
    reached = float(vr.trace["gap"][-1])
    ok = None if vr.summary["status"] == "MAX_ROUNDS" else reached <= asked["eps"] and ball > asked["ball"]
    text = f"With minibatches of {asked['batch']} Scaffnew-VR reaches {asked['eps']:g}"
    text += f"; Scaffnew stops above {asked['ball']:g}."
    said = f"{claims.number(reached)} against {claims.number(ball)} after {vr.summary['rounds']} rounds"
    said += f" (the median of Scaffnew's last records; the lowest is {claims.number(ends[0].min())}, and at the step "
    said += f"of Scaffnew-VR the median is {claims.number(smaller)})."
    numbers = {"scaffnew-vr": reached, "scaffnew": ball, "smaller step": smaller}
    made = claims.claim("minibatches-floor", text, ok, said, numbers, asserted(workspace), undecided="too few rounds")
    rows: list[list[Any]] = [
        [r.job.label, *(r.summary[k] for k in ("gamma", "p", "rounds", "passes", "gap"))] for r in runs
    ]
    columns = ["method", "gamma", "p", "rounds", "passes over the data", "f - f* at the end"]
    table = Table("minibatches-ends", heading, columns, rows)
    parameters = {k: asked[k] for k in ("eps", "batch", "clients", "l2")}
    experiment = workspace.experiment(
        "minibatches", parameters, [panel("minibatches", heading, drawn, "rounds", AXES[2:])], [table]
    )
    return claims.with_findings(experiment, [made])
