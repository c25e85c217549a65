"""Figure 2 of the paper: minibatches, with tuned and theoretical step sizes, and with different numbers of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxskip.experiments import claims
from proxskip.experiments.bench import Bench
from proxskip.experiments.curves import Curve, Curves, Flags, curve, panel_and_table
from proxskip.experiments.figure1 import LAMBDA, OF_THE_FIGURES, PAPER
from proxskip.experiments.figures import Parts, figure

BATCH = 2000
"""Rows per client in the paper."""
SHARE = 0.4
"""Of the rows of the smallest client, where that has fewer than ``BATCH``."""
METHODS: list[str | Curve] = ["local-gd", "scaffold", "fedlin", "s-local-gd", "scaffnew"]


def batch_of(bench: Bench, **flags: Any) -> int:
    """The minibatch of a problem."""
    smallest = min(bench.problem(**flags).sizes or [0])
    return BATCH if smallest >= BATCH else max(1, int(SHARE * smallest))


@figure(
    "Figure 2a: minibatches, tuned step sizes",
    shows="Each method with minibatches and its best step size of the same grid, after the same number of rounds.",
    notes="""
        On the left the step size decreases with the round k like 1/(1/gamma + 50 lambda k), as in the authors'
        notebook, which no theorem covers; on the right it is constant. Tuned step sizes may exceed the limits
        of the theorems.

        Minibatches are drawn without replacement. The paper's 2000 rows per client are 80 % of the rows of a
        client of w8a; on small data sets 40 % of the rows of the smallest client are used.

        S-Local-GD and FedLin communicate twice per round: switch the axis to see it.

        Lines are medians over the seeds; bands extend from the smallest to the largest value.
    """,
    share=(420, 11),
    quick={"powers": [-2, -1, 0, 1], "rungs": [[10, 2], [20, 1]], "rounds": 40, "seeds": 2},
)
def fig2a(
    bench: Bench,
    K: int = 100,
    p: float = 0.01,
    powers: Sequence[int] = (-4, -3, -2, -1, 0, 1, 2, 3),
    rungs: Sequence[Sequence[int]] = ([8, 3], [25, 1]),
    rounds: int = 80,
    seeds: int = 3,
) -> Parts:
    """Each method with its best step size, which falls on the left and is constant on the right."""
    problem: Flags = {**OF_THE_FIGURES, "batch": batch_of(bench, **OF_THE_FIGURES)}

    def run(id: str, **decay: Any) -> tuple[Curves, Any]:
        best, grid = bench.tune(
            f"{id}-grid", METHODS, powers=powers, rungs=rungs, K=K, p=p, rounds=rounds, **problem, **decay
        )
        return bench.run(best, seeds=seeds), grid

    for id, heading, decay in (
        ("decaying", "a decaying step, as in the notebook", {"decay": "figure"}),
        ("constant", "a constant step", {}),
    ):
        drawn, grid = run(id, **decay)
        yield from panel_and_table(id, heading, drawn)
        yield grid
        text = f"The final f - f* of each method with {heading}."
        yield claims.claim(f"fig2a-{id}", text, claims.ends(drawn, heading))
    yield bench.constants(**problem)


@figure(
    "Figure 2b: minibatches, theoretical step sizes",
    shows="With minibatches and theoretical step sizes, Scaffnew is ahead.",
    notes="""
        On the left the figure's step sizes: 1/L_b for Scaffnew and 1/(100 L_b) for the others, decreasing with
        the round k like 1/(1/gamma + 50 lambda k); L_b is the minibatch smoothness with the L of the average.
        On the right the theorem's constant gamma = 1/A with p = sqrt(gamma mu); the other methods with the
        constants of their theorems.

        For minibatches without replacement, expected smoothness holds with A = 2 L_b and C = 2 sigma*^2; A =
        L_b with C = sigma*^2 is violated.

        Lines are medians over the seeds; bands extend from the smallest to the largest value.
    """,
    share=(380, 8),
    quick={"rounds": 50, "seeds": 2},
)
def fig2b(bench: Bench, K: int = 100, p: float = 0.01, rounds: int = 100, seeds: int = 3) -> Parts:
    """The figure's step sizes, which fall, and those of the theorems, which are constant."""
    batch = batch_of(bench, **LAMBDA)
    of_figure: Flags = {**OF_THE_FIGURES, "batch": batch}
    of_theorem: Flags = {**LAMBDA, "smoothness": "max", "batch": batch}
    L = bench.smoothness(**of_figure)
    # only for Scaffnew the step size is independent of the number of local steps
    methods = [*METHODS[:-1], curve("scaffnew", gamma=1 / L)]
    decaying = bench.run(methods, gamma=1 / (K * L), K=K, p=p, decay="figure", rounds=rounds, seeds=seeds, **of_figure)
    constant = bench.run(METHODS, rounds=rounds, seeds=seeds, **of_theorem)
    for id, heading, drawn in (
        ("decaying", "a decaying step, as in the notebook", decaying),
        ("constant", "a constant step, as in the theorem", constant),
    ):
        yield from panel_and_table(id, heading, drawn)
        text = f"Scaffnew is ahead of the others with {heading}."
        yield claims.claim(f"fig2b-{id}", text, claims.ends(drawn, heading, ahead=drawn["scaffnew"]), only_on=[])
    yield bench.constants(**of_theorem)


