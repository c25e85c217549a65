"""The seam: the four roles that meet in a round: Client, Exchange, Method, Engine.

A method is two short halves; an engine is one verb.

    The *server half* (``Method.round``) says what to send and what to do with the average.
    The *client half* says which ``h`` to use and what to remember.
    Between them stands ``exchange``; inside the client half stands ``descend(x, h, gamma, K)``,
    which does  ``x <- x - gamma * (g(x) - h)``  K times.  Nothing else crosses.

What follows from it:

* A client half uses only ``+ - * /`` on arrays, so the same lines run on one client's ``(d,)`` vectors
  and on a whole cohort's ``(c, d)`` stack.
* What a client remembers is a pure function of the messages it saw. Communication is counted by the
  engine that moves it, never claimed by the method.
* The server draws everything that is shared (the number of local steps, the cohort, an anchor's coin) from a
  generator keyed by (seed, round). Everything else is keyed too; ``randomness`` lists every stream.
* ``settle`` tells exactly the cohort that was averaged what came of it: the update of ``h_i`` belongs to the
  round that averaged client i, with that round's ``x+``, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from inspect import signature
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

from proxskip.links.codecs import Codec
from proxskip.links.cohorts import Participation
from proxskip.links.graphs import Graph
from proxskip.problems.federated import Problem
from proxskip.theory.steps import Setting, StepLimits, check_limits
from proxskip.types import Array, Indices, InputError, Vectors

Pull: TypeAlias = tuple[Any, Array]
"""``(tau, centre)``: each step also goes down the gradient of ``tau/2 |z - centre|^2``."""
Anchor: TypeAlias = tuple[Array, Array, float]
"""``(w, gw, q)``: a point, the full gradient there, and the probability that a step moves it (L-SVRG)."""


# -- Client ------------------------------------------------------------------------------------------------------------
class Client(Protocol):
    """What a client half can do: one client with ``(d,)`` vectors, or a cohort with ``(c, d)`` stacks."""

    def descend(
        self,
        x: Array,
        h: Array | float,
        gamma: Any,
        K: Any,
        *,
        pull: Pull | None = None,
        momentum: Any = 0.0,
        anchor: Anchor | None = None,
        until: float | None = None,
    ) -> Any:
        """K times  z = y + momentum (y - y_before);  y <- z - gamma (g(z) - h + tau (z - centre))  from y = x.

        Returns y. With ``anchor`` it returns ``(y, w, gw)``, with ``until`` it returns ``(y, steps)``.

        Args:
            pull: ``(tau, centre)``, see ``Pull``.
            momentum: 0 for plain steps.
            anchor: ``(w, gw, q)``. The gradient is  g_j(z) - g_j(w) + gw  with the same rows j at both points; after a
                step, with probability q, w becomes that step's z and gw the full gradient there. Not together with
                a pull, momentum or ``until``.
            until: with ``pull``, stop at the first z with  |g(z) - h + tau (z - centre)| <= until tau |z - centre|,
                at the latest after K steps. The steps really taken come back, and these are counted: one for every z
                at which the gradient was computed, the last one included.
        """
        ...

    def gradient(self, x: Array, where: Any = None) -> Array:
        """The full local gradient at x; only computed, and counted, where ``where`` is not zero (zeros elsewhere)."""
        ...

    def own(self, values: Any) -> Any:
        """This client's entry of n numbers (or row of ``(n, d)``), shaped to multiply its vectors.

        A single number stays a number.
        """
        ...

    def send(self, v: Array, codec: Codec | None = None) -> Array:
        """v as the server will read it; the engine counts the codec's bits, and a wire carries its bytes.

        Without a codec v goes up as it is, or as the federation's wire format rounds it. What is not changed on
        the way comes back as the very same object, so that a half may ask ``sent is v``.
        """
        ...


ClientHalf = Callable[..., tuple[tuple[Array, ...], Vectors]]
"""``half(client, memory, K, *down, **own) -> (up, memory)``"""
SettleHalf = Callable[..., Vectors]
"""``half(client, memory, *outcome) -> memory``"""


def as_sent(v: Array, up: Array, sent: Array) -> Array:
    """The remembered v that belongs to ``sent`` instead of ``up``; the same object where nothing was changed."""
    return v if sent is up else v + (sent - up)


# -- Exchange ----------------------------------------------------------------------------------------------------------
class Exchange(Protocol):
    """One round's line between the server half and the clients; the engine stands behind it and counts."""

    @property
    def problem(self) -> Problem: ...
    @property
    def rng(self) -> np.random.Generator:
        """Keyed by (seed, round): draw K, coins and nothing private from it."""
        ...

    @property
    def everyone(self) -> bool:
        """False when this run averages over cohorts."""
        ...

    @property
    def cohort(self) -> Indices:
        """The clients of this round, in increasing order."""
        ...

    @property
    def round(self) -> int:
        """The number of this round, from 0."""
        ...

    def __call__(
        self,
        half: ClientHalf,
        *down: Array,
        K: int | Sequence[int] = 0,
        own: Mapping[str, Any] | None = None,
        weights: Array | None = None,
    ) -> tuple[Array, ...]:
        """Send ``down`` to the cohort, run ``half`` there, return the weighted mean of each vector that came up.

        Args:
            K: local steps, for all clients or for each of the n.
            own: numbers for each of the n clients by name; they travel with the message, are counted, and reach the
                half as keyword arguments.
            weights: in place of the problem's.
        """
        ...

    def gossip(self, half: ClientHalf, graph: Graph, K: int) -> None:
        """Run ``half`` everywhere and mix each vector that comes up along the graph's edges.

        ``settle`` then hands every client its rows of the mixed vectors.
        """
        ...

    def settle(self, half: SettleHalf, *outcome: Array) -> None:
        """Tell the cohort of this round what came of it; this is where ``h`` is updated, exactly once."""
        ...

    def prox(self, x: Array, t: float) -> Array:
        """One counted evaluation of the problem's ``psi``: ``prox_{t psi}(x)``."""
        ...

    def prox_conjugate(self, y: Array, t: float) -> Array:
        """One counted evaluation of ``prox_{t psi*}(y)`` by Moreau's identity."""
        ...


