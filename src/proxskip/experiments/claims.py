"""Claims about curves, and their verdicts: nothing here runs.

Each function reads curves and returns a ``Finding``; ``claim`` gives it an id and a sentence. A claim is PASS or FAIL
on the data that it is made for, REPORTED on other data, and INCONCLUSIVE if the curves are too short to decide, as in a
quick run.

A curve that ends above an accuracy gives only a lower bound on the rounds that it needs. So costs are intervals, and a
claim about their ratio is decided only if the whole interval lies inside or outside the bounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from proxskip.report.figures import Claim, Experiment, Panel, Series, Verdict, first_below
from proxskip.types import Array

FINAL_STATUSES = ("stalled", "diverged")
"""A run with this status would not improve with more rounds."""
SLOPE_TOLERANCE = 0.1
"""How far a fitted log-log slope may be from that of a theorem."""
Numbers = dict[str, float | None]
Curves = Series | Sequence[Series]
"""One curve or several."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a claim holds (None: not decided), what was measured in words and in numbers, and a note."""

    holds: bool | None
    measured: str
    numbers: Numbers = field(default_factory=dict)
    note: str = ""
    reported: bool = False
    """A measurement without a claim."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds on a cost, or on a ratio of costs; equal if it is known."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Asserted:
    """A claim before its verdict.

    Args:
        only_on: the data sets that it is made for; None for all.
    """

    id: str
    text: str
    finding: Finding
    only_on: Sequence[str] | None = None

    def verdict(self, data: str) -> Verdict:
        """PASS or FAIL if the claim is made for this data, REPORTED if not, INCONCLUSIVE if it cannot be decided."""
        if self.finding.reported:
            return "REPORTED"
        if self.finding.holds is None:
            return "INCONCLUSIVE"
        if self.only_on is not None and data not in self.only_on:
            return "REPORTED"
        return "PASS" if self.finding.holds else "FAIL"

    def judged(self, experiment: str, data: str) -> Claim:
        """The claim of an experiment, with its verdict on this data."""
        found, verdict = self.finding, self.verdict(data)
        note = found.note
        if verdict == "INCONCLUSIVE" and not note:
            note = "too few rounds to decide"
        return Claim(self.id, experiment, self.text, verdict, found.measured, found.numbers, note, found.holds)


def claim(id: str, text: str, finding: Finding, only_on: Sequence[str] | None = None) -> Asserted:
    """A claim in one sentence, with what was found; made for the data sets ``only_on``, or for all."""
    return Asserted(id, text, finding, only_on)


# -- reading curves ----------------------------------------------------------------------------------------------------
def as_list(curves: Curves) -> list[Series]:
    """One curve or several as a list."""
    return [curves] if isinstance(curves, Series) else list(curves)


def diverged(s: Series) -> bool:
    """Whether the run diverged, by its status or by a value that is not finite."""
    return s.about.get("status") == "diverged" or not all(y is not None and math.isfinite(y) for y in s.y)


def cost(s: Series, eps: float, axis: str = "rounds") -> Interval:
    """Bounds on the x at which the curve reaches eps; equal if it did, infinite if it stalled or diverged before."""
    hit = first_below(s.x[axis], s.y, eps)
    if hit is not None:
        return Interval(hit, hit)
    if s.about.get("status") in FINAL_STATUSES:
        return Interval(math.inf, math.inf)
    # a run that only ended at its limit could still have reached eps
    return Interval(s.x[axis][-1], math.inf)


def value_at(s: Series, rounds: float) -> float | None:
    """The last record up to this round; None if the run ended earlier without having stalled or diverged."""
    at = s.x["rounds"]
    if at[-1] < rounds and s.about.get("status") not in FINAL_STATUSES:
        return None
    return [y for x, y in zip(at, s.y, strict=True) if x <= rounds][-1]


def stays_below(s: Series, eps: float) -> bool:
    """Whether the last tenth of the rounds, and at least two records, are all at most eps."""
    late = _part(s, 9, 10, 10)
    last = late if len(late) > 1 else s.y[-2:]
    return len(last) > 1 and all(y is not None and abs(y) <= eps for y in last)


def floor(s: Series) -> float:
    """The median of the curve over the last third of its rounds."""
    return statistics.median(_part(s, 2, 3, 3))


def has_settled(s: Series) -> bool:
    """Whether the curve has stopped falling: its last sixth is not 20 % below the sixth before."""
    before, last = _part(s, 4, 5, 6), _part(s, 5, 6, 6)
    return bool(last and before) and statistics.median(last) > 0.8 * statistics.median(before)


def _part(s: Series, start: int, end: int, of: int) -> list[float]:
    """The values between two fractions of the rounds; (5, 6, 6) is the last sixth, with the last round."""
    last = s.x["rounds"][-1]
    return [
        y
        for x, y in zip(s.x["rounds"], s.y, strict=True)
        if start * last <= of * x and (of * x < end * last or end == of)
    ]


def _rounds_run(drawn: Sequence[Series]) -> float:
    """The rounds of the shortest curve."""
    return min(s.x["rounds"][-1] for s in drawn)


def slope(x: Sequence[float] | Array, y: Sequence[float] | Array) -> float:
    """The slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float)), 1)[0])


