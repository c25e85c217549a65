"""How the examples draw: each method in its own color, dashes and marker, which hold for any color vision."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

import proxskip as ps
from proxskip.display.palette import CYCLE


def axes(xlabel, ylabel, columns=1, log="y", width=6.4):
    """A figure with one pair of axes, or several in a row."""
    figure, found = plt.subplots(1, columns, figsize=(width, 3.6), squeeze=False, layout="constrained")
    for ax in found[0]:
        ax.set(xlabel=xlabel, ylabel=ylabel)
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
        if "y" in log:
            ax.set_yscale("log")
        if "x" in log:
            ax.set_xscale("log")
    return found[0][0] if columns == 1 else found[0]


def line(ax, x, y, label, style=0, floor=1e-16):
    """One curve; ``style``: a method, whose own look it is, or a place in the cycle."""
    if isinstance(style, int):
        color, dashes, marker = CYCLE[style % len(CYCLE)]
    else:
        look = ps.authoring.METHODS[style.name].about.style
        color, dashes, marker = look.color, look.dashes, look.marker
    y = np.maximum(np.asarray(y, float), floor)
    every = max(1, len(y) // 8)
    ax.plot(x, y, color=color, linestyle=dashes, marker=marker, markevery=every, markersize=5, label=label)
