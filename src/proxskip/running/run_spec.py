"""The specification of a run: everything that determines it, checked once before any work."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.core.engine import Engine
from proxskip.core.method import Method, made
from proxskip.methods import registry
from proxskip.networks import Network
from proxskip.participation import CohortLike, Everyone, Given, Participation, as_participation
from proxskip.problems.cox import check_order
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import is_oracle
from proxskip.results import description
from proxskip.running.simulated_time import Clock, asked_by
from proxskip.running.stop import Stop
from proxskip.types import InputError, Oracle, UnsafeStepWarning

_MISSING = {
    "cohort": "needs all clients in every round; leave out the cohort, or use scaffnew, scaffold or local-gd",
    "psi": "has no prox step, so it cannot handle psi; use proxgd, proxskip, accelerated or scaffnew",
    "D": "cannot solve psi(D x); use splitskip",
    "batch": "needs full gradients; leave out the batch",
    "clients": "is for a single function; pass a problem with one client, or use scaffnew",
}


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A run, ready to start; ``run``, ``resume``, sweeps and federations make one with ``RunSpec.of``.

    Args:
        method: in its form for the cohorts.
        cohort: the user's rule for cohorts.
        asked: the rule for whom the server asks, which differs where the network may lose clients.
        engine: where it runs; None in a federation.
        every: rounds between records.
        unsafe: warnings about the method's parameters.
        uncovered: what no theorem covers.
        source: where the data come from, for resuming the run.
        fingerprinted: whether the description includes a digest of the data, which takes as long as many gradients.
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
        method: Method | type[Method] | str, problem: Problem | Oracle, stop: Stop, *,
        seed: int = 0, cohort: CohortLike = None, network: Network | str | None = None,
        engine: Engine | None = None, every: int | None = None,
        allow_unsafe_step: bool = False, source: dict[str, Any] | None = None, fingerprinted: bool = True,
    ) -> RunSpec:  # fmt: skip
        """From a user's arguments; whatever is wrong is refused here, in one sentence."""
        seed, participation = theory.whole_seed(seed), as_participation(cohort)
        problem, network = as_problem(problem), as_network(network)
        method = as_method(method)
        asked = asked_by(method, problem, participation, network)
        # where everybody is wanted but some may be missing, the constants are those of whom the server asks
        cohorts = asked if isinstance(participation, Everyone) else participation
        cohorts.check(problem.n)
        check_order(problem.clients)
        check_fit(method, problem, isinstance(asked, Everyone))
        method, unsafe = prepare(method, problem, cohorts, allow_unsafe_step)
        stop.check(problem)
        if engine is not None:
            check_engine(engine, method, network)
        every = every if every is None else theory.whole("every", every)
        uncovered = without_theorem(method, problem, isinstance(asked, Everyone))
        return RunSpec(
            method, problem, stop, seed, participation, asked, network, engine, every, tuple(unsafe),
            tuple(uncovered), source or {}, fingerprinted,
        )  # fmt: skip

    def is_recorded(self, round: int) -> bool:
        """Whether there is a record after this many rounds; by default ever more rarely, at most some 1 % apart."""
        between = self.every or max(1, math.ceil(round / 100))
        return round % between == 0

    def clock(self) -> Clock | None:
        """The simulated time of the run; None without a network."""
        if self.network is None:
            return None
        return Clock(self.network, self.problem, self.method, self.seed, self.cohort)

    def plain(self) -> dict[str, Any]:
        """Plain data, as in spec.json."""
        engine = "" if self.engine is None else self.engine.name
        config = description.config(
            self.method, self.problem, self.stop.rules, self.seed, engine, self.cohort, self.source, self.fingerprinted
        )
        config |= {"every": self.every}
        return config if self.network is None else config | {"network": self.network.plain()}


# -- arguments of a user -----------------------------------------------------------------------------------------------
def as_network(network: object) -> Network | None:
    """A network, or the named one."""
    if isinstance(network, str):
        return Network.named(network)
    if network is None or isinstance(network, Network):
        return network
    raise InputError(f"network is a {type(network).__name__}; pass a proxskip.Network or the name of one.")


