"""Control variates for networks, by ``proxskip.torch.train``: an MLP and a CNN on the digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from proxskip.experiments import claims
from proxskip.experiments.workspace import Workspace
from proxskip.randomness import generator
from proxskip.report.figures import Claim, Experiment, Panel, Series, Table
from proxskip.results.result import Status
from proxskip.torch.training import split as split_rows
from proxskip.torch.training import train
from proxskip.types import Array

CLIENTS = 8
AXES = {
    "rounds": "communication rounds",
    "bytes": "bytes per client, up and down",
    "gradients": "gradients of single rows per client",
}
UNITS = {"rounds": (1.0, "rounds"), "bytes": (1e6, "megabytes per client"), "gradients": (1e3, "thousand gradients")}
SPLITS = {
    "sorted": ("sorted labels", "On label-sorted digits"),
    "iid": ("iid", "On iid digits"),
}
"""The names of a split in tables and at the beginning of claims."""
SHORT = (
    "This is a quick run: few seeds and settings, few rounds and an easy target. What it finds is reported, and no "
    "verdict; a full run gives the verdicts."
)


# -- methods -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Form:
    """A method: the words of ``train`` besides the step size and the period.

    Args:
        nesterov: DiLoCo's outer step, with Nesterov's momentum 0.9 and the step size 0.7.
        drawn: whether K ~ Geom(1/K) is drawn, as in Scaffnew's theory, or fixed.
    """

    name: str
    title: str
    optimizer: str = "sgd"
    control: str = "none"
    nesterov: bool = False
    drawn: bool = False

    def words(self, lr: float, K: int) -> dict[str, Any]:
        """What ``train`` is called with."""
        local = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[self.optimizer]
        outer = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True) if self.nesterov else None
        period = {"p": 1.0 / K} if self.drawn else {"period": K}
        return {"optimizer": partial(local, lr=lr), "control": self.control, "outer": outer, **period}


FORMS = (
    Form("local-sgd", "LocalSGD"),
    Form("diloco-sgd", "DiLoCo (SGD)", nesterov=True),
    Form("local-adamw", "local AdamW", "adamw"),
    Form("diloco-adamw", "DiLoCo (AdamW)", "adamw", nesterov=True),
    Form("fedlin", "FedLin", control="anchor"),
    Form("scaffnew", "Scaffnew (fixed K)", control="step"),
    Form("scaffnew-drawn", "Scaffnew (drawn K)", control="step", drawn=True),
    Form("scaffnew-outer", "Scaffnew + Nesterov", control="step", nesterov=True),
    Form("adamw-h", "AdamW + h", "adamw", control="gradient"),
)
BY_NAME = {form.name: form for form in FORMS}
WITH_H = tuple(form.name for form in FORMS if form.control != "none")
WITHOUT_H = tuple(form.name for form in FORMS if form.control == "none")


# -- data and networks -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Task:
    """What is learned: a fresh module, the clients' rows, and the rows that are held out, validation first."""

    module: nn.Module
    clients: list[tuple[Tensor, Tensor]]
    held_out: tuple[Tensor, Tensor]


def digits(model: str, split: str, seed: int) -> Task:
    """scikit-learn's digits: 60 % for training, the rest for validation and test; "sorted" or "iid"."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = generator(seed).permutation(len(labels))
    # pixels from 0 to 16 become numbers from -1 to 1
    X, y = torch.tensor((pixels[order] - 8.0) / 8.0, dtype=torch.float32), torch.tensor(labels[order])
    cut = len(y) * 6 // 10
    clients = split_rows(X[:cut], y[:cut], CLIENTS, {"sorted": "label", "iid": "iid"}[split], seed=seed)
    # one row less, where the halves would not be equal
    even = cut + (len(y) - cut) // 2 * 2
    return Task(MODULES[model](), clients, (X[cut:even], y[cut:even]))


def mlp() -> nn.Module:
    """64-32-32-10."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn() -> nn.Module:
    """Two convolutions of 3 x 3 with stride 2 and 8 and 16 channels, and a linear layer."""
    first, second = nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)
    )


