"""Table 1 of the ProxSkip paper with numbers, and the step sizes of its methods.

"The paper" is Mishchenko, Malinovsky, Stich, Richtarik: "ProxSkip: Yes! Local Gradient Steps Provably Lead to
Communication Acceleration! Finally!", ICML 2022 (arXiv 2202.09357).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from proxskip.theory import ROUNDING, accuracy, kappa, nonnegative, ordered, positive, probability, tracking_step, whole
from proxskip.types import InputError

# -- Nesterov's method, the other way to sqrt(kappa) ---------------------------------------------------------


def nesterov_momentum(L: float, mu: float | None) -> float:
    """``beta = (sqrt(kappa) - 1)/(sqrt(kappa) + 1)`` for x+ = y - gamma grad f(y), y+ = x+ + beta (x+ - x).

    Nesterov, "Lectures on Convex Optimization", 2018, section 2.2: with gamma = 1/L, f - f* plus mu/2 times a
    squared distance contracts by 1 - 1/sqrt(kappa) per iteration.
    """
    root = math.sqrt(kappa(L, mu))
    return (root - 1) / (root + 1)


def nesterov_zeta(L: float, mu: float | None) -> float:
    """``1/sqrt(kappa)``: the contraction per iteration proved for ``nesterov_momentum`` and gamma = 1/L."""
    return 1 / math.sqrt(kappa(L, mu))


def nesterov_limit(L: float, beta: float) -> float:
    """``(2 + 2 beta)/((1 + 2 beta) L)``: the exact end of stability of constant momentum on quadratics.

    Along an eigenvalue l the iteration has the polynomial z^2 - s(1 + beta) z + s beta with s = 1 - gamma l;
    by Jury's test its roots lie inside the unit circle iff -1/(1 + 2 beta) < s < 1. The limit is 2/L for
    beta = 0 and falls to 4/(3L) for beta = 1.
    """
    if not 0 <= beta <= 1:
        raise InputError(f"beta = {beta:g} must lie in [0, 1].")
    return (2 + 2 * beta) / ((1 + 2 * beta) * positive("L", L))


# -- step sizes of every method ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What is known about a method's step size gamma.

    Args:
        theorem: the largest with a proof we can cite; None where we can cite none.
        figure: the one behind the paper's Figure 1b and Table 1.
        warn_above: larger ones run with a warning.
        refuse_at: this and larger ones are refused unless the caller insists.
        source: where ``theorem`` comes from, and what is only measured.
    """

    theorem: float | None
    figure: float
    warn_above: float
    refuse_at: float
    source: str


@dataclass(frozen=True, slots=True)
class _Setting:
    L: float
    K: int
    p: float
    eta_g: float
    mu: float | None
    share: float
    lmax: float
    sigma: float


def _one_over_L(source: str) -> Callable[[_Setting], StepLimits]:
    return lambda s: StepLimits(1 / s.L, 1 / s.L, 1 / s.L, 2 / s.L, source)


def _accelerated(s: _Setting) -> StepLimits:
    beta = 1.0 if s.mu is None else nesterov_momentum(s.L, s.mu)
    source = "Nesterov, Lectures on Convex Optimization, 2018; refused where quadratics diverge"
    return StepLimits(1 / s.L, 1 / s.L, 1 / s.L, nesterov_limit(s.L, beta), source)


def _fista(s: _Setting) -> StepLimits:
    source = "Beck, Teboulle, FISTA, 2009; refused where momentum near one diverges on quadratics"
    return StepLimits(1 / s.L, 1 / s.L, 1 / s.L, nesterov_limit(s.L, 1.0), source)


def _local_gd(s: _Setting) -> StepLimits:
    theorem = 1 / (4 * s.L) if s.K == 1 else min(1 / (4 * s.L), 1 / (8 * s.L * (s.K - 1)))
    source = "Khaled, Mishchenko, Richtarik, Tighter Theory for Local SGD on Identical and Heterogeneous Data, "
    source += "AISTATS 2020 (convergence to a neighbourhood only)"
    return StepLimits(theorem, 1 / (s.K * s.L), 1 / s.L, 2 / s.L, source)


