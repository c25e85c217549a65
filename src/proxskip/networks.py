"""The network between a server and its clients: speed, spread and reliability, and networks that have a name.

Sources of the named networks. What has no source below is an assumption, and marked as one; a spread from the median to
the 90th percentile is always assumed unless its source is named.

``datacenter``   Round trip 0.25 ms between machines of one zone (best of 50 pings, "Measuring AWS Region and AZ
                 Latency", xkyle.com). 10 Gbit/s for one flow within a placement group (Amazon EC2 user guide,
                 "Amazon EC2 instance network bandwidth"). The server takes 91 Gbit/s (iperf3 between two i3en.24xlarge,
                 gist.github.com/sciarrilli). Assumed: 1 ms for a local gradient.
``cross-silo``   Round trips from the AWS region of Northern Virginia to nine others: median 119.5 ms, 90th percentile
                 219 ms ("AWS Regions", acomputerscientistlearnsaws.blogspot.com, 2017). 5 Gbit/s for one flow outside a
                 placement group, and for all flows of a smaller instance to other regions (the same user guide).
                 Assumed: 10 ms for a local gradient, 20 ms at the 90th percentile.
``broadband``    Fixed lines of the world, Speedtest Global Index, September 2020: 85.73 Mbit/s down, 45.74 Mbit/s up,
                 latency 21 ms (my-financial-wealth.com, 25 October 2020). Assumed: a factor of 4 in speed and 2 in
                 latency to the 90th percentile, 50 ms for a local gradient and 100 ms at the 90th percentile, a server
                 with 10 Gbit/s.
``mobile``       Mobile networks of the world, the same source: 35.96 Mbit/s down, 11.22 Mbit/s up, latency 40 ms.
                 6 to 10 % of the devices drop out of a round, the server asks 130 % of the devices that it needs, and
                 four times as many take part at night as by day (Bonawitz et al., Towards federated learning at scale:
                 system design, 2019, arXiv:1902.01046, Section 9). More than 10 % of the clients fail in a large trace
                 of smartphones (Yang et al., FLASH, IEEE TMC 2022, doi 10.1109/TMC.2022.3214234). Assumed: half of the
                 drop-outs before the work and half after it, a cosine over the day, a factor of 4 in speed and 2 in
                 latency to the 90th percentile, 100 ms for a local gradient and 300 ms at the 90th percentile, slow
                 devices on slow links (correlation 0.3), a deadline of two minutes and a server that tries a round 51
                 times, with 10 Gbit/s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.support.randomness import client_uniforms
from proxskip.theory.numbers import nonnegative, positive, whole
from proxskip.types import Array, Indices, InputError

_NINE_IN_TEN = 1.2815515655446004
"""The 90th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A log-normal distribution over clients: half of them are below ``median``, nine in ten below ``p90``.

    Args:
        median: half of the clients are below.
        p90: nine in ten clients are below.

    >>> Spread(1.0, 4.0).at(np.array([0.1, 0.5, 0.9])).round(9).tolist()
    [0.25, 1.0, 4.0]
    """

    median: float
    p90: float

    def __post_init__(self) -> None:
        positive("median", self.median)
        if not self.median <= positive("p90", self.p90):
            raise InputError(f"p90 = {self.p90:g} must be at least the median, which is {self.median:g}.")

    def at(self, share: Array) -> Array:
        """The quantiles for these shares of the clients."""
        sigma = math.log(self.p90 / self.median) / _NINE_IN_TEN
        return np.asarray(self.median * np.exp(sigma * scipy.special.ndtri(share)))


Amount: TypeAlias = float | Spread | Sequence[float]
"""One number for all clients, a distribution over them, or one number each."""


def values(amount: Amount, clients: Indices, share: Array) -> Array:
    """The amounts of these clients; ``share`` is each one's place in a distribution."""
    if isinstance(amount, Spread):
        return amount.at(share)
    if isinstance(amount, float | int):
        return np.full(len(clients), float(amount))
    return np.asarray(amount, dtype=np.float64).take(clients)


def median(amount: Amount) -> float:
    """Its median over the clients."""
    if isinstance(amount, Spread):
        return amount.median
    return float(np.median(amount))


def _mbit(number: float) -> float:
    return number * 1e6 / 8


_DAY = tuple(round(0.5 + 0.3 * math.cos(2 * math.pi * (hour - 2) / 24), 3) for hour in range(24))
"""The share of clients that can be reached, by hour: four in five at 2 o'clock, one in five at 14 o'clock."""

