"""The claims about Figures 1a, 1b and 1c, judged from their curves alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from proxskip.experiments import claims
from proxskip.experiments.claims import (
    EPS,
    at_least,
    claim,
    curve,
    diverged,
    first_below,
    number,
    rounds_in_words,
    stays_below,
)
from proxskip.report.figures import Claim, Experiment, Panel, Series
from proxskip.report.method_styles import title

# -- Figure 1b ---------------------------------------------------------------------------------------------------------
SLOW_METHODS = ("local-gd", "scaffold", "fedlin", "s-local-gd")


def fig1b(experiment: Experiment, asserted: bool) -> list[Claim]:
    """Scaffnew is fast, and the other local methods are not."""
    panel = claims.panel_of(experiment, "figure")
    return [_fast(curve(panel, "scaffnew"), asserted), _slow(panel, asserted)]


def _fast(s: Series, asserted: bool, within: int = 400) -> Claim:
    hit, ran = first_below(s, EPS), s.x["rounds"][-1]
    short = hit is None and ran < within and s.about.get("status") not in claims.FINAL_STATUSES
    ok = None if short else hit is not None and hit <= within
    measured = f"Scaffnew reaches 1e-6 after {rounds_in_words(hit, s)} rounds."
    text = f"Scaffnew with gamma = 1/L and p = 1/100 reaches 1e-6 within {within} rounds."
    short_note = f"only {ran:.0f} rounds were run"
    return claim("fig1b-fast", text, ok, measured, {"rounds": hit}, asserted, undecided=short_note)


def _slow(panel: Panel, asserted: bool, after: int = 2000) -> Claim:
    found = {m: claims.value_at(curve(panel, m), after) for m in SLOW_METHODS}
    known = {m: v for m, v in found.items() if v is not None}
    complete = len(known) == len(found)
    last = {m: curve(panel, m).y[-1] for m in SLOW_METHODS}
    ran = min(curve(panel, m).x["rounds"][-1] for m in SLOW_METHODS)
    # curves that are too short show their last values instead
    shown, rounds = (known, after) if complete else (last, ran)
    lost = [m for m in SLOW_METHODS if diverged(curve(panel, m))]
    # a curve that is below and stays there refutes the claim, however few rounds it has
    below = [m for m in SLOW_METHODS if known.get(m, 1.0) <= 1e-3 or stays_below(curve(panel, m), 1e-3)]
    ok = False if lost or below else True if complete else None
    words = ", ".join(f"{title(m)} {number(v)}" for m, v in shown.items())
    text = f"LocalGD, Scaffold, FedLin and S-Local-GD at 1/(100 L) are still above 1e-3 after {after} rounds."
    measured, short = f"f - f* after {rounds:.0f} rounds: {words}.", f"only {ran:.0f} rounds were run"
    return claim("fig1b-slow", text, ok, measured, shown, asserted, _diverged([title(m) for m in lost]), short)


def _diverged(lost: Sequence[str]) -> str:
    return f"diverged: {', '.join(lost)}" if lost else ""


# -- Figure 1c ---------------------------------------------------------------------------------------------------------
def fig1c(experiment: Experiment, asserted: bool) -> list[Claim]:
    """The best p is neither the smallest nor the largest, and those two are much worse."""
    drawn, eps = claims.panel_of(experiment, "p").series, claims.eps_of(experiment)
    asserted = asserted and eps == EPS
    needed = [first_below(s, eps) for s in drawn]
    reached = [r for r in needed if r is not None]
    numbers = {s.label: r for s, r in zip(drawn, needed, strict=True)}
    words = ", ".join(f"{s.label}: {rounds_in_words(r, s)}" for s, r in zip(drawn, needed, strict=True))
    measured = f"Rounds to {eps:g}: {words}."
    ends_at = f"{drawn[0].label} and {drawn[-1].label}"
    texts = (
        "The best 1/p is neither the smallest nor the largest.",
        f"{ends_at} need at least twice as many rounds as the best to reach {eps:g}.",
    )
    lost = [s.label for s in drawn if diverged(s)]
    if not reached:
        ok, short = False if lost else None, f"no run was long enough to reach {eps:g}"
        ids = ("fig1c-best", "fig1c-ends")
        return [
            claim(i, t, ok, measured, numbers, asserted, _diverged(lost), short)
            for i, t in zip(ids, texts, strict=True)
        ]
    best = min(reached)
    # a run that ended without reaching eps needs more rounds than it had
    least = [at_least(s, eps) for s in drawn]
    at = [k for k, r in enumerate(needed) if r == best]
    # those that had fewer rounds than the best could still be better
    undecided = [k for k, r in enumerate(needed) if r is None and least[k] < best]
    inside = [0 < k < len(drawn) - 1 for k in (*at, *undecided)]
    interior = False if lost or not any(inside) else True if all(inside) else None if undecided else False
    ends = [(needed[k], least[k]) for k in (0, -1)]
    twice = all(low >= 2 * best for _, low in ends)
    near = any(r is not None and r < 2 * min([best, *(least[k] for k in undecided)]) for r, _ in ends)
    told = False if lost or near else True if twice else None
    won = f"The best is {', '.join(drawn[k].label for k in at)} with {best:.0f} rounds."
    notes = (asserted, _diverged(lost), "too few rounds to decide")
    return [
        claim("fig1c-best", texts[0], interior, won, {"rounds": best}, *notes),
        claim("fig1c-ends", texts[1], told, measured, numbers, *notes),
    ]


# -- Figure 1a ---------------------------------------------------------------------------------------------------------
BEST_METHODS = ("scaffnew", "scaffold")
TWO_EXCHANGES = ("fedlin", "s-local-gd")
"""Methods that communicate twice per round."""
OTHER_LOCAL_METHODS = ("local-gd", "fedlin", "s-local-gd")


def fig1a(experiment: Experiment, asserted: bool) -> list[Claim]:
    """Scaffnew and Scaffold need about as many rounds, the fewest; FedLin needs more exchanges; LocalGD is biased."""
    panel, eps = claims.panel_of(experiment, "tuned"), claims.eps_of(experiment)
    promised = asserted and eps == EPS
    return [
        _ahead(panel, promised, eps),
        _alike(panel, promised, eps),
        _exchanges(panel, promised, eps),
        _biased(claims.panel_of(experiment, "tradeoff"), asserted),
    ]


def _alike(panel: Panel, asserted: bool, eps: float, factor: float = 1.5) -> Claim:
    drawn = {m: curve(panel, m) for m in BEST_METHODS}
    needed = {m: first_below(s, eps) for m, s in drawn.items()}
    known = [r for r in needed.values() if r is not None]
    ratio = max(known) / min(known) if len(known) == 2 else None
    # one of them that ended above eps after factor times the rounds of the other is a failure, not an open question
    late = [at_least(s, eps) for m, s in drawn.items() if needed[m] is None]
    lost = math.inf in late or (len(known) == 1 and late[0] > factor * known[0])
    ok = None if ratio is None and not lost else ratio is not None and ratio <= factor
    words = " and ".join(f"{title(m)} {rounds_in_words(needed[m], s)}" for m, s in drawn.items())
    text = f"Tuned Scaffold and tuned Scaffnew reach {eps:g} within a factor of {factor:g} of each other in rounds."
    measured = f"Rounds to {eps:g}: {words}" + (f", a factor of {ratio:.2f}." if ratio else ".")
    return claim("fig1a-alike", text, ok, measured, {**needed, "ratio": ratio}, asserted, undecided=_short(eps))


def _short(eps: float) -> str:
    return f"too few rounds to reach {eps:g}"


def _ahead(panel: Panel, asserted: bool, eps: float) -> Claim:
    needed = {m: first_below(curve(panel, m), eps) for m in (*BEST_METHODS, *OTHER_LOCAL_METHODS)}
    known = [r for m in BEST_METHODS if (r := needed[m]) is not None]
    best = min(known) if known else None
    # a method that did not reach eps counts with the rounds that it had
    least = {m: at_least(curve(panel, m), eps) for m in OTHER_LOCAL_METHODS}
    there = [r for m in OTHER_LOCAL_METHODS if (r := needed[m]) is not None]
    # the better of the two needs at least this many rounds
    at_best = min(at_least(curve(panel, m), eps) for m in BEST_METHODS)
    beaten = any(r < at_best for r in there)
    ok = False if beaten else True if best is not None and all(v >= best for v in least.values()) else None
    words = ", ".join(f"{title(m)} {rounds_in_words(r, curve(panel, m))}" for m, r in needed.items())
    margin = f" The next one needs {min(there) / best:.2f} times the rounds of the best." if there and best else ""
    text = f"No other tuned local method reaches {eps:g} in fewer rounds than the better of Scaffnew and Scaffold."
    measured = f"Rounds to {eps:g}: {words}.{margin}"
    return claim("fig1a-ahead", text, ok, measured, needed, asserted, undecided=_short(eps))


def _exchanges(panel: Panel, asserted: bool, eps: float) -> Claim:
    found: dict[str, float | None] = {}
    decided: list[bool | None] = []
    words = []
    for axis in ("exchanges", "floats"):
        ours, least = (at(curve(panel, "scaffnew"), eps, axis) for at in (first_below, at_least))
        for m in TWO_EXCHANGES:
            s = curve(panel, m)
            theirs = first_below(s, eps, axis)
            ratio = None if ours is None else at_least(s, eps, axis) / ours
            found[f"{m}.{axis}"] = ratio
            if ratio is not None:
                words.append(f"{title(m)} {'' if theirs else 'more than '}{ratio:.2f} times the {axis}")
            if m == "fedlin":
                # Scaffnew needs at least ``least``, even if it did not get there
                near = theirs is not None and least is not None and theirs < 2 * least
                decided.append(False if near else True if ratio is not None and ratio >= 2 else None)
    ok = False if False in decided else None if None in decided else True
    text = f"To reach {eps:g}, tuned FedLin needs at least twice the exchanges and twice the floats of tuned Scaffnew."
    measured = f"Compared with Scaffnew: {', '.join(words)}." if words else f"Scaffnew did not reach {eps:g}."
    return claim("fig1a-exchanges", text, ok, measured, found, asserted, undecided=_short(eps))


def _biased(panel: Panel, asserted: bool, above: float = 1e-4) -> Claim:
    """No step size takes LocalGD to the solution; of the runs that have settled, larger steps settled higher."""
    ends = [(s, s.y[-1], claims.value_at(s, s.x["rounds"][-1] / 2)) for s in panel.series]
    # in the second half of the run it moved by less than five percent
    settled = [(s, end) for s, end, half in ends if half is not None and abs(end / half - 1) < 0.05]
    rising = all(a <= b * 1.001 for (_, a), (_, b) in pairwise(settled))
    arrived = any(end <= above or stays_below(s, above) for s, end, _ in ends)
    ok = False if arrived or not rising else True if len(settled) > 1 else None
    words = ", ".join(f"{number(end)} at gamma L = {s.about['gamma_L']:.3g}" for s, end in settled)
    least, ran = min(end for _, end, _ in ends), max(s.x["rounds"][-1] for s in panel.series)
    within = f"within {ran:.0f} rounds, no run came below {number(least)}."
    text = (
        f"LocalGD stalls above {above:g}: the larger its step size, the higher it stalls; smaller steps only get "
        "there later."
    )
    measured = within[0].upper() + within[1:]
    if settled:
        measured = f"Settled (changing by less than 5 % in the second half of the run) at f - f* = {words}; {within}"
    numbers = {f"gamma_L={s.about['gamma_L']:.4g}": end for s, end, _ in ends}
    short = "the runs are too short to have settled"
    return claim("fig1a-biased", text, ok, measured, numbers, asserted, undecided=short)
