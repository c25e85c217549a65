"""A run as text: a few lines for the terminal, and for the repr of a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from proxskip.methods.built_in import BUILT_IN
from proxskip.methods.registry import METHODS
from proxskip.results.fields import SHOWN
from proxskip.support.display import duration, gap, parameter

_LOSSES = {"logistic": "logistic loss", "squared": "squared loss", "softmax": "softmax loss", "poisson": "Poisson loss"}


def report(s: Mapping[str, Any], labels: Mapping[str, int] | None = None, out: str | None = None) -> str:
    """A run in a few lines: problem, parameters, cost, result, status, and its files."""
    lines = [*rows(s), ("status", f"{s['status']}: {s['message']}")]
    if labels:
        mapping = ", ".join(f"{label} became {'+1' if to > 0 else '-1'}" for label, to in labels.items())
        lines.insert(2, ("labels", mapping))
    if out is not None:
        lines.append(("files", out))
    return "\n".join([str(s["method"]), *(f"  {name:<11}{line}" for name, line in lines)])


def rows(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a run solved, how, and at what cost."""
    return [
        ("problem", _data(s)),
        ("", _function(s)),
        ("parameters", _parameters(s)),
        ("cost", _cost(s)),
        *([("forecast", s["forecast"])] if "forecast" in s else []),
        *([("network", _network(s))] if "sim_seconds" in s else []),
        ("result", _result(s)),
    ]


def of_training(last: Mapping[str, float]) -> list[tuple[str, str]]:
    """What a training cost, and what it measured, from its last record: f and the columns after it."""
    rounds, steps, up, down = (int(last[name]) for name in ("round", "local_steps", "bytes_up", "bytes_down"))
    cost = f"{rounds:,} rounds, {steps:,} local steps, {up:,} bytes up and {down:,} down, {last['seconds']:.2f} s"
    names = list(last)
    measured = ", ".join(f"{name} = {last[name]:.6g}" for name in names[names.index("f") :])
    return [("cost", cost), ("result", measured)]


def _data(s: Mapping[str, Any]) -> str:
    words = [str(s["data"])] if s["data"] else []
    if s["samples"]:
        words.append(f"{s['samples']:,} rows")
    words.append(f"{s['d']:,} unknowns")
    if s["clients"] == 1:
        words.append("one client")
    else:
        split = f" split by {s['split']}" if s["split"] else ""
        words.append(f"{s['clients']:,} clients{split}, weights: {s['weights']}")
    if s["batch"]:
        words.append(f"minibatches of {s['batch']}")
    return ", ".join(words)


def _function(s: Mapping[str, Any]) -> str:
    regularizer = f" + lambda/2 |x|^2, lambda = {s['lambda']:.4g}" if s["lambda"] else ""
    psi = f" + {s['psi']}" if s["psi"] else ""
    constants = "L unknown" if s["L"] is None else f"L = {s['L']:.4g} ({s['smoothness']})"
    constants += "".join(f", {name} = {s[name]:.4g}" for name in ("mu", "kappa") if s[name])
    return f"{_LOSSES.get(s['loss'], s['loss'])}{regularizer}{psi}; {constants}"


def _parameters(s: Mapping[str, Any]) -> str:
    words = [parameter("gamma", s["gamma"])]
    if s["L_max"] is not None and not isinstance(s["gamma"], (list, tuple)):
        # both, since papers differ in which of them they call L
        one, average = s["gamma"] * s["L_max"], s["gamma"] * s["L_average"]
        words[0] += f" (gamma L = {one:.3g} for L max, {average:.3g} for L average)"
    named = ("p", "tau", "q", "eta_g", "beta", "chi", "decay", *_own(s["method"]), "K", "option")
    words += [parameter(k, s[k]) for k in named if s.get(k) is not None]
    if s["graph"] is not None:
        words.append(f"graph = {s['graph']} (delta = {s['delta']:.3g})")
    if s["cohort"] is not None:
        words.append(parameter("cohort", s["cohort"]))
    return ", ".join(words) + f", seed = {s['seed']}"


def _own(method: str) -> list[str]:
    """The parameters of a method that no method of the package has."""
    kind = METHODS.get(method)
    if kind is None or kind in BUILT_IN:
        return []
    return [f.name for f in fields(kind) if f.name not in SHOWN]  # type: ignore[arg-type]


def _cost(s: Mapping[str, Any]) -> str:
    proxes = f", {s['prox_evals']:,} proxes" if s["prox_evals"] else ""
    floats = f"{s['floats_up']:,} floats up and {s['floats_down']:,} down"
    return (
        f"{s['rounds']:,} rounds, {s['exchanges']:,} exchanges, {floats}, "
        f"{s['iterations']:,} iterations, {s['passes'] or 0:,.0f} gradient passes{proxes}, {s['seconds'] or 0:.2f} s"
    )


def _network(s: Mapping[str, Any]) -> str:
    missing = f"{s['late']:,} answers late, {s['lost']:,} lost, {s['void']:,} attempts void"
    return f"{s['network']}: {duration(s['sim_seconds'])}, of which {duration(s['sim_computing'])} computing; {missing}"


def _result(s: Mapping[str, Any]) -> str:
    words = [f"f = {s['f']:.12g}"] if s["f"] is not None else []
    words.append("f* is unknown" if s["f_star"] is None else f"f - f* = {gap(s['gap'])}")
    words.append(f"gradient norm {gap(s['grad_norm'])}")
    if s["lyapunov"] is not None and s["lyapunov_bound"] is not None:
        words.append(f"Lyapunov function {gap(s['lyapunov'])} (the theorem's mean: at most {gap(s['lyapunov_bound'])})")
    return ", ".join(words)