MODULES: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn}


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy."""
    return functional.cross_entropy(outputs, targets)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of right answers."""
    return (outputs.argmax(-1) == targets).float().mean()


# -- runs --------------------------------------------------------------------------------------------------------------
def settings_of(form: Form, preset: Mapping[str, Any]) -> list[tuple[float, int]]:
    """Step sizes and periods: as many for every method, with the same factors between them."""
    return list(product(preset["rates"][form.optimizer], preset["periods"]))


def key_of(workspace: Workspace, model: str, split: str, form: Form) -> dict[str, Any]:
    """Everything that determines the curves of a method on a split."""
    shared = {k: workspace.preset[k] for k in ("seeds", "rounds", "batch")}
    return shared | {
        "model": model, "split": split, "method": form.name, "engine": workspace.engine,
        "settings": settings_of(form, workspace.preset),
    }  # fmt: skip


def curves_of(workspace: Workspace, key: Mapping[str, Any]) -> dict[str, Any]:
    """The network's number of parameters, and each column as (settings, seeds, records)."""
    metrics = {
        "validation": lambda a, b: accuracy(*(v[: len(v) // 2] for v in (a, b))),
        "test": lambda a, b: accuracy(*(v[len(v) // 2 :] for v in (a, b))),
    }
    records = key["rounds"] + 1
    curves = {name: np.full((len(key["settings"]), key["seeds"], records), np.nan) for name in (*AXES, *metrics)}
    # sums of several threads have other last bits, and processes use the cores better
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for s, (c, (lr, K)) in product(range(key["seeds"]), enumerate(key["settings"])):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(s)
                task = digits(key["model"], key["split"], s)
            result = train(
                task.module, loss, task.clients, **BY_NAME[key["method"]].words(lr, K), batch=key["batch"], seed=s,
                rounds=key["rounds"], test=task.held_out, metrics=metrics, progress=False,
                device="cuda" if key["engine"] == "gpu" else "cpu",
            )  # fmt: skip
            if result.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
            t = result.trace
            cost = {"rounds": t["round"], "bytes": (t["bytes_up"] + t["bytes_down"]) / CLIENTS}
            cost["gradients"] = t["grad_evals"] / CLIENTS
            # a run that diverged has no later records: nan, and the costs it had
            for name in curves:
                curves[name][c, s, : len(t)] = cost.get(name, t[name] if name in metrics else None)
                if name in AXES:
                    curves[name][c, s, len(t) :] = curves[name][c, s, len(t) - 1]
    finally:
        torch.set_num_threads(before)
    return {"d": len(result.x), "curves": {name: v.tolist() for name, v in curves.items()}}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A method with the setting that did best on the validation rows: curves of (seeds, records)."""

    form: Form
    lr: float
    K: int
    curves: Mapping[str, Array]
    preset: Mapping[str, Any]
    at_end: bool

    def costs(self, axis: str) -> list[float]:
        """For each seed the cost of the target, which counts only where the run stays near it; infinite if never."""
        costs = []
        for v, at in zip(self.curves["test"], self.curves[axis], strict=True):
            # nan, which a divergence leaves, is no value near the target
            away = np.flatnonzero(~(v >= self.preset["target"] - self.preset["slack"]))
            hits = np.flatnonzero(v >= self.preset["target"])
            hits = hits[hits > (away[-1] if len(away) else -1)]
            costs.append(float(at[hits[0]]) if len(hits) else math.inf)
        return costs

    def cost(self, axis: str) -> float:
        """The median over the seeds; infinite if most of them never arrived."""
        return float(np.sort(self.costs(axis))[self.preset["seeds"] // 2])

    def said(self, axis: str) -> str:
        """The median of a cost, and how many seeds arrived if not all did."""
        costs, middle = self.costs(axis), self.cost(axis)
        arrived = sum(map(math.isfinite, costs))
        few = "" if arrived in (0, len(costs)) else f" ({arrived} of {len(costs)})"
        return (f"{middle / UNITS[axis][0]:.3g}" if math.isfinite(middle) else "never") + few

    def beats(self, other: Chosen, axis: str) -> bool:
        """Whether it costs less with every seed; if neither of two does, that is a tie."""
        return all(a < b for a, b in zip(self.costs(axis), other.costs(axis), strict=True))

    def final(self) -> Array:
        """The mean of the last records of each seed, a tenth of them."""
        test = self.curves["test"]
        return np.asarray(test[:, -max(1, test.shape[1] // 10) :].mean(axis=1))


Runs = Mapping[str, Mapping[str, Chosen]]
"""By split and method."""


def choose(form: Form, curves: Mapping[str, Any], preset: Mapping[str, Any]) -> Chosen:
    """The setting with the best mean over seeds and records on the validation rows."""
    arrays = {k: np.array(v, dtype=np.float64) for k, v in curves.items()}
    best = int(np.argmax(np.nan_to_num(arrays["validation"], nan=0.0).mean(axis=(1, 2))))
    lr, K = settings_of(form, preset)[best]
    rates = preset["rates"][form.optimizer]
    return Chosen(form, lr, K, {k: v[best] for k, v in arrays.items()}, preset, lr in (rates[0], rates[-1]))


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Every method on every split, the claims, and what the control variates bought."""
    preset, model = workspace.preset, workspace.preset["id"]
    pairs = list(product(preset["splits"], FORMS))
    trained = workspace.cached_values(model, [key_of(workspace, model, *pair) for pair in pairs], curves_of)
    runs: dict[str, dict[str, Chosen]] = {split: {} for split in preset["splits"]}
    for (split, form), training in zip(pairs, trained, strict=True):
        runs[split][form.name] = choose(form, training["curves"], preset)
    panels = [panel(split, methods, preset) for split, methods in runs.items()]
    tables = [gains_table(runs), *(costs_table(runs, axis, preset) for axis in AXES), *end_tables(runs)]
    shown = ("seeds", "rounds", "batch", "rates", "periods", "target")
    parameters = {"clients": CLIENTS} | {k: preset[k] for k in shown} | {"parameters of the network": trained[0]["d"]}
    experiment = workspace.experiment(model, parameters, panels, tables)
    notes = [*experiment.notes, *where_it_helps(runs), *([SHORT] if workspace.quick else [])]
    return claims.with_findings(replace(experiment, notes=notes), judged(model, runs, not workspace.quick))


# -- what is shown -----------------------------------------------------------------------------------------------------
def panel(split: str, methods: Mapping[str, Chosen], preset: Mapping[str, Any]) -> Panel:
    """The mean over the seeds, and the band from the worst to the best."""
    series = []
    for r in methods.values():
        x = {axis: r.curves[axis].mean(axis=0).tolist() for axis in AXES}
        y, low, high = (f(r.curves["test"], axis=0).tolist() for f in (np.mean, np.min, np.max))
        series.append(Series(r.form.title, x, y, low=low, high=high, about={"lr": r.lr, "K": r.K}))
    level = {axis: [0.0, max(s.x[axis][-1] for s in series)] for axis in AXES}
    series.append(Series("target", level, [preset["target"]] * 2, kind="bound"))
    label = f"test accuracy, mean over {preset['seeds']} seeds"
    return Panel(
        split, SPLITS[split][0], series, "rounds", dict(AXES), label, y_scale="linear", y_floor=preset["floor"]
    )


def by_method(runs: Runs, id: str, title: str, cell: Callable[[Chosen], str], note: str = "") -> Table:
    """A row for each method and a column for each split."""
    rows: list[Any] = [[f.title, *(cell(methods[f.name]) for methods in runs.values())] for f in FORMS]
    return Table(id, title, ["method", *(SPLITS[split][0] for split in runs)], rows, note)


def costs_table(runs: Runs, axis: str, preset: Mapping[str, Any]) -> Table:
    """What each method needs to reach the target."""
    title = f"{UNITS[axis][1].capitalize()} to a test accuracy of {preset['target']:g}"
    note = "Medians over the seeds; in brackets, how many of them reached the target, if not all did."
    return by_method(runs, axis, title, lambda r: r.said(axis), note if axis == "rounds" else "")


def end_tables(runs: Runs) -> list[Table]:
    """Where each method ends, and the settings that did best on the validation rows."""

    def last(r: Chosen) -> str:
        v = r.final()
        return f"{v.mean():.3f} ({v.min():.3f} to {v.max():.3f})"

    title = "Test accuracy at the end: mean, smallest and largest of the seeds"
    note = "* the largest or smallest step size that was tried, so that more might have been found beyond it."
    chosen = "Settings chosen on the validation rows"
    return [
        by_method(runs, "final", title, last),
        by_method(runs, "settings", chosen, lambda r: f"lr {r.lr:g}, K {r.K}" + (" *" if r.at_end else ""), note),
    ]


def best(methods: Mapping[str, Chosen], names: Sequence[str], axis: str) -> Chosen:
    """The method with the least median."""
    return min((methods[name] for name in names), key=lambda r: r.cost(axis))


def gain(with_h: Chosen, without: Chosen, axis: str) -> str:
    """How many times less it costs with h, and whether the seeds decide it."""
    mine, theirs = with_h.cost(axis), without.cost(axis)
    if not math.isfinite(mine):
        return "only without h" if math.isfinite(theirs) else "neither reaches it"
    ratio = f"{theirs / mine:.2f}" if math.isfinite(theirs) else "only with h"
    return ratio if with_h.beats(without, axis) or without.beats(with_h, axis) else f"{ratio}, a tie"


def gains_table(runs: Runs) -> Table:
    """The best method with h against the best without, on every axis."""
    rows: list[Any] = []
    for (split, methods), (axis, (_, label)) in product(runs.items(), UNITS.items()):
        # each at its best on this axis: the two may be other methods on the next one
        pair = [best(methods, names, axis) for names in (WITHOUT_H, WITH_H)]
        costs = [f"{r.form.title}: {r.said(axis)}" for r in pair]
        rows.append([SPLITS[split][0], label, *costs, gain(pair[1], pair[0], axis)])
    columns = ["split", "cost", "best without h", "best with h", "gain"]
    return Table("gains", "What control variates gain", columns, rows, "A tie: not the same order in all seeds.")


def where_it_helps(runs: Runs) -> list[str]:
    """One sentence for every cost."""
    sentences = []
    for axis in AXES:
        kinds: dict[str, list[str]] = {"beats": [], "ties with": [], "loses to": []}
        for split, methods in runs.items():
            without, with_h = (best(methods, names, axis) for names in (WITHOUT_H, WITH_H))
            kind = 0 if with_h.beats(without, axis) else 2 if without.beats(with_h, axis) else 1
            list(kinds.values())[kind].append(SPLITS[split][0])
        told = [f"{verb} the best without it on {' and '.join(splits)}" for verb, splits in kinds.items() if splits]
        sentences.append(f"In {axis}, the best method with h {', and '.join(told)}.")
    return sentences


# -- claims ------------------------------------------------------------------------------------------------------------
def judged(model: str, runs: Runs, asserted: bool) -> list[Claim]:
    """All claims of one experiment, on the splits that it has."""
    # the two ends of the range: clients that differ most, and clients that do not differ
    methods, at = runs["sorted"], SPLITS["sorted"][1]
    verdicts = [claim_adamw(methods, at), *(claim_first(methods, at, axis) for axis in AXES)]
    pairs = (("scaffnew", "local-sgd"), ("scaffnew-outer", "diloco-sgd"), ("scaffnew", "scaffnew-drawn"))
    verdicts += [claim_fewer(methods, at, a, b) for a, b in (*pairs, ("scaffnew", "fedlin"))]
    if "iid" in runs:
        verdicts.append(claim_alike(runs["iid"], SPLITS["iid"][1]))
    return [
        claims.claim(f"{model}-{id}", text, holds, said, numbers, asserted, undecided="a tie")
        for id, text, holds, said, numbers in verdicts
    ]


def listed(methods: Mapping[str, Chosen], names: Sequence[str], axis: str) -> str:
    """Costs in words, the least first."""
    order = sorted(names, key=lambda name: methods[name].cost(axis))
    return ", ".join(f"{methods[name].form.title} {methods[name].said(axis)}" for name in order)


def medians(methods: Mapping[str, Chosen], names: Sequence[str], axis: str) -> dict[str, float | None]:
    """The same for results.json."""
    return {name: v if math.isfinite(v := methods[name].cost(axis)) else None for name in names}


def claim_adamw(methods: Mapping[str, Chosen], at: str) -> tuple[Any, ...]:
    """AdamW with local steps does not arrive without h, and does with it."""
    plain = ("local-adamw", "diloco-adamw")
    hits = {name: sum(map(math.isfinite, methods[name].costs("rounds"))) for name in (*plain, "adamw-h")}
    seeds = len(methods["adamw-h"].costs("rounds"))
    said = ", ".join(f"{methods[k].form.title} {v} of {seeds}" for k, v in hits.items())
    ends = ", ".join(f"{methods[k].form.title} {methods[k].final().mean():.3f}" for k in hits)
    text = f"{at}, AdamW with local steps reaches the target in no seed without h and in every seed with h."
    holds = not any(hits[name] for name in plain) and hits["adamw-h"] == seeds
    return "adamw", text, holds, f"Seeds that reach the target and stay: {said}; at the end: {ends}.", hits


def claim_first(methods: Mapping[str, Chosen], at: str, axis: str) -> tuple[Any, ...]:
    """AdamW + h costs the least of all."""
    mine, others = methods["adamw-h"], [r for name, r in methods.items() if name != "adamw-h"]
    first, beaten = all(mine.beats(r, axis) for r in others), any(r.beats(mine, axis) for r in others)
    leading = sorted(methods, key=lambda name: methods[name].cost(axis))[:4]
    shown = leading if "adamw-h" in leading else [*leading[:3], "adamw-h"]
    said = f"{UNITS[axis][1].capitalize()} to the target: {listed(methods, shown, axis)}."
    text = f"{at}, AdamW + h needs the fewest {axis} of all methods, with every seed."
    return axis, text, True if first else False if beaten else None, said, medians(methods, list(methods), axis)


def claim_fewer(methods: Mapping[str, Chosen], at: str, a: str, b: str) -> tuple[Any, ...]:
    """One needs fewer rounds than another."""
    one, other = methods[a], methods[b]
    holds = True if one.beats(other, "rounds") else False if other.beats(one, "rounds") else None
    text = f"{at}, {one.form.title} needs fewer rounds than {other.form.title}, with every seed."
    said = f"Rounds: {listed(methods, (a, b), 'rounds')}."
    return f"{a}-{b}", text, holds, said, medians(methods, (a, b), "rounds")


def claim_alike(methods: Mapping[str, Chosen], at: str) -> tuple[Any, ...]:
    """Where clients are alike, no method with h is firmly better than the best without."""
    pairs = {axis: [best(methods, names, axis) for names in (WITHOUT_H, WITH_H)] for axis in ("rounds", "bytes")}
    said = "; ".join(
        f"{UNITS[axis][1]}: {a.form.title} {a.said(axis)} without h, {b.form.title} {b.said(axis)} with h"
        for axis, (a, b) in pairs.items()
    )
    text = f"{at}, control variates do not help: the best method with h saves neither rounds nor bytes with every seed."
    holds = not any(b.beats(a, axis) for axis, (a, b) in pairs.items())
    return "alike", text, holds, f"Needed to reach the target, {said}.", {}