NAMED: dict[str, dict[str, Any]] = {
    "datacenter": {"latency": 0.000125, "bandwidth": _mbit(10_000), "gradient": 0.001, "server": _mbit(91_000)},
    "cross-silo": {
        "latency": Spread(0.060, 0.110), "bandwidth": _mbit(5_000), "gradient": Spread(0.010, 0.020),
        "server": _mbit(5_000),
    },
    "broadband": {
        "latency": Spread(0.0105, 0.021), "bandwidth": Spread(_mbit(85.73), _mbit(4 * 85.73)),
        "up": Spread(_mbit(45.74), _mbit(4 * 45.74)), "gradient": Spread(0.050, 0.100), "server": _mbit(10_000),
    },
    "mobile": {
        "latency": Spread(0.020, 0.040), "bandwidth": Spread(_mbit(35.96), _mbit(4 * 35.96)),
        "up": Spread(_mbit(11.22), _mbit(4 * 11.22)), "gradient": Spread(0.100, 0.300), "correlation": 0.3,
        "available": _DAY, "lost_before": 0.04, "lost_after": 0.04, "deadline": 120.0, "extra": 0.3, "patience": 50,
        "server": _mbit(10_000),
    },
}  # fmt: skip
"""The named networks, as the arguments of ``Network``."""


HOUR = 3600.0
MOST_ATTEMPTS = 1_000
"""The largest ``patience``."""


class Traits(NamedTuple):
    """Some clients' traits, one entry each: seconds one way, bytes per second down and up, seconds per gradient."""

    latency: Array
    down: Array
    up: Array
    gradient: Array


