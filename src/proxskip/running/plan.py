"""Which method and which p for clients behind a network: every candidate runs over it, and the fastest is chosen."""

from __future__ import annotations

import math
import time
import timeit
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np

from proxskip import codecs, theory
from proxskip.core.method import Method
from proxskip.methods import GD, Accelerated, FiveGCS, LoCoDL, Newton, ProxGD, Scaffnew, ScaffnewVR, Tamuna
from proxskip.networks import Network
from proxskip.problems.federated import Problem
from proxskip.results.plain_table import Table, Tabled
from proxskip.results.result import RunResult, Status
from proxskip.running.listen import Callback, Record
from proxskip.running.run import run
from proxskip.support import display
from proxskip.types import InputError, NoTheoremWarning, UnsafeStepWarning

MOST_UNKNOWNS_OF_NEWTON = 3000
"""Beyond, one round with Hessians can take longer than all other runs together."""
CLOSE = 1.3
"""Where other methods take at most so many times the seconds of the fastest, luck may have decided."""
SEEDS = 3
"""So many runs of each decide then, by their medians."""
CLIENTS_TIMED = 32
"""The time of a gradient is the slowest of this many of the largest clients."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A method to try, and the size of its cohorts (None: all clients take part)."""

    method: Method
    cohort: int | None = None

    @property
    def label(self) -> str:
        parameters: Any = self.method
        words = [str(self.method.about.name)]
        if (p := getattr(parameters, "p", None)) is not None:
            words.append(f"p = {p:.3g}")
        if self.cohort is not None:
            words.append(f"cohorts of {self.cohort}")
        if isinstance(self.method, Scaffnew) and self.method.codec is not None:
            words.append(str(self.method.codec))
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What one candidate took over the network.

    Args:
        label: its method and parameters, in words.
        method: as it was run.
        cohort: clients per round; None for all.
        seconds: over the network, until the gradient norm was at most ``tol``; inf if it was not.
        rounds, exchanges, iterations: that were run.
        ran: the seconds over the network that these took.
        reached: the least gradient norm.
        spent: seconds on this machine.
        status: how the run ended.
    """

    label: str
    method: Method = field(repr=False)
    cohort: int | None
    seconds: float
    rounds: int
    exchanges: int
    iterations: int
    ran: float
    reached: float
    spent: float
    status: str

    @property
    def name(self) -> str:
        """The name of the method."""
        return str(self.method.about.name)

    def plain(self) -> dict[str, Any]:
        """The row as plain data."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "method"}
        return {"name": self.name, **values, "parameters": self.method.parameters()}

    def outcome(self) -> str:
        """The seconds over the network, or how far it came."""
        if self.seconds < math.inf:
            return display.duration(self.seconds)
        if self.status == "LIMIT":
            return f"not within {display.duration(self.ran)}; at {self.reached:.0e} by then"
        return f"{self.status.lower()} at {self.reached:.0e}"


@dataclass(frozen=True, repr=False)
class Plan(Tabled):
    """The candidates, fastest first; print it for a table. ``best`` is the choice.

    Args:
        rows: the candidates, the fastest first.
        tol: the gradient norm to reach.
        warnings: what to know about these times, in sentences.
    """

    rows: tuple[PlanRow, ...]
    tol: float
    warnings: tuple[str, ...] = ()

    @property
    def best(self) -> PlanRow:
        """The candidate to choose."""
        return self.rows[0]

    @property
    def sentence(self) -> str:
        """The recommendation, with the margin to the next method."""
        best = self.best
        if best.seconds == math.inf:
            return f"No candidate reached {self.tol:g}; give more seconds=, or a larger tol=."
        if best.rounds == 0:
            return f"The gradient norm is at most {self.tol:g} at the start; nothing has to be run."
        other = next((row for row in self.rows if row.name != best.name and row.seconds < math.inf), None)
        if other is None:
            return f"Take {best.label}; no other method got there."
        return f"Take {best.label}; {other.label} takes {display.rounded(other.seconds / best.seconds)} times as long."

    def as_table(self) -> Table:
        head = ("method", "over the network", "rounds", "exchanges", "iterations")
        lines = [
            [row.label, row.outcome(), *map(display.count, (row.rounds, row.exchanges, row.iterations))]
            for row in self.rows
        ]
        spent = f"The runs took {sum(row.spent for row in self.rows):.2g} s."
        title = f"Simulated times to a gradient norm of {self.tol:g}"
        return Table(title, head, lines, [row.plain() for row in self.rows], [self.sentence, *self.warnings, spent])


