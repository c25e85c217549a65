"""How objects look at a prompt and in a notebook."""

from proxskip.display.words import (
    Rows,
    columns,
    count,
    duration,
    gap,
    html,
    number,
    parameter,
    short,
    sparkline,
    table,
    text,
)  # fmt: skip

__all__ = [
    "Rows", "columns", "count", "duration", "gap", "html", "number", "parameter", "short", "sparkline", "table", "text",
]  # fmt: skip
