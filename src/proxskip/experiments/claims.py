"""What must be seen, judged from the curves of an experiment alone: nothing here runs.

A claim of the paper is PASS or FAIL on the data it was made for, REPORTED on other data; NOT RUN says that the curves
are too short to tell, as in a quick run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from proxskip.report.figures import Claim, Experiment, Panel, Series, Verdict

EPS = 1e-6
"""What the paper's claims are about; a quick run may report a larger one (``eps`` of its preset)."""
ENDED = ("stalled", "diverged")
"""How a run ends that would not get better."""


# -- reading curves ----------------------------------------------------------------------------------------------------
def panel_of(experiment: Experiment, id: str) -> Panel:
    """A panel by its id."""
    return next(p for p in experiment.panels if p.id == id)


def curve(panel: Panel, method: str) -> Series:
    """The curve of a method."""
    return next(s for s in panel.series if s.method == method)


def first_below(s: Series, eps: float, axis: str = "rounds") -> float | None:
    """Where the curve first is within eps of zero; None if it never is."""
    return next((x for x, y in zip(s.x[axis], s.y, strict=True) if y is not None and abs(y) <= eps), None)


def diverged(s: Series) -> bool:
    """The run says so, or one of its values is no number."""
    return s.about.get("status") == "diverged" or not all(y is not None and math.isfinite(y) for y in s.y)


def at_least(s: Series, eps: float, axis: str = "rounds") -> float:
    """What the curve needs to eps at least: what it needed, or all it had; infinite if it stalled or diverged."""
    hit = first_below(s, eps, axis)
    if hit is not None:
        return hit
    return math.inf if s.about.get("status") in ENDED else s.x[axis][-1]


def value_at(s: Series, rounds: float) -> float | None:
    """The last record up to this round; None if the run was over before, unless it had stalled or diverged."""
    at = s.x["rounds"]
    if at[-1] < rounds and s.about.get("status") not in ENDED:
        return None
    return [y for x, y in zip(at, s.y, strict=True) if x <= rounds][-1]


def relapses(s: Series, eps: float) -> float | None:
    """The share of the records above eps after the first that is not; None if none is."""
    near = [y is not None and abs(y) <= eps for y in s.y]
    return near[near.index(True) :].count(False) / (len(near) - near.index(True)) if True in near else None


def eps_of(experiment: Experiment) -> float:
    """The accuracy that this experiment is judged or reported at."""
    return float(experiment.parameters.get("eps", EPS))


# -- verdicts ----------------------------------------------------------------------------------------------------------
def judge(ok: bool | None, asserted: bool) -> Verdict:
    """PASS or FAIL where something is promised, REPORTED elsewhere, NOT RUN where it cannot be told."""
    if ok is None:
        return "NOT RUN"
    return ("PASS" if ok else "FAIL") if asserted else "REPORTED"


def said(experiment: Experiment, found: Sequence[Claim]) -> tuple[Experiment, list[Claim]]:
    """The experiment with what it shows and the first thing that was measured, and its claims."""
    shows = experiment.sentence
    if any(c.verdict in ("FAIL", "NOT RUN") or c.holds is False for c in found):
        shows = f"What is to be seen: {shows}"
    seen = next((c.measured for c in found if c.verdict != "NOT RUN"), "")
    return replace(experiment, sentence=f"{shows} {seen}".strip()), [_with_word(c) for c in found]


def _with_word(c: Claim) -> Claim:
    """Where nothing is promised, whether it was seen all the same."""
    if c.verdict != "REPORTED" or c.holds is None:
        return c
    word = "holds here" if c.holds else "does not hold here"
    return replace(c, note=f"{word}; {c.note}" if c.note else word)


def number(value: float | None) -> str:
    """Two digits and a power of ten, or a word."""
    return "nothing" if value is None else f"{value:.1e}"


def rounds_in_words(value: float | None, s: Series) -> str:
    """A number of rounds, or that there were not enough of them."""
    if value is not None:
        return f"{value:.0f}"
    status = s.about.get("status")
    return f"never ({status})" if status in ENDED else f"more than {s.x['rounds'][-1]:.0f}"
