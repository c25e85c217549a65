"""Many results: one line for each setting, in the terminal, in a paper and in pandas.

Runs that differ in their seed alone are one setting, labeled by what differs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from proxskip import theory
from proxskip.methods.registry import title
from proxskip.results import fields
from proxskip.results.atomic import atomic_write_text
from proxskip.results.plain_table import PlainTable, frame_of
from proxskip.results.result import Result, RunResult, Summary
from proxskip.results.trace import Trace
from proxskip.support import display

COSTS = {"rounds": ("round",), "gradients": ("grad_evals",), "bits": ("bits_up", "bits_down")}
"""The costs of a table, and the columns of the trace that are added up for each."""

OF_A_PROBLEM = ("data", "data_sha256", "samples", "d", "clients", "split", "weights", "lambda", "loss", "psi")
"""Fields of a summary that say which problem was solved."""
Kind = TypeVar("Kind", bound=Result)


class Results(display.Tabled, list[RunResult]):
    """A list of results that prints as a table, one line for each setting: medians over its seeds.

    Args:
        iterable: the results.
    """

    def _title(self) -> str:
        return f"{len(self)} results"

    def _shown(self) -> tuple[list[str], list[list[str]]]:
        return fields.table([(label, [r.summary for r in runs]) for label, runs in grouped(self).items()])

    def table(self, eps: float, y: str = "gap") -> Table:
        """The costs of each setting until ``y`` is at most ``eps``: median and range over the seeds.

        Args:
            eps: the accuracy.
            y: a column of the trace: gap, or grad_norm where f* is unknown.
        """
        theory.positive("eps", eps)
        rows = []
        for label, runs in grouped(self).items():
            counts = [_spent(run.trace, eps, y) for run in runs]
            row: dict[str, Any] = {"setting": label, "seeds": len(runs)}
            row["reached"] = sum(np.isfinite(count["rounds"]) for count in counts)
            for cost in COSTS:
                each = [count[cost] for count in counts]
                row |= {cost: float(np.median(each)), f"{cost} min": min(each), f"{cost} max": max(each)}
            rows.append(row)
        return Table(eps, y, tuple(rows))

    def to_frame(self) -> Any:
        """All summaries as a pandas DataFrame, one row per run."""
        return frame_of([_flat(run) for run in self])

    def to_csv(self, path: str | Path) -> None:
        """Write all summaries as a table, one row per run."""
        rows = [_flat(run) for run in self]
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        atomic_write_text(Path(path), text.getvalue())


@dataclass(frozen=True, repr=False)
class Table(PlainTable):
    """What an accuracy costs in each setting.

    Args:
        eps: the accuracy.
        y: the column of the trace that was to reach it.
        rows: the setting, its seeds and how many of them reached it; of each cost the median and the range over all
            seeds, infinite where a seed did not reach it.
    """

    eps: float
    y: str
    rows: tuple[dict[str, Any], ...]

    def records(self) -> list[dict[str, Any]]:
        return list(self.rows)

    def _title(self) -> str:
        return f"to {fields.FIELDS[self.y].label if self.y in fields.FIELDS else self.y} <= {self.eps:g}"

    def _shown(self) -> tuple[list[str], list[list[str]]]:
        shown = [
            [row["setting"], f"{row['reached']} of {row['seeds']}", *(_cell(row, cost) for cost in COSTS)]
            for row in self.rows
        ]
        return ["setting", "reached", *COSTS], shown


def _spent(trace: Trace, eps: float, y: str) -> dict[str, float]:
    """The costs at the first record where y is at most eps; infinite if there is none."""
    reached = np.flatnonzero(trace[y] <= eps)
    if not len(reached):
        return dict.fromkeys(COSTS, float("inf"))
    return {cost: float(sum(trace[column][reached[0]] for column in columns)) for cost, columns in COSTS.items()}


def _cell(row: dict[str, Any], cost: str) -> str:
    """The median, and the range where there is one."""
    if row["reached"] == 0:
        return "-"
    least, most = row[f"{cost} min"], row[f"{cost} max"]
    middle = _whole(row[cost])
    return middle if least == most else f"{middle} ({_whole(least)} to {_whole(most)})"


def _whole(count: float) -> str:
    """All digits, so that the numbers of a column have one form."""
    return f"{count:,.0f}" if np.isfinite(count) else "-"


def _flat(run: RunResult) -> dict[str, Any]:
    """The summary's numbers and words; what is itself a list or a dict is left out."""
    return {k: v for k, v in run.summary.items() if not isinstance(v, (dict, list, tuple))}


# -- settings ----------------------------------------------------------------------------------------------------------
def grouped(results: Iterable[Kind]) -> dict[str, list[Kind]]:
    """The results of each setting by its label, in the order of the results."""
    groups: dict[str, list[Kind]] = {}
    for result in results:
        groups.setdefault(repr(result.summary.settings), []).append(result)
    labels = _labels([runs[0].summary for runs in groups.values()])
    # settings that only a digest tells apart have one label
    numbered = [label if labels.count(label) == 1 else f"{label} ({k + 1})" for k, label in enumerate(labels)]
    return dict(zip(numbered, groups.values(), strict=True))


def _labels(summaries: Sequence[Summary]) -> list[str]:
    """Each method with the settings that differ among its runs, or among all problems."""
    labels = []
    for s in summaries:
        same = [other for other in summaries if other["method"] == s["method"]]
        own = [k for k, v in s.settings.items() if any(other.get(k) != v for other in same)]
        own += [k for k in OF_A_PROBLEM if k not in own and any(other.get(k) != s.get(k) for other in summaries)]
        words = [display.parameter(k, s[k]) for k in own if s.get(k) is not None and k != "data_sha256"]
        labels.append(", ".join([title(str(s["method"])), *words]))
    return labels
