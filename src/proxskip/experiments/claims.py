"""What must be seen, judged from the curves of an experiment alone: nothing here runs.

A claim of the paper is PASS or FAIL on the data it was made for, REPORTED on other data; NOT RUN says that the curves
are too short to tell, as in a quick run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from proxskip.figures import Claim, Experiment, Panel, Series, Verdict
from proxskip.plots import NAMES

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
    """Where the curve first is at or below eps; None if it never is."""
    return next((x for x, y in zip(s.x[axis], s.y, strict=True) if y is not None and y <= eps), None)


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
    """The experiment with a sentence that says what was seen, and its claims."""
    seen = " ".join(c.measured for c in found if c.verdict != "NOT RUN")
    return replace(experiment, sentence=f"{experiment.sentence} {seen}".strip()), list(found)


def number(value: float | None) -> str:
    """Two digits and a power of ten, or a word."""
    return "nothing" if value is None else f"{value:.1e}"


def rounds_in_words(value: float | None, s: Series) -> str:
    """A number of rounds, or that there were not enough of them."""
    if value is not None:
        return f"{value:.0f}"
    status = s.about.get("status")
    return f"never ({status})" if status in ENDED else f"more than {s.x['rounds'][-1]:.0f}"


# -- Figure 1b ---------------------------------------------------------------------------------------------------------
SLOW = ("local-gd", "scaffold", "fedlin", "s-local-gd")


def fig1b(experiment: Experiment, asserted: bool) -> list[Claim]:
    """Scaffnew is fast, the others are not."""
    panel = panel_of(experiment, "figure")
    return [_fast(curve(panel, "scaffnew"), asserted), _slow(panel, asserted)]


def _fast(s: Series, asserted: bool, within: int = 400) -> Claim:
    hit, ran = first_below(s, EPS), s.x["rounds"][-1]
    ok = (
        None
        if hit is None and ran < within and s.about.get("status") not in ENDED
        else hit is not None and hit <= within
    )
    measured = f"Scaffnew is below 1e-6 after {rounds_in_words(hit, s)} rounds."
    note = f"only {ran:.0f} rounds were run" if ok is None else ""
    text = f"Scaffnew with gamma = 1/L, p = 1/100 is below 1e-6 within {within} rounds."
    return Claim("fig1b-fast", "fig1b", text, judge(ok, asserted), measured, {"rounds": hit}, note)


def _slow(panel: Panel, asserted: bool, after: int = 2000) -> Claim:
    found = {m: value_at(curve(panel, m), after) for m in SLOW}
    known = {m: v for m, v in found.items() if v is not None}
    complete = len(known) == len(found)
    last = {m: curve(panel, m).y[-1] for m in SLOW}
    ran = min(curve(panel, m).x["rounds"][-1] for m in SLOW)
    shown, rounds = (known, after) if complete else (last, ran)
    words = ", ".join(f"{NAMES[m]} {number(v)}" for m, v in shown.items())
    return Claim(
        "fig1b-slow",
        "fig1b",
        f"LocalGD, Scaffold, FedLin and S-Local-GD at 1/(100 L) are still above 1e-3 after {after} rounds.",
        judge(all(v > 1e-3 for v in known.values()) if complete else None, asserted),
        f"f - f* after {rounds:.0f} rounds: {words}.",
        dict(shown),
        "" if complete else f"only {ran:.0f} rounds were run",
    )


# -- Figure 1c ---------------------------------------------------------------------------------------------------------
def fig1c(experiment: Experiment, asserted: bool) -> list[Claim]:
    """The best p is in the middle, and the ends are bad."""
    drawn, eps = panel_of(experiment, "p").series, eps_of(experiment)
    asserted = asserted and eps == EPS
    needed = [first_below(s, eps) for s in drawn]
    reached = [r for r in needed if r is not None]
    numbers = {s.label: r for s, r in zip(drawn, needed, strict=True)}
    words = ", ".join(f"{s.label}: {rounds_in_words(r, s)}" for s, r in zip(drawn, needed, strict=True))
    measured = f"Rounds to {eps:g}: {words}."
    ends_at = f"{drawn[0].label} and {drawn[-1].label}"
    texts = ("The best 1/p is interior.", f"{ends_at} need at least twice the rounds of the best to {eps:g}.")
    if not reached:
        why = f"no run was long enough to reach {eps:g}"
        return [
            Claim(i, "fig1c", t, "NOT RUN", measured, numbers, why)
            for i, t in zip(("fig1c-best", "fig1c-ends"), texts, strict=True)
        ]
    best = min(reached)
    # a run that ended without reaching 1e-6 needs more rounds than it had
    least = [at_least(s, eps) for s in drawn]
    at = [k for k, r in enumerate(needed) if r == best]
    undecided = [s.label for s, r, low in zip(drawn, needed, least, strict=True) if r is None and low <= best]
    interior = None if undecided else all(0 < k < len(drawn) - 1 for k in at)
    ends = [(needed[k], least[k]) for k in (0, -1)]
    twice = all(low >= 2 * best for _, low in ends)
    told = None if not twice and any(r is None and low < 2 * best for r, low in ends) else twice
    note = "too few rounds to tell" if interior is None or told is None else ""
    names = ", ".join(drawn[k].label for k in at)
    return [
        Claim(
            "fig1c-best",
            "fig1c",
            texts[0],
            judge(interior, asserted),
            f"The best is {names} with {best:.0f} rounds.",
            {"rounds": best},
            note if interior is None else "",
        ),
        Claim("fig1c-ends", "fig1c", texts[1], judge(told, asserted), measured, numbers, note if told is None else ""),
    ]


# -- Figure 1a ---------------------------------------------------------------------------------------------------------
BEST = ("scaffnew", "scaffold")
TWICE = ("fedlin", "s-local-gd")
LOCAL = ("local-gd", "fedlin", "s-local-gd")


def fig1a(experiment: Experiment, asserted: bool) -> list[Claim]:
    """Scaffnew and Scaffold are alike and ahead in rounds; FedLin is far behind in exchanges; LocalGD is biased."""
    panel, eps = panel_of(experiment, "tuned"), eps_of(experiment)
    promised = asserted and eps == EPS
    return [
        _alike(panel, promised, eps),
        _ahead(panel, promised, eps),
        _exchanges(panel, promised, eps),
        _biased(panel_of(experiment, "tradeoff"), asserted),
    ]


def _alike(panel: Panel, asserted: bool, eps: float, factor: float = 1.5) -> Claim:
    drawn = {m: curve(panel, m) for m in BEST}
    needed = {m: first_below(s, eps) for m, s in drawn.items()}
    known = [r for r in needed.values() if r is not None]
    ratio = max(known) / min(known) if len(known) == 2 else None
    # one of them that ended above eps after factor times the rounds of the other is a failure, not an open question
    late = [at_least(s, eps) for m, s in drawn.items() if needed[m] is None]
    lost = len(known) == 1 and late[0] > factor * known[0]
    ok = None if ratio is None and not lost else ratio is not None and ratio <= factor
    words = " and ".join(f"{NAMES[m]} {rounds_in_words(needed[m], s)}" for m, s in drawn.items())
    return Claim(
        "fig1a-alike",
        "fig1a",
        f"Tuned Scaffold and tuned Scaffnew reach {eps:g} within a factor {factor:g} of each other in rounds.",
        judge(ok, asserted),
        f"Rounds to {eps:g}: {words}" + (f", a factor {ratio:.2f}." if ratio else "."),
        {**needed, "ratio": ratio},
        f"too few rounds to reach {eps:g}" if ok is None else "",
    )


def _ahead(panel: Panel, asserted: bool, eps: float) -> Claim:
    needed = {m: first_below(curve(panel, m), eps) for m in (*BEST, *LOCAL)}
    known = [r for m in BEST if (r := needed[m]) is not None]
    best = min(known) if known else None
    least = {m: at_least(curve(panel, m), eps) for m in LOCAL}
    ok: bool | None = None
    if best is not None:
        short = [m for m in LOCAL if needed[m] is None and least[m] < best]
        ok = None if short else all(v >= best for v in least.values())
    words = ", ".join(f"{NAMES[m]} {rounds_in_words(r, curve(panel, m))}" for m, r in needed.items())
    there = [r for m in LOCAL if (r := needed[m]) is not None]
    margin = f" The next needs {min(there) / best:.2f} times the rounds of the best." if there and best else ""
    return Claim(
        "fig1a-ahead",
        "fig1a",
        f"No other tuned local method needs fewer rounds to {eps:g} than the better of Scaffnew and Scaffold.",
        judge(ok, asserted),
        f"Rounds to {eps:g}: {words}.{margin}",
        dict(needed),
        f"too few rounds to reach {eps:g}" if ok is None else "",
    )


def _exchanges(panel: Panel, asserted: bool, eps: float) -> Claim:
    found: dict[str, float | None] = {}
    ok: bool | None = True
    words = []
    for axis in ("exchanges", "floats"):
        ours = first_below(curve(panel, "scaffnew"), eps, axis)
        for m in TWICE:
            s = curve(panel, m)
            theirs = first_below(s, eps, axis)
            ratio = None if ours is None else at_least(s, eps, axis) / ours
            found[f"{m}.{axis}"] = ratio
            if ratio is not None:
                words.append(f"{NAMES[m]} {'' if theirs else 'more than '}{ratio:.2f} times the {axis}")
            if m == "fedlin":
                open_ = ratio is None or (theirs is None and ratio < 2)
                ok = None if open_ or ok is None else ok and ratio is not None and ratio >= 2
    return Claim(
        "fig1a-exchanges",
        "fig1a",
        f"To {eps:g} tuned FedLin needs at least twice the exchanges and twice the floats of tuned Scaffnew.",
        judge(ok, asserted),
        f"Compared with Scaffnew: {', '.join(words)}." if words else f"Scaffnew did not reach {eps:g}.",
        found,
        f"too few rounds to reach {eps:g}" if ok is None else "",
    )


def _biased(panel: Panel, asserted: bool, above: float = 1e-4) -> Claim:
    """No step size gets LocalGD near the solution; those that have settled did so the higher the larger they are."""
    ends = [(s, s.y[-1], value_at(s, s.x["rounds"][-1] / 2)) for s in panel.series]
    settled = [(s, end) for s, end, half in ends if half is not None and abs(end / half - 1) < 0.05]
    rising = all(a <= b * 1.001 for (_, a), (_, b) in pairwise(settled))
    ok = None if len(settled) < 2 else rising and all(end > above for _, end, _ in ends)
    words = ", ".join(f"{number(end)} at gamma L = {s.about['gamma_L']:.3g}" for s, end in settled)
    least = min(end for _, end, _ in ends)
    return Claim(
        "fig1a-biased",
        "fig1a",
        "LocalGD stalls at a biased point, the higher the larger its step size; smaller steps only get there later.",
        judge(ok, asserted),
        f"Settled (less than 5 % change over the second half of the run) at f - f* = {words}; no step size came below "
        f"{number(least)}."
        if settled
        else f"No step size came below {number(least)}.",
        {f"gamma_L={s.about['gamma_L']:.4g}": end for s, end, _ in ends},
        "the runs are too short to have settled" if ok is None else "",
    )


# -- Figure 2 ----------------------------------------------------------------------------------------------------------
def floor(s: Series) -> float:
    """The median of the curve over the last third of its rounds."""
    end = s.x["rounds"][-1]
    return statistics.median(y for x, y in zip(s.x["rounds"], s.y, strict=True) if 3 * x >= 2 * end)


def fig2_ends(experiment: Experiment) -> list[Claim]:
    """Where each method stands at the end: nothing is promised."""
    out = []
    for panel in experiment.panels:
        ends = {s.method: s.y[-1] for s in panel.series}
        rounds = min(s.x["rounds"][-1] for s in panel.series)
        words = ", ".join(f"{NAMES[m]} {number(v)}" for m, v in ends.items())
        id = f"{experiment.id}-{panel.id}"
        text = f"Where the methods stand with {panel.title}."
        measured = f"f - f* after {rounds:.0f} rounds with {panel.title}: {words}."
        out.append(Claim(id, experiment.id, text, "REPORTED", measured, dict(ends)))
    return out


def fig2c(experiment: Experiment, asserted: bool) -> list[Claim]:
    """More clients, less noise, as long as each brings a batch of its own."""
    floors = {s.about["M"]: floor(s) for s in panel_of(experiment, "constant").series}
    total = {s.about["M"]: floor(s) for s in panel_of(experiment, "total").series}
    settled = all(_settled(s) for s in panel_of(experiment, "constant").series)
    falls = all(a > b for a, b in pairwise(floors.values()))
    words = ", ".join(f"M = {M}: {number(v)}" for M, v in floors.items())
    other = ", ".join(f"M = {M}: {number(v)}" for M, v in total.items())
    return [
        Claim(
            "fig2c-floor",
            "fig2c",
            "With a fixed batch a client the noise floor falls as the number M of clients grows.",
            judge(falls if settled else None, asserted),
            f"Noise floors: {words}.",
            {f"M={M}": v for M, v in floors.items()},
            "" if settled else "the runs are too short to have reached their floors",
        ),
        Claim(
            "fig2c-total",
            "fig2c",
            "The fall is confounded: the sampled share of the data grows with M. With the total batch held fixed:",
            "REPORTED",
            f"noise floors {other}.",
            {f"M={M}": v for M, v in total.items()},
        ),
    ]


def _settled(s: Series) -> bool:
    """The median curve has stopped falling: the last sixth is not 20 % below the sixth before it."""
    end = s.x["rounds"][-1]
    last = [y for x, y in zip(s.x["rounds"], s.y, strict=True) if 6 * x >= 5 * end]
    before = [y for x, y in zip(s.x["rounds"], s.y, strict=True) if 4 * end <= 6 * x < 5 * end]
    return bool(last and before) and statistics.median(last) > 0.8 * statistics.median(before)
