"""Which results belong together: runs that differ in their seed alone are one group, labeled by what differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from proxskip.display import parameter
from proxskip.registry import title
from proxskip.results.fields import FIELDS
from proxskip.results.result import Result, Summary

OF_A_PROBLEM = ("data", "data_sha256", "samples", "d", "clients", "split", "weights", "lambda", "loss", "psi")
"""Fields of a summary that say which problem was solved."""
_NOT_A_SETTING = FIELDS.keys() | {
    *("seed", "rounds", "status", "success", "message", "warnings", "cluster", "versions", "f_star", "zeta", "delta"),
    *("L", "L_max", "L_global", "mu", "kappa", "labels", "forecast"),
    *("fun", "certificate", "nit", "ngrad", "nprox"),
}
Kind = TypeVar("Kind", bound=Result)


def grouped(results: Iterable[Kind]) -> dict[str, list[Kind]]:
    """The results of each setting by its label, in the order of the results."""
    groups: dict[str, list[Kind]] = {}
    for result in results:
        groups.setdefault(repr(_setting(about(result))), []).append(result)
    labels = _labels([about(runs[0]) for runs in groups.values()])
    # settings that only a digest tells apart have one label
    numbered = [label if labels.count(label) == 1 else f"{label} ({k + 1})" for k, label in enumerate(labels)]
    return dict(zip(numbered, groups.values(), strict=True))


def about(result: Result) -> Summary:
    """The summary without the last record, whose metrics are no settings."""
    return Summary({k: v for k, v in result.summary.items() if k not in result.trace})


def _setting(s: Summary) -> dict[str, Any]:
    """All settings but the seed."""
    return {k: v for k, v in s.items() if k not in _NOT_A_SETTING}


def _labels(summaries: Sequence[Summary]) -> list[str]:
    """Each method with the settings that differ among its runs, or among all problems."""
    labels = []
    named = [k for k in OF_A_PROBLEM if k != "data_sha256"]
    for s in summaries:
        same = [other for other in summaries if other["method"] == s["method"]]
        own = [k for k in _setting(s) if k != "data_sha256" and any(other.get(k) != s[k] for other in same)]
        own += [k for k in named if k not in own and any(other.get(k) != s.get(k) for other in summaries)]
        words = [parameter(k, s[k]) for k in own if s.get(k) is not None]
        labels.append(", ".join([title(str(s["method"])), *words]))
    return labels