def _scaffold(s: _Setting) -> StepLimits:
    theorem = 1 / (81 * s.K * s.L * s.eta_g)
    if s.mu is not None:
        theorem = min(theorem, s.share / (15 * s.mu * s.K * s.eta_g))
    figure = 1 / (s.K * s.L * s.eta_g)
    source = "Karimireddy et al., SCAFFOLD, ICML 2020; the figure's step converges when measured, without proof"
    return StepLimits(theorem, figure, min(figure, 1 / s.L), 2 / s.L, source)


def _fedlin(s: _Setting) -> StepLimits:
    figure = 1 / (s.K * s.L)
    source = "Mitra, Jaafar, Pappas, Hassani, Linear Convergence in Federated Learning (FedLin), NeurIPS 2021: "
    source += "f - f* contracts by 1 - 1/(6 kappa) a round; the figure's step converges when measured, unproved"
    return StepLimits(figure / 6, figure, figure, 2 / s.L, source)


def _s_local_gd(s: _Setting) -> StepLimits:
    source = "Gorbunov, Hanzely, Richtarik, Local SGD: Unified Theory and New Efficient Methods, AISTATS 2021, "
    source += "prove linear convergence for gamma of order p/L, their constant is not given here; "
    source += "gamma = p/L and p/(4L) converge when measured, without proof"
    return StepLimits(None, s.p / s.L, s.p / s.L, 2 / s.L, source)


def _diging(s: _Setting) -> StepLimits:
    theorem = None if s.mu is None else tracking_step(s.L, s.mu, s.sigma)
    end = min(2.0, (2 - s.lmax) ** 2 / 2) / s.L
    source = "Qu and Li, Harnessing smoothness to accelerate distributed optimization, 2018, the best proved rate; "
    source += "refused where equal quadratics diverge, which is exact: (2 - lmax)^2/(2 L)"
    usual = end / 2 if theorem is None else theorem
    return StepLimits(theorem, usual, usual, end, source)


def _extra(s: _Setting) -> StepLimits:
    bound, end = (2 - s.lmax) / s.L, min(2.0, (8 - 3 * s.lmax) / 4) / s.L
    source = "Shi, Ling, Wu, Yin, EXTRA, SIAM J. Optim. 2015, Theorem 3.3: below 2 lmin((I + W)/2)/L = (2 - lmax)/L; "
    source += "refused where equal quadratics diverge, which is exact: (8 - 3 lmax)/(4 L)"
    return StepLimits(bound, bound, bound, end, source)


_PAPER = "Mishchenko, Malinovsky, Stich, Richtarik, ProxSkip, ICML 2022, "
_LIMITS: dict[str, Callable[[_Setting], StepLimits]] = {
    "gd": _one_over_L("Nesterov, Lectures on Convex Optimization, 2018; linear for every step below 2/L"),
    "proxgd": _one_over_L("Nesterov, Gradient Methods for Minimizing Composite Functions, 2013"),
    "proxskip": _one_over_L(_PAPER + "Theorem 3.6"),
    "scaffnew": _one_over_L(_PAPER + "Theorem 3.6 and Corollary 4.2 with L = max_i L_i"),
    "splitskip": _one_over_L(_PAPER + "Theorem D.1"),
    "decentralized": _one_over_L(_PAPER + "Theorem 5.7"),
    "tamuna": _one_over_L("Condat, Agarsky, Malinovsky, Richtarik, TAMUNA, 2023; see theory.tamuna_zeta"),
    "accelerated": _accelerated,
    "fista": _fista,
    "localgd": _local_gd,
    "scaffold": _scaffold,
    "fedlin": _fedlin,
    "slocalgd": _s_local_gd,
    "diging": _diging,
    "extra": _extra,
}
_OTHER_NAMES = {
    "acceleratedgd": "accelerated",
    "decentralizedscaffnew": "decentralized",
    "localsgd": "localgd",
    "sproxskip": "proxskip",
}


