"""Which results belong together: runs that differ in their seed alone are one group, labeled by what differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from proxskip.methods.registry import title
from proxskip.results.result import Result, Summary
from proxskip.support.display import parameter

OF_A_PROBLEM = ("data", "data_sha256", "samples", "d", "clients", "split", "weights", "lambda", "loss", "psi")
"""Fields of a summary that say which problem was solved."""
Kind = TypeVar("Kind", bound=Result)


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
        words = [parameter(k, s[k]) for k in own if s.get(k) is not None and k != "data_sha256"]
        labels.append(", ".join([title(str(s["method"])), *words]))
    return labels
