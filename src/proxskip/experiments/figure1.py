"""Figure 1 of the paper: full gradients, with tuned and theoretical step sizes, and with different p."""

from __future__ import annotations

import math
from collections.abc import Sequence

from proxskip.experiments import claims
from proxskip.experiments.bench import Bench
from proxskip.experiments.curves import Curve, Curves, Flags, curve, panel_and_table, rounds_against
from proxskip.experiments.figures import Parts, figure
from proxskip.report.figures import first_below

PAPER = ("w8a",)
"""The data of the paper's claims."""
LAMBDA: Flags = {"l2_relative": 1e-4}
OF_THE_FIGURES: Flags = {**LAMBDA, "smoothness": "average"}
"""The figures take 1/L with the L of the average."""


@figure(
    "Figure 1a: full gradients, tuned step sizes",
    shows="Of the tuned local methods, Scaffnew or Scaffold needs the fewest rounds, and the two need about as many.",
    notes="""
        The candidates that survive the tuning run to the end; the one with the fewest rounds to eps is shown
        (if none reaches eps, the one with the smallest f - f*).

        FedLin communicates twice per round, and so does S-Local-GD whenever it refreshes its anchor (always,
        with q = 1). Switch the axis to exchanges to see what that costs.

        Without cohorts and with a global step size of one, Scaffold (option II) is Scaffnew with a fixed number
        of local steps.

        S-Local-GD in the authors' notebook draws a geometric number of local steps and then runs a fixed
        number, which is FedLin. Here S-Local-GD is run as published.

        The methods are tuned for rounds; a larger K costs more gradients per round. Switch the axis to passes
        to see it.

        Gradient descent and its accelerated form take no local steps: their candidates differ in the step size
        only, so there are fewer of them.

        Where the winner lies at an end of the grid, the grid grows by the next step size or number of local
        steps, until the next candidate is worse or diverges.

        The winners are found with one seed. Scaffnew and S-Local-GD draw their local steps: their lines are
        medians over the seeds of these coins, and the bands extend from the smallest to the largest value. A
        run that has arrived at its target counts as staying there.

        Rounds to eps are counted up to the first record of the median below eps; records are about 1 % apart.
    """,
    share=(2800, 16),
    quick={
        "powers": [-2, -1, 0, 1],
        "steps": [30, 100],
        "most_steps": 300,
        "rungs": [[8, 3], [30, 1]],
        "rounds": 150,
        "seeds": 3,
        "local_gd_rounds": 150,
        "eps": 1e-3,
        "promised_on": [],
        "tradeoff_steps": [0.0078125, 0.0625, 0.5],
        "tradeoff_rounds": 100,
    },
)
def fig1a(
    bench: Bench,
    powers: Sequence[int] = (-4, -3, -2, -1, 0, 1, 2, 3),
    steps: Sequence[int] = (30, 100, 300),
    most_steps: int = 3000,
    rungs: Sequence[Sequence[int]] = ([15, 6], [60, 2]),
    rounds: int = 400,
    seeds: int = 5,
    seeds_of_long_runs: int = 3,
    local_gd_rounds: int = 200,
    target: float = 1e-8,
    eps: float = 1e-6,
    promised_on: Sequence[str] = PAPER,
    tradeoff_steps: Sequence[float] = (0.015625, 0.0625, 0.25, 0.5, 1),
    tradeoff_K: int = 100,
    tradeoff_rounds: int = 1000,
) -> Parts:
    """Each method with its best parameters, and the step sizes of LocalGD."""
    methods: list[str | Curve] = [
        curve("local-gd", rounds=local_gd_rounds),
        curve("scaffold", target=target),
        curve("fedlin", target=target),
        curve("s-local-gd", target=target, q=1.0),
        curve("scaffnew", target=target),
        "gd",
        "accelerated",
    ]
    best, grid = bench.tune(
        "tuned-grid", methods, powers=powers, steps=steps, most_steps=most_steps, rungs=rungs, eps=eps,
        rounds=rounds, **OF_THE_FIGURES,
    )  # fmt: skip
    tuned = bench.run(best, seeds=seeds, seeds_of_long_runs=seeds_of_long_runs)
    yield from panel_and_table("tuned", "each method with its best parameters of the grid", tuned, eps)
    yield grid
    yield from _tuned_methods_compared(tuned, eps, promised_on)
    yield from _step_sizes_of_local_gd(bench, tradeoff_steps, tradeoff_K, tradeoff_rounds, eps)
    yield bench.constants(**OF_THE_FIGURES)


