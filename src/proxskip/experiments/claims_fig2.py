"""The claims about Figures 2a, 2b and 2c, judged from their curves alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from proxskip.experiments.claims import claim, number, panel_of
from proxskip.report.figures import Claim, Experiment, Series
from proxskip.report.method_styles import title

MAX_FLOOR_RATIO = 0.8
"""A noise floor counts as lower if it is at most this share of the one before it."""


def floor(s: Series) -> float:
    """The median of the curve over the last third of its rounds."""
    end = s.x["rounds"][-1]
    return statistics.median(y for x, y in zip(s.x["rounds"], s.y, strict=True) if 3 * x >= 2 * end)


def fig2_ends(experiment: Experiment, ahead: str = "") -> list[Claim]:
    """The final f - f* of each method, and whether ``ahead`` is the best of them: reported only."""
    out = []
    for panel in experiment.panels:
        ends = {s.method: s.y[-1] for s in panel.series}
        rounds = min(s.x["rounds"][-1] for s in panel.series)
        words = ", ".join(f"{title(m)} {number(v)}" for m, v in ends.items())
        id = f"{experiment.id}-{panel.id}"
        text = f"The final f - f* of each method with {panel.title}."
        holds = None
        if ahead:
            text = f"{title(ahead)} is ahead of the others with {panel.title}."
            holds = all(ends[ahead] < v for m, v in ends.items() if m != ahead)
        measured = f"f - f* after {rounds:.0f} rounds with {panel.title}: {words}."
        out.append(Claim(id, experiment.id, text, "REPORTED", measured, dict(ends), holds=holds))
    return out


def fig2c(experiment: Experiment, asserted: bool) -> list[Claim]:
    """More clients mean less noise, as long as each has a batch of its own."""
    drawn = panel_of(experiment, "constant").series
    floors = {s.about["M"]: floor(s) for s in drawn}
    total = {s.about["M"]: floor(s) for s in panel_of(experiment, "total").series}
    pairs = [_lower(a, b) for a, b in pairwise(drawn)]
    falls = False if False in pairs else None if None in pairs else True
    text = "With a fixed batch per client, the noise floor falls as the number M of clients grows."
    short = "the runs are too short to have reached their floors"
    why = "With a fixed total batch, the sampled share of the data does not grow with M."
    seen = f"With a fixed total batch, the noise floors are {_by_clients(total)}."
    return [
        claim("fig2c-floor", text, falls, f"Noise floors: {_by_clients(floors)}.", _keys(floors), asserted, "", short),
        _speedup(panel_of(experiment, "decaying").series),
        Claim("fig2c-total", "fig2c", why, "REPORTED", seen, _keys(total)),
    ]


def _by_clients(values: Mapping[int, float]) -> str:
    return ", ".join(f"M = {M}: {number(v)}" for M, v in values.items())


def _keys(values: Mapping[int, float]) -> dict[str, float | None]:
    return {f"M={M}": v for M, v in values.items()}


def _speedup(drawn: Sequence[Series]) -> Claim:
    """The speedup that the paper sees in its figure, in the paper's own setting."""
    ends = {s.about["M"]: s.y[-1] for s in drawn}
    few, many = min(ends), max(ends)
    gain, rounds = ends[few] / ends[many], min(s.x["rounds"][-1] for s in drawn)
    text = "With a decaying step and a fixed batch per client the speedup is linear in M, as the paper says."
    measured = f"f - f* after {rounds:.0f} rounds: {_by_clients(ends)}. The value for M = {few} is {gain:.2f} times "
    measured += f"that for M = {many}; a linear speedup would give {many / few:g}."
    return claim("fig2c-speedup", text, gain >= 0.5 * many / few, measured, _keys(ends), asserted=False)


def _lower(a: Series, b: Series) -> bool | None:
    """Whether b's floor is a fifth below a's; None if a curve still falls, because it could end lower."""
    if not (floor(a) >= 0 and floor(b) >= 0):
        return False
    below = floor(b) < MAX_FLOOR_RATIO * floor(a)
    return None if not _settled(a if below else b) else below


def _settled(s: Series) -> bool:
    """Whether the median curve has stopped falling: its last sixth is not 20 % below the sixth before."""
    end = s.x["rounds"][-1]
    last = [y for x, y in zip(s.x["rounds"], s.y, strict=True) if 6 * x >= 5 * end]
    before = [y for x, y in zip(s.x["rounds"], s.y, strict=True) if 4 * end <= 6 * x < 5 * end]
    return bool(last and before) and statistics.median(last) > 0.8 * statistics.median(before)
