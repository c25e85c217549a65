"""Planning for clients: what a method costs over a network, from pilots with ``run``."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.methods import GD, Accelerated, FiveGCS, LoCoDL, ProxGD, Scaffnew, ScaffnewVR, Tamuna
from proxskip.planning.forecast import PlanRow, predict
from proxskip.problems.federated import Problem
from proxskip.results.result import Result, Status
from proxskip.run import run
from proxskip.seam import Method
from proxskip.types import InputError, UnsafeStepWarning

FAILED = (Status.DIVERGED, Status.STALLED, Status.PRECISION, Status.CORRUPTED)


@dataclass(frozen=True, slots=True)
class Network:
    """The network between the server and its clients.

    Args:
        latency: seconds of one way between the server and a client.
        bandwidth: bytes per second of one client, each way; ``up`` if the way up is slower.
        speed: how fast a client computes, relative to this machine.
    """

    latency: float = 0.05
    bandwidth: float = 1e6
    speed: float = 1.0
    up: float | None = None

    def __post_init__(self) -> None:
        theory.nonnegative("latency", self.latency)
        theory.positive("bandwidth", self.bandwidth)
        theory.positive("speed", self.speed)
        if self.up is not None:
            theory.positive("up", self.up)

    def exchange(self, down: float, up: float) -> float:
        """Seconds of one exchange of ``down`` and ``up`` bytes per client."""
        return 2 * self.latency + down / self.bandwidth + up / (self.up or self.bandwidth)


@dataclass
class ClientPilot:
    """A pilot with clients; extending it runs again from the start, which costs at most as much again."""

    name: str
    p: float | None
    method: Method
    problem: Problem
    network: Network
    gradient: float
    prox: float
    eps: float
    seed: int
    threads: int | None
    spent: float = 0.0
    _result: Result | None = None

    def extend(self, iterations: int) -> None:
        """Run to this many iterations, unless the pilot is done."""
        if self.done:
            return
        then = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsafeStepWarning)
            self._result = run(
                self.method, self.problem, iterations=iterations, tol=self.eps, seed=self.seed, threads=self.threads,
                progress=False,
            )  # fmt: skip
        self.spent += time.perf_counter() - then

    @property
    def done(self) -> bool:
        """Whether the pilot converged or failed."""
        return self._result is not None and self._result.status in (Status.CONVERGED, *FAILED)

    @property
    def result(self) -> Result:
        """The last run."""
        assert self._result is not None
        return self._result

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Iterations and gradient norms."""
        trace = self.result.trace
        return [(int(k), float(g)) for k, g in zip(trace["iterations"], trace["grad_norm"], strict=True)]

    @property
    def exchange(self) -> float:
        """Seconds of one exchange, with the bytes that the pilot counted."""
        s = self.result.summary()
        each = max(1, s["exchanges"]) * self.problem.n  # totals over clients and exchanges become means
        # a method may take its prox in some exchanges only
        proxes = self.prox * s["prox_evals"] / max(1, s["exchanges"])
        return float(self.network.exchange(s["bytes_down"] / each, s["bytes_up"] / each) + proxes)

    def row(self, eps: float) -> PlanRow:
        """The prediction."""
        curve, s = self.curve, self.result.summary()
        zeta = self.method.zeta(self.problem)
        return predict(
            self.name,
            self.p,
            curve,
            eps,
            done=s["iterations"],
            hopeless=self.result.status in FAILED,
            step=self.gradient,
            call=self.exchange,
            share=s["exchanges"] / max(1, s["iterations"]) if self.p is None else self.p,
            worst_case=2 * math.log(max(curve[0][1] / eps, 1.0)) / zeta if zeta else math.nan,
        )


def clients_gradient(problem: Problem, network: Network, max_clients: int = 32) -> float:
    """Seconds of one local step of the slowest client on the network: the largest median over the largest clients."""
    sizes = problem.sizes or [1] * problem.n
    picked = np.argsort(-np.asarray(sizes), kind="stable")[:max_clients]
    x, rows, slowest = np.zeros(problem.d), np.arange(problem.batch or 0), 0.0
    for i in picked:
        f: Any = problem.clients[i]
        step = partial(f.gradient, x) if problem.batch is None else partial(f.minibatch_gradient, x, rows)
        slowest = max(slowest, _median_seconds(step, 7, 2))  # the first calls may compile or fill caches
    return slowest / network.speed