def _tuned_methods_compared(tuned: Curves, eps: float, promised_on: Sequence[str]) -> Parts:
    """The claims of the paper on tuned methods."""
    local = [tuned["local-gd"], tuned["fedlin"], tuned["s-local-gd"]]
    ours, scaffold, fedlin = tuned["scaffnew"], tuned["scaffold"], tuned["fedlin"]
    yield claims.claim(
        "fig1a-ahead",
        f"No other tuned local method reaches {eps:g} in fewer rounds than the better of Scaffnew and Scaffold.",
        claims.ratio(local, [ours, scaffold], eps, at_least=1),
        promised_on,
    )
    yield claims.claim(
        "fig1a-alike",
        f"Tuned Scaffold and tuned Scaffnew reach {eps:g} within a factor of 1.5 of each other in rounds.",
        claims.ratio(scaffold, ours, eps, at_least=2 / 3, at_most=1.5),
        promised_on,
    )
    yield claims.claim(
        "fig1a-exchanges",
        f"To reach {eps:g}, tuned FedLin needs at least twice the exchanges and twice the floats of tuned Scaffnew.",
        claims.ratio(fedlin, ours, eps, at_least=2, axes=["exchanges", "floats"]),
        promised_on,
    )


def _step_sizes_of_local_gd(bench: Bench, steps: Sequence[float], K: int, rounds: int, eps: float) -> Parts:
    """LocalGD with a fixed number of local steps: how far each step size gets."""
    L = bench.smoothness(**OF_THE_FIGURES)
    curves = [curve("local-gd", f"gamma L = {times}", {"times": times}, gamma=times / L) for times in steps]
    drawn = bench.run(curves, K=K, rounds=rounds, **OF_THE_FIGURES)
    yield from panel_and_table("tradeoff", f"LocalGD, K = {K}, with different step sizes", drawn, eps)
    yield claims.claim(
        "fig1a-biased",
        "LocalGD stalls above 0.0001: the larger its step size, the higher it stalls; smaller steps only get there "
        "later.",
        claims.stalls_higher(drawn, value=1e-4),
        PAPER,
    )


@figure(
    "Figure 1b: full gradients, theoretical step sizes",
    shows="At the step sizes that theory allows, only Scaffnew gains from its local steps.",
    notes="""
        With L = global the step size 1/L is not covered by the corollary, which needs gamma <= 1/max_i L_i. The
        second panel stays within the theorems.

        Gradient descent depends on the average function only: its theoretical step size is 1/L with the L of
        the average.

        S-Local-GD in the authors' notebook draws a geometric number of local steps and then runs a fixed
        number, which is FedLin. Here S-Local-GD is run as published, so that one curve of the paper becomes
        two.

        FedLin communicates twice per round, and so does S-Local-GD with q = 1: see also the exchanges and the
        floats.

        The proofs' own constants are smaller than the figure's 1/(K L): 1/(81 K L) for Scaffold and 1/(6 K L)
        for FedLin; for S-Local-GD no constant is proved, and p/(4 L) is used.

        The authors' curve flattens near 8e-10: their clients differ by one row and are averaged without
        weights, while the plot shows the mean over all rows. Here the plotted function is the one that is
        minimized.
    """,
    share=(900, 14),
    quick={"rounds": 300, "theorem_rounds": 80},
)
def fig1b(
    bench: Bench,
    K: int = 100,
    p: float = 0.01,
    rounds: int = 2000,
    theorem_rounds: int = 500,
    target: float = 1e-10,
) -> Parts:
    """All methods with the figure's step sizes, and with those of the theorems."""
    # only the fast methods stop at the target: the figure is about the slow progress of the others
    fast = [curve("accelerated", target=target), curve("scaffnew", target=target)]
    methods: list[str | Curve] = ["local-gd", "scaffold", "fedlin", "s-local-gd", "gd", *fast]
    drawn = bench.run(methods, gamma="figure", K=K, p=p, rounds=rounds, **OF_THE_FIGURES)
    heading = "the figure's constants, L of the average"
    yield from panel_and_table("figure", heading, drawn)

    by_theorem = bench.run(methods, smoothness="max", rounds=theorem_rounds, **LAMBDA)
    heading = "the theorems' constants, L = max L_i"
    yield from panel_and_table("theorem", heading, by_theorem)
    yield bench.constants(smoothness="max", **LAMBDA)

    yield claims.claim(
        "fig1b-fast",
        "Scaffnew with gamma = 1/L and p = 1/100 reaches 1e-6 within 400 rounds.",
        claims.reaches(drawn["scaffnew"], 1e-6, within=400),
        PAPER,
    )
    yield claims.claim(
        "fig1b-slow",
        "LocalGD, Scaffold, FedLin and S-Local-GD at 1/(100 L) are still above 1e-3 after 2000 rounds.",
        claims.stays_above(drawn.of("local-gd", "scaffold", "fedlin", "s-local-gd"), 1e-3, after=2000),
        PAPER,
    )