# -- words -------------------------------------------------------------------------------------------------------------
def number(value: float | None) -> str:
    """Two digits and a power of ten."""
    return "no value" if value is None else f"{value:.1e}"


def listed(values: Mapping[str, float | None], text: Callable[[float | None], str] = number) -> str:
    """Names and values, in words."""
    return ", ".join(f"{name} {text(value)}" for name, value in values.items())


def cost_in_words(s: Series, eps: float, axis: str = "rounds") -> str:
    """A number of rounds, or a lower bound if the curve did not get there."""
    needed = cost(s, eps, axis)
    if needed.low == math.inf:
        return f"never ({s.about.get('status')})"
    return f"{needed.low:.0f}" if needed.low == needed.high else f"more than {needed.low:.0f}"


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    """Whether all hold: False if one fails, None if one is open."""
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _decided(yes: bool, no: bool) -> bool | None:
    """True or False where one of the two is certain."""
    if yes:
        return True
    return False if no else None


# -- the kinds of claims -----------------------------------------------------------------------------------------------
def reaches(curves: Curves, eps: float, within: float) -> Finding:
    """Each of these curves reaches eps within so many rounds."""
    drawn = as_list(curves)
    costs = [cost(s, eps) for s in drawn]
    holds = _all([_decided(c.high <= within, c.low >= within) for c in costs])
    words = ", ".join(f"{s.label} reaches {eps:g} after {cost_in_words(s, eps)} rounds" for s in drawn)
    note = f"only {_rounds_run(drawn):.0f} rounds were run" if holds is None else ""
    return Finding(holds, f"{words}.", {s.label: first_below(s.x["rounds"], s.y, eps) for s in drawn}, note)


def stays_above(curves: Curves, value: float, after: float) -> Finding:
    """Each of these curves is still above a value after so many rounds, and none of them diverges."""
    drawn = as_list(curves)
    known = {s.label: v for s in drawn if (v := value_at(s, after)) is not None}
    lost = [s.label for s in drawn if diverged(s)]
    # a curve that is below and stays there refutes the claim, however few rounds it has
    below = [s for s in drawn if known.get(s.label, math.inf) <= value or stays_below(s, value)]
    is_complete = len(known) == len(drawn)
    holds = _decided(is_complete and not lost and not below, bool(lost or below))
    ran = _rounds_run(drawn)
    shown, rounds = Numbers(known), after
    if not is_complete:  # curves that are too short show their last values instead
        shown, rounds = {s.label: s.y[-1] for s in drawn}, ran
    note = f"diverged: {', '.join(lost)}" if lost else ""
    if holds is None:
        note = f"only {ran:.0f} rounds were run"
    return Finding(holds, f"f - f* after {rounds:.0f} rounds: {listed(shown)}.", shown, note)


def ratio(
    of: Curves,
    to: Curves,
    eps: float,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    best: bool = False,
    axes: Sequence[str] = ("rounds",),
    without_divergence: bool = False,
) -> Finding:
    """The cost to eps of each curve in ``of``, divided by that of the best in ``to``, lies within these bounds.

    Args:
        best: compare only the best of the curves in ``of``.
        axes: what the costs are counted in.
        without_divergence: the claim fails if one of the curves diverges.
    """
    base = as_list(to)
    groups = [as_list(of)] if best else [[s] for s in as_list(of)]
    compared = {
        (axis, _name(g)): quotient(least(g, eps, axis), least(base, eps, axis)) for axis in axes for g in groups
    }
    verdicts = [_lies_within(q, at_least, above, at_most, below) for q in compared.values()]
    drawn = {s.label: s for s in [*base, *(s for group in groups for s in group)]}
    lost = [s.label for s in drawn.values() if without_divergence and diverged(s)]
    holds = False if lost else _all(verdicts)
    numbers: Numbers = {f"{name}, {axis}": q.low if q.low == q.high else None for (axis, name), q in compared.items()}
    measured = _costs_in_words(list(drawn.values()), eps, axes) + _ratios_in_words(compared, base)
    return Finding(holds, measured, numbers, f"diverged: {', '.join(lost)}" if lost else "")


