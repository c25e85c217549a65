"""Verdicts on claims, from the curves of an experiment alone: nothing here runs.

A claim is an entry of a figure's TOML file: its ``kind`` names one of the functions in ``KINDS``, and its other entries
are the arguments. A claim is PASS or FAIL on the data that it is made for, REPORTED on other data, and INCONCLUSIVE if
the curves are too short to decide, as in a quick run.

A curve that ends above an accuracy gives only a lower bound on the rounds that it needs. So costs are intervals, and a
claim about their ratio is decided only if the whole interval lies inside or outside the bounds.
"""

from __future__ import annotations

import inspect
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from string import Formatter
from typing import Any

import numpy as np

from proxskip.report.figures import Claim, Experiment, Panel, Series, Verdict, first_below
from proxskip.types import Array, InputError

FINAL_STATUSES = ("stalled", "diverged")
"""A run with this status would not improve with more rounds."""
Numbers = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a claim holds (None: not decided), what was measured in words and in numbers, and a note."""

    holds: bool | None
    measured: str
    numbers: Numbers = field(default_factory=dict)
    note: str = ""
    reported: bool = False
    """A measurement without a claim."""


# -- reading curves ----------------------------------------------------------------------------------------------------
def panel_of(experiment: Experiment, id: str) -> Panel:
    """A panel by its id."""
    panel: Panel = _named(id, {p.id: p for p in experiment.panels}, "panel")
    return panel


def curves_of(panel: Panel, names: Sequence[str]) -> list[Series]:
    """Curves by their label or their method; ``first``, ``last``, ``inside`` (all but these two) or ``*`` (all)."""
    known: dict[str, list[Series]] = {"first": panel.series[:1], "last": panel.series[-1:]}
    known |= {"inside": panel.series[1:-1], "*": panel.series}
    for s in panel.series:
        known.setdefault(s.method, []).append(s)
        known[s.label] = [s]
    curves = [s for name in names for s in _named(name, known, "curve")]
    if not curves:
        raise InputError(f"the panel {panel.id} has no curves {', '.join(names)} to compare.")
    return curves


def curve(panel: Panel, name: str) -> Series:
    """One curve by its label or its method."""
    return curves_of(panel, [name])[0]


def _named(name: str, known: Mapping[str, Any], kind: str) -> Any:
    if name not in known:
        raise InputError(f'the figure has no {kind} "{name}"; it has {", ".join(known)}.')
    return known[name]


def diverged(s: Series) -> bool:
    """Whether the run diverged, by its status or by a value that is not finite."""
    return s.about.get("status") == "diverged" or not all(y is not None and math.isfinite(y) for y in s.y)


def cost(s: Series, eps: float, axis: str = "rounds") -> tuple[float, float]:
    """Bounds on the x at which the curve reaches eps; equal if it did, infinite if it stalled or diverged before."""
    hit = first_below(s.x[axis], s.y, eps)
    if hit is not None:
        return hit, hit
    # a run that only ended at its limit could still have reached eps
    return (math.inf if s.about.get("status") in FINAL_STATUSES else s.x[axis][-1]), math.inf


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
    low, high = cost(s, eps, axis)
    status = s.about.get("status")
    if low == math.inf:
        return f"never ({status})"
    return f"{low:.0f}" if low == high else f"more than {low:.0f}"


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    """Whether all hold: False if one fails, None if one is open."""
    return False if False in verdicts else None if None in verdicts else True


# -- the kinds of claims -----------------------------------------------------------------------------------------------
def reaches(panel: Panel, curves: Sequence[str], eps: float, within: float, axis: str = "rounds") -> Finding:
    """Each of these curves reaches eps within so many rounds."""
    drawn = curves_of(panel, curves)
    costs = [cost(s, eps, axis) for s in drawn]
    holds = _all([True if high <= within else False if low >= within else None for low, high in costs])
    words = ", ".join(f"{s.label} reaches {eps:g} after {cost_in_words(s, eps, axis)} {axis}" for s in drawn)
    note = f"only {min(s.x[axis][-1] for s in drawn):.0f} {axis} were run" if holds is None else ""
    return Finding(holds, f"{words}.", {s.label: first_below(s.x[axis], s.y, eps) for s in drawn}, note)


def stays_above(panel: Panel, curves: Sequence[str], value: float, after: float) -> Finding:
    """Each of these curves is still above a value after so many rounds, and none of them diverges."""
    drawn = curves_of(panel, curves)
    known = {s.label: v for s in drawn if (v := value_at(s, after)) is not None}
    is_complete = len(known) == len(drawn)
    ran = min(s.x["rounds"][-1] for s in drawn)
    # curves that are too short show their last values instead
    shown: Numbers = {**known} if is_complete else {s.label: s.y[-1] for s in drawn}
    lost = [s.label for s in drawn if diverged(s)]
    # a curve that is below and stays there refutes the claim, however few rounds it has
    below = [s for s in drawn if known.get(s.label, math.inf) <= value or stays_below(s, value)]
    holds = False if lost or below else True if is_complete else None
    rounds = after if is_complete else ran
    note = f"only {ran:.0f} rounds were run" if holds is None else f"diverged: {', '.join(lost)}" if lost else ""
    return Finding(holds, f"f - f* after {rounds:.0f} rounds: {listed(shown)}.", shown, note)


def ratio(
    panel: Panel,
    to: Sequence[str],
    eps: float,
    of: Sequence[str] = (),
    best_of: Sequence[str] = (),
    at_least: float = 0.0,
    above: float = 0.0,
    at_most: float = math.inf,
    below: float = math.inf,
    axes: Sequence[str] = ("rounds",),
    without_divergence: bool = False,
) -> Finding:
    """The cost to eps of each curve in ``of`` and of the best in ``best_of``, divided by that of the best in ``to``."""
    lower = at_least if above == 0 else math.nextafter(above, math.inf)
    upper = at_most if below == math.inf else math.nextafter(below, 0.0)
    base = curves_of(panel, to)
    groups = [[s] for s in (curves_of(panel, of) if of else [])] + ([curves_of(panel, best_of)] if best_of else [])
    verdicts, words, numbers = [], [], Numbers()
    for axis in axes:
        denominator = least(base, eps, axis)
        for group in groups:
            low, high = quotient(least(group, eps, axis), denominator)
            verdicts.append(True if lower <= low and high <= upper else False if high < lower or low > upper else None)
            name = group[0].label if len(group) == 1 else "the best"
            exact = low if low == high else None
            numbers[f"{name}, {axis}"] = exact
            if exact is not None or low > 0:
                words.append(f"{'' if low == high else 'at least '}{low:.2f} times the {axis} with {name}")
    shown = list({s.label: s for s in [*base, *(s for group in groups for s in group)]}.values())
    lost = [s.label for s in shown if diverged(s)] if without_divergence else []
    costs = "; ".join(
        f"{axis} to {eps:g}: " + ", ".join(f"{cost_in_words(s, eps, axis)} with {s.label}" for s in shown)
        for axis in axes
    )
    best = ["", base[0].label, f"the better of {base[0].label} and {base[-1].label}", "the best"][min(len(base), 3)]
    measured = f"{costs[0].upper()}{costs[1:]}." + (f" Relative to {best}: {', '.join(words)}." if words else "")
    note = f"diverged: {', '.join(lost)}" if lost else ""
    return Finding(False if lost else _all(verdicts), measured, numbers, note)


def least(group: Sequence[Series], eps: float, axis: str) -> tuple[float, float]:
    """Bounds on the cost of the best of a group."""
    costs = [cost(s, eps, axis) for s in group]
    return min(low for low, _ in costs), min(high for _, high in costs)


def quotient(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Bounds on a/b, where what never arrives costs infinitely more than what does; 0 if neither arrives."""
    if b[0] == math.inf:
        return 0.0, 0.0
    if a[0] == math.inf:
        return math.inf, math.inf
    return a[0] / b[1], math.inf if b[0] == 0 else a[1] / b[0]


