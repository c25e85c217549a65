"""Verdicts on claims, from the curves of an experiment alone: nothing here runs.

A claim of the paper is PASS or FAIL on the data that it is about, and REPORTED on other data. NOT RUN means that the
curves are too short to decide, as in a quick run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from proxskip.report.figures import Claim, Experiment, Panel, Series, Verdict

EPS = 1e-6
"""The accuracy of the paper's claims; a quick run may report a larger one (``eps`` of its preset)."""
FINAL_STATUSES = ("stalled", "diverged")
"""A run with this status would not improve with more rounds."""


# -- reading curves ----------------------------------------------------------------------------------------------------
def panel_of(experiment: Experiment, id: str) -> Panel:
    """A panel by its id."""
    return next(p for p in experiment.panels if p.id == id)


def curve(panel: Panel, method: str) -> Series:
    """The curve of a method."""
    return next(s for s in panel.series if s.method == method)


def first_below(s: Series, eps: float, axis: str = "rounds") -> float | None:
    """The first x at which |y| <= eps; None if there is none."""
    return next((x for x, y in zip(s.x[axis], s.y, strict=True) if y is not None and abs(y) <= eps), None)


def diverged(s: Series) -> bool:
    """Whether the run diverged, by its status or by a value that is not finite."""
    return s.about.get("status") == "diverged" or not all(y is not None and math.isfinite(y) for y in s.y)


def at_least(s: Series, eps: float, axis: str = "rounds") -> float:
    """A lower bound on the x at which the curve reaches eps: exact if it did, infinite if it stalled or diverged."""
    hit = first_below(s, eps, axis)
    if hit is not None:
        return hit
    # a run that only ended at its limit could still have reached eps
    return math.inf if s.about.get("status") in FINAL_STATUSES else s.x[axis][-1]


def value_at(s: Series, rounds: float) -> float | None:
    """The last record up to this round; None if the run ended earlier without having stalled or diverged."""
    at = s.x["rounds"]
    if at[-1] < rounds and s.about.get("status") not in FINAL_STATUSES:
        return None
    return [y for x, y in zip(at, s.y, strict=True) if x <= rounds][-1]


def stays_below(s: Series, eps: float) -> bool:
    """Whether the last tenth of the rounds, and at least two records, are all at most eps."""
    late = [y for x, y in zip(s.x["rounds"], s.y, strict=True) if 10 * x >= 9 * s.x["rounds"][-1]]
    last = late if len(late) > 1 else s.y[-2:]
    return len(last) > 1 and all(y is not None and abs(y) <= eps for y in last)


def relapses(s: Series, eps: float) -> float | None:
    """The share of records above eps among those after the first record below; None if no record is below."""
    near = [y is not None and abs(y) <= eps for y in s.y]
    return near[near.index(True) :].count(False) / (len(near) - near.index(True)) if True in near else None


def eps_of(experiment: Experiment) -> float:
    """The accuracy at which this experiment is judged or reported."""
    return float(experiment.parameters.get("eps", EPS))


# -- verdicts ----------------------------------------------------------------------------------------------------------
def judge(ok: bool | None, asserted: bool) -> Verdict:
    """PASS or FAIL if the claim is made for this setting, REPORTED if not, NOT RUN if it cannot be decided."""
    if ok is None:
        return "NOT RUN"
    return ("PASS" if ok else "FAIL") if asserted else "REPORTED"


def claim(
    id: str,
    text: str,
    ok: bool | None,
    measured: str,
    numbers: Mapping[str, float | None],
    asserted: bool = True,
    note: str = "",
    undecided: str = "",
) -> Claim:
    """A claim with its verdict; ``undecided`` is the note if it cannot be decided."""
    # the id begins with the name of the experiment
    experiment, why = id.partition("-")[0], undecided if ok is None else note
    return Claim(id, experiment, text, judge(ok, asserted), measured, dict(numbers), why, ok)


def with_findings(experiment: Experiment, found: Sequence[Claim], lead: str = "") -> tuple[Experiment, list[Claim]]:
    """The experiment with a sentence that its curves support, and its claims.

    The sentence of the preset is printed if every claim holds. Otherwise only what was measured is: ``lead``, or the
    first measurement, and those that contradict a claim.
    """
    wrong = [c for c in found if c.verdict == "FAIL" or c.holds is False]
    open_ = any(c.verdict == "NOT RUN" for c in found)
    first = lead or next((c.measured for c in found if c.verdict != "NOT RUN"), "")
    words = [] if wrong or open_ else [experiment.sentence]
    words += [first] if first else ["The runs are too short to show anything."] if open_ else []
    words += [f"This does not hold here: {c.text}" for c in wrong]
    return replace(experiment, sentence=" ".join(filter(None, words))), [_with_word(c) for c in found]


def _with_word(c: Claim) -> Claim:
    """For a claim that is only reported, a note on whether it holds here."""
    if c.verdict != "REPORTED" or c.holds is None:
        return c
    word = "holds here" if c.holds else "does not hold here"
    return replace(c, note=f"{word}; {c.note}" if c.note else word)


def number(value: float | None) -> str:
    """Two digits and a power of ten."""
    return "no value" if value is None else f"{value:.1e}"


def rounds_in_words(value: float | None, s: Series) -> str:
    """A number of rounds, or a lower bound if the curve did not get there."""
    if value is not None:
        return f"{value:.0f}"
    status = s.about.get("status")
    return f"never ({status})" if status in FINAL_STATUSES else f"more than {s.x['rounds'][-1]:.0f}"
