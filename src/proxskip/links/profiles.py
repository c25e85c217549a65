"""Numbers that differ from client to client, and the networks that have a name.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy

from proxskip.theory.numbers import positive
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