def ends(panel: Panel, curves: Sequence[str] = ("*",), ahead: str = "") -> Finding:
    """The values at the end; with ``ahead``, that curve has the smallest."""
    drawn = curves_of(panel, curves)
    values: Numbers = {s.label: s.y[-1] for s in drawn}
    rounds = min(s.x["rounds"][-1] for s in drawn)
    measured = f"f - f* after {rounds:.0f} rounds with {panel.title}: {listed(values)}."
    if not ahead:
        return Finding(None, measured, values, reported=True)
    winner = curve(panel, ahead)
    return Finding(all(winner.y[-1] < s.y[-1] for s in drawn if s is not winner), measured, values)


def floors(panel: Panel, curves: Sequence[str] = ("*",), falls_to: float | None = None) -> Finding:
    """The noise floors; with ``falls_to``, each of them is at most this share of the one before."""
    drawn = curves_of(panel, curves)
    values: Numbers = {s.label: floor(s) for s in drawn}
    measured = f"Noise floors: {', '.join(f'{name}: {number(v)}' for name, v in values.items())}."
    if falls_to is None:
        return Finding(None, measured, values, reported=True)
    return Finding(_all([is_lower(a, b, falls_to) for a, b in pairwise(drawn)]), measured, values)


def speedup(panel: Panel, share: float, curves: Sequence[str] = ("*",)) -> Finding:
    """With more clients the value at the end falls, by this share of a linear speedup at least."""
    drawn = curves_of(panel, curves)
    few, many = drawn[0], drawn[-1]
    gain, linear = few.y[-1] / many.y[-1], many.about["clients"] / few.about["clients"]
    values: Numbers = {s.label: s.y[-1] for s in drawn}
    measured = f"f - f* after {min(s.x['rounds'][-1] for s in drawn):.0f} rounds: {listed(values)}. The value for "
    measured += f"{few.label} is {gain:.2f} times that for {many.label}; a linear speedup would give {linear:g}."
    return Finding(gain >= share * linear, measured, values)


