"""Curves of results: one line for each setting, labeled by what differs, with a band over its seeds."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from proxskip.registry import title
from proxskip.results.load import load
from proxskip.results.result import Result, Summary
from proxskip.types import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OF_A_PROBLEM = ("data", "data_sha256", "samples", "d", "clients", "split", "weights", "lambda", "loss", "psi")
"""Fields of a summary that say which problem was solved."""
_NOT_A_SETTING = frozenset({
    "seed", "rounds", "status", "success", "message", "warnings", "cluster", "versions", "f_star", "zeta", "delta",
    "L", "L_max", "L_global", "mu", "kappa", "labels", "passes", "seconds", "f", "gap", "grad_norm", "sum_h",
    "forecast", "sim_seconds", "sim_computing", "late", "lost", "void",
    "lyapunov", "lyapunov_bound", "iterations", "exchanges", "edge_messages", "local_steps", "grad_evals", "prox_evals",
    *(f"{what}_{way}" for what in ("vectors", "floats", "bytes", "bits") for way in ("up", "down")),
})  # fmt: skip


def plot(
    results: Result | str | Path | Iterable[Any] | Mapping[str, Any],
    x: str = "rounds",
    y: str = "gap",
    ax: Axes | None = None,
) -> Axes:
    """Draw y against x for each setting; runs that differ in their seed alone are a median with a band.

    Args:
        results: a Result, several of them, run folders, or a mapping from labels to any of these.
        x: rounds, floats, bytes, bits-up, bits-down, exchanges, local-steps, passes, iterations, prox, seconds or
            sim_seconds (over a simulated network).
        y: gap, grad_norm or lyapunov.
        ax: axes to draw on; new ones if not given.

    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import proxskip as ps
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> ax = ps.plot(ps.compare(["gd", "scaffnew"], problem, rounds=50))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['gradient descent', 'Scaffnew']
    """
    # here, since most programs draw nothing
    from proxskip.report import plots

    groups = _grouped(results)
    _warn_of_problems([group[0].summary() for _, group in groups])
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.figure(figsize=(6.4, 4.2), layout="constrained").add_subplot()
    curves = [
        plots.Curve(label, tuple(r.trace for r in group), str(group[0].summary()["method"])) for label, group in groups
    ]
    plots.draw_on(ax, curves, x, y)
    return ax


# -- which runs belong together ----------------------------------------------------------------------------------------
def _grouped(results: Any) -> list[tuple[str, list[Result]]]:
    if isinstance(results, Mapping):
        found = [(str(label), _flat(given)) for label, given in results.items()]
        if empty := [label for label, group in found if not group]:
            raise InputError(f'there are no results under "{empty[0]}".')
        return found
    groups: dict[str, list[Result]] = {}
    for result in _flat(results):
        groups.setdefault(repr(_setting(result.summary())), []).append(result)
    if not groups:
        raise InputError("there are no results to plot.")
    found_groups = list(groups.values())
    return list(zip(_labels([g[0].summary() for g in found_groups]), found_groups, strict=True))


def _flat(given: Any) -> list[Result]:
    if isinstance(given, Result):
        return [given]
    if isinstance(given, (str, Path)):
        return _flat(load(given))
    if not isinstance(given, Iterable):
        raise InputError(f"{type(given).__name__} cannot be plotted; give results of run, or run folders.")
    return [result for one in given for result in _flat(one)]


def _setting(s: Summary) -> dict[str, Any]:
    """Everything that was asked for, except the seed."""
    return {k: v for k, v in s.items() if k not in _NOT_A_SETTING}


def _labels(about: Sequence[Summary]) -> list[str]:
    """Each method with those of its settings that differ among the runs of that method, or among all problems."""
    labels = []
    named = [k for k in OF_A_PROBLEM if k != "data_sha256"]
    for s in about:
        same = [other for other in about if other["method"] == s["method"]]
        own = [k for k in _setting(s) if k != "data_sha256" and any(other.get(k) != s[k] for other in same)]
        # a curve of another problem says so even where its method occurs once
        own += [k for k in named if k not in own and any(other.get(k) != s.get(k) for other in about)]
        words = [f"{k} = {_short(s[k])}" for k in own if s.get(k) is not None]
        labels.append(", ".join([title(str(s["method"])), *words]))
    return labels


def _short(v: Any) -> str:
    if isinstance(v, list) and v and all(isinstance(u, (int, float)) for u in v):
        return f"{min(v):.3g} to {max(v):.3g}"
    return f"{v:.3g}" if isinstance(v, float) else str(v) if not isinstance(v, dict) else " ".join(map(str, v.values()))


def _warn_of_problems(about: Sequence[Summary]) -> None:
    """Curves of different problems are drawn, with a warning."""
    differ = [k for k in OF_A_PROBLEM if len({repr(s.get(k)) for s in about}) > 1]
    stars = [s["f_star"] for s in about if s.get("f_star") is not None]
    if not differ and len(stars) > 1 and not np.allclose(stars, stars[0], rtol=1e-6, atol=1e-12):
        differ = ["f*"]
    if differ:
        warnings.warn(
            f"these runs solve different problems (they differ in {', '.join(differ)}), so their curves should not be "
            "compared.",
            UserWarning,
            stacklevel=3,
        )
