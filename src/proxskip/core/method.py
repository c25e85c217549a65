"""Method: two halves, and a description of everything else the program needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np

from proxskip.core.exchange import Exchange
from proxskip.core.parameters import CHECKS, plain
from proxskip.participation import EVERYONE, CohortLike, Participation, as_participation
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.support import display
from proxskip.support.sums import weighted_sum
from proxskip.theory.step_sizes import Setting, StepLimits, check_limits
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True)
class Style:
    """How a method's curve is drawn: a color, a dash pattern and a marker of matplotlib.

    Args:
        color: a color.
        dashes: "-", "--", "-." or ":".
        marker: such as "o".
        highlighted: draw it thicker than the others.
    """

    color: str
    dashes: str = "-"
    marker: str = "o"
    highlighted: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What the program knows about a method besides its halves.

    Args:
        name: on the command line, in files and messages: lower-case letters, digits and hyphens.
        title: in legends and tables; the name if not given.
        reference: authors, title, year, and where to find it.
        handles: what the method is right for, among ``HANDLES``; everything else is refused.
        remembers: the vectors that a client keeps between rounds; they start at zero, ``x`` at x0 and ``h`` at h0.
        sends: client halves that send only the point their local steps reached (and what the server already knows), so
            that noise for privacy can be added to it.
        heals: with all clients it works from any h0, and repairs a sum of h that is not zero.
        style: how it is drawn; if not given, in a color that no method has.
        at_p_one: the method that it becomes at p = 1, which it cannot beat in iterations.
        other_names: its aliases.
        summed: the remembered vector whose weighted sum over all clients the server knows (``known_sum``); a lost one
            is restored from the others.
        needs_whole_cohort: a federation's round only counts if the whole cohort answers, because codecs divide the
            coordinates among its clients, or their probabilities weigh what they send.
        needs_hessians: its client halves call ``Client.expansion``, which not every engine has.
    """

    name: str
    title: str = ""
    reference: str = ""
    handles: frozenset[str] = frozenset({"clients", "weights"})
    remembers: tuple[str, ...] = ()
    sends: frozenset[str] = frozenset()
    heals: bool = False
    style: Style | None = None
    at_p_one: str = ""
    other_names: tuple[str, ...] = ()
    needs_whole_cohort: bool = False
    needs_hessians: bool = False
    summed: str = "h"


HANDLES = {
    "batch": "minibatches",
    "clients": "more than one client",
    "weights": "clients with different weights",
    "cohort": "some of the clients in a round",
    "cohort+weights": "the same with different weights, by its theorem",
    "cohort+psi": "the same with a prox: the server holds the sum of all clients' memory",
    "psi": "a regularizer psi(x)",
    "D": "psi(D x)",
    "graph": "a graph without a server",
}
"""The words of ``About.handles``."""


def chosen() -> Any:
    """A field that ``complete`` chooses if it is not given."""
    return field(default=None)


def constant() -> Any:
    """A field for a number of the problem that a half needs: ``complete`` sets it, and no flag offers it."""
    return field(default=None, metadata={"flag": False})


Lyapunov: TypeAlias = Callable[[Array, Vectors, Vectors], float | None]
"""A Lyapunov function of (x, server, memory); None without a known solution."""


def _no_lyapunov(x: Array, server: Vectors, memory: Vectors) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Claims:
    """What a theorem promises for one method on one problem.

    Args:
        zeta: the Lyapunov function contracts by 1 - zeta per iteration, in expectation; None if unknown.
        per_round: it contracts by 1 - zeta per round instead, however many steps the round takes.
        lyapunov: the Lyapunov function of (x, server, memory) at a communication; None without a known solution.
        ball: whether minibatches leave a ball of squared radius  gamma^2 es_C / zeta  that it does not enter.
    """

    zeta: float | None = None
    lyapunov: Lyapunov = _no_lyapunov
    ball: bool = True
    per_round: bool = False


def from_solution(problem: Problem, psi: Callable[[Solution, Array, Vectors, Vectors], float | None]) -> Lyapunov:
    """A Lyapunov function of (solution, x, server, memory); None without a known solution.

    Args:
        problem: whose solution is meant.
        psi: the function of (solution, x, server, memory).
    """

    def lyapunov(x: Array, server: Vectors, memory: Vectors) -> float | None:
        return None if problem.solution is None else psi(problem.solution, x, server, memory)

    return lyapunov


