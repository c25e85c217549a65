"""The numbers of a summary: the kind and the heading of each, and the table of several runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from proxskip.results.plain_table import Table
from proxskip.support.display import count, duration, gap, number


class Field(NamedTuple):
    """The heading of a field, how a table shows its values, and whether they are whole numbers."""

    label: str
    show: Callable[[float | None], str]
    whole: bool = False

    def plain(self, value: float) -> int | float | None:
        """A value for summary.json; None for what is not finite."""
        if not math.isfinite(value):
            return None
        return int(value) if self.whole else float(value)


def _counts(*names: str) -> dict[str, Field]:
    return {name: Field(name.replace("_", " "), count, True) for name in names}


FIELDS = {
    **_counts("iterations", "exchanges", "vectors_up", "vectors_down", "floats_up", "floats_down", "bytes_up"),
    **_counts("bytes_down", "bits_up", "bits_down", "edge_messages", "local_steps", "grad_evals", "prox_evals"),
    "passes": Field("passes", count),
    "seconds": Field("seconds", number),
    "f": Field("f", number),
    "gap": Field("f - f*", gap),
    "grad_norm": Field("|grad f|", gap),
    "sum_h": Field("|sum h|", gap),
    "lyapunov": Field("Lyapunov", gap),
    "lyapunov_bound": Field("its bound", gap),
    # where a run has a simulated network
    "sim_seconds": Field("network", duration),
    "sim_computing": Field("computing", duration),
    **_counts("late", "lost", "void"),
}
"""What a summary takes from the last record, in the order of summary.json."""

SHOWN = ("gamma", "p", "K", "tau", "q", "chi", "eta_g", "option", "beta", "decay")
"""Parameters that every summary has, null where a method has none of that name; a method's others follow them."""
_COLUMNS = _counts("rounds", "exchanges", "floats") | {k: FIELDS[k] for k in ("passes", "gap", "grad_norm", "seconds")}

STATUS_WORDS = {
    "CONVERGED": "converged",
    "LIMIT": "limit reached",
    "DIVERGED": "diverged",
    "STALLED": "stalled",
    "INEXACT": "inexact",
    "INTERRUPTED": "interrupted",
    "PRECISION": "at rounding",
    "CORRUPTED": "corrupted",
    "STOPPED": "stopped by a callback",
}
"""How a table says how a run ended."""

Group = tuple[str, Sequence[Mapping[str, Any]]]
"""A name, and the summaries of its runs."""


def values(runs: Sequence[Mapping[str, Any]], field: str) -> list[float]:
    """The values of a field in these runs, as far as it has any."""
    if field == "floats":  # the sum of each run, since a sum of medians is not the median of sums
        return [s["floats_up"] + s["floats_down"] for s in runs]
    return [s[field] for s in runs if s.get(field) is not None]


def median(runs: Sequence[Mapping[str, Any]], field: str) -> float | None:
    """The median of a field over these runs; None if none of them has it."""
    numbers = values(runs, field)
    return float(np.median(numbers)) if numbers else None


def table(title: str, groups: Sequence[Group], rows: Sequence[dict[str, Any]] = ()) -> Table:
    """Costs and accuracy of each group in a line; of several seeds the medians, and the range of f - f*.

    Args:
        rows: the numbers behind the table.
    """
    columns = dict(_COLUMNS)
    if any("sim_seconds" in s for _, runs in groups for s in runs):
        columns["sim_seconds"] = FIELDS["sim_seconds"]
    seeds = max((len(runs) for _, runs in groups), default=1)
    lines = []
    for name, runs in groups:
        cells = {field.label: field.show(median(runs, key)) for key, field in columns.items()}
        if seeds > 1:
            gaps = values(runs, "gap")
            cells[f"range over {seeds} seeds"] = f"{gap(min(gaps))} to {gap(max(gaps))}" if len(gaps) > 1 else ""
        ends = sorted({STATUS_WORDS[s["status"]] for s in runs})
        lines.append({"method": name} | cells | {"status": ", ".join(ends)})
    head = list(lines[0]) if lines else ["method"]
    return Table(title, head, [list(line.values()) for line in lines], rows)
