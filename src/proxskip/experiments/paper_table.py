"""Table 1 of the ProxSkip paper with numbers.

"The paper" is Mishchenko, Malinovsky, Stich, Richtarik: "ProxSkip: Yes! Local Gradient Steps Provably Lead to
Communication Acceleration! Finally!", ICML 2022 (arXiv 2202.09357).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from proxskip.theory import ROUNDING, accuracy, kappa, nonnegative, ordered, probability, whole

# -- Table 1 -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table1Row:
    """One method of Table 1. Floats are those that a client sends; a number is None if its input was not given.

    Args:
        better_than_gd: whether ``rounds`` is smaller than GD's here; never for a rate that is not linear.
        paper_better: the mark in the paper's last column; None for a method that is not in its table.
    """

    method: str
    local_steps: float
    floats_formula: str
    floats_per_round: float | None
    step_formula: str
    step: float
    linear: bool
    rounds_formula: str
    rounds: float | None
    better_than_gd: bool | None
    paper_better: bool | None
    exchanges_per_round: float
    total_floats: float | None


def _row(
    gd_rounds: float,
    d: int | None,
    method: str,
    local_steps: float,
    step: tuple[str, float],
    rounds: tuple[str, float | None],
    floats: tuple[str, float] = ("d", 1.0),
    exchanges: float = 1.0,
    linear: bool = True,
    paper_better: bool | None = False,
) -> Table1Row:
    """One row from (formula, value) pairs; the value of ``floats`` is in units of d."""
    sent = None if d is None else floats[1] * d
    total = None if sent is None or rounds[1] is None else sent * rounds[1]
    better = None if rounds[1] is None else linear and rounds[1] < gd_rounds * (1 - ROUNDING)
    return Table1Row(
        method, local_steps, floats[0], sent, *step, linear, *rounds, better, paper_better, exchanges, total
    )


def table1(
    L: float,
    mu: float,
    eps: float,
    n: int,
    d: int | None = None,
    G2: float | None = None,
    K: int | None = None,
    p: float | None = None,
    q: float | None = None,
) -> list[Table1Row]:
    """Table 1 of the paper with numbers, a row for accelerated GD, and one for Scaffnew at ``p`` if given.

    K is the number of local steps, sqrt(kappa) rounded as in the paper's experiments unless given. G2 is
    (1/n) sum_i |grad f_i(x*)|^2. q is the probability with which S-Local-GD refreshes its anchor, at the cost
    of a second vector and a second exchange; unless given, the upper end q = 1 is counted.

    The rounds are the expressions inside the table's O, with the logarithm that its O~ hides and constant 1. What that
    leaves out: FedLin's theorem needs 6 kappa log(1/eps) rounds; Scaffold's step 1/(81 K L) costs a factor of the order
    of 81, and its theorem adds n/cohort to kappa; S-Local-GD's is not known here. LocalGD's row keeps only the term
    with G (None when G2 is 0), its eps an absolute error of f where the others' is relative; it never counts as better
    than GD, since with step 1/(K L) a round forgets x0 no faster than a round of GD, the term that the table drops. For
    GD (squared distance), accelerated GD (f - f* plus a squared distance) and Scaffnew (E Psi) the constant 1 is the
    theorem's, and the table's p kappa + 1/p is max(p kappa, 1/p) as in section 3.5.
    """
    k, log = kappa(L, mu), math.log(1 / accuracy(eps))
    L, mu = ordered(L, mu)
    n, root = whole("n", n), math.sqrt(k)
    K = max(1, round(root)) if K is None else whole("K", K)
    width = None if d is None else whole("d", d)
    # without heterogeneity the term with G vanishes
    drift = None if G2 is None or nonnegative("G2", G2) == 0 else G2 / (mu * n * K * eps)
    extra = 1.0 if q is None else probability("q", q)

    row = partial(_row, k * log, width)
    one, local = ("1/L", 1 / L), ("1/(K L)", 1 / (K * L))
    slow = ("kappa log(1/eps)", k * log)
    shared = ("d < # < 2d, 2d counted" if q is None else "(1 + q) d", 1 + extra)
    rows = [
        row("GD", 1, one, slow),
        row("accelerated GD", 1, one, ("sqrt(kappa) log(1/eps)", root * log), paper_better=None),
        row("LocalGD", K, local, ("G^2/(mu n K eps)", drift), linear=False),
        row("Scaffold", K, local, slow, ("2d, d with option II and everybody, 2d counted", 2.0)),
        row("S-Local-GD", K, local, slow, shared, 1 + extra),
        row("FedLin", K, local, slow, ("2d", 2.0), 2.0),
    ]
    if p is not None:
        p, formula = probability("p", p), "max(p kappa, 1/p) log(1/eps)"
        # the paper marks Scaffnew for p in (1/kappa, 1)
        mark = 1 / k < p < 1
        rows.append(row(f"Scaffnew, p = {p:g}", 1 / p, one, (formula, max(p * k, 1 / p) * log), paper_better=mark))
    best = ("sqrt(kappa) log(1/eps)", root * log)
    return [*rows, row("Scaffnew, p = 1/sqrt(kappa)", root, one, best, paper_better=True)]