@figure(
    "Figure 2c: Scaffnew with minibatches and different numbers of clients",
    shows="The noise floor falls as clients are added, if each of them has its own batch.",
    notes="""
        The paper keeps the batch at 2000 rows per client. So the sampled share of the data grows with M (on w8a
        from 4 % to 80 %), and with it the total batch. In the third panel the total batch is fixed: the clients
        share the batch of one client.

        The constant step size is 1/L_b with the L of the average, the first step size of the notebook; the
        theorem's step size 1/A is smaller (A and L_b are among the parameters), and Figure 2b uses it. With a
        fixed total batch the step size is fixed too: the smallest of the 1/L_b.

        The noise floor is the median over the last third of the rounds of the median over the seeds.

        Lines are medians over the seeds; bands extend from the smallest to the largest value.
    """,
    share=(900, 9),
    quick={"clients": [1, 5, 20], "rounds": 60, "decaying_rounds": 40, "seeds": 2},
)
def fig2c(
    bench: Bench,
    clients: Sequence[int] = (1, 5, 10, 15, 20),
    most: int = 20,
    p: float = 0.01,
    rounds: int = 540,
    decaying_rounds: int = 150,
    seeds: int = 3,
) -> Parts:
    """Scaffnew on M clients, with a batch for each of them, and with one that they share."""
    batch = batch_of(bench, clients=most, **OF_THE_FIGURES)

    def problem(M: int, batch: int) -> Flags:
        return {**OF_THE_FIGURES, "clients": M, "batch": batch}

    def run(rounds: int, total: bool = False, **decay: Any) -> Curves:
        asked = []
        for M in clients:
            own = max(1, batch // M) if total else batch
            # with a fixed total batch, the step size of the most clients, the smallest, so that only M changes
            of_step = problem(most, max(1, batch // most)) if total else problem(M, own)
            gamma = 1 / bench.smoothness(**of_step)
            asked.append(curve("scaffnew", f"M = {M}", {"clients": M}, gamma=gamma, **problem(M, own)))
        return bench.run(asked, p=p, rounds=rounds, seeds=seeds, **decay)

    decaying = run(decaying_rounds, decay="figure")
    constant = run(rounds)
    shared = run(rounds, total=True)
    for id, heading, drawn in (
        ("decaying", "a decaying step, a fixed batch per client", decaying),
        ("constant", "a constant step, a fixed batch per client", constant),
        ("total", "a constant step, a fixed total batch", shared),
    ):
        yield from panel_and_table(id, heading, drawn)
    yield bench.constants(**problem(clients[0], max(1, batch // clients[0])))

    yield claims.claim(
        "fig2c-floor",
        "With a fixed batch per client, the noise floor falls as the number M of clients grows.",
        claims.floors(constant, falls_to=0.8),
        PAPER,
    )
    yield claims.claim(
        "fig2c-speedup",
        "With a decaying step and a fixed batch per client the speedup is linear in M, as the paper says.",
        claims.speedup(decaying, share=0.5),
        only_on=[],
    )
    yield claims.claim(
        "fig2c-total",
        "With a fixed total batch, the sampled share of the data does not grow with M.",
        claims.floors(shared),
    )
