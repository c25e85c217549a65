"""What the command line prints when it is done: sentences, tables, JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from proxskip.table1 import Table1Row

STATUS_WORDS = {
    "CONVERGED": "converged",
    "MAX_ROUNDS": "stopped",
    "DIVERGED": "diverged",
    "STALLED": "stalled",
    "INTERRUPTED": "interrupted",
}
_LOSSES = {"logistic": "logistic loss", "squared": "squared loss", "softmax": "softmax loss"}


def as_json(value: Any) -> None:
    """One JSON value on stdout; what is not a number becomes null."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float | None) -> str:
    """Three digits, or a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.3g}"


def gap(value: float | None) -> str:
    """f - f* and its like: two digits and a power of ten."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.1e}"


def count(value: float | None) -> str:
    """A count: exact where that is short, otherwise with k, M or G."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) < 10_000_000:
        return f"{value:,.0f}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if abs(value) < 999.5 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.2e}"


# -- one run -----------------------------------------------------------------------------------------------------------
def report(s: Mapping[str, Any], labels: Mapping[str, int] | None = None, out: str | None = None) -> str:
    """A run in a few lines: what was minimised, with which parameters, at what cost, how well, and where it is."""
    lines = [
        ("problem", _data(s)),
        ("", _function(s)),
        ("parameters", _parameters(s)),
        ("cost", _cost(s)),
        ("result", _result(s)),
        ("status", f"{s['status']}: {s['message']}"),
    ]
    if labels:
        mapping = ", ".join(f"{label} became {'+1' if to > 0 else '-1'}" for label, to in labels.items())
        lines.insert(2, ("labels", mapping))
    if out is not None:
        lines.append(("files", out))
    return "\n".join([str(s["method"]), *(f"  {name:<11}{text}" for name, text in lines)])


def _data(s: Mapping[str, Any]) -> str:
    clients = (
        "one client" if s["clients"] == 1 else f"{s['clients']} clients split by {s['split']}, weights: {s['weights']}"
    )
    batch = f", minibatches of {s['batch']}" if s["batch"] else ""
    return f"{s['data']}, {s['samples']:,} rows, {s['d']:,} unknowns, {clients}{batch}"


def _function(s: Mapping[str, Any]) -> str:
    regulariser = f" + lambda/2 |x|^2, lambda = {s['lambda']:.4g}" if s["lambda"] else ""
    psi = f" + {s['psi']}" if s["psi"] else ""
    constants = f"L = {s['L']:.4g} ({s['L_kind']})"
    if s["mu"]:
        constants += f", mu = {s['mu']:.4g}, kappa = {s['kappa']:.4g}"
    return f"{_LOSSES.get(s['loss'], s['loss'])}{regulariser}{psi}; {constants}"


def _parameters(s: Mapping[str, Any]) -> str:
    gammas = s["gamma"] if isinstance(s["gamma"], (list, tuple)) else None
    if gammas is not None:
        words = [f"gamma_i from {min(gammas):.4g} to {max(gammas):.4g}"]
    else:
        one, average = s["gamma"] * s["L_max"], s["gamma"] * s["L_global"]
        words = [f"gamma = {s['gamma']:.4g} (gamma L = {one:.3g} for L max, {average:.3g} for L global)"]
    words += [f"{k} = {s[k]:.4g}" for k in ("p", "tau", "q", "eta_g", "beta", "chi", "decay") if s.get(k) is not None]
    words += [f"{k} = {s[k]}" for k in ("K", "option") if s[k] is not None]
    if s["graph"] is not None:
        words.append(f"graph = {s['graph']} (delta = {s['delta']:.3g})")
    if s["cohort"] is not None:
        words.append("cohort = " + ", ".join(f"{k} {v}" for k, v in s["cohort"].items()))
    return ", ".join(words) + f", seed = {s['seed']}"


def _cost(s: Mapping[str, Any]) -> str:
    proxes = f", {s['prox_evals']:,} proxes" if s["prox_evals"] else ""
    floats = f"{s['floats_up']:,} floats up and {s['floats_down']:,} down"
    return (
        f"{s['rounds']:,} rounds, {s['exchanges']:,} exchanges, {floats}, "
        f"{s['iterations']:,} iterations, {s['passes'] or 0:,.0f} gradient passes{proxes}, {s['seconds'] or 0:.2f} s"
    )


def _result(s: Mapping[str, Any]) -> str:
    words = [f"f = {s['f']:.12g}"] if s["f"] is not None else []
    words.append("f* is unknown" if s["f_star"] is None else f"f - f* = {gap(s['gap'])}")
    words.append(f"gradient norm {gap(s['grad_norm'])}")
    if s["lyapunov"] is not None and s["lyapunov_bound"] is not None:
        words.append(f"Lyapunov function {gap(s['lyapunov'])} (the theorem's mean: at most {gap(s['lyapunov_bound'])})")
    return ", ".join(words)


# -- tables ------------------------------------------------------------------------------------------------------------
def show(table: Any) -> None:
    """A table on stdout, as wide as it needs to be where nobody looks."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    Console(file=sys.stdout, width=None if terminal else 200, highlight=False).print(table)


