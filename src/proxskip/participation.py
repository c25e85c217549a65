"""Who takes part in a round: ``run(..., cohort=...)`` takes a number, or one of these.

The server draws cohorts from a generator keyed by (seed, round).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import scipy

from proxskip import theory
from proxskip.support.randomness import FEW_CLIENTS, subset
from proxskip.types import Array, Indices, InputError

__all__ = ["Bernoulli", "Given", "Uniform"]


class Participation(Protocol):
    """A rule for drawing cohorts."""

    def check(self, n: int) -> None:
        """Raise InputError if the rule does not fit n clients."""

    def draw(self, rng: np.random.Generator, n: int, round: int) -> Indices:
        """The clients of this round in increasing order, at least one."""

    def constants(self, n: int) -> tuple[float, float]:
        """a = E[(s-1)+]/(n-1) and the bound E[nu(s)] on the chi of TAMUNA, for the random cohort size s."""

    def share(self, n: int) -> float:
        """The mean share of the n clients that takes part in a round."""

    def inclusion(self, n: int) -> tuple[Array, float]:
        """pi_i, the probability that client i takes part, and rho with  P(i and j) = rho pi_i pi_j  for i != j."""


@dataclass(frozen=True, slots=True)
class Everyone(Participation):
    """Full participation."""

    def check(self, n: int) -> None:
        """Always fits."""

    def draw(self, rng: np.random.Generator, n: int, round: int) -> Indices:
        return np.arange(n)

    def constants(self, n: int) -> tuple[float, float]:
        return 1.0, 1.0

    def share(self, n: int) -> float:
        return 1.0

    def inclusion(self, n: int) -> tuple[Array, float]:
        return np.ones(n), 1.0


EVERYONE = Everyone()


@dataclass(frozen=True, slots=True)
class Uniform:
    """c of n clients, each cohort equally likely."""

    c: int

    def __post_init__(self) -> None:
        if self.c < 1:
            raise InputError(f"a cohort of {self.c} clients cannot be drawn; give at least 1.")

    def check(self, n: int) -> None:
        if not 1 <= self.c <= n:
            raise InputError(f"a cohort of {self.c} cannot be drawn from {n} clients; choose from 1 to {n}.")

    def draw(self, rng: np.random.Generator, n: int, round: int) -> Indices:
        if n >= FEW_CLIENTS:
            return subset(rng, n, self.c)
        # sorted, because sums are in client order
        return np.sort(rng.permutation(n)[: self.c])

    def constants(self, n: int) -> tuple[float, float]:
        return theory.cohort_constants(n, {self.c: 1.0})

    def share(self, n: int) -> float:
        return self.c / n

    def inclusion(self, n: int) -> tuple[Array, float]:
        """c/n; pairs are a little rarer than if independent."""
        return np.full(n, self.c / n), 1.0 if n == 1 else n * (self.c - 1) / (self.c * (n - 1))


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Each client takes part independently, with one probability or its own; an empty cohort is drawn again.

    Args:
        probability: of each client, one number or one per client.
    """

    probability: float | tuple[float, ...]

    def __post_init__(self) -> None:
        if np.ndim(self.probability):
            object.__setattr__(self, "probability", tuple(float(q) for q in np.asarray(self.probability)))
        q = np.atleast_1d(self.probability)
        if not np.all((q > 0) & (q <= 1)):
            wrong = q[~((q > 0) & (q <= 1))][0]
            raise InputError(f"the probability {wrong} of a cohort must lie in (0, 1].")

    def check(self, n: int) -> None:
        """One probability or n."""
        q = np.atleast_1d(self.probability)
        if np.ndim(self.probability) and len(q) != n:
            raise InputError(f"there are {len(q)} probabilities for {n} clients; give one, or one per client.")
        if n * q.mean() < 1e-3:  # redrawing would take thousands of draws
            raise InputError(f"with probability {q.mean():g} almost every cohort of {n} clients is empty; raise it.")

    def draw(self, rng: np.random.Generator, n: int, round: int) -> Indices:
        if n >= FEW_CLIENTS and not isinstance(self.probability, tuple):  # first the size, then the members
            size = 0
            while size == 0:
                size = int(rng.binomial(n, self.probability))
            return subset(rng, n, size)
        q = np.asarray(self.probability)
        while True:
            cohort = np.flatnonzero(rng.random(n) < q)
            if len(cohort):
                return cohort

    def constants(self, n: int) -> tuple[float, float]:
        if isinstance(self.probability, tuple):
            raise InputError(
                "this method does not support different probabilities per client; use 5gcs, or one probability."
            )
        return theory.cohort_constants(n, theory.binomial_sizes(n, self.probability))

    def share(self, n: int) -> float:
        return float(np.mean(self.inclusion(n)[0]))

    def inclusion(self, n: int) -> tuple[Array, float]:
        """q_i/P and P, the probability that a cohort is not empty."""
        q = np.broadcast_to(np.asarray(self.probability, dtype=np.float64), (n,))
        some = -np.expm1(np.sum(np.log1p(-np.minimum(q, 1 - 1e-16))))
        return q / some, float(some)