# -- Method ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Style:
    """How a method's curve is drawn: a colour, a dash pattern and a marker of matplotlib."""

    color: str
    dashes: str = "-"
    marker: str = "o"
    highlighted: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What the program knows of a method besides its two halves. Everything that needs to know reads it here.

    Args:
        name: on the command line, in files and messages: lower-case letters, digits and hyphens.
        title: in legends and tables; the name if not given.
        reference: authors, title, year, and where to find it.
        handles: among ``batch clients cohort psi D graph``, what the method is right for; everything else is refused.
        remembers: the vectors that a client keeps between rounds; they start at zero, ``x`` at x0 and ``h`` at h0.
        sends: client halves that send nothing but the point to which their local steps led (and what the server knows
            already), so that noise for privacy can be added to it.
        heals: with everybody present it works from any h0, and mends a sum of h that is not zero.
        parameters: what the command line offers as flags; all fields if not given.
        style: how it is drawn; from a palette if not given.
        at_p_one: the method that it becomes at p = 1, which it cannot beat in iterations.
        other_names: names under which it can also be asked for.
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


Lyapunov: TypeAlias = Callable[[Array, Vectors, Vectors], float | None]
"""A Lyapunov function of (x, server, memory); None where no solution is known."""


def _no_lyapunov(x: Array, server: Vectors, memory: Vectors) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Claims:
    """What a theorem promises for one method on one problem.

    Args:
        zeta: the Lyapunov function contracts by 1 - zeta per iteration, in expectation; None if unknown.
        lyapunov: the Lyapunov function of (x, server, memory) at a communication; None without a known solution.
    """

    zeta: float | None = None
    lyapunov: Lyapunov = _no_lyapunov


