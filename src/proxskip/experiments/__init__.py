"""The figures and tables of the paper: what each of them runs, and what it claims; and figures of your own."""

from __future__ import annotations

from proxskip.experiments.curves import curve, panel, table
from proxskip.experiments.figures import figure

__all__ = ["curve", "figure", "panel", "table"]
