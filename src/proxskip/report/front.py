"""The top of the page: a headline that is computed from this run, the score of the claims, and links to the paper."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from proxskip.report.figures import Claim, Experiment, Panel, ReproductionReport, Series
from proxskip.report.safe_html import number, text

PAPER = "https://arxiv.org/abs/2202.09357"
SECTIONS = "https://ar5iv.labs.arxiv.org/html/2202.09357"
"""The paper as a web page, whose sections have anchors."""
WHERE = {
    "fig1a": ("S6", "Section 6, Figure 1"),
    "fig1b": ("S6", "Section 6, Figure 1"),
    "fig1c": ("S6", "Section 6, Figure 1"),
    "fig2a": ("S6", "Section 6, Figure 2"),
    "fig2b": ("S6", "Section 6, Figure 2"),
    "fig2c": ("S6", "Section 6, Figure 2"),
    "table1": ("S1", "Section 1, Table 1"),
    "skipping": ("S3.SS5", "Section 3.5"),
    "lyapunov": ("S3.SS4", "Section 3.4, Theorem 3.6"),
    "decentralized": ("S5.SS2", "Section 5.2"),
}
"""Where the paper speaks of an experiment: the anchor, and its name."""
LEVELS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def hero(experiments: Sequence[Experiment]) -> tuple[int, int] | None:
    """The panel for the top: the first one of Figure 1b."""
    return next(((k, 0) for k, e in enumerate(experiments) if e.id == "fig1b" and e.panels), None)


def headline(report: ReproductionReport) -> str:
    """One sentence: the race of Figure 1b in this run, or the score if it was not run."""
    at = hero(report.experiments)
    panel = report.experiments[at[0]].panels[at[1]] if at else None
    curves = {s.method: s for s in panel.series} if panel else {}
    ours, other = curves.get("scaffnew"), curves.get("gd")
    if panel is None or ours is None or other is None or "rounds" not in ours.x:
        return score(report.claims)
    level = next((v for v in LEVELS if _first(ours, v) is not None), None)
    if level is None:
        return score(report.claims)
    mine, theirs = _first(ours, level), _first(other, level)
    start = f"Scaffnew reaches {_below(panel)} {number(level)} after {number(mine or 0.0)} communication rounds"
    if theirs is not None:
        return f"{start}, gradient descent after {number(theirs)}."
    left = next((v for v in reversed(other.y) if v is not None and math.isfinite(v)), math.nan)
    return f"{start}; gradient descent is still at {number(left)} after {number(other.x['rounds'][-1])}."


def _below(panel: Panel) -> str:
    return "f - f* =" if panel.y_label.startswith("f(") else "an error of"


def _first(s: Series, level: float) -> float | None:
    """The first round at which a curve is at the level or below."""
    pairs = zip(s.x.get("rounds", []), s.y, strict=False)
    return next((x for x, y in pairs if y is not None and math.isfinite(y) and y <= level), None)


def score(claims: Sequence[Claim]) -> str:
    """How many claims there are, and how many hold by a number of this run."""
    words = {
        "PASS": "pass",
        "FAIL": "fail",
        "REPORTED": "are reported",
        "INCONCLUSIVE": "are inconclusive",
        "NOT RUN": "were not run",
    }
    counted = [f"{n} {word}" for v, word in words.items() if (n := sum(c.verdict == v for c in claims))]
    return f"Of {len(claims)} claims, {', '.join(counted)}." if counted else ""


def paper_link(e: Experiment) -> str:
    """A link to the part of the paper that an experiment is about."""
    anchor, name = WHERE.get(e.id, ("", ""))
    return f'<a class="paper" href="{SECTIONS}#{anchor}" rel="noreferrer">{text(name)} of the paper</a>' if name else ""


def downloads(e: Experiment) -> str:
    """Links to the files beside the page, if the id makes plain file names."""
    if not e.panels or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", e.id):
        return ""
    links = "".join(f'<a href="figures/{e.id}.{kind}" download>{kind.upper()}</a>' for kind in ("svg", "pdf", "csv"))
    return f'<span class="files">Download {links}</span>'
