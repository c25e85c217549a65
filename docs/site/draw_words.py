"""Draw what a round, an exchange, a local step, an iteration and a pass are: ``python docs/site/draw_words.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 3
STEPS = 4
SERVER = CLIENTS + 0.6
BLUE, GRAY = "#2563a8", "#666666"


def bracket(axes: Axes, left: float, right: float, height: float, word: str) -> None:
    """A line with two ends and a word in its middle."""
    axes.annotate("", (left, height), (right, height), arrowprops={"arrowstyle": "|-|", "color": GRAY, "shrinkA": 0})
    axes.text((left + right) / 2, height - 0.12, word, ha="center", va="top", fontsize=9)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """A vector that is sent."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": BLUE, "linewidth": 1.2})


figure, axes = plt.subplots(figsize=(7.0, 3.6), layout="constrained")
axes.text(-0.2, SERVER, "server", ha="right", va="center")
axes.plot([0, STEPS + 2.2], [SERVER, SERVER], color="black")
for client in range(CLIENTS):
    axes.text(-0.2, client, f"client {CLIENTS - client}", ha="right", va="center")
    axes.plot([0, STEPS + 2.2], [client, client], color="#cccccc", zorder=0)
    axes.plot(range(1, STEPS + 1), [client] * STEPS, "o", color="black", markersize=6)
    arrow(axes, (0.1 + 0.12 * client, SERVER), (0.75, client + 0.1))
    arrow(axes, (STEPS + 0.25, client + 0.1), (STEPS + 0.9 - 0.12 * client, SERVER))
axes.text(0.05, SERVER + 0.12, "x goes down", fontsize=9, color=BLUE, ha="left")
axes.text(STEPS + 1.0, SERVER + 0.12, "vectors come up; the mean", fontsize=9, color=BLUE, ha="center")
axes.annotate(
    "a local step: a gradient of this client", (1, 0), (1.0, -0.42), fontsize=9, ha="center",
    arrowprops={"arrowstyle": "-", "color": GRAY, "shrinkB": 4},
)  # fmt: skip
axes.add_patch(plt.Rectangle((2.72, -0.3), 0.56, CLIENTS - 0.4, fill=False, linestyle="--", color=GRAY))
axes.text(3.0, CLIENTS - 0.62, "an iteration, and a pass", fontsize=9, ha="center")
bracket(axes, 0.1, STEPS + 0.9, -0.85, "a round, with one exchange")
axes.set_xlim(-1.1, STEPS + 2.2)
axes.set_ylim(-1.3, SERVER + 0.5)
axes.axis("off")
figure.savefig(ROOT / "docs" / "words.png", dpi=140)