def _table(title: str, *columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for k, name in enumerate(columns):
        words = k == 0 or name in ("step size", "as a formula", "where", "checked by", "status")
        table.add_column(name, justify="left" if words else "right", no_wrap=k == 0)
    return table


def results(title: str, groups: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Any:
    """A row a method: costs and accuracy; with several seeds their medians, and the band of f - f*."""
    columns = ["method", "rounds", "exchanges", "floats", "passes", "f - f*", "|grad f|", "seconds", "status"]
    seeds = max(len(runs) for _, runs in groups)
    if seeds > 1:
        columns.insert(6, f"of {seeds} seeds")
    table = _table(title, *columns)
    for name, runs in groups:
        middle = {k: _median(runs, k) for k in ("rounds", "exchanges", "passes", "gap", "grad_norm", "seconds")}
        floats = _median([{"floats": s["floats_up"] + s["floats_down"]} for s in runs], "floats")
        cells = [name, count(middle["rounds"]), count(middle["exchanges"]), count(floats), count(middle["passes"])]
        cells += [gap(middle["gap"]), *([_band(runs, "gap")] if seeds > 1 else []), gap(middle["grad_norm"])]
        words = sorted({STATUS_WORDS[s["status"]] for s in runs})
        table.add_row(*cells, number(middle["seconds"]), ", ".join(words))
    return table


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [s[key] for s in runs if s[key] is not None]
    return float(np.median(values)) if values else None


def _band(runs: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [s[key] for s in runs if s[key] is not None]
    return f"{gap(min(values))} to {gap(max(values))}" if len(values) > 1 else ""


def table1(rows: Sequence[Table1Row], title: str) -> Any:
    """Table 1 with numbers; floats are per client and upwards."""
    table = _table(
        title,
        "method",
        "local steps",
        "floats a round",
        "step size",
        "rounds",
        "as a formula",
        "floats in all",
        "better than GD?",
    )
    for r in rows:
        better = {None: "-", True: "yes", False: "no"}[r.better_than_gd]
        floats = r.floats_formula.split(",")[0] if r.floats_per_round is None else count(r.floats_per_round)
        step = f"{r.step_formula} = {r.step:.3g}"
        steps = f"{r.local_steps:.4g}"
        linear = "" if r.linear else " (not linear)"
        table.add_row(
            r.method, steps, floats, step, count(r.rounds), r.rounds_formula + linear, count(r.total_floats), better
        )
    return table


def datasets(rows: Sequence[Any]) -> Any:
    """Every data set with a name."""
    table = _table("", "name", "rows", "features", "where", "checked by")
    for r in rows:
        table.add_row(r.name, f"{r.rows:,}", f"{r.features:,}", r.where, _checked(r))
    return table


def _checked(row: Any) -> str:
    if row.where == "embedded":
        return "scikit-learn"
    return "checksum" if row.verified else "rows"
