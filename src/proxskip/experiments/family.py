"""The methods against each other: rounds, gradients and bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxskip.experiments import claims
from proxskip.experiments.bench import Bench
from proxskip.experiments.curves import Flags, cost_against_cost, curve, panel_and_table
from proxskip.experiments.figures import Parts, figure

EVERYWHERE = ("w8a", "digits")
"""The data that claims on bits and gradients are made for."""


def problem_of(l2_relative: float, clients: int, weights: str, **more: Any) -> Flags:
    """The flags of a problem with clients by label."""
    return {"l2_relative": l2_relative, "split": "label", "clients": clients, "weights": weights, **more}


@figure(
    "Rounds against gradients",
    shows="""
        More local work means fewer rounds: Nesterov's method needs few gradients, Scaffnew few rounds, and 5GCS
        lies between them. Newton's method needs the fewest rounds, and sends a Hessian in each.
    """,
    notes="""
        The settings are those that were best for rounds or for gradients on w8a, mushrooms, a1a or the digits,
        and the theorems' own.

        Step sizes beyond 1/L, a fixed number of local steps of 5GCS and its c = 3 are covered by no theorem.

        Gradients are full gradients per client; a Hessian counts as one. Records are about 1 % of the rounds apart.
    """,
    share=(200, 20),
    quick={"l2_relative": 1e-3, "rounds": 800, "iterations": 4000},
)
def family(
    bench: Bench, l2_relative: float = 1e-4, rounds: int = 4000, iterations: int = 30000, eps: float = 1e-6
) -> Parts:
    """All methods by theory, and with the settings that were found best."""
    problem: Flags = {"l2_relative": l2_relative}
    L = bench.smoothness(**problem)
    methods = [
        curve("newton"),
        curve("accelerated"),
        curve("accelerated", "Nesterov, gamma = 1.9/L", gamma=1.9 / L),
        curve("fista", "FISTA with restart, gamma = 1.9/L", gamma=1.9 / L),
        curve("5gcs", "5GCS, theory"),
        *(curve("5gcs", f"5GCS, K = {K}", {"K": K}, K=K) for K in (1, 2)),
        curve("5gcs", "5GCS, c = 3, K = 10", c=3.0, K=10),
        *(
            curve("scaffnew", f"Scaffnew, gamma = {times}/L, 1/p = 30", {"times": times}, gamma=times / L, p=1 / 30)
            for times in (1.5, 8)
        ),
        curve("gradskip", "GradSkip, gamma = 8/L, 1/p = 30", gamma=8 / L, p=1 / 30),
    ]
    drawn = bench.run(methods, rounds=rounds, iterations=iterations, target=eps, **problem)
    yield from panel_and_table("curves", "by theory, and tuned", drawn, eps, costs=["rounds", "passes", "floats"])
    yield cost_against_cost("costs", drawn, eps, "rounds", "passes")
    yield bench.constants(**problem)
    yield claims.claim(
        "family-rounds",
        f"The best setting of 5GCS needs fewer rounds to {eps:g} than Nesterov's method.",
        claims.ratio(drawn.of("5gcs"), drawn.of("accelerated"), eps, below=1, best=True),
    )
    others = [s for s in drawn if s.method != "newton"]
    yield claims.claim(
        "family-newton",
        f"Newton's method needs fewer rounds to {eps:g} than every other.",
        claims.ratio(drawn["newton"], others, eps, below=1),
    )
    yield claims.claim(
        "family-floats",
        f"The best setting of Scaffnew sends fewer numbers to {eps:g} than Newton's method, with 300 unknowns.",
        claims.ratio(drawn.of("scaffnew"), drawn["newton"], eps, below=1, best=True, axes=["floats"]),
        ["w8a"],
    )
    yield claims.claim(
        "family-gradients",
        f"The best setting of 5GCS needs fewer gradients to {eps:g} than Scaffnew.",
        claims.ratio(drawn.of("5gcs"), drawn.of("scaffnew"), eps, below=1, best=True, axes=["passes"]),
    )


@figure(
    "Uplink bits",
    shows="""
        Everything is counted in bits: LoCoDL sends compressed differences, and TAMUNA lets few clients send
        each coordinate.
    """,
    notes="""
        All parameters are the theorems'; nothing is tuned. Clients have equal weights.

        What is saved on the way up is paid for with rounds, and with whole vectors on the way down.
    """,
    share=(900, 20),
    quick={
        "l2_relative": 1e-2,
        "clients": 10,
        "many_clients": 50,
        "cohort": 10,
        "codecs": ["rand-7+natural", "natural"],
        "seeds": 1,
        "every": 2,
    },
)
def bits(
    bench: Bench,
    l2_relative: float = 1e-4,
    clients: int = 20,
    many_clients: int = 200,
    cohort: int = 20,
    owners: Sequence[int] = (2, 4),
    codecs: Sequence[str] = ("rand-15+natural", "rand-30+natural", "natural"),
    seeds: int = 3,
    rounds: int = 40000,
    every: int = 10,
    eps: float = 1e-6,
) -> Parts:
    """LoCoDL with all clients, and TAMUNA on cohorts, each against Scaffnew."""
    axes = ["bits_up", "bits_down", "rounds", "passes", "iterations", "seconds"]
    settings: Flags = {"rounds": rounds, "every": every, "target": eps, "seeds": seeds, "axes": axes}
    costs = ["rounds", "bits_up", "bits_down"]

    all_take_part = problem_of(l2_relative, clients, "equal")
    compressed = [curve("locodl", f"LoCoDL, {codec}", {"codec": codec}, codec=codec) for codec in codecs]
    plain = curve("scaffnew", "Scaffnew, float32", codec="float32")
    locodl = bench.run([plain, *compressed], **settings, **all_take_part)
    heading = f"{clients} clients, all clients take part"
    yield from panel_and_table("locodl", heading, locodl, eps, costs, x="bits_up")

    some_take_part = problem_of(l2_relative, many_clients, "equal")
    owned = [curve("tamuna", f"TAMUNA, s = {s}", {"s": s}, s=s) for s in owners]
    on_cohorts = curve("scaffnew", f"Scaffnew, cohorts of {cohort}")
    tamuna = bench.run([on_cohorts, *owned], cohort=cohort, **settings, **some_take_part)
    heading = f"{many_clients} clients, cohorts of {cohort} clients"
    yield from panel_and_table("tamuna", heading, tamuna, eps, costs, x="bits_up")
    yield bench.constants(**some_take_part)

    yield claims.claim(
        "bits-locodl",
        f"To {eps:g}, LoCoDL needs at most half the uplink bits of Scaffnew in float32.",
        claims.ratio(locodl.of("locodl"), locodl["scaffnew"], eps, at_most=0.5, best=True, axes=["bits_up"]),
        EVERYWHERE,
    )
    yield claims.claim(
        "bits-tamuna",
        f"To {eps:g}, TAMUNA needs fewer uplink bits than Scaffnew on the same cohorts.",
        claims.ratio(tamuna.of("tamuna"), tamuna["scaffnew"], eps, below=1, best=True, axes=["bits_up"]),
        EVERYWHERE,
    )


@figure(
    "Clients that sleep",
    shows="""
        GradSkip lets clients with an easy problem stop their local steps early, and needs as many rounds as
        Scaffnew.
    """,
    notes="""
        The rows of each client are scaled, so that the smoothness L_i falls from the largest to a tenth of it.

        All parameters are the theorems'.
    """,
    share=(200, 5),
    quick={"l2_relative": 1e-2, "clients": 10},
)
def sleeping(
    bench: Bench,
    l2_relative: float = 1e-4,
    clients: int = 20,
    spread: float = 10.0,
    seeds: int = 3,
    rounds: int = 4000,
    eps: float = 1e-6,
) -> Parts:
    """GradSkip and Scaffnew on clients whose L_i differ."""
    problem = problem_of(l2_relative, clients, "rows", spread=spread)
    axes = ["passes", "local_steps", "rounds", "seconds"]
    drawn = bench.run(["scaffnew", "gradskip"], rounds=rounds, target=eps, every=1, seeds=seeds, axes=axes, **problem)
    heading = f"{clients} clients whose L_i differ by a factor of {spread:g}"
    yield from panel_and_table("sleeping", heading, drawn, eps, costs=["rounds", "passes"], x="passes")
    yield bench.constants(**problem)
    yield claims.claim(
        "sleeping-gradients",
        f"Where the L_i differ by a factor of {spread:g}, GradSkip needs fewer gradients than Scaffnew.",
        claims.ratio(drawn["gradskip"], drawn["scaffnew"], eps, below=1, axes=["passes"]),
        EVERYWHERE,
    )
    yield claims.claim(
        "sleeping-rounds",
        "GradSkip needs as many rounds as Scaffnew, within a tenth.",
        claims.ratio(drawn["gradskip"], drawn["scaffnew"], eps, at_least=0.9, at_most=1.1),
        EVERYWHERE,
    )


@figure(
    "Minibatches without noise",
    shows="With minibatches Scaffnew stops at the noise of its gradients; the estimator of L-SVRG takes it away.",
    notes="""
        All parameters are the theorems'. Scaffnew runs for as many rounds as Scaffnew-VR, and once more at the
        smaller step of Scaffnew-VR, where its ball is smaller.

        Where Scaffnew stops is the median of the last tenth of its records.
    """,
    share=(300, 10),
    quick={"l2_relative": 1e-2, "clients": 10},
)
def minibatches(
    bench: Bench,
    l2_relative: float = 1e-4,
    clients: int = 20,
    batch: int = 32,
    rounds: int = 40000,
    eps: float = 1e-10,
    ball: float = 1e-5,
) -> Parts:
    """Scaffnew-VR, and Scaffnew for as many rounds."""
    problem = problem_of(l2_relative, clients, "rows", batch=batch)
    axes = ["rounds", "passes", "iterations", "seconds"]
    exact = bench.run(["scaffnew-vr"], rounds=rounds, target=eps, axes=axes, **problem)
    needed, same = int(exact[0].x["rounds"][-1]), exact[0].about
    noisy = [
        curve("scaffnew"),
        curve("scaffnew", "Scaffnew, the step of Scaffnew-VR", gamma=same["gamma"], p=same["p"]),
    ]
    drawn = exact + bench.run(noisy, rounds=needed, axes=axes, **problem)
    heading = f"minibatches of {batch} rows, {clients} clients"
    yield from panel_and_table("minibatches", heading, drawn, eps)
    yield bench.constants(**problem)
    yield claims.claim(
        "minibatches-floor",
        f"With minibatches of {batch} Scaffnew-VR reaches {eps:g}; Scaffnew stops above {ball:g}.",
        claims.floor_above(drawn["Scaffnew"], ball, drawn["scaffnew-vr"], eps),
        EVERYWHERE,
    )