def is_lower(a: Series, b: Series, share: float) -> bool | None:
    """Whether b's floor is below this share of a's; None if a curve still falls, because it could end lower."""
    if not (floor(a) >= 0 and floor(b) >= 0):
        return False
    below = floor(b) < share * floor(a)
    return None if not has_settled(a if below else b) else below


def floor_above(panel: Panel, curves: Sequence[str], value: float, reaches: str, eps: float) -> Finding:
    """One curve reaches eps, where others stop above a value."""
    exact, drawn = curve(panel, reaches), curves_of(panel, curves)
    values: Numbers = {s.label: floor(s) for s in drawn}
    low, high = cost(exact, eps)
    holds = None if low < high else high < math.inf and all(floor(s) > value for s in drawn)
    rounds = exact.x["rounds"][-1]
    measured = f"{exact.label} is at {number(exact.y[-1])} after {rounds:.0f} rounds; noise floors: {listed(values)}."
    return Finding(holds, measured, {exact.label: exact.y[-1], **values})


def stalls_higher(panel: Panel, value: float, curves: Sequence[str] = ("*",)) -> Finding:
    """No curve arrives at a value; of those that have settled, each stalls at least as high as the one before."""
    ends = [(s, s.y[-1], value_at(s, s.x["rounds"][-1] / 2)) for s in curves_of(panel, curves)]
    # in the second half of the run it moved by less than five percent
    settled = [(s.label, end) for s, end, half in ends if half is not None and abs(end / half - 1) < 0.05]
    rising = all(a <= b * 1.001 for (_, a), (_, b) in pairwise(settled))
    arrived = any(end <= value or stays_below(s, value) for s, end, _ in ends)
    holds = False if arrived or not rising else True if len(settled) > 1 else None
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


KINDS: dict[str, Callable[..., Finding]] = {
    kind.__name__: kind
    for kind in (reaches, stays_above, ratio, ends, floors, floor_above, stalls_higher, speedup, slopes)
}
_OF_A_CLAIM = ("id", "kind", "text", "panel", "asserted_on")


