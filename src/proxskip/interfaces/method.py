"""Method: two halves, and a description of everything else the program needs to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from inspect import signature
from typing import Any, ClassVar, TypeAlias

import numpy as np

from proxskip import display
from proxskip.interfaces.exchange import Exchange
from proxskip.links.cohorts import Participation
from proxskip.links.sums import weighted_sum
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
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
        handles: among ``batch clients cohort psi D graph``, what the method is right for; everything else is refused.
        remembers: the vectors that a client keeps between rounds; they start at zero, ``x`` at x0 and ``h`` at h0.
        passing: those of them that only live within a round: each round writes them before it reads them.
        sends: client halves that send only the point their local steps reached (and what the server already knows), so
            that noise for privacy can be added to it.
        heals: with all clients it works from any h0, and repairs a sum of h that is not zero.
        parameters: what the command line offers as flags; all fields if not given.
        style: how it is drawn; if not given, in a color that no method has.
        at_p_one: the method that it becomes at p = 1, which it cannot beat in iterations.
        other_names: its aliases.
        equal_weights: it is only right for equal client weights.
        weighted_cohorts: its theorem on cohorts also holds for unequal client weights.
        psi_on_cohorts: the server holds the sum of all clients' memory, so it can take a prox on cohorts too.
        summed: the remembered vector whose weighted sum over all clients the server knows (``known_sum``); a lost one
            is restored from the others.
        needs_whole_cohort: a federation's round only counts if the whole cohort answers, because codecs divide the
            coordinates among its clients, or their probabilities weigh what they send.
        one_over_L: the theorem that allows gamma <= 1/L, if nothing else is known about the step (``limits``).
        exchanges: the most exchanges in a round; memory is kept accordingly, so that a round can be undone.
    """

    name: str
    title: str = ""
    reference: str = ""
    handles: frozenset[str] = frozenset({"clients"})
    remembers: tuple[str, ...] = ()
    sends: frozenset[str] = frozenset()
    heals: bool = False
    parameters: tuple[str, ...] | None = None
    style: Style | None = None
    at_p_one: str = ""
    other_names: tuple[str, ...] = ()
    needs_whole_cohort: bool = False
    equal_weights: bool = False
    weighted_cohorts: bool = False
    psi_on_cohorts: bool = False
    summed: str = "h"
    passing: tuple[str, ...] = ()
    exchanges: int = 1
    one_over_L: str = ""


SMALLEST_P = 1e-8
"""The smallest probability of communicating: below it a round would hardly ever end."""
LARGEST_K = 10**8
"""The largest number of local steps in a round, likewise."""
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


def _python_number(value: Any) -> Any:
    """A number of numpy as one of Python; a tuple of such numbers likewise."""
    if isinstance(value, tuple) and value and isinstance(value[0], np.generic):
        return tuple(_python_number(v) for v in value)
    if isinstance(value, np.floating):
        return float(value)
    return value.item() if isinstance(value, np.integer | np.bool_) else value