class _FromAbout:
    """``Method.name`` and its like, on the class and on its instances."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __get__(self, method: Any, kind: Any = None) -> Any:
        return getattr((kind if method is None else method).about, self.field)


class Method:
    """Two halves and what is known about them: a frozen dataclass whose fields are the paper's letters.

    Only ``about``, a field ``gamma``, ``round`` and the client halves that it names are needed; everything else has a
    default. Client halves are methods with the arguments ``(self, client, memory, K, *down)``.
    """

    __slots__ = ()
    about: ClassVar[About]
    name: ClassVar[str] = _FromAbout("name")  # type: ignore[assignment]
    handles: ClassVar[frozenset[str]] = _FromAbout("handles")  # type: ignore[assignment]
    remembers: ClassVar[tuple[str, ...]] = _FromAbout("remembers")  # type: ignore[assignment]
    gamma: Any
    """The step size, or one per client."""

    # -- the box -------------------------------------------------------------------------------------------------------
    def start(self, problem: Problem, x0: Array) -> Vectors:
        """The server's vectors before the first round."""
        return {"x": x0}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One communication round: the server half."""
        raise NotImplementedError(f"{type(self).__name__} has no server half: define round(self, server, exchange).")

    # -- its parameters ------------------------------------------------------------------------------------------------
    @classmethod
    def theory(cls, problem: Problem) -> Any:
        """The method with its theorem's parameters."""
        raise InputError(f"{cls.name} has no theorem that sets its parameters; give them.")

    @classmethod
    def paper_figure(cls, problem: Problem) -> Any:
        """The setting of the paper's figures, where it differs from the theorem's."""
        return cls.theory(problem)

    @classmethod
    def configure(cls, problem: Problem, given: Mapping[str, Any]) -> Any:
        """The method with the given parameters, and its theorem's for the rest.

        Args:
            given: parameters by name; ``gamma="figure"`` asks for the setting of the paper's figures, where there is
                one. ``cohort`` and ``seed`` (of a random graph) are there for methods that need them.
        """
        return cls.by_theory(problem, given)

    @classmethod
    def by_theory(cls, problem: Problem, given: Mapping[str, Any]) -> Any:
        """``theory`` with those of the given parameters that it takes; the others replace its choice."""
        flags, known = cls.flags(), {f.name for f in fields(cls)}  # type: ignore[arg-type]
        make = cls.paper_figure if given.get("gamma") == "figure" else cls.theory
        takes = signature(make).parameters
        asked = {k: given[k] for k in (*flags, "seed") if k in given and k in takes}
        changed = {k: given[k] for k in flags if k in known and k in given and k not in asked}
        if changed.get("gamma") == "figure":
            del changed["gamma"]
        if cls.theory.__func__ is not Method.theory.__func__:  # type: ignore[attr-defined]
            return replace(make(problem, **asked), **changed)
        missing = [f.name for f in fields(cls) if f.name not in changed and _is_required(f)]  # type: ignore[arg-type]
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
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    @property
    def pace(self) -> float:
        """Communications per local step: p, or 1/K, or 1."""
        given = self.parameters()
        return float(given.get("p") or 1.0 / float(np.max(given.get("K") or 1)))

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """Raise InputError for parameters the method cannot run with; return warnings for unsafe ones.

        Args:
            insist: run with steps that are refused otherwise.
        """
        return self.check_steps(problem, insist)

    @staticmethod
    def limits(s: Setting) -> StepLimits | None:
        """What is known about the step size; None where nothing is."""
        return None

    def check_steps(self, problem: Problem, insist: bool, *, L: float | None = None, **given: Any) -> list[str]:
        """Refuse or warn by ``limits``; with own steps gamma_i, client by client against L_i.

        ``problem.L_kind == "global"`` counts as insisting: whoever asks for the figures' L knows that it is smaller.
        """
        gammas = np.atleast_1d(np.asarray(self.gamma, dtype=np.float64))
        if not np.isfinite(gammas).all() or gammas.min() <= 0:
            raise InputError(f"gamma = {self.gamma} must be positive.")
        if np.ndim(self.gamma) and len(gammas) != problem.n:
            raise InputError(f"gamma has {len(gammas)} entries for {problem.n} clients.")
        one = problem.es_A if problem.batch is not None else problem.L_max if L is None else L
        smooth = np.full(1, one) if np.ndim(self.gamma) == 0 else problem.es_A_i
        worst = int(np.lexsort((gammas * smooth, gammas > 1.0 / smooth))[-1])  # exact at the boundary 1/L_i
        limits = self.limits(Setting.of(float(smooth[worst]), **given))
        insist = insist or problem.L_kind == "global"
        return check_limits(self.name, float(gammas[worst]), limits, float(smooth[worst]), insist)

    def for_cohorts(self, cohorts: Participation, n: int) -> tuple[Any, list[str]]:
        """The method on these cohorts of n clients, and warnings."""
        return self, []

    # -- what is claimed of it -----------------------------------------------------------------------------------------
    def controls(self, server: Vectors, memory: Vectors) -> Array | None:
        """The control variates h_i, one row per client; None for methods without."""
        return memory.get("h")

    def claims(self, problem: Problem) -> Claims:
        """What a theorem promises; nothing by default."""
        return Claims()

    def zeta(self, problem: Problem) -> float | None:
        """The claimed contraction per iteration, or None."""
        return self.claims(problem).zeta

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """The claimed Lyapunov function at a communication, or None."""
        return self.claims(problem).lyapunov(x, server, memory)


def _is_required(f: Field[Any]) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


