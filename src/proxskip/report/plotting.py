"""Curves of results: one line for each setting, labeled by what differs, with a band over its seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxskip.results.result import Result

MOST_INSIDE = 8
"""Lines whose legend is inside the axes."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(
    results: Result | str | Path | Iterable[Any] | Mapping[str, Any],
    x: str = "rounds",
    y: str = "gap",
    ax: Axes | None = None,
    *,
    style: Mapping[str, Mapping[str, Any]] | None = None,
) -> Axes:
    """Draw y against x for each setting; runs that differ in their seed alone are a median with a band.

    Args:
        results: a Result or what ``proxskip.torch.train`` returned, several of them, run folders, or a mapping from
            labels to any of these.
        x: rounds, floats, bytes, bits_up, bits_down, exchanges, local_steps, passes, iterations, prox_evals, seconds or
            sim_seconds (over a simulated network).
        y: gap, grad_norm or lyapunov, on a logarithmic axis, or any other column of the trace, such as f or accuracy.
        ax: axes to draw on; new ones if not given. ``ax.figure.savefig("figure.pdf")`` makes a file for a paper.
        style: keywords of matplotlib for lines by their label or their method, such as
            ``{"scaffnew": {"color": "black", "linewidth": 3, "label": "ours"}}``.

    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import proxskip as ps
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> ax = ps.plot(ps.sweep(["gd", "scaffnew"], problem, rounds=50))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['gradient descent', 'Scaffnew']
    """
    # here, since most programs draw nothing
    from proxskip.report import plots

    (panel,) = plots.curve_panels(plots.groups_of(results, warn=True), (x,), y)
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.figure(figsize=(6.4, 4.2), layout="constrained").add_subplot()
    plots.draw_panel(ax, panel, own=style)
    if len(panel.series) > MOST_INSIDE:
        ax.legend(**plots.LEGEND, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        ax.legend(**plots.LEGEND)
    return ax
