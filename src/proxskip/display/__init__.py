"""How objects look at a prompt and in a notebook."""

from proxskip.display.pictures import SPARK_POINTS, bars, sparkline
from proxskip.display.words import Rows, columns, count, duration, gap, html, number, parameter, short, table, text

__all__ = [
    "SPARK_POINTS", "Rows", "bars", "columns", "count", "duration", "gap", "html", "number", "parameter", "short",
    "sparkline", "table", "text",
]  # fmt: skip