@dataclass(frozen=True, slots=True)
class Network:
    """The network between the server and its clients; ``Network.named("mobile")`` is a predefined one.

    Latency, bandwidths and gradient are one number, a ``Spread`` over the clients, or a sequence with one number each.

    Args:
        up: bytes per second of the way up, if it is another one.
        name: for summaries and plots.
        latency: seconds of one way between the server and a client.
        bandwidth: bytes per second of one client, each way; ``up`` if the way up is slower.
        speed: how fast a client computes, relative to this machine, where ``plan`` measures the gradient here.
        gradient: seconds of one local gradient (of one minibatch, where there are any); None lets ``plan`` measure it.
        correlation: of the four, over the clients: 1 if the slowest device has the slowest link.
        available: the share of clients that can be reached, one number or 24 by the hour; a run begins at midnight.
        lost_before, lost_after: probabilities that a client is lost before its work, and after it.
        deadline: seconds after which a round closes without those who have not answered.
        extra: over-selection: 0.3 asks 1.3 c clients where cohorts of c are wanted, and closes with the first c.
        server: bytes per second of the server, each way, which the clients share.
        patience: attempts at a round that may fail in a row, since too few clients answer, before a run gives up;
            at most 1,000.
    """

    latency: Amount = 0.05
    bandwidth: Amount = 1e6
    speed: float = 1.0
    up: Amount | None = None
    gradient: Amount | None = None
    correlation: float = 0.0
    available: float | Sequence[float] = 1.0
    lost_before: float = 0.0
    lost_after: float = 0.0
    deadline: float | None = None
    extra: float = 0.0
    server: float = math.inf
    patience: int = 5
    name: str = ""

    def __post_init__(self) -> None:
        for name, check in (("latency", nonnegative), ("bandwidth", _fast), ("up", _fast), ("gradient", nonnegative)):
            amount = getattr(self, name)
            if amount is not None and not isinstance(amount, Spread):
                object.__setattr__(self, name, _checked(name, amount, check))
        positive("speed", self.speed)
        _fast("server", self.server)
        hours = np.atleast_1d(np.asarray(self.available, dtype=np.float64))
        if hours.shape not in ((1,), (24,)) or not np.all((hours > 0) & (hours <= 1)):
            raise InputError("available must be a share of the clients in (0, 1], or 24 shares, one per hour.")
        object.__setattr__(self, "available", float(hours[0]) if len(hours) == 1 else tuple(float(a) for a in hours))
        for name in ("correlation", "lost_before", "lost_after"):
            if (share := nonnegative(name, getattr(self, name))) > 1:
                raise InputError(f"{name} = {share:g} must lie in [0, 1].")
        nonnegative("extra", self.extra)
        if whole("patience", self.patience, 0) > MOST_ATTEMPTS:
            raise InputError(
                f"patience = {self.patience} must be at most {MOST_ATTEMPTS:,}; such a round never closes."
            )
        if self.lost_before + self.lost_after >= 1:
            raise InputError("lost_before + lost_after must be below 1.")
        if self.deadline is not None:
            positive("deadline", self.deadline)
        elif self.lost_before or self.lost_after:
            raise InputError("with lost clients the server waits until a deadline; set deadline= in seconds.")

    @classmethod
    def named(cls, name: str, **changes: Any) -> Network:
        """One of ``datacenter``, ``cross-silo``, ``broadband``, ``mobile``, with these fields changed.

        ``proxskip.networks`` has their figures and the sources.

        >>> Network.named("mobile", deadline=30).deadline
        30

        Args:
            name: such as "mobile".
            changes: fields to change.
        """
        if name not in NAMED:
            raise InputError(f'network "{name}" is not known; use {", ".join(NAMED)}.')
        return cls(**{**NAMED[name], "name": name, **changes})

    @property
    def reliable(self) -> bool:
        """Whether every client answers in every round, however late."""
        return self.deadline is None and self.available == 1.0 and not self.extra

    @property
    def uneven(self) -> bool:
        """Whether clients differ."""
        return any(isinstance(v, (Spread, tuple)) for v in (self.latency, self.bandwidth, self.up, self.gradient))

    def exchange(self, down: float, up: float) -> float:
        """Seconds of one exchange with a median client, of ``down`` and ``up`` bytes."""
        return 2 * median(self.latency) + down / median(self.bandwidth) + up / median(self.way_up)

    def check(self, n: int) -> None:
        """Refuse lists without one number per client."""
        for name in ("latency", "bandwidth", "up", "gradient"):
            amount = getattr(self, name)
            if isinstance(amount, tuple) and len(amount) != n:
                raise InputError(f"{name} has {len(amount)} numbers for {n} clients; give one each.")

    @property
    def way_up(self) -> Amount:
        """Bytes per second from a client."""
        return self.bandwidth if self.up is None else self.up

    # -- draws ---------------------------------------------------------------------------------------------------------
    def traits(self, seed: int, clients: Indices) -> Traits:
        """The traits of these clients, the same in every round."""
        shares = self._shares(seed, clients) if self.uneven else np.full((4, len(clients)), 0.5)
        # a symmetric link has one speed
        amounts = (self.latency, self.bandwidth, self.way_up, 0.0 if self.gradient is None else self.gradient)
        places = (shares[0], shares[1], shares[1 if self.up is None else 2], shares[3])
        return Traits(*(values(a, clients, s) for a, s in zip(amounts, places, strict=True)))

    def _shares(self, seed: int, clients: Indices) -> Array:
        """Each client's place in the four distributions."""
        shares = np.clip(client_uniforms(seed, "traits", clients), 1e-9, 1 - 1e-9)
        if not self.correlation:
            return shares
        # one normal number shared by all four, in the direction of a slow client
        common = scipy.special.ndtri(np.clip(client_uniforms(seed, "traits", clients, 1)[0], 1e-9, 1 - 1e-9))
        slow = np.array([[1.0], [-1.0], [-1.0], [1.0]]) * common
        mixed = math.sqrt(self.correlation) * slow + math.sqrt(1 - self.correlation) * scipy.special.ndtri(shares)
        return np.asarray(scipy.special.ndtr(mixed))

    def online(self, seed: int, clients: Indices, seconds: float) -> npt.NDArray[np.bool_]:
        """Who is reachable at this time; it changes every hour."""
        if self.available == 1.0:
            return np.ones(len(clients), dtype=bool)
        hour = int(seconds // HOUR)
        share = self.available if isinstance(self.available, float) else self.available[hour % 24]
        return np.asarray(client_uniforms(seed, "hours", clients, hour)[0] < share)

    # -- plain data ----------------------------------------------------------------------------------------------------
    def plain(self) -> dict[str, Any]:
        """Plain data for a run folder, without infinite and missing values."""
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {k: v for k, v in values.items() if v is not None and (k == "up" or v != math.inf) and v != ""}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Network:
        """From plain data."""
        infinite = {"bandwidth": math.inf, "server": math.inf}  # written as nothing, as 0.2 wrote them
        read: dict[str, Any] = {k: Spread(**v) if isinstance(v, Mapping) else v for k, v in plain.items()}
        return Network(**(infinite | read))


def _fast(name: str, value: float) -> float:
    """A bandwidth, which may be infinite."""
    return math.inf if value == math.inf else positive(name, value)


def _checked(name: str, amount: Any, check: Callable[[str, float], float]) -> float | tuple[float, ...]:
    """One number, or a tuple of them."""
    if np.ndim(amount) == 0:
        return float(check(name, amount))
    if np.ndim(amount) != 1 or isinstance(amount, str):
        raise InputError(f"{name} must be a number, a Spread, or one number for each client.")
    return tuple(float(check(name, v)) for v in amount)
