"""What a run is: everything that determines it, checked once, before any work."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proxskip import registry, theory
from proxskip.interfaces import Engine, Method
from proxskip.links.cohorts import Everyone, Given, Participation, as_participation
from proxskip.links.network import Network
from proxskip.loop.simulated_time import Clock, asked_by
from proxskip.loop.stop import Stop
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import is_oracle
from proxskip.results import description
from proxskip.types import InputError, UnsafeStepWarning

_MISSING = {
    "cohort": "averages over everybody, so it cannot run on cohorts; use scaffnew, scaffold or local-gd",
    "psi": "has no prox step, so it cannot solve a problem with psi; use proxgd, proxskip, accelerated or scaffnew",
    "D": "cannot solve psi(D x); use splitskip",
    "batch": "needs full gradients; leave out the batch",
    "clients": "is for a problem of one function; give a problem with one client, or use scaffnew",
}


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run, ready to go: ``run``, ``resume``, sweeps and federations make one with ``RunSpec.of``.

    Args:
        method: in its form for the cohorts.
        cohort: the rule for cohorts as it was given; ``asked`` is whom the server asks, which are others where the
            network may lose clients.
        engine: where it runs; None in a federation.
        every: rounds between records.
        unsafe: warnings about the method's parameters.
        uncovered: what is run although no theorem covers it.
        source: where the data are from, for whoever resumes the run.
        fingerprinted: whether its description has the digest of the data, which takes as long as many gradients.
    """

    method: Method
    problem: Problem
    stop: Stop
    seed: int
    cohort: Participation
    asked: Participation
    network: Network | None
    engine: Engine | None
    every: int | None
    unsafe: tuple[str, ...]
    uncovered: tuple[str, ...]
    source: dict[str, Any] = field(default_factory=dict)
    fingerprinted: bool = True

    @staticmethod
    def of(
        method: Any, problem: Any, stop: Stop, *, seed: int = 0, cohort: Any = None, network: Any = None,
        engine: Engine | None = None, every: int | None = None,
        allow_unsafe_step: bool = False, source: dict[str, Any] | None = None, fingerprinted: bool = True,
    ) -> RunSpec:  # fmt: skip
        """From what a user gives; whatever is wrong is refused here, in one sentence."""
        seed, participation = theory.whole_seed(seed), as_participation(cohort)
        problem, network = as_problem(problem), as_network(network)
        method = as_method(method, problem, cohort, seed)
        asked = asked_by(method, problem, participation, network)
        method, unsafe = prepare(method, problem, asked, allow_unsafe_step)
        stop.check(problem)
        if engine is not None and network is not None and not (network.reliable or engine.rewinds):
            raise InputError(
                f'the engine "{engine.name}" cannot take back a round that is void; use engine="cpu", or a network '
                "without losses."
            )
        every = every if every is None else theory.whole("every", every)
        uncovered = without_theorem(method, problem, isinstance(asked, Everyone))
        return RunSpec(
            method, problem, stop, seed, participation, asked, network, engine, every, tuple(unsafe),
            tuple(uncovered), source or {}, fingerprinted,
        )  # fmt: skip

    def clock(self) -> Clock | None:
        """The simulated time of the run; None without a network."""
        if self.network is None:
            return None
        return Clock(self.network, self.problem, self.method, self.seed, self.cohort)

    def plain(self) -> dict[str, Any]:
        """As plain data, as spec.toml holds it."""
        engine = "" if self.engine is None else self.engine.name
        config = description.config(
            self.method, self.problem, self.stop.rules, self.seed, engine, self.cohort, self.source, self.fingerprinted
        )
        config |= {"every": self.every}
        return config if self.network is None else config | {"network": self.network.plain()}


# -- what a user may give ----------------------------------------------------------------------------------------------
def as_network(network: Any) -> Network | None:
    """A network as it is; one by its name."""
    if isinstance(network, str):
        return Network.named(network)
    if network is None or isinstance(network, Network):
        return network
    raise InputError(f"network is of type {type(network).__name__}; give a proxskip.Network, or the name of one.")


def as_problem(problem: Any) -> Problem:
    """A problem as it is; a single function as the problem of one client."""
    if isinstance(problem, Problem):
        return problem
    if isinstance(problem, type) or not is_oracle(problem):
        what = f"the class {problem.__name__}" if isinstance(problem, type) else f"of type {type(problem).__name__}"
        raise InputError(f"the problem is {what}; give a proxskip.Problem, or a function such as a Logistic model.")
    return Problem([problem])


def as_method(method: Any, problem: Problem, cohort: Any, seed: int) -> Method:
    """A method as it is; one by its class or its name with the parameters of its theorem."""
    # a plugin's method is known by its name too, once it is registered
    kind = registry.named(method) if isinstance(method, str) else method
    if isinstance(kind, type) and issubclass(kind, Method):
        registry.check(kind)
        method = kind.configure(problem, {"seed": seed} | ({} if cohort is None else {"cohort": cohort}))
    if not isinstance(method, Method):
        raise InputError(
            f"{type(method).__name__} is not a method; derive it from proxskip.authoring.Method and give it an about."
        )
    return method


# -- what fits together ------------------------------------------------------------------------------------------------
def prepare(method: Method, problem: Problem, asked: Participation, insist: bool) -> tuple[Method, list[str]]:
    """The method in its form for these cohorts, and warnings; what does not fit together is refused."""
    asked.check(problem.n)
    check_fit(method, problem, isinstance(asked, Everyone))
    notes = method.check(problem, insist)
    if not isinstance(asked, Everyone):
        method, more = method.for_cohorts(asked, problem.n)
        notes = notes + more
    if isinstance(asked, Given) and len(groups := asked.apart(problem.n)) > 1:
        shown = "; ".join(str(g[:8])[1:-1] + (", ..." if len(g) > 8 else "") for g in groups[:4])
        notes = [*notes, f"these cohorts never bring the clients {shown} together, so each group goes its own way."]
    for note in notes:
        warnings.warn(note, UnsafeStepWarning, stacklevel=5)
    return method, notes


def check_parts(method: Method, psi: object, D: object, batch: object, **more: bool) -> None:
    """Refuse the first part of a problem (None where there is none) that the method does not handle."""
    parts = more | {"psi": psi is not None and D is None, "D": D is not None, "batch": batch is not None}
    for part, why in _MISSING.items():
        if parts.get(part) and part not in method.handles:
            raise InputError(f"{method.name} {why}.")


def check_fit(method: Method, problem: Problem, everyone: bool) -> None:
    """Refuse what the method is not right for, with one sentence."""
    check_parts(method, problem.psi, problem.D, problem.batch, cohort=not everyone, clients=problem.n > 1)
    if method.about.equal_weights and float(np.ptp(problem.weights)) > 1e-12:
        raise InputError(f'{method.name} is for equally weighted clients; split with weights="equal".')
    # also for a method that handles both, one at a time
    if not everyone and problem.psi is not None and not method.about.psi_on_cohorts:
        raise InputError(
            "a regularizer at the server needs the h of all clients in every round; leave out the cohort or psi, or "
            "use 5gcs."
        )


def without_theorem(method: Method, problem: Problem, everyone: bool) -> list[str]:
    """Sentences on what is run although no theorem covers it."""
    if everyone or method.about.weighted_cohorts or float(np.ptp(problem.weights)) <= 1e-12:
        return []
    return [
        f"the clients' weights differ, and no theorem covers {method.name} on cohorts of such clients; split with "
        'weights="equal", take everybody, or use 5gcs.'
    ]
