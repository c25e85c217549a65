"""Draw the picture of README.md, which is that of the gallery's first script: ``python docs/site/draw_demo.py``."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[2]

warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False, "figure.figsize": (5.0, 3.5)}):
    runpy.run_path(str(ROOT / "examples" / "gallery" / "01_race.py"))
    plt.gcf().set_layout_engine("constrained")
    plt.gcf().savefig(ROOT / "docs" / "demo.png", dpi=140)
