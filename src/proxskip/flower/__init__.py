"""The methods as Flower apps: a ClientApp around an oracle, and a Strategy around a method.

    client app      app = client_app(make_oracle)                        what a client minimises
    server app      Federated(ps.Scaffnew.theory, clients=5).start(grid=grid, num_rounds=60)

What is sent, who commits what and what happens when something fails is ``proxskip.protocol``; this package moves its
messages, keeps its memory on disk, and watches the clock.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # flwr reads it when it is imported

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError('proxskip.flower needs flwr; install it with pip install "proxskip[flower]".') from error

from proxskip.flower.client import client_app
from proxskip.flower.noise import Noise
from proxskip.flower.oracles import Network, from_arrays, from_svmlight, from_torch
from proxskip.flower.remote import Remote
from proxskip.flower.rounds import Outcome
from proxskip.flower.strategy import Federated

__all__ = [
    "Federated", "Network", "Noise", "Outcome", "Remote", "client_app", "from_arrays", "from_svmlight", "from_torch",
]  # fmt: skip
