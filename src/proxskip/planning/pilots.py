"""Pilots: short runs that show what a method costs over a network."""

from __future__ import annotations

import math
import time
import timeit
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.interfaces import Method
from proxskip.links import codecs
from proxskip.links.cohorts import as_participation
from proxskip.links.network import Network
from proxskip.loop.simulated_time import Clock, Duration, HalfCosts, asked_by, mean_exchange
from proxskip.methods import GD, Accelerated, FiveGCS, LoCoDL, ProxGD, Scaffnew, ScaffnewVR, Tamuna
from proxskip.planning.forecast import MIN_SLOPE_POINTS, PlanRow, predict, together
from proxskip.problems.federated import Problem
from proxskip.results.result import Status
from proxskip.running import run
from proxskip.types import InputError, NoTheoremWarning, UnsafeStepWarning

FAILED = (Status.DIVERGED, Status.STALLED, Status.PRECISION, Status.CORRUPTED)
PILOT_GRADIENTS = 300
"""Gradients of a first pilot; a method that skips runs for a dozen exchanges."""
MIN_PILOT_SHARE = 0.4
"""A prediction counts once its pilot has run this share of the predicted iterations."""
CLOSE_FACTOR = 1.25
"""So it must for candidates within this factor of the best."""
FINISH_FACTORS = 1.5, 4.0
"""Candidates within this factor of the best run to the end; the second on a network that loses clients, where a few
more rounds may take hours."""
SECONDS_OF_A_PILOT = 1.0
"""Every pilot may take this long; only good candidates take longer."""
MAX_RUNS = 15
"""A pilot runs at most this often, each time twice as far."""
MAX_FORECAST = 200
"""At most this many exchanges are simulated for their mean time."""


