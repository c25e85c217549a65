"""Many results: one line for each setting, in the terminal, in a paper and in pandas.

Runs that differ in their seed alone are one setting, labeled by what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from proxskip import theory
from proxskip.methods.registry import title
from proxskip.results import fields
from proxskip.results.plain_table import Table, Tabled
from proxskip.results.result import Result, RunResult, Summary
from proxskip.results.trace import Trace
from proxskip.support import display

COSTS = {"rounds": ("round",), "gradients": ("grad_evals",), "bits": ("bits_up", "bits_down")}
"""The costs of a table, and the columns of the trace that are added up for each."""

OF_A_PROBLEM = ("data", "data_sha256", "samples", "d", "clients", "split", "weights", "lambda", "loss", "psi")
"""Fields of a summary that say which problem was solved."""
Kind = TypeVar("Kind", bound=Result)


class Results(Tabled, list[RunResult]):
    """A list of results that prints as a table, one line for each setting: medians over its seeds.

    Frames and CSV files have a row for each run instead, with the numbers and words of its summary.

    Args:
        iterable: the results.
    """

    def as_table(self) -> Table:
        groups = [(label, [run.summary for run in runs]) for label, runs in grouped(self).items()]
        return fields.table(f"{len(self)} results", groups, [_flat(run) for run in self])

    def table(self, eps: float, y: str = "gap") -> Table:
        """The costs of each setting until ``y`` is at most ``eps``: median and range over the seeds.

        A cost is infinite where a seed did not get there.

        Args:
            eps: the accuracy.
            y: a column of the trace: gap, or grad_norm where f* is unknown.
        """
        theory.positive("eps", eps)
        rows, lines = [], []
        for label, runs in grouped(self).items():
            counts = [_spent(run.trace, eps, y) for run in runs]
            reached = sum(np.isfinite(count["rounds"]) for count in counts)
            row: dict[str, Any] = {"setting": label, "seeds": len(runs), "reached": reached}
            line = [label, f"{reached} of {len(runs)}"]
            for cost in COSTS:
                each = [count[cost] for count in counts]
                middle, least, most = float(np.median(each)), min(each), max(each)
                row |= {cost: middle, f"{cost} min": least, f"{cost} max": most}
                line.append(_spread(middle, least, most))
            rows.append(row)
            lines.append(line)
        accuracy = fields.FIELDS[y].label if y in fields.FIELDS else y
        return Table(f"to {accuracy} <= {eps:g}", ["setting", "reached", *COSTS], lines, rows)


def _spent(trace: Trace, eps: float, y: str) -> dict[str, float]:
    """The costs at the first record where y is at most eps; infinite if there is none."""
    reached = np.flatnonzero(trace[y] <= eps)
    if not len(reached):
        return dict.fromkeys(COSTS, float("inf"))
    return {cost: float(sum(trace[column][reached[0]] for column in columns)) for cost, columns in COSTS.items()}


def _spread(middle: float, least: float, most: float) -> str:
    """The median, and the range where there is one; all digits, so that the numbers of a column have one form."""
    texts = [f"{count:,.0f}" if np.isfinite(count) else "-" for count in (middle, least, most)]
    return texts[0] if least == most else f"{texts[0]} ({texts[1]} to {texts[2]})"


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