class _FromAbout:
    """``Method.name`` and its like, on the class and on its instances."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __get__(self, method: Any, kind: Any = None) -> Any:
        return getattr((kind if method is None else method).about, self.field)


class Method:
    """Two halves and what is known about them: a frozen dataclass whose fields are the paper's letters.

    Define ``about``, a field ``gamma``, ``round`` and the client halves that it names; everything else has a default.
    Client halves are methods with the arguments ``(self, client, memory, K, *down)``.
    """

    __slots__ = ()
    about: ClassVar[About]
    name: ClassVar[str] = _FromAbout("name")  # type: ignore[assignment]
    handles: ClassVar[frozenset[str]] = _FromAbout("handles")  # type: ignore[assignment]
    remembers: ClassVar[tuple[str, ...]] = _FromAbout("remembers")  # type: ignore[assignment]
    gamma: Any
    """The step size, or one per client."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # dataclass's own repr would print a thousand step sizes and every default
        if "__repr__" not in vars(cls):
            cls.__repr__ = Method.__repr__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        # numpy's numbers would round differently from those of a resumed run, which are read from a file
        for name, value in self._fields().items():
            number = _python_number(value)
            if number is not value:
                object.__setattr__(self, name, number)
        self.check_parameters()

    def __repr__(self) -> str:
        fields_set = [f"{k}={display.short(v)}" for k, v in self._given().items()]
        return f"{type(self).__name__}({', '.join(fields_set)})"

    def _repr_html_(self) -> str:
        about = type(self).about
        rows = [(k, display.short(v)) for k, v in self.parameters().items() if v is not None]
        rows += [("reference", about.reference)] if about.reference else []
        return display.html(about.title or about.name, rows)

    def _given(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        changed = {}
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if f.repr and not (f.default is not MISSING and type(value) is type(f.default) and value == f.default):
                changed[f.name] = value
        return changed

    # -- the algorithm -------------------------------------------------------------------------------------------------
    def start(self, problem: Problem, x0: Array) -> Vectors:
        """The server's vectors before the first round; methods on a graph have no server."""
        return {} if "graph" in self.handles else {"x": x0}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One communication round: the server half."""
        raise NotImplementedError(f"{type(self).__name__} has no server half; define round(self, server, exchange).")

    # -- its parameters ------------------------------------------------------------------------------------------------
    @classmethod
    def theory(cls, problem: Problem) -> Any:
        """The method with its theorem's parameters."""
        raise InputError(f"{cls.name} has no theorem that sets its parameters; give them.")

    @classmethod
    def paper_figure(cls, problem: Problem, *args: Any, **options: Any) -> Any:
        """The setting of the paper's figures, where it differs from the theorem's; arguments as for ``theory``."""
        return cls.theory(problem, *args, **options)

    @classmethod
    def configure(cls, problem: Problem, parameters: Mapping[str, Any]) -> Any:
        """The method with the given parameters, and its theorem's for the rest.

        Args:
            parameters: by name; ``gamma="figure"`` asks for the setting of the paper's figures, where there is
                one. ``cohort`` and ``seed`` (of a random graph) are there for methods that need them.
        """
        return cls.by_theory(problem, parameters)

    @classmethod
    def by_theory(cls, problem: Problem, parameters: Mapping[str, Any]) -> Any:
        """``theory`` with those of the given parameters that it takes; the others replace its choice."""
        flags, known = cls.flags(), {f.name for f in fields(cls)}  # type: ignore[arg-type]
        make = cls.paper_figure if parameters.get("gamma") == "figure" else cls.theory
        takes = signature(cls.theory).parameters
        # what ``theory`` takes shapes its other choices, so it is given to it and not replaced afterwards
        arguments = {k: parameters[k] for k in (*flags, "seed") if k in parameters and k in takes}
        changed = {k: parameters[k] for k in flags if k in known and k in parameters and k not in arguments}
        if changed.get("gamma") == "figure":
            del changed["gamma"]
        if cls.theory.__func__ is not Method.theory.__func__:  # type: ignore[attr-defined]
            return replace(make(problem, **arguments), **changed)
        required = [f.name for f in fields(cls) if f.default is f.default_factory is MISSING]  # type: ignore[arg-type]
        missing = [name for name in required if name not in changed]
        if missing:
            raise InputError(f"{cls.name} has no theorem that sets its parameters; give {' and '.join(missing)}.")
        return cls(**changed)

    @classmethod
    def flags(cls) -> tuple[str, ...]:
        """The parameters that the command line offers."""
        named = cls.about.parameters
        return tuple(f.name for f in fields(cls)) if named is None else named  # type: ignore[arg-type]

    def parameters(self) -> dict[str, Any]:
        """The fields by name."""
        return self._fields()

    def _fields(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def check_parameters(self) -> None:
        """Refuse parameters that are wrong for every problem; the constructor calls it."""
        own = self._fields()
        if "gamma" in own:
            check_steps_positive(own["gamma"])
        if own.get("p") is not None:
            check_probability("p", own["p"])
        if own.get("K") is not None:
            check_count("K", own["K"])

    @property
    def pace(self) -> float:
        """Communications per local step: p, 1/K or 1."""
        own = self.parameters()
        return float(own.get("p") or 1.0 / float(np.max(own.get("K") or 1)))

    def dual_step(self, round: int) -> float:
        """The factor from a difference of x to the change of an h_i in this round, by default p/gamma.

        It magnifies the rounding of x, which the audit of the sum of the h_i forgives.
        """
        return self.pace / float(np.min(self.gamma))

    def slowest_rate(self, problem: Problem) -> float | None:
        """The slowest contraction per iteration that the parameters suggest, to detect stalling; or None."""
        p, rates = self.pace, [self.zeta(problem)]
        if problem.mu is not None:
            rates += [float(np.min(self.gamma)) * problem.mu, p * p]
        return min((r for r in rates if r is not None), default=None)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """Raise InputError for parameters that the method cannot run with; return warnings for unsafe ones.

        Args:
            insist: accept step sizes that are refused otherwise.
        """
        return self.check_steps(problem, insist)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits | None:
        """The known step limits; None if there are none."""
        return StepLimits.one_over_L(s.L, cls.about.one_over_L) if cls.about.one_over_L else None

    def check_steps(
        self, problem: Problem, insist: bool, *, L: float | Callable[[], float] | None = None, **setting: Any
    ) -> list[str]:
        """Check the parameters, and refuse or warn by ``limits``; with own steps gamma_i, client by client against L_i.

        ``L`` is a function where a problem may not know it. ``problem.L_kind == "global"`` counts as insisting: whoever
        chooses the figures' L knows that it is smaller.
        """
        self.check_parameters()
        self.check_lengths(problem)
        gammas = np.atleast_1d(np.asarray(self.gamma, dtype=np.float64))
        if not problem.checks_steps:
            return []  # L is unknown
        # with minibatches the A of expected smoothness replaces L
        exact = problem.batch is None
        one = problem.es_A if not exact else problem.L_max if L is None else L() if callable(L) else L
        smooth = np.full(1, one) if np.ndim(self.gamma) == 0 else problem.es_A_i
        worst = int(np.lexsort((gammas * smooth, gammas > 1.0 / smooth))[-1])  # exact at the boundary 1/L_i
        limits = self.limits(Setting.of(float(smooth[worst]), **setting))
        # warnings still name the limits for max_i L_i
        insist = insist or problem.L_kind == "global"
        return check_limits(self.name, float(gammas[worst]), limits, float(smooth[worst]), insist)

    def check_lengths(self, problem: Problem) -> None:
        """Refuse a gamma or K per client for another number of clients."""
        for name in ("gamma", "K"):
            value = self.parameters().get(name)
            if np.ndim(value) and len(value) != problem.n:  # type: ignore[arg-type]
                raise InputError(f"{name} has {len(value)} entries for {problem.n} clients.")  # type: ignore[arg-type]

    def for_cohorts(self, cohorts: Participation, n: int) -> tuple[Any, list[str]]:
        """The method's form for these cohorts of n clients, and warnings."""
        return self, []

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
        """What a theorem promises; nothing by default."""
        return Claims()

    def zeta(self, problem: Problem) -> float | None:
        """The claimed contraction per iteration (per round where ``claims`` says so), or None."""
        return self.claims(problem).zeta

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """The claimed Lyapunov function at a communication, or None."""
        return self.claims(problem).lyapunov(x, server, memory)


def check_probability(name: str, value: float) -> None:
    """Refuse anything but a probability in (0, 1]."""
    if isinstance(value, bool) or not (isinstance(value, (int, float, np.number)) and 0 < value <= 1):
        raise InputError(f"{name} = {value!r} must lie in (0, 1].")
    if value < SMALLEST_P:
        raise InputError(f"{name} = {value:g} asks for {1 / value:.0e} steps at a time; take at least {SMALLEST_P:g}.")


def check_steps_positive(gamma: Any) -> None:
    """A positive finite step size, or several."""
    try:
        gammas = np.atleast_1d(np.asarray(gamma, dtype=np.float64))
    except (TypeError, ValueError):
        raise InputError(f"gamma = {gamma!r} is not a number.") from None
    if not gammas.size or not np.isfinite(gammas).all() or gammas.min() <= 0:
        raise InputError(f"gamma = {display.short(gamma)} must be positive and finite.")


def check_count(name: str, value: Any) -> None:
    """A whole number of at least one, or several."""
    counts = np.atleast_1d(np.asarray(value))
    if not counts.size or counts.dtype.kind not in "iu" or counts.min() < 1:
        raise InputError(f"{name} = {value} must be a whole number of at least 1, or one for each client.")
    if counts.max() > LARGEST_K:
        raise InputError(f"{name} = {int(counts.max())} is too many steps at a time; take at most {LARGEST_K:,}.")