# -- Engine ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Request:
    """One exchange as an engine sees it: which half runs on which clients, with what.

    Args:
        K: local steps, one number or one per member of the cohort.
        down: the vectors that go down.
        own: numbers by name, one per member of the cohort.
        exchange: its number within the round.
        attempt: how often the round was void before; with it a federation's codecs are keyed anew.
        first, asked: the place of the first member among all that were asked, and how many they are, where the cohort
            is only a part of them (an actor's).
    """

    half: ClientHalf
    cohort: Indices
    round: int
    K: Any = 0
    down: tuple[Array, ...] = ()
    own: Mapping[str, Array] = field(default_factory=dict)
    exchange: int = 0
    attempt: int = 0
    first: int = 0
    asked: int | None = None


class Size(NamedTuple):
    """What a vector that went through a codec took on its way up, all clients together."""

    bits: int
    bytes: int
    floats: int

    @staticmethod
    def total(sizes: Iterable[Size | None]) -> Size | None:
        """Of several clients; None where the vector travelled as it was."""
        known = [s for s in sizes if s is not None]
        return Size(*map(sum, zip(*known, strict=True))) if known else None


@dataclass(frozen=True, slots=True)
class Work:
    """What came of a request.

    Args:
        up: what came up, each ``(c, d)``.
        gradients: rows differentiated.
        sizes: of each vector that went through a codec, and None for plain ones.
        steps: the local steps really taken, one per member, where these are not the request's K.
    """

    up: tuple[Any, ...]
    gradients: int
    sizes: tuple[Size | None, ...] = ()
    steps: Indices | None = None


class Carrier(Protocol):
    """An ability with a default: where the server's vectors live. The default is here, as numpy arrays."""

    def is_far(self) -> bool:
        """Whether the server's vectors live elsewhere; asked after ``open``."""
        return False

    def place(self, v: Array) -> Any:
        """A vector of the server's there."""
        return v

    def fetch(self, v: Any) -> Array:
        """And back."""
        found: Array = v
        return found

    def wait(self) -> None:
        """Return when everything asked for is done."""
        return None


@dataclass(frozen=True, slots=True)
class Mixed:
    """What came of gossip: what stands for the mixed rows in ``tell``, and the costs.

    Args:
        vectors: how many went along an edge.
        finite: whether all that was mixed is finite, as far as that is at hand.
    """

    rows: tuple[Any, ...]
    gradients: int
    vectors: int
    finite: bool


class Gossiper(Protocol):
    """An ability with a default: mixing rows along a graph. The default runs the half and mixes here."""

    def run(self, request: Request) -> Work: ...

    def mix(self, graph: Graph, U: Any) -> Any:
        """One gossip step on a stack that came up."""
        return graph.mix(U)

    def gossip(self, request: Request, graph: Graph) -> Mixed:
        """Run the half everywhere and mix what comes up."""
        work = self.run(request)
        rows = tuple(self.mix(graph, U) for U in work.up)
        return Mixed(rows, work.gradients, len(rows), all(bool(np.isfinite(U).all()) for U in rows))


class Witness(Protocol):
    """An ability with a default: what is known of the machines. The default knows nothing of interest."""

    def judge(self, problem: Problem) -> Problem:
        """The problem that records are evaluated with, where values and gradients are computed elsewhere."""
        return problem

    def pulse(self) -> dict[str, float]:
        """How the run is doing, for progress."""
        return {}

    def report(self) -> tuple[dict[str, Any] | None, list[str]]:
        """What happened to the machines: for the result's summary, and as sentences."""
        return None, []


class Engine(Carrier, Gossiper, Witness, Protocol):
    """Where client halves run. An engine holds the clients' memory, one row per client, and owns nothing else.

    ``engines.near.NearEngine`` writes everything but ``client`` for an engine whose clients are in this process.
    """

    name: str

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Take the shards and the clients' initial memory (each entry ``(n, d)``)."""
        ...

    def run(self, request: Request) -> Work:
        """Run a half on its cohort and keep its memory."""
        ...

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        """Run ``half`` on the cohort with the outcome (each ``(d,)``, or ``(c, d)`` for one row per client)."""
        ...

    def sum(self, w: Array, U: Any) -> Any:
        """``sum_j w_j U_j`` over the cohort's rows, with the bytes of ``links.sums.weighted_sum``."""
        ...

    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        ...

    def close(self) -> None:
        """Give back threads and machines."""
        ...

    def shutdown(self) -> None:
        """Give back what outlives a run too."""
        self.close()