def least(group: Sequence[Series], eps: float, axis: str) -> Interval:
    """Bounds on the cost of the best of a group."""
    costs = [cost(s, eps, axis) for s in group]
    return Interval(min(c.low for c in costs), min(c.high for c in costs))


def quotient(a: Interval, b: Interval) -> Interval:
    """Bounds on a/b, where what never arrives costs infinitely more than what does; 0 if neither arrives."""
    if b.low == math.inf:
        return Interval(0.0, 0.0)
    if a.low == math.inf:
        return Interval(math.inf, math.inf)
    return Interval(a.low / b.high, math.inf if b.low == 0 else a.high / b.low)


def _lies_within(
    q: Interval, at_least: float | None, above: float | None, at_most: float | None, below: float | None
) -> bool | None:
    verdicts = []
    if at_least is not None:
        verdicts.append(_decided(q.low >= at_least, q.high < at_least))
    if above is not None:
        verdicts.append(_decided(q.low > above, q.high <= above))
    if at_most is not None:
        verdicts.append(_decided(q.high <= at_most, q.low > at_most))
    if below is not None:
        verdicts.append(_decided(q.high < below, q.low >= below))
    return _all(verdicts)


def _name(group: Sequence[Series]) -> str:
    return group[0].label if len(group) == 1 else "the best"


def _costs_in_words(drawn: Sequence[Series], eps: float, axes: Sequence[str]) -> str:
    """Such as: Rounds to 1e-06: 118 with Scaffnew, more than 200 with LocalGD."""
    parts = []
    for axis in axes:
        costs = ", ".join(f"{cost_in_words(s, eps, axis)} with {s.label}" for s in drawn)
        parts.append(f"{axis} to {eps:g}: {costs}")
    words = "; ".join(parts)
    return f"{words[0].upper()}{words[1:]}."


def _ratios_in_words(compared: Mapping[tuple[str, str], Interval], base: Sequence[Series]) -> str:
    """Such as: Relative to Scaffnew: at least 1.72 times the rounds with LocalGD."""
    words = []
    for (axis, name), q in compared.items():
        if q.low == q.high:
            words.append(f"{q.low:.2f} times the {axis} with {name}")
        elif q.low > 0:
            words.append(f"at least {q.low:.2f} times the {axis} with {name}")
    if not words:
        return ""
    if len(base) == 2:
        whom = f"the better of {base[0].label} and {base[1].label}"
    else:
        whom = _name(base)
    return f" Relative to {whom}: {', '.join(words)}."


def ends(curves: Curves, setting: str, ahead: Series | None = None) -> Finding:
    """The values at the end, in this setting; with ``ahead``, that curve has the smallest."""
    drawn = as_list(curves)
    values: Numbers = {s.label: s.y[-1] for s in drawn}
    rounds = _rounds_run(drawn)
    measured = f"f - f* after {rounds:.0f} rounds with {setting}: {listed(values)}."
    if ahead is None:
        return Finding(None, measured, values, reported=True)
    return Finding(all(ahead.y[-1] < s.y[-1] for s in drawn if s is not ahead), measured, values)


def floors(curves: Curves, falls_to: float | None = None) -> Finding:
    """The noise floors; with ``falls_to``, each of them is at most this share of the one before."""
    drawn = as_list(curves)
    values: Numbers = {s.label: floor(s) for s in drawn}
    measured = f"Noise floors: {', '.join(f'{name}: {number(v)}' for name, v in values.items())}."
    if falls_to is None:
        return Finding(None, measured, values, reported=True)
    return Finding(_all([is_lower(a, b, falls_to) for a, b in pairwise(drawn)]), measured, values)


def speedup(curves: Curves, share: float) -> Finding:
    """With more clients the value at the end falls, by this share of a linear speedup at least."""
    drawn = as_list(curves)
    few, many = drawn[0], drawn[-1]
    gain, linear = few.y[-1] / many.y[-1], many.about["clients"] / few.about["clients"]
    values: Numbers = {s.label: s.y[-1] for s in drawn}
    measured = f"f - f* after {_rounds_run(drawn):.0f} rounds: {listed(values)}. The value for "
    measured += f"{few.label} is {gain:.2f} times that for {many.label}; a linear speedup would give {linear:g}."
    return Finding(gain >= share * linear, measured, values)