@figure(
    "Figure 1c: Scaffnew with different p",
    shows="Communicating less often helps only as long as p is not far below 1/sqrt(kappa).",
    notes="""
        The theorem's best p for gamma = 1/L is sqrt(gamma mu) = 1/100; its rate is an upper bound, and the
        paper finds 1/300 best on w8a. (The paper prints 1/sqrt(gamma mu), which is a misprint.)

        The first seed of 1/p = 100 is the run of Figure 1b.

        The smallest p runs for 2.02 times the rounds that the best of the others needs to eps.

        Switch the axis to local steps or passes to see the cost in gradients.

        Lines are medians over the seeds of the coins; bands extend from the smallest to the largest value. A
        run that has arrived at its target counts as staying there. Runs that take more than about a minute have
        fewer seeds.

        Rounds to eps are counted up to the first record of the median below eps; records are about 1 % apart.
    """,
    share=(4000, 9),
    quick={
        "inverse_p": [3, 10, 30, 100, 300],
        "rounds": [600, 300, 300, 300, 100],
        "last_inverse_p": 1000,
        "last_rounds": 90,
        "eps": 1e-2,
        "promised_on": [],
        "seeds": 3,
    },
)
def fig1c(
    bench: Bench,
    inverse_p: Sequence[int] = (10, 30, 100, 300, 1000),
    rounds: Sequence[int] = (8000, 3000, 2000, 400, 400),
    last_inverse_p: int = 3000,
    last_rounds: int = 300,
    seeds: int = 5,
    seeds_of_long_runs: int = 3,
    target: float = 1e-10,
    eps: float = 1e-6,
    promised_on: Sequence[str] = PAPER,
) -> Parts:
    """Scaffnew with gamma = 1/L; the smallest p runs long enough to see that it is no better."""

    def run(inverse_p: Sequence[int], rounds: Sequence[int], limit: Sequence[int]) -> Curves:
        asked = [
            curve("scaffnew", f"1/p = {k}", {"inverse_p": k, "rounds": planned}, p=1 / k, rounds=at_most)
            for k, planned, at_most in zip(inverse_p, rounds, limit, strict=True)
        ]
        many: Flags = {"seeds": seeds, "seeds_of_long_runs": seeds_of_long_runs}
        return bench.run(asked, **many, gamma="figure", target=target, **OF_THE_FIGURES)

    first = run(inverse_p, rounds, rounds)
    arrived = [r for s in first if (r := first_below(s.x["rounds"], s.y, eps)) is not None]
    limit = math.ceil(2.02 * min(arrived)) if arrived else last_rounds
    drawn = first + run([last_inverse_p], [last_rounds], [limit])
    yield from panel_and_table("p", "gamma = 1/L", drawn, eps, costs=["rounds", "iterations"])
    yield from rounds_against("needed", drawn, eps, "inverse_p", "1/p, the mean number of local steps per round")
    yield bench.constants(**OF_THE_FIGURES)

    smallest, largest = drawn[0], drawn[-1]
    yield claims.claim(
        "fig1c-best",
        "The best 1/p is neither the smallest nor the largest.",
        claims.ratio([smallest, largest], drawn[1:-1], eps, above=1, without_divergence=True),
        promised_on,
    )
    yield claims.claim(
        "fig1c-ends",
        f"{smallest.label} and {largest.label} need at least twice as many rounds as the best to reach {eps:g}.",
        claims.ratio([smallest, largest], drawn, eps, at_least=2, without_divergence=True),
        promised_on,
    )