@dataclass
class ClientPilot:
    """A pilot over a network; extending it runs again from the start."""

    name: str
    p: float | None
    method: Method
    problem: Problem
    network: Network
    prox: float
    eps: float
    seed: int
    threads: int | None
    cohort: int | None = None
    spent: float = 0.0
    runs: int = 0
    times: dict[int, Duration] = field(default_factory=dict)
    result: Any = None
    """The Result of the longest run."""

    def extend(self, iterations: int) -> None:
        """Run to this many iterations, unless the pilot is done."""
        if self.done:
            return
        then = time.process_time()  # on a busy machine a pilot gets as far as elsewhere
        with warnings.catch_warnings():
            for kind in (UnsafeStepWarning, NoTheoremWarning):
                warnings.simplefilter("ignore", kind)
            self.result = run(
                self.method, self.problem, iterations=iterations, tol=self.eps, seed=self.seed, threads=self.threads,
                cohort=self.cohort, network=self.network, progress=False,
            )  # fmt: skip
        self.spent += time.process_time() - then
        self.runs += 1

    @property
    def done(self) -> bool:
        return self.result is not None and self.result.status in (Status.CONVERGED, *FAILED)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Iterations and gradient norms."""
        trace = self.result.trace
        return [(int(k), float(g)) for k, g in zip(trace["iterations"], trace["grad_norm"], strict=True)]

    def exchange(self, calls: float) -> Duration:
        """Mean seconds of an exchange, by simulating many more than the pilot had: losses are rare."""
        alike = self.network.reliable and self.cohort is None
        count = 1 if alike else int(min(max(calls, 20.0), MAX_FORECAST)) if math.isfinite(calls) else 20
        order = count.bit_length()
        if order not in self.times:
            s, cohort = self.result.summary, as_participation(self.cohort)
            clock = Clock(self.network, self.problem, self.method, self.seed, cohort)
            each = max(1, int(self.result.participation.sum())) * max(1, s["exchanges"]) / max(1, s["rounds"])
            unit = self.problem.batch or (self.problem.N or self.problem.n) / self.problem.n  # mean rows of a gradient
            costs = HalfCosts(s["grad_evals"] / unit / each, 0.0, more_bytes=s["bytes_up"] / each)
            requests = asked_by(self.method, self.problem, cohort, self.network)
            self.times[order] = mean_exchange(clock, requests, costs, 0.0, s["bytes_down"] / each, count)
        return self.times[order]

    def row(self, eps: float) -> PlanRow:
        curve, s = self.curve, self.result.summary
        claims = self.method.claims(self.problem)
        exchanges, iterations = max(1, s["exchanges"]), max(1, s["iterations"])
        zeta = claims.zeta / (iterations / max(1, s["rounds"])) if claims.zeta and claims.per_round else claims.zeta
        how: dict[str, Any] = {
            "done": s["iterations"],
            "hopeless": self.result.status in FAILED,
            "share": exchanges / iterations if self.p is None else self.p,
            "worst_case": 2 * math.log(max(curve[0][1] / eps, 1.0)) / zeta if zeta else math.nan,
        }
        calls = predict(self.name, self.p, curve, eps, step=0.0, call=0.0, **how).calls
        computing, waiting = self.exchange(calls)
        call = waiting + self.prox * s["prox_evals"] / exchanges
        row = predict(self.name, self.p, curve, eps, step=computing * exchanges / iterations, call=call, **how)
        if self.result.status is Status.CONVERGED:
            row = replace(row, seconds=s["sim_seconds"] + self.prox * s["prox_evals"])
        codec = self.method.parameters().get("codec") if self.name == "scaffnew" else None
        return replace(row, cohort=self.cohort, codec="" if codec is None else str(codec))


def clients_gradient(problem: Problem, network: Network, max_clients: int = 32) -> float:
    """Seconds of a local gradient on the slowest of the largest clients."""
    sizes = problem.sizes or [1] * problem.n
    picked = np.argsort(-np.asarray(sizes), kind="stable")[:max_clients]
    x, rows, slowest = np.zeros(problem.d), np.arange(problem.batch or 0), 0.0
    for i in picked:
        f: Any = problem.clients[i]
        step = partial(f.gradient, x) if problem.batch is None else partial(f.minibatch_gradient, x, rows)
        slowest = max(slowest, _median_seconds(step, 7, 2))  # the first calls may compile or fill caches
    return slowest / network.speed


def _median_seconds(call: Callable[[], Any], times: int, unused: int = 0) -> float:
    return float(np.median(timeit.repeat(call, number=1, repeat=times)[unused:]))


Candidate = tuple[str, float | None, Method]
"""The name of a method, its p where it has one, and the method."""


def candidates(problem: Problem, network: Network | None = None) -> list[Candidate]:
    """The methods to try: GD, Nesterov's, 5gcs, Scaffnew with several p; others for minibatches or few bits."""
    batch = problem.batch is not None
    methods: list[Candidate] = [("gd", None, GD.theory(problem) if problem.psi is None else ProxGD.theory(problem))]
    if not batch and problem.mu is not None:
        methods.append(("accelerated", None, Accelerated.theory(problem)))
        methods.append(("5gcs", None, FiveGCS.theory(problem, figure=True)))
    if problem.mu is None:
        gamma = theory.largest_step(problem.es_A)
        return [*methods, *(("scaffnew", p, Scaffnew(gamma, p)) for p in (0.3, 0.1, 0.03, 0.01))]
    best = Scaffnew.theory(problem)
    for p in (3 * best.p, best.p, best.p / 3):
        if p < 0.9:
            methods.append(("scaffnew", p, replace(best, p=p)))
    if batch:
        exact = ScaffnewVR.theory(problem)
        methods.append(("scaffnew-vr", exact.p, exact))
    elif problem.psi is None and network is not None and _uplink_is_slow(problem, network):
        methods += _few_bits(problem)
    return methods


def _uplink_is_slow(problem: Problem, network: Network) -> bool:
    """Whether sending a vector up takes longer than a round trip of an empty message."""
    return network.exchange(0.0, 8.0 * problem.d) > 2 * network.exchange(0.0, 0.0)