def plan(
    problem: Problem,
    *,
    tol: float = 1e-6,
    network: Network | str | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    threads: int | None = None,
) -> Plan:
    """Find the method and p that reach a gradient norm first over the network, by running every candidate.

    Args:
        problem: a problem with clients; for one function, ``minimize`` chooses its method while it runs.
        tol: the gradient norm to reach.
        network: between the server and the clients, or the name of one; without one, exchanges cost nothing but
            their vectors.
        seconds: for all runs together, on this machine, once the first has been compiled; each has an equal share of
            what the runs before it left.
        seed: of the runs; where methods take about as long, the medians of this and further seeds decide.
        threads: threads of the runs; by default one per core.

    >>> import proxskip as ps
    >>> plan = ps.plan(ps.Problem(ps.random_quadratics(4, 3)), tol=1e-4, network=ps.Network(gradient=1e-3))
    >>> plan.best.seconds <= plan.rows[-1].seconds
    True
    """
    tol = theory.positive("tol", tol)
    seconds = theory.positive("seconds", seconds)
    seed = theory.whole_seed(seed)
    anything: Any = problem
    if not isinstance(anything, Problem) or problem.n == 1 or problem.D is not None:
        raise InputError("plan needs a problem with several clients; for one function use minimize.")
    network = _timed(problem, network)
    everybody = [Candidate(method) for method in candidates(problem, network)]
    asked = [*everybody, *on_cohorts(problem, network)]
    trials = Trials(problem.without_minimum(), network, tol, threads, _prox_seconds(problem))
    trials.run(asked[0], seed, rounds=1)  # it compiles, and packs the data, which is no candidate's time
    trials = replace(trials, end=time.monotonic() + seconds)
    rows = [trials.row(candidate, seed, len(asked) - k) for k, candidate in enumerate(asked)]
    rows.sort(key=_order)
    close = _close(rows)
    for k, row in enumerate(close):
        rows[k] = trials.median(row, seed, len(close) - k)
    rows.sort(key=_order)
    return Plan(tuple(rows), tol, _notes(problem, rows, tol))


class EndsAt(Callback):
    """Ends a run at a time on the clock of ``time.monotonic``, but not before its first round."""

    def __init__(self, end: float) -> None:
        self.end = end

    def on_record(self, step: int, metrics: Record) -> None:
        if step > 0 and time.monotonic() > self.end:
            raise StopIteration


@dataclass(frozen=True)
class Trials:
    """Runs of candidates on this machine; ``end`` is when the last is over, on the clock of ``time.monotonic``."""

    problem: Problem
    network: Network
    tol: float
    threads: int | None
    prox_seconds: float
    end: float = math.inf

    def run(self, candidate: Candidate, seed: int, **limits: Any) -> RunResult:
        """A run of a candidate over the network."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsafeStepWarning)
            warnings.simplefilter("ignore", NoTheoremWarning)
            result = run(
                candidate.method, self.problem, tol=self.tol, seed=seed, threads=self.threads,
                cohort=candidate.cohort, network=self.network, progress=False, **limits,
            )  # fmt: skip
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        return result

    def row(self, candidate: Candidate, seed: int, left: int) -> PlanRow:
        """What a run takes, which is the first of so many that are left to be run."""
        began = time.monotonic()
        share = max(1e-3, (self.end - began) / left)
        # seconds= leaves out the evaluation, which can be most of a run
        result = self.run(candidate, seed, seconds=share, callbacks=[EndsAt(began + share)])
        return _row(candidate, result, self.prox_seconds, time.monotonic() - began)

    def median(self, row: PlanRow, seed: int, left: int) -> PlanRow:
        """The median of a row and of the runs with further seeds."""
        candidate, more = Candidate(row.method, row.cohort), range(1, SEEDS)
        rows = [row, *(self.row(candidate, seed + k, len(more) * left - k + 1) for k in more)]
        return replace(sorted(rows, key=_order)[SEEDS // 2], spent=sum(r.spent for r in rows))


def _order(row: PlanRow) -> tuple[float, float]:
    """The fastest first; of those that did not arrive, the one that came nearest."""
    return row.seconds, row.reached


def _close(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """The first rows, if they are of different methods and take about as long."""
    close = [row for row in rows if row.seconds <= CLOSE * rows[0].seconds < math.inf]
    return close if len({row.name for row in close}) > 1 else []


def _row(candidate: Candidate, result: RunResult, prox_seconds: float, spent: float) -> PlanRow:
    summary = result.summary
    reached = float(np.nanmin(result.trace["grad_norm"]))
    ran = summary["sim_seconds"] + prox_seconds * summary["prox_evals"]
    seconds = ran if result.status is Status.CONVERGED else math.inf
    counts = (summary["rounds"], summary["exchanges"], summary["iterations"])
    status = Status.LIMIT if result.status is Status.STOPPED else result.status
    return PlanRow(
        candidate.label, candidate.method, candidate.cohort, seconds, *counts, ran, reached, spent, status.name
    )


def _notes(problem: Problem, rows: Sequence[PlanRow], tol: float) -> tuple[str, ...]:
    """What the table does not show."""
    notes = []
    if problem.mu is None:
        notes.append("mu is unknown, so the parameters are no theorem's.")
    elif problem.batch is None and problem.psi is None and problem.knows_L:
        spread = float(problem.L_i.max() / problem.L_i.min())
        if spread >= 2:
            notes.append(
                f"The L_i differ by a factor of {spread:.2g}: gradskip needs Scaffnew's rounds with fewer gradients."
            )
    sizes = [row.cohort for row in rows if row.cohort is not None]
    if sizes:
        start = float(np.linalg.norm(problem.gradient(np.zeros(problem.d))))
        notes.append(theory.cohort_sentence(problem.n, min(sizes), min(0.5, (tol / start) ** 2)))
    return tuple(notes)


# -- the candidates ----------------------------------------------------------------------------------------------------
def candidates(problem: Problem, network: Network) -> list[Method]:
    """The methods to try: GD, Nesterov's, 5gcs, Scaffnew with several p, more for minibatches or few bits, Newton's.

    Newton's method comes last, and so has the time that the others have left.
    """
    newton = [Newton()] if _has_small_hessians(problem) else []
    if newton and not problem.knows_L:
        return [*newton]
    return [*_first_order(problem, network), *newton]


def _first_order(problem: Problem, network: Network) -> list[Method]:
    """Those that need gradients alone."""
    methods: list[Method] = [GD.theory(problem) if problem.psi is None else ProxGD.theory(problem)]
    if problem.mu is None:
        gamma = theory.largest_step(problem.es_A)
        return [*methods, *(Scaffnew(gamma, p) for p in (0.3, 0.1, 0.03, 0.01))]
    if problem.batch is None:
        methods += [Accelerated.theory(problem), FiveGCS.theory(problem, figure=True)]
    by_theorem = Scaffnew.theory(problem)
    methods += [replace(by_theorem, p=p) for p in _around(by_theorem.p)]
    if problem.batch is not None:
        methods.append(ScaffnewVR.theory(problem))
    elif problem.psi is None and _uplink_is_slow(problem, network):
        methods += _few_bits(problem)
    return methods


def _has_small_hessians(problem: Problem) -> bool:
    """Whether Newton's method can run, in a time in which the others can."""
    is_smooth = problem.psi is None and problem.batch is None
    return is_smooth and problem.has_hessian and problem.d <= MOST_UNKNOWNS_OF_NEWTON