# -- verdicts ----------------------------------------------------------------------------------------------------------
def check(
    claims: Sequence[Mapping[str, Any]], values: Sequence[str], curves: Mapping[str, Sequence[str] | None]
) -> None:
    """Refuse claims of an unknown kind, with wrong arguments, or about a panel or curve that the figure does not have.

    Args:
        values: the names that a text may contain in braces.
        curves: the labels and methods of each panel; None where they are known only after the runs.
    """
    for claim in claims:
        name = claim.get("id", "?")
        if missing := [k for k in ("id", "kind", "text", "panel") if k not in claim]:
            raise InputError(f"claim {name} has no {missing[0]}.")
        if claim["kind"] not in KINDS:
            raise InputError(f'claim {name} has the unknown kind "{claim["kind"]}"; choose one of {", ".join(KINDS)}.')
        kind = inspect.signature(KINDS[claim["kind"]])
        try:
            kind.bind(None, **{k: v for k, v in claim.items() if k not in _OF_A_CLAIM})
        except TypeError as error:
            takes = ", ".join(list(kind.parameters)[1:])
            raise InputError(f"claim {name}: {error}; {claim['kind']} takes {takes}.") from None
        check_text(claim["text"], [*values, *claim, "first", "last", "title"])
        drawn = _named(claim["panel"], curves, "panel")
        for names in (claim.get(k, []) for k in ("curves", "of", "best_of", "to", "ahead", "reaches")):
            for curve in [names] if isinstance(names, str) else names:
                if drawn is not None and curve not in ("first", "last", "inside", "*", ""):
                    _named(curve, dict.fromkeys(drawn), "curve")


def check_text(text: str, names: Sequence[str]) -> None:
    """Refuse a text with a name in braces that has no value."""
    try:
        written = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise InputError(f'"{text}" is not a valid text: {error}.') from None
    if unknown := [name for name in written if name not in names]:
        raise InputError(f'"{text}" contains {{{unknown[0]}}}, which is not a value of the figure.')


def judged(experiment: Experiment, claims: Sequence[Mapping[str, Any]], data: str) -> list[Claim]:
    """The claims of a figure's TOML file, judged by its curves; made for the data in ``asserted_on``, or for all."""
    verdicts = []
    for entry in claims:
        arguments = {k: v for k, v in entry.items() if k not in _OF_A_CLAIM}
        panel = panel_of(experiment, entry["panel"])
        finding = KINDS[entry["kind"]](panel, **arguments)
        words = {"first": panel.series[0].label, "last": panel.series[-1].label, "title": panel.title}
        text = entry["text"].format(**experiment.parameters | arguments | words)
        asserted = data in entry.get("asserted_on", [data])
        verdict = "REPORTED" if finding.reported else judge(finding.holds, asserted)
        note = finding.note or ("too few rounds to decide" if verdict == "INCONCLUSIVE" else "")
        verdicts.append(
            Claim(entry["id"], experiment.id, text, verdict, finding.measured, finding.numbers, note, finding.holds)
        )
    return verdicts


def claim(
    id: str,
    text: str,
    holds: bool | None,
    measured: str,
    numbers: Mapping[str, float | None],
    asserted: bool = True,
    note: str = "",
    undecided: str = "",
) -> Claim:
    """A claim with its verdict and a note, another one if it is not decided; its id begins with the experiment's."""
    why = undecided if holds is None else note
    return Claim(id, id.partition("-")[0], text, judge(holds, asserted), measured, dict(numbers), why, holds)


def judge(holds: bool | None, asserted: bool) -> Verdict:
    """PASS or FAIL if the claim is made for this setting, REPORTED if not, INCONCLUSIVE if it cannot be decided."""
    if holds is None:
        return "INCONCLUSIVE"
    return ("PASS" if holds else "FAIL") if asserted else "REPORTED"


def with_findings(experiment: Experiment, claims: Sequence[Claim]) -> tuple[Experiment, list[Claim]]:
    """The experiment with a sentence that its curves support, and its claims.

    The sentence begins with the preset's if every claim holds; otherwise it names the claims that do not.
    """
    wrong = [c for c in claims if c.verdict == "FAIL" or c.holds is False]
    is_open = any(c.verdict == "INCONCLUSIVE" for c in claims)
    first = next((c.measured for c in claims if c.verdict != "INCONCLUSIVE"), "")
    words = [] if wrong or is_open else [experiment.sentence]
    words += [first] if first else ["The runs are too short to show anything."] if is_open else []
    words += [f"This does not hold here: {c.text}" for c in wrong]
    return replace(experiment, sentence=" ".join(filter(None, words))), [_with_word(c) for c in claims]


def _with_word(c: Claim) -> Claim:
    """For a REPORTED claim, a note on whether it holds here."""
    if c.verdict != "REPORTED" or c.holds is None:
        return c
    word = "holds here" if c.holds else "does not hold here"
    return replace(c, note=f"{word}; {c.note}" if c.note else word)