def is_lower(a: Series, b: Series, share: float) -> bool | None:
    """Whether b's floor is below this share of a's; None if a curve still falls, because it could end lower."""
    if not (floor(a) >= 0 and floor(b) >= 0):
        return False
    below = floor(b) < share * floor(a)
    could_end_lower = a if below else b
    return below if has_settled(could_end_lower) else None


def floor_above(curves: Curves, value: float, exact: Series, eps: float) -> Finding:
    """The exact curve reaches eps, where others stop above a value."""
    drawn = as_list(curves)
    values: Numbers = {s.label: floor(s) for s in drawn}
    needed = cost(exact, eps)
    holds = None
    if needed.low == needed.high:
        holds = needed.high < math.inf and all(floor(s) > value for s in drawn)
    rounds = exact.x["rounds"][-1]
    measured = f"{exact.label} is at {number(exact.y[-1])} after {rounds:.0f} rounds; noise floors: {listed(values)}."
    return Finding(holds, measured, {exact.label: exact.y[-1], **values})


def stalls_higher(curves: Curves, value: float) -> Finding:
    """No curve arrives at a value; of those that have settled, each stalls at least as high as the one before."""
    ends = [(s, s.y[-1], value_at(s, s.x["rounds"][-1] / 2)) for s in as_list(curves)]
    # in the second half of the run it moved by less than five percent
    settled = [(s.label, end) for s, end, half in ends if half is not None and abs(end / half - 1) < 0.05]
    rising = all(a <= b * 1.001 for (_, a), (_, b) in pairwise(settled))
    arrived = any(end <= value or stays_below(s, value) for s, end, _ in ends)
    holds = _decided(not arrived and rising and len(settled) > 1, arrived or not rising)
    least, rounds = min(end for _, end, _ in ends), max(s.x["rounds"][-1] for s, _, _ in ends)
    measured = f"Within {rounds:.0f} rounds no run came below {number(least)}."
    if settled:
        measured += f" Changing by less than 5 % in the second half of the run: {listed(dict(settled))}."
    note = "the runs are too short to have settled" if holds is None else ""
    return Finding(holds, measured, {s.label: end for s, end, _ in ends}, note)


def slopes(panel: Panel, expected: Mapping[str, float], within: float, points: int | None = None) -> Finding:
    """The log-log slope of each curve of points; none is missing, or has fewer points than the others."""
    known = {s.label: s for s in panel.series if s.kind == "points"}
    count = points or max((len(s.y) for s in known.values()), default=0)
    values: Numbers = {
        name: slope(s.x[panel.x], s.y)
        for name in expected
        if (s := known.get(name)) is not None and len(s.y) == count > 1
    }
    holds = all((v := values.get(name)) is not None and abs(v - power) <= within for name, power in expected.items())
    words = listed(values, lambda v: "no value" if v is None else f"{v:.3f}")
    return Finding(holds, f"Slopes against {panel.x}: {words}.", values)


# -- the sentence of an experiment -------------------------------------------------------------------------------------
def with_findings(experiment: Experiment, claims: Sequence[Claim]) -> tuple[Experiment, list[Claim]]:
    """The experiment with a sentence that its curves support, and its claims.

    The sentence begins with the experiment's own if every claim holds; otherwise it names the claims that do not.
    """
    wrong = [c for c in claims if c.verdict == "FAIL" or c.holds is False]
    is_open = any(c.verdict == "INCONCLUSIVE" for c in claims)
    first = next((c.measured for c in claims if c.verdict != "INCONCLUSIVE"), "")
    words = [] if wrong or is_open else [experiment.sentence]
    if first:
        words.append(first)
    elif is_open:
        words.append("The runs are too short to show anything.")
    words += [f"This does not hold here: {c.text}" for c in wrong]
    return replace(experiment, sentence=" ".join(filter(None, words))), [_with_word(c) for c in claims]


def _with_word(c: Claim) -> Claim:
    """For a REPORTED claim, a note on whether it holds here."""
    if c.verdict != "REPORTED" or c.holds is None:
        return c
    word = "holds here" if c.holds else "does not hold here"
    return replace(c, note=f"{word}; {c.note}" if c.note else word)