class Method:
    """Two halves and what is known about them: a frozen dataclass whose fields are the paper's letters.

    A field that may be chosen is None by default, and ``complete`` chooses it. Define ``about``, a field ``gamma``,
    ``round`` and the client halves that it names; everything else has a default. Client halves are methods with the
    arguments ``(self, client, memory, K, *down)``.
    """

    __slots__ = ()
    about: ClassVar[About]
    gamma: Any
    """The step size, or one per client."""

    def __post_init__(self) -> None:
        # numpy's numbers would round differently from those of a resumed run, which are read from a file
        for name, value in self._fields().items():
            if plain(value) is not value:
                object.__setattr__(self, name, plain(value))
        self.check_parameters()

    def __repr__(self) -> str:
        given = [f"{k}={display.short(v)}" for k, v in self.given().items()]
        return f"{type(self).__name__}({', '.join(given)})"

    def _repr_html_(self) -> str:
        rows = [(k, display.short(v)) for k, v in self.parameters().items() if v is not None]
        rows += [("reference", self.about.reference)] if self.about.reference else []
        return display.html(self.about.title or self.name, rows)

    @property
    def name(self) -> str:
        """``about.name``."""
        return self.about.name

    @property
    def handles(self) -> frozenset[str]:
        """``about.handles``."""
        return self.about.handles

    @property
    def remembers(self) -> tuple[str, ...]:
        """``about.remembers``."""
        return self.about.remembers

    # -- the algorithm -------------------------------------------------------------------------------------------------
    def start(self, problem: Problem, x0: Array) -> Vectors:
        """The server's vectors before the first round; methods on a graph have no server."""
        return {} if "graph" in self.handles else {"x": x0}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One communication round: the server half."""
        raise NotImplementedError(f"{type(self).__name__} has no server half; define round(self, server, exchange).")

    # -- its parameters ------------------------------------------------------------------------------------------------
    @classmethod
    def theory(cls, problem: Problem, *, cohort: CohortLike = None, figure: bool = False, **given: Any) -> Any:
        """The method with the given parameters, and those of its theorem for the rest: ``cls(**given).complete(...)``.

        Args:
            problem: whose constants the theorem needs.
            cohort: as in ``run``; the constants are then those of the cohorts.
            figure: the setting of the paper's figures, where it differs from the theorem's.
            given: parameters by name; they are never replaced.
        """
        cohorts = as_participation(cohort)
        cohorts.check(problem.n)
        return made(cls, **given).complete(problem, cohorts, figure)

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> Any:
        """The method with a value for every parameter: those that were given, and the theorem's for the others.

        Args:
            cohorts: who takes part in a round.
            figure: the setting of the paper's figures, where it differs from the theorem's.
        """
        if self.gamma is None:
            raise InputError(f"no theorem chooses the step size of {self.name}; give gamma.")
        return self

    def parameters(self) -> dict[str, Any]:
        """The fields by name."""
        return self._fields()

    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        defaults = {f.name: f.default for f in fields(self)}  # type: ignore[arg-type]
        return {
            name: value
            for name, value in self._fields().items()
            if type(value) is not type(defaults[name]) or value != defaults[name]
        }

    def _fields(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def check_parameters(self) -> None:
        """Refuse parameters that are wrong for every problem, by their names; None is still to be chosen."""
        for name, value in self._fields().items():
            if name in CHECKS and value is not None:
                CHECKS[name](name, value)

    @property
    def pace(self) -> float:
        """Communications per local step: p, 1/K or 1."""
        own = self.parameters()
        if own.get("p") is not None:
            return float(own["p"])
        if own.get("K") is not None:
            return 1.0 / float(np.max(own["K"]))
        return 1.0

    def dual_step(self, round: int) -> float:
        """The factor from a difference of x to the change of an h_i in this round, by default p/gamma.

        It magnifies the rounding of x, which the audit of the sum of the h_i forgives.
        """
        return self.pace / float(np.min(self.gamma))

    def slowest_rate(self, problem: Problem) -> float | None:
        """The slowest contraction per iteration that the parameters suggest, to detect stalling; or None."""
        rates = []
        promised = self.zeta(problem)
        if promised is not None:
            rates.append(promised)
        if problem.mu is not None:
            rates += [float(np.min(self.gamma)) * problem.mu, self.pace**2]
        return min(rates, default=None)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """Raise InputError for parameters that the method cannot run with; return warnings for unsafe ones.

        Args:
            allow_unsafe_step: accept step sizes that are refused otherwise.
            cohorts: who takes part in a round.
        """
        return self.check_steps(problem, allow_unsafe_step)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits | None:
        """The known step limits; None if there are none."""
        return None

    def smoothness(self, problem: Problem) -> float:
        """The L that limits one common step size with full gradients: max_i L_i by default."""
        return problem.L_max

    def check_steps(self, problem: Problem, allow_unsafe_step: bool, **setting: Any) -> list[str]:
        """Check the parameters, and refuse or warn by ``limits``; own steps gamma_i are compared with L_i.

        ``problem.smoothness == "average"`` counts as insisting: whoever chooses it knows that it is smaller.
        """
        self.check_parameters()
        self.check_lengths(problem)
        if not problem.checks_steps:  # L is unknown
            return []
        gamma, L = self._longest_step(problem)
        limits = self.limits(Setting.of(L, **setting))
        return check_limits(self.name, gamma, limits, L, allow_unsafe_step or problem.smoothness == "average")

    def _longest_step(self, problem: Problem) -> tuple[float, float]:
        """The step size and the smoothness of the client with the largest gamma_i L_i.

        With minibatches the A of expected smoothness replaces L.
        """
        if isinstance(self.gamma, tuple):
            gammas, smooth = np.array(self.gamma), problem.es_A_i
            worst = int(np.argmax(gammas * smooth))
            return float(gammas[worst]), float(smooth[worst])
        L = self.smoothness(problem) if problem.batch is None else problem.es_A
        return float(self.gamma), float(L)

    def check_lengths(self, problem: Problem) -> None:
        """Refuse a gamma or K per client for another number of clients."""
        for name in ("gamma", "K"):
            value = self.parameters().get(name)
            if isinstance(value, tuple) and len(value) != problem.n:
                raise InputError(f"{name} has {len(value)} entries for {problem.n} clients.")

    def doubt(self, problem: Problem, x: Array, is_claimed: bool = True) -> str | None:
        """Why a small gradient at x proves nothing; None by default.

        Args:
            problem: which was run.
            x: where it ended.
            is_claimed: whether x is taken for a solution, or a limit ended the run.
        """
        return None

    def better_than(self, f: float, server: Vectors) -> Array | None:
        """A point that a run returns in place of the communicated x, where f is this; None if x is what counts."""
        return None

    # -- control variates and claims -----------------------------------------------------------------------------------
    def controls(self, server: Vectors, memory: Vectors) -> Array | None:
        """The control variates h_i, one row per client; None for methods without them."""
        return memory.get("h")

    def audited(self, server: Vectors, memory: Vectors) -> Array | None:
        """The client vectors that ``excess`` adds up; the control variates by default."""
        return self.controls(server, memory)

    def known_sum(self, problem: Problem, server: Vectors) -> Array | None:
        """What the clients' ``about.summed`` must add up to, weighted: zero for h, c for Scaffold; None if unknown."""
        h = self.controls(server, {k: np.zeros(problem.d) for k in self.about.remembers})
        return None if h is None else -h

    def excess(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """How far the h_i are from what must hold after every round; None if nothing must.

        By default max |sum_i w_i h_i|, which must be zero without psi.
        """
        h = self.controls(server, memory)
        if h is None or problem.psi is not None or problem.n == 1:
            return None
        return float(np.abs(weighted_sum(problem.weights, h)).max())

    def claims(self, problem: Problem) -> Claims:
        """What a theorem promises for the completed method; nothing by default."""
        return Claims()

    def zeta(self, problem: Problem) -> float | None:
        """The claimed contraction per iteration (per round where ``claims`` says so), or None."""
        return self.claims(problem).zeta

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """The claimed Lyapunov function at a communication, or None."""
        return self.claims(problem).lyapunov(x, server, memory)


def made(kind: type[Method], **given: Any) -> Method:
    """The method with these parameters, if it can be made from them."""
    required = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in required if name not in given]:
        raise InputError(f"no theorem chooses the parameters of {kind.about.name}; give {' and '.join(missing)}.")
    return kind(**given)


def flags(kind: type[Method]) -> tuple[str, ...]:
    """The parameters that the command line offers: all fields but the constants."""
    return tuple(f.name for f in fields(kind) if f.metadata.get("flag", True))  # type: ignore[arg-type]