def _median_seconds(call: Callable[[], Any], times: int, unused: int = 0) -> float:
    """The median seconds of a call, without the first ``unused`` ones."""
    found = []
    for _ in range(times):
        then = time.perf_counter()
        call()
        found.append(time.perf_counter() - then)
    return float(np.median(found[unused:]))


def prox_seconds(problem: Problem, t: float) -> float:
    """The median seconds of the server's prox at step t."""
    return 0.0 if problem.psi is None else _median_seconds(partial(problem.psi.prox, np.ones(problem.d), t), 5)


Candidate = tuple[str, float | None, Method]
"""The name of a method, its p where it has one, and the method."""


def candidates(problem: Problem, network: Network | None = None) -> list[Candidate]:
    """Methods that reach the solution: Nesterov's, 5gcs, Scaffnew with some p, those for minibatches and for bits."""
    if problem.D is not None:
        raise InputError("psi(D x) is for one function; give plan f, psi and D instead of a problem.")
    batch = problem.batch is not None
    out: list[Candidate] = [("gd", None, GD.theory(problem) if problem.psi is None else ProxGD.theory(problem))]
    if not batch and problem.mu is not None:
        out.append(("accelerated", None, Accelerated.theory(problem)))
    if not batch:
        out.append(("5gcs", None, FiveGCS.practical(problem, gamma=None if problem.mu is not None else "auto")))
    if problem.mu is None:
        gamma = theory.largest_step(problem.es_A)
        return [*out, *(("scaffnew", p, Scaffnew(gamma, p)) for p in (0.3, 0.1, 0.03, 0.01))]
    best = Scaffnew.theory(problem)
    for p in (3 * best.p, best.p, best.p / 3):
        if p < 0.9:
            out.append(("scaffnew", p, replace(best, p=p)))
    if batch:
        exact = ScaffnewVR.theory(problem)
        out.append(("scaffnew-vr", exact.p, exact))
    elif problem.psi is None and network is not None and _uplink_is_slow(problem, network):
        out += _few_bits(problem)
    return out


def _uplink_is_slow(problem: Problem, network: Network) -> bool:
    """Whether a vector takes longer to get up than an empty message to go there and back."""
    return 8 * problem.d / (network.up or network.bandwidth) > 2 * network.latency


def _few_bits(problem: Problem) -> list[Candidate]:
    """What saves bits on the way up; elsewhere their additional rounds never pay, and their pilots cost time."""
    locodl = LoCoDL.theory(problem)
    out: list[Candidate] = [("locodl", locodl.p, locodl)]
    if np.ptp(problem.weights) == 0 and problem.n > 2:
        tamuna = Tamuna.theory(problem)
        out.append(("tamuna", tamuna.p, tamuna))
    return out


def advice(problem: Problem) -> tuple[str, ...]:
    """What the clock does not show."""
    if problem.mu is None or problem.batch is not None or problem.psi is not None or problem.n == 1:
        return ()
    spread = float(problem.L_i.max() / problem.L_i.min())
    if spread < 2:
        return ()
    told = f"The L_i differ by a factor of {spread:.2g}: gradskip takes Scaffnew's rounds with fewer gradients"
    return (f"{told} of the clients with a small L_i.",)


def client_pilots(
    problem: Problem, network: Network | None, eps: float, seed: int, threads: int | None
) -> list[ClientPilot]:
    """The pilots of all candidates, before their first step."""
    if network is not None and not isinstance(network, Network):
        raise InputError("network must be a Network(latency, bandwidth, speed).")
    network = network or Network()
    unsolved = replace(problem)
    unsolved.__dict__["solution"] = None  # a cached property: otherwise each pilot would compute f* for its trace
    gradient = clients_gradient(problem, network)
    prox = prox_seconds(problem, 1.0 / problem.L)
    return [
        ClientPilot(
            name, p, method, unsolved, network, gradient * _gradients(method, problem), prox, eps, seed, threads
        )
        for name, p, method in candidates(unsolved, network)
    ]


def _gradients(method: Method, problem: Problem) -> float:
    """What a local step costs in plain ones: variance reduction takes two minibatches, and now and then all rows."""
    if not isinstance(method, ScaffnewVR) or problem.batch is None or problem.sizes is None:
        return 1.0
    return 2.0 + method.q * max(problem.sizes) / problem.batch
