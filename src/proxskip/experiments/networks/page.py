"""The three experiments of ``reproduce --networks``: an MLP and a CNN on the digits, and a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from proxskip.experiments import claims
from proxskip.experiments.networks import verdicts
from proxskip.experiments.networks.chosen import AXES, ChosenRun, choose, words
from proxskip.experiments.networks.data import CLIENTS
from proxskip.experiments.networks.forms import BY_NAME, FORMS, WITH_H, WITHOUT_H, Form, TriedForm
from proxskip.experiments.workspace import Workspace
from proxskip.report.figures import Claim, Experiment, Panel, Series, Table

SHOWN = ("local-sgd", "diloco-sgd", "local-adamw", "diloco-adamw", "scaffold", "fedlin", "scaffnew", "adamw-h")
"""The curves of the figures, as many as can be told apart; the tables have all methods."""
UNITS = {"rounds": (1.0, "rounds"), "bytes": (1e6, "megabytes per client"), "gradients": (1e3, "thousand gradients")}
SHORT = (
    "This is a quick run: few seeds, two settings for each method, few rounds and an easy target. What it finds is "
    "reported, and no verdict; claims about other splits, and the verdicts, come with the same command without --quick."
)
Runs = Mapping[str, Mapping[str, ChosenRun]]
"""By split and method."""


def mlp(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """An MLP on the digits."""
    return run(workspace, "mlp")


def cnn(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """A CNN on the digits."""
    return run(workspace, "cnn")


def text(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """A language model on made text."""
    return run(workspace, "text")


def run(workspace: Workspace, model: str) -> tuple[Experiment, list[Claim]]:
    """Every method on every split, the claims, and what the control variates bought."""
    asked = workspace.preset
    kept = ("seeds", "candidates", "rounds", "K", "batch", "target", "metric")
    # of the items that processes share the last begin first: FedLin, which passes over all rows in every round
    order = sorted(FORMS, key=lambda form: form.control == "anchor")
    pairs = [(split, form) for split in asked["splits"] for form in order]
    trained = workspace.cached_values(model, [key_of(workspace, model, *pair) for pair in pairs], train)
    runs: dict[str, dict[str, ChosenRun]] = {split: {} for split in asked["splits"]}
    for (split, form), made in zip(pairs, trained, strict=True):
        curves = {k: np.array(v, dtype=np.float64) for k, v in made["curves"].items()}
        candidates = form.candidates(asked["candidates"])
        runs[split][form.name] = choose(form, candidates, curves, asked["metric"], asked["target"])
    panels = [panel(split, found, asked) for split, found in runs.items()]
    tables = [gains_table(runs), *(costs_table(runs, axis, asked) for axis in AXES), final_table(runs, asked)]
    parameters = {"clients": CLIENTS} | {k: asked[k] for k in kept} | {"parameters of the network": trained[0]["d"]}
    experiment = workspace.experiment(model, parameters, panels, [*tables, chosen_table(runs)])
    notes = [*experiment.notes, *verdicts.when_not(runs), *([SHORT] if workspace.quick else [])]
    experiment = replace(experiment, notes=notes)
    return claims.with_findings(experiment, verdicts.judged(model, runs, asserted=not workspace.quick))


def key_of(workspace: Workspace, model: str, split: str, form: Form) -> dict[str, Any]:
    """Everything that determines the curves of a method on a split."""
    asked = workspace.preset
    given = {k: asked[k] for k in ("seeds", "rounds", "K", "batch", "every")}
    # the title says nothing about the run,
    # nor do the server's step sizes and chi, since those that are tried are among the candidates
    what = {k: v for k, v in asdict(form).items() if k not in ("name", "title", "server", "damping")}
    candidates = [asdict(c) for c in form.candidates(asked["candidates"])]
    named = {"model": model, "split": split, "method": form.name, "engine": workspace.engine}
    return given | named | {"form": what, "candidates": candidates}


def train(workspace: Workspace, key: Mapping[str, Any]) -> dict[str, Any]:
    """The network's number of parameters, and the curves of all candidates and seeds."""
    # PyTorch is optional: the page must be importable without it
    import torch

    from proxskip.experiments.networks.data import digits
    from proxskip.experiments.networks.data import text as made_text
    from proxskip.experiments.networks.models import VectorNetwork
    from proxskip.experiments.networks.trainer import StackedTrainer, TrainingPlan

    make = made_text if key["model"] == "text" else digits
    rows = [make(key["split"], seed) for seed in range(key["seeds"])]
    plan = TrainingPlan(key["rounds"], key["K"], key["batch"], key["every"])
    network, candidates = VectorNetwork(key["model"]), [TriedForm(**c) for c in key["candidates"]]
    # sums of several threads have other last bits, and processes use the cores better
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        device = "cuda" if key["engine"] == "gpu" else "cpu"
        made = StackedTrainer(network, rows, BY_NAME[key["method"]], candidates, plan, device).run()
    finally:
        torch.set_num_threads(before)
    return {"d": network.d, "curves": made}