def step_limits(
    method: str,
    L: float,
    K: int = 1,
    p: float = 1.0,
    eta_g: float = 1.0,
    mu: float | None = None,
    n: int = 1,
    cohort: int | None = None,
    lmax: float = 1.0,
    sigma: float = 0.0,
) -> StepLimits:
    """The step sizes of one method by its name: "GD", "S-Local-GD", ... in any case, with or without hyphens.

    K is the number of local steps of LocalGD, Scaffold and FedLin (one call per client where it differs), p
    belongs to S-Local-GD, eta_g and cohort (of n) to Scaffold, mu to Scaffold's cohorts and to the
    accelerated method (without it the limit for every mu). For Scaffold gamma is the local step. lmax, the largest
    eigenvalue of I - W, and sigma, the second largest modulus of an eigenvalue of W, belong to EXTRA and DIGing.

    Proved for S-Local-GD: linear convergence with gamma of order p/L. Only measured: that p/L and p/(4L) are
    small enough. So its ``theorem`` is None.
    """
    plain = "".join(letter for letter in method.lower() if letter.isalnum())
    name = _OTHER_NAMES.get(plain, plain)
    if name not in _LIMITS:
        raise InputError(f"no step sizes are known for {method!r}; known are {', '.join(sorted(_LIMITS))}.")
    n, cohort = whole("n", n), whole("cohort", n if cohort is None else cohort)
    if cohort > n:
        raise InputError(f"a cohort of {cohort} is larger than n = {n} clients.")
    L, mu = (positive("L", L), None) if mu is None or mu == 0 else ordered(L, mu)
    K, p, eta_g = whole("K", K), probability("p", p), positive("eta_g", eta_g)
    if lmax >= 2 * (1 - 1e-9) and name in ("diging", "extra"):
        raise InputError(f"{method} needs every eigenvalue of W above -1; take (I + W)/2 (psd).")
    return _LIMITS[name](_Setting(L, K, p, eta_g, mu, cohort / n, lmax, sigma))


def check_step(
    method: str, gamma: float, limits: StepLimits, L: float | None = None, insist: bool = False
) -> list[str]:
    """Refuse gamma at or above ``refuse_at`` unless the caller insists; return a warning where one is due.

    L only serves the sentence, which then also says how many 1/L gamma is.
    """
    gamma = positive("gamma", gamma)
    digits = "g" if f"{gamma:g}" != f"{limits.warn_above:g}" else ".17g"
    given = f"gamma = {gamma:{digits}}" + ("" if L is None else f" = {gamma * positive('L', L):.3g}/L")
    if gamma >= limits.refuse_at and not insist:
        raise InputError(
            f"{given} is not below {limits.refuse_at:g}, from where on {method} can diverge; "
            f"take {limits.figure:g}, or allow an unsafe step (allow_unsafe_step, --allow-unsafe-step)."
        )
    if gamma > limits.warn_above:
        return [f"{given} is above {limits.warn_above:{digits}}, up to where {method} is known to work."]
    return []


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
    mu: float | None,
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

    The rounds are the expressions inside the table's O, with the logarithm that its O~ hides and constant 1.
    What that leaves out: FedLin's theorem needs 6 kappa log(1/eps) rounds; Scaffold's step 1/(81 K L) costs a
    factor of the order of 81, and its theorem adds n/cohort to kappa; S-Local-GD's is not known here.
    LocalGD's row keeps only the term with G (None when G2 is 0), its eps an absolute error of f where the
    others' is relative; it never counts as better than GD, since with step 1/(K L) a round forgets x0 no
    faster than a round of GD, the term that the table drops. For GD (squared distance), accelerated GD
    (f - f* plus a squared distance) and Scaffnew (E Psi) the constant 1 is the theorem's, and the table's
    p kappa + 1/p is max(p kappa, 1/p) as in section 3.5.
    """
    k, log = kappa(L, mu), math.log(1 / accuracy(eps))
    L, mu = ordered(L, mu)
    n, root = whole("n", n), math.sqrt(k)
    K = max(1, round(root)) if K is None else whole("K", K)
    width = None if d is None else whole("d", d)
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
        mark = 1 / k < p < 1
        rows.append(row(f"Scaffnew, p = {p:g}", 1 / p, one, (formula, max(p * k, 1 / p) * log), paper_better=mark))
    best = ("sqrt(kappa) log(1/eps)", root * log)
    return [*rows, row("Scaffnew, p = 1/sqrt(kappa)", root, one, best, paper_better=True)]