def as_problem(problem: Any) -> Problem:
    """A problem, or a single function as the problem of one client."""
    if isinstance(problem, Problem):
        return problem
    if isinstance(problem, type) or not is_oracle(problem):
        what = f"the class {problem.__name__}" if isinstance(problem, type) else f"of type {type(problem).__name__}"
        raise InputError(f"the problem is {what}; give a proxskip.Problem, or a function such as a Logistic model.")
    return Problem([problem])


def as_method(method: object) -> Method:
    """A method; a name or a class stands for one whose parameters are all to be chosen."""
    kind = registry.named(method) if isinstance(method, str) else method
    if isinstance(kind, type) and issubclass(kind, Method):
        registry.check(kind)
        return made(kind)
    if not isinstance(method, Method):
        raise InputError(
            f"{type(method).__name__} is not a method; derive it from proxskip.core.Method and give it an about."
        )
    return method


# -- compatibility -----------------------------------------------------------------------------------------------------
def prepare(
    method: Method, problem: Problem, cohorts: Participation, allow_unsafe_step: bool
) -> tuple[Method, list[str]]:
    """The method with all its parameters, and warnings; refuse those with which it cannot run."""
    complete = method.complete(problem, cohorts)
    if not isinstance(complete, Method):
        raise InputError(f"complete of {method.name} must return the method, such as  replace(self, gamma=gamma).")
    method = complete
    notes = method.check(problem, allow_unsafe_step, cohorts)
    if isinstance(cohorts, Given) and len(groups := cohorts.apart(problem.n)) > 1:
        shown = "; ".join(str(g[:8])[1:-1] + (", ..." if len(g) > 8 else "") for g in groups[:4])
        notes = [*notes, f"the cohorts never combine the groups {shown}, so each group gets its own answer."]
    for note in notes:
        warnings.warn(note, UnsafeStepWarning, stacklevel=5)
    return method, notes


def check_parts(method: Method, psi: object, D: object, batch: object, **more: bool) -> None:
    """Refuse the first part of a problem that the method does not handle; None stands for a part that is missing."""
    parts = more | {"psi": psi is not None and D is None, "D": D is not None, "batch": batch is not None}
    for part, why in _MISSING.items():
        if parts.get(part) and part not in method.handles:
            raise InputError(f"{method.name} {why}.")


def check_fit(method: Method, problem: Problem, everyone: bool) -> None:
    """Refuse a problem that the method is not right for."""
    check_parts(method, problem.psi, problem.D, problem.batch, cohort=not everyone, clients=problem.n > 1)
    if "weights" not in method.handles and float(np.ptp(problem.weights)) > 1e-12:
        raise InputError(f'{method.name} needs equally weighted clients; split with weights="equal".')
    # also for a method that handles either of them alone
    if not everyone and problem.psi is not None and "cohort+psi" not in method.handles:
        raise InputError("psi needs the h of all clients in every round; leave out the cohort or psi, or use 5gcs.")


def check_engine(engine: Engine, method: Method, network: Network | None) -> None:
    """Refuse an engine that cannot run the method, or not over this network."""
    if method.about.needs_hessians and not engine.has_hessians:
        raise InputError(
            f'{method.name} needs Hessians, which the engine "{engine.name}" does not compute; use engine="cpu".'
        )
    if network is not None and not (network.reliable or engine.rewinds):
        raise InputError(
            f'the engine "{engine.name}" cannot undo a void round; use engine="cpu", or a network without losses.'
        )


def without_theorem(method: Method, problem: Problem, everyone: bool) -> list[str]:
    """Warnings about a run that no theorem covers."""
    if everyone or "cohort+weights" in method.handles or float(np.ptp(problem.weights)) <= 1e-12:
        return []
    return [
        f"no theorem covers {method.name} on cohorts of clients with different weights; split with "
        'weights="equal", leave out the cohort, or use 5gcs.'
    ]
