"""The claims about Figures 2a, 2b and 2c, judged from their curves alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from proxskip.experiments.claims import judge, number, panel_of
from proxskip.report.figures import Claim, Experiment, Series
from proxskip.report.plots import NAMES

CLEARLY = 0.8
"""What a floor is at most, as a share of the one before it."""


def floor(s: Series) -> float:
    """The median of the curve over the last third of its rounds."""
    end = s.x["rounds"][-1]
    return statistics.median(y for x, y in zip(s.x["rounds"], s.y, strict=True) if 3 * x >= 2 * end)


def fig2_ends(experiment: Experiment, ahead: str = "") -> list[Claim]:
    """Where each method stands at the end, and whether one is ahead of all others: nothing is promised."""
    out = []
    for panel in experiment.panels:
        ends = {s.method: s.y[-1] for s in panel.series}
        rounds = min(s.x["rounds"][-1] for s in panel.series)
        words = ", ".join(f"{NAMES[m]} {number(v)}" for m, v in ends.items())
        id = f"{experiment.id}-{panel.id}"
        text = f"Where the methods stand with {panel.title}."
        holds = None
        if ahead:
            text = f"{NAMES[ahead]} is ahead of the others with {panel.title}."
            holds = all(ends[ahead] < v for m, v in ends.items() if m != ahead)
        measured = f"f - f* after {rounds:.0f} rounds with {panel.title}: {words}."
        out.append(Claim(id, experiment.id, text, "REPORTED", measured, dict(ends), holds=holds))
    return out


def fig2c(experiment: Experiment, asserted: bool) -> list[Claim]:
    """More clients, less noise, as long as each brings a batch of its own."""
    drawn = panel_of(experiment, "constant").series
    floors = {s.about["M"]: floor(s) for s in drawn}
    total = {s.about["M"]: floor(s) for s in panel_of(experiment, "total").series}
    pairs = [_lower(a, b) for a, b in pairwise(drawn)]
    falls = False if False in pairs else None if None in pairs else True
    words = ", ".join(f"M = {M}: {number(v)}" for M, v in floors.items())
    other = ", ".join(f"M = {M}: {number(v)}" for M, v in total.items())
    return [
        Claim(
            "fig2c-floor",
            "fig2c",
            "With a fixed batch a client the noise floor falls as the number M of clients grows.",
            judge(falls, asserted),
            f"Noise floors: {words}.",
            {f"M={M}": v for M, v in floors.items()},
            "the runs are too short to have reached their floors" if falls is None else "",
            falls,
        ),
        _speedup(panel_of(experiment, "decaying").series),
        Claim(
            "fig2c-total",
            "fig2c",
            "The fall is confounded: the sampled share of the data grows with M.",
            "REPORTED",
            f"With the total batch held fixed the noise floors are {other}.",
            {f"M={M}": v for M, v in total.items()},
        ),
    ]


def _speedup(drawn: Sequence[Series]) -> Claim:
    """What the paper reads off its figure, in its own setting."""
    ends = {s.about["M"]: s.y[-1] for s in drawn}
    few, many = min(ends), max(ends)
    gain, rounds = ends[few] / ends[many], min(s.x["rounds"][-1] for s in drawn)
    words = ", ".join(f"M = {M}: {number(v)}" for M, v in ends.items())
    return Claim(
        "fig2c-speedup",
        "fig2c",
        "The speedup is linear in M, as the paper says of its figure: a decaying step and a fixed batch a client.",
        "REPORTED",
        f"f - f* after {rounds:.0f} rounds: {words}. That of M = {few} is {gain:.2f} times that of M = {many}; "
        f"{many / few:g} times would be linear.",
        {f"M={M}": v for M, v in ends.items()},
        "it is seen" if gain >= 0.5 * many / few else "it is not seen",
    )


def _lower(a: Series, b: Series) -> bool | None:
    """Whether b's floor is a fifth below a's; a curve that still falls can only end lower than it is."""
    if not (floor(a) >= 0 and floor(b) >= 0):
        return False
    below = floor(b) < CLEARLY * floor(a)
    return None if not _settled(a if below else b) else below


def _settled(s: Series) -> bool:
    """The median curve has stopped falling: the last sixth is not 20 % below the sixth before it."""
    end = s.x["rounds"][-1]
    last = [y for x, y in zip(s.x["rounds"], s.y, strict=True) if 6 * x >= 5 * end]
    before = [y for x, y in zip(s.x["rounds"], s.y, strict=True) if 4 * end <= 6 * x < 5 * end]
    return bool(last and before) and statistics.median(last) > 0.8 * statistics.median(before)