def on_cohorts(problem: Problem, network: Network) -> list[Candidate]:
    """Scaffnew on cohorts of a half and a fifth of the clients, where that can be faster."""
    alike = network.reliable and not network.uneven and network.server == math.inf
    if alike or problem.n < 8 or problem.psi is not None or problem.mu is None:
        return []
    sizes = (problem.n // 2, max(2, problem.n // 5))
    tried = [Candidate(Scaffnew.theory(problem, cohort=c), c) for c in sizes]
    return [one for one in tried if one.method.parameters()["p"] < 0.9]


def _around(p: float) -> list[float]:
    """The p of the theorem, and three times more and less of it, where that skips exchanges."""
    return [value for value in (3 * p, p, p / 3) if value < 0.9]


def _uplink_is_slow(problem: Problem, network: Network) -> bool:
    """Whether sending a vector up takes longer than a round trip of an empty message."""
    return network.exchange(0.0, 8.0 * problem.d) > 2 * network.exchange(0.0, 0.0)


def _few_bits(problem: Problem) -> list[Method]:
    """Methods that save bits on the way up and need more rounds."""
    plain = Scaffnew.theory(problem)
    methods: list[Method] = [LoCoDL.theory(problem)]
    if plain.p < 0.9:
        methods.append(replace(plain, codec=codecs.Float32()))
    if np.ptp(problem.weights) == 0 and problem.n > 2:
        methods.append(Tamuna.theory(problem))
    return methods


# -- what takes time ---------------------------------------------------------------------------------------------------
def _timed(problem: Problem, network: Network | str | None) -> Network:
    """The network, with the seconds of a gradient measured here if it does not say them."""
    if isinstance(network, str):
        network = Network.named(network)
    if network is not None and not isinstance(network, Network):
        raise InputError("network must be a Network, such as Network(latency=0.05, bandwidth=1e6).")
    network = network or Network()
    network.check(problem.n)
    if network.gradient is not None:
        return network
    return replace(network, gradient=gradient_seconds(problem) / network.speed)


def gradient_seconds(problem: Problem) -> float:
    """Seconds of a local gradient of the slowest of the largest clients, on this machine."""
    sizes = problem.sizes or [1] * problem.n
    largest = np.argsort(-np.asarray(sizes), kind="stable")[:CLIENTS_TIMED]
    x, rows = np.zeros(problem.d), np.arange(problem.batch or 0)
    seconds = []
    for i in largest:
        f: Any = problem.clients[i]
        step = partial(f.gradient, x) if problem.batch is None else partial(f.minibatch_gradient, x, rows)
        seconds.append(_median_seconds(step, 7, unused=2))  # the first calls may compile or fill caches
    return max(seconds)


def _prox_seconds(problem: Problem) -> float:
    if problem.psi is None:
        return 0.0
    return _median_seconds(partial(problem.psi.prox, np.ones(problem.d), 1.0 / problem.L), 5)


def _median_seconds(call: Callable[[], Any], times: int, unused: int = 0) -> float:
    return float(np.median(timeit.repeat(call, number=1, repeat=times)[unused:]))