@dataclass(frozen=True, slots=True)
class Given(Participation):
    """Cohorts from a list, in turn; after the last one the list starts again.

    Args:
        cohorts: the numbers of the clients in each cohort; ``Given.of`` takes lists too.
    """

    cohorts: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(cohorts: Sequence[Sequence[int]]) -> Given:
        """From any sequence ``cohorts`` of sequences of client numbers."""
        numbers = tuple(tuple(np.asarray(c).tolist()) for c in cohorts)
        for k, c in enumerate(numbers):
            if not all(isinstance(i, int) and not isinstance(i, bool) for i in c):
                raise InputError(f"cohort {k} = {list(c)} must hold the numbers of clients, which are whole.")
        return Given(numbers)

    def check(self, n: int) -> None:
        if not self.cohorts:
            raise InputError("the list of cohorts is empty; give at least one cohort.")
        for k, c in enumerate(self.cohorts):
            if not c or len(set(c)) != len(c) or min(c) < 0 or max(c) >= n:
                raise InputError(
                    f"cohort {k} = {list(c)} must name different clients between 0 and {n - 1}, at least one."
                )

    def apart(self, n: int) -> list[list[int]]:
        """Groups of clients that never meet, directly or through others; there should be only one."""
        # the clients of a cohort are linked to its first one
        first = np.concatenate([np.full(len(c), c[0]) for c in self.cohorts])
        other = np.concatenate(self.cohorts)
        links = scipy.sparse.coo_array((np.ones(len(other)), (first, other)), shape=(n, n))
        _, group = scipy.sparse.csgraph.connected_components(links, directed=False)
        by_group, sizes = np.argsort(group, kind="stable"), np.bincount(group)
        return [members.tolist() for members in np.split(by_group, np.cumsum(sizes)[:-1])]

    def draw(self, rng: np.random.Generator, n: int, round: int) -> Indices:
        return np.array(sorted(self.cohorts[round % len(self.cohorts)]), dtype=np.int64)

    def constants(self, n: int) -> tuple[float, float]:
        """Those of uniform cohorts of these sizes; no rate is claimed for other patterns."""
        sizes: dict[int, float] = {}
        for c in self.cohorts:
            sizes[len(c)] = sizes.get(len(c), 0.0) + 1.0 / len(self.cohorts)
        return theory.cohort_constants(n, sizes)

    def share(self, n: int) -> float:
        return float(np.mean([len(c) for c in self.cohorts])) / n

    def inclusion(self, n: int) -> tuple[Array, float]:
        raise InputError("this method needs random cohorts, not a list; give a number of clients or a probability.")


CohortLike: TypeAlias = Participation | float | Sequence[float] | Sequence[Sequence[int]] | None
"""What stands for a rule: everybody, a number of clients, probabilities, or a list of cohorts."""


def as_participation(cohort: object) -> Participation:
    """The rule for None (everyone), a number of clients, a probability below 1 (or one each), or a list of cohorts."""
    if cohort is None:
        return EVERYONE
    if isinstance(cohort, (Everyone, Uniform, Bernoulli, Given)):
        return cohort
    if isinstance(cohort, np.ndarray):
        cohort = cohort.tolist()
    if isinstance(cohort, (float, np.floating)) and 0 < cohort < 1:  # 1.0 is refused below, since 1 means one client
        return Bernoulli(float(cohort))
    if isinstance(cohort, (int, np.integer)) and not isinstance(cohort, bool):
        return Uniform(int(cohort))
    if isinstance(cohort, Sequence) and cohort and all(isinstance(q, float) for q in cohort):
        return Bernoulli(tuple(cohort))
    if isinstance(cohort, Sequence) and not isinstance(cohort, str) and all(np.ndim(c) == 1 for c in cohort):
        return Given.of(cohort)
    raise InputError(
        f"cohort = {cohort!r} is not understood; give a number of clients, a probability, or a list of cohorts."
    )


RULES: dict[str, Callable[..., Participation]] = {
    "uniform": Uniform,
    "bernoulli": Bernoulli,
    "given": Given.of,
}
"""What makes a rule again, by its name in run folders; everyone has nothing to be made of."""


def plain(rule: Any) -> dict[str, Any]:
    """A rule as plain data for a run folder: its name, and its one number or list; None for everyone."""
    if isinstance(rule, Given):
        return {"given": [list(c) for c in rule.cohorts]}
    return {type(rule).__name__.lower(): next(iter(astuple(rule)), None)}


def of_plain(saved: Mapping[str, Any]) -> Participation:
    """The rule from plain data."""
    ((name, value),) = saved.items()
    return EVERYONE if name == "everyone" else RULES[name](value)
