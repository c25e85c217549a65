"""A heat map of positive numbers over two parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def heat_map(
    values: Sequence[Sequence[float]],
    x: Sequence[float],
    y: Sequence[float],
    star: tuple[int, int],
    x_label: str,
    y_label: str,
    label: str,
    ax: Axes | None = None,
) -> Axes:
    """Draw values on a logarithmic scale of colors, each with its number; what is infinite or zero stays empty.

    Args:
        values: a row for each y, with a number for each x.
        star: the cell, by the number of its x and of its y, that is marked.
        label: of the values.
        ax: axes to draw on; new ones if not given.
    """
    from matplotlib.colors import LogNorm

    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.figure(figsize=(1.6 + 1.1 * len(x), 1.4 + 0.5 * len(y)), layout="constrained").add_subplot()
    cells = np.asarray(values, dtype=np.float64)
    shown = np.where((cells > 0) & np.isfinite(cells), cells, np.nan)
    image = ax.imshow(shown, norm=LogNorm(), cmap="viridis", aspect="auto", origin="lower")
    middle = np.exp(np.nanmean(np.log(shown)))
    for row, column in np.argwhere(np.isfinite(shown)):
        value = shown[row, column]
        mark = " *" if (column, row) == star else ""
        color = "white" if value < middle else "black"
        ax.text(column, row, f"{value:.1e}{mark}", ha="center", va="center", fontsize=8, color=color)
    ax.set_xticks(range(len(x)), [f"{v:g}" for v in x])
    ax.set_yticks(range(len(y)), [f"{v:g}" for v in y])
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.figure.colorbar(image, ax=ax, label=label)
    return ax