def _few_bits(problem: Problem) -> list[Candidate]:
    """Methods that save bits on the way up and need more rounds."""
    locodl, plain = LoCoDL.theory(problem), Scaffnew.theory(problem)
    methods: list[Candidate] = [("locodl", locodl.p, locodl)]
    if plain.p < 0.9:
        methods.append(("scaffnew", plain.p, replace(plain, codec=codecs.Float32())))
    if np.ptp(problem.weights) == 0 and problem.n > 2:
        tamuna = Tamuna.theory(problem)
        methods.append(("tamuna", tamuna.p, tamuna))
    return methods


def cohort_candidates(problem: Problem, network: Network) -> list[tuple[Candidate, int]]:
    """Scaffnew on cohorts of a half and a fifth of the clients, where that can be faster."""
    alike = network.reliable and not network.uneven and network.server == math.inf
    if alike or problem.n < 8 or problem.psi is not None or problem.mu is None:
        return []
    methods = [(Scaffnew.theory(problem, cohort=c), c) for c in (problem.n // 2, max(2, problem.n // 5))]
    return [(("scaffnew", method.p, method), c) for method, c in methods if method.p < 0.9]


def advice(problem: Problem) -> tuple[str, ...]:
    """Notes on methods that save work, not time."""
    if problem.mu is None or problem.batch is not None or problem.psi is not None or problem.n == 1:
        return ()
    spread = float(problem.L_i.max() / problem.L_i.min())
    if spread < 2:
        return ()
    return (f"The L_i differ by a factor of {spread:.2g}: gradskip needs Scaffnew's rounds with fewer gradients.",)


def client_pilots(
    problem: Problem, network: Network | str | None, eps: float, seed: int, threads: int | None
) -> list[ClientPilot]:
    """The pilots of all candidates."""
    network = Network.named(network) if isinstance(network, str) else network
    if network is not None and not isinstance(network, Network):
        raise InputError("network must be a Network, such as Network(latency=0.05, bandwidth=1e6).")
    network = network or Network()
    network.check(problem.n)
    if network.gradient is None:
        network = replace(network, gradient=clients_gradient(problem, network))
    unsolved = replace(problem)
    unsolved.__dict__["solution"] = None  # a cached property: otherwise each pilot would compute f* for its trace
    prox = (
        0.0
        if problem.psi is None
        else _median_seconds(partial(problem.psi.prox, np.ones(problem.d), 1.0 / problem.L), 5)
    )
    everybody: list[tuple[Candidate, int | None]] = [(one, None) for one in candidates(unsolved, network)]
    return [
        ClientPilot(name, p, method, unsolved, network, prox, eps, seed, threads, cohort)
        for (name, p, method), cohort in [*everybody, *cohort_candidates(unsolved, network)]
    ]


def race(pilots: Sequence[ClientPilot], eps: float, gradients: int) -> list[PlanRow]:
    """Run all pilots, then extend the best until all good ones have run far enough."""
    for one in pilots:
        # a method that skips needs a dozen exchanges for a slope
        one.extend(gradients if one.p is None else math.ceil(1.5 * MIN_SLOPE_POINTS / one.p))
    while True:
        rows = together([one.row(eps) for one in pilots])
        best = min(row.seconds for row in rows)
        unsure = [k for k, one in enumerate(pilots) if _runs_on(one, rows[k], best)]
        if not unsure:
            return sorted(rows, key=lambda row: row.seconds)
        k = min(unsure, key=lambda k: rows[k].seconds)
        pilots[k].extend(2 * rows[k].pilot)


def _runs_on(one: ClientPilot, row: PlanRow, best: float) -> bool:
    """Whether a pilot is too short for its prediction, or worth running to the end."""
    if one.done or one.runs > MAX_RUNS:
        return False
    share = row.pilot / row.iterations
    if row.seconds <= CLOSE_FACTOR * best and share < MIN_PILOT_SHARE:
        return True
    near = row.seconds <= FINISH_FACTORS[not one.network.reliable] * best
    return one.spent < SECONDS_OF_A_PILOT and share < (1.0 if near else MIN_PILOT_SHARE)