# -- what is shown -----------------------------------------------------------------------------------------------------
def panel(split: str, found: Mapping[str, ChosenRun], asked: Mapping[str, Any]) -> Panel:
    """The mean over the seeds, and the band from the worst to the best."""
    series = []
    for name in SHOWN:
        r = found[name]
        x = {axis: r.curves[axis].mean(axis=0).tolist() for axis in AXES}
        y, low, high = (f(r.test, axis=0).tolist() for f in (np.mean, np.min, np.max))
        series.append(Series(r.form.title, x, y, low=low, high=high, about={"setting": r.candidate.words}))
    # the target is a level line as long as the longest curve
    arrived = {axis: max(s.x[axis][-1] for s in series) for axis in AXES}
    level = {axis: [0.0, arrived[axis]] for axis in AXES}
    series.append(Series("target", level, [asked["target"]] * 2, kind="bound"))
    label = f"test {asked['metric']}, mean over {asked['seeds']} seeds"
    return Panel(split, title_of(split), series, "rounds", dict(AXES), label, y_scale="linear", y_floor=asked["floor"])


def title_of(split: str) -> str:
    """A split in words."""
    named = {"sorted": "sorted labels", "iid": "iid", "grammars": "a grammar for each client", "mixed": "all grammars"}
    return named.get(split) or f"Dirichlet, alpha = {split.partition('-')[2]}"


def costs_table(runs: Runs, axis: str, asked: Mapping[str, Any]) -> Table:
    """What each method needs to reach the target, by split."""
    unit, label = UNITS[axis]
    rows: list[Any] = [
        [form.title, *(words(found[form.name].costs(axis), unit) for found in runs.values())] for form in FORMS
    ]
    title = f"{label.capitalize()} to a test {asked['metric']} of {asked['target']:g}"
    note = "Medians over the seeds; in brackets, how many of them reached the target, if not all did."
    return Table(axis, title, ["method", *map(title_of, runs)], rows, note if axis == "rounds" else "")


def final_table(runs: Runs, asked: Mapping[str, Any]) -> Table:
    """Where each method ends."""

    def cell(v: Any) -> str:
        return f"{v.mean():.3f} ({v.min():.3f} to {v.max():.3f})"

    rows: list[Any] = [[f.title, *(cell(found[f.name].final()) for found in runs.values())] for f in FORMS]
    title = f"Test {asked['metric']} at the end: mean, smallest and largest of the seeds"
    return Table("final", title, ["method", *map(title_of, runs)], rows)


def chosen_table(runs: Runs) -> Table:
    """The settings that did best on the validation rows."""

    def cell(r: ChosenRun) -> str:
        return r.candidate.words + (" *" if r.at_end else "")

    rows: list[Any] = [[f.title, *(cell(found[f.name]) for found in runs.values())] for f in FORMS]
    note = "* the largest or smallest step size that was tried, so that more might have been found beyond it."
    return Table("settings", "Settings chosen on the validation rows", ["method", *map(title_of, runs)], rows, note)


def gains_table(runs: Runs) -> Table:
    """The best method with h against the best without, on every axis."""
    rows: list[Any] = []
    for split, found in runs.items():
        for axis, (unit, label) in UNITS.items():
            # each at its best on this axis: the two may be other methods on the next one
            without, with_h = (
                min((found[k] for k in names), key=lambda r: r.cost(axis)) for names in (WITHOUT_H, WITH_H)
            )
            rows.append([
                title_of(split), label, f"{without.form.title}: {words(without.costs(axis), unit)}",
                f"{with_h.form.title}: {words(with_h.costs(axis), unit)}", verdicts.gain(with_h, without, axis),
            ])  # fmt: skip
    return Table(
        "gains", "What control variates gain", ["split", "cost", "best without h", "best with h", "gain"], rows
    )
