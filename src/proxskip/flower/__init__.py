"""The methods as Flower apps: a ClientApp around an oracle, and a Strategy around a method.

    client app      app = client_app(make_oracle)
    server app      Federated(ps.Scaffnew.theory, clients=5).start(grid=grid, num_rounds=60)

``proxskip.protocol`` decides what is sent, when h is updated, and what happens after a failure. This package carries
its messages, stores its state on disk, and enforces the deadlines.
"""

import os
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # flwr reads it when it is imported

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError('proxskip.flower needs flwr; install it with pip install "proxskip[flower]".') from error

from proxskip.flower.client import client_app
from proxskip.flower.federated_client import FederatedClient
from proxskip.flower.federation_run import FederationResult
from proxskip.flower.noise import Noise
from proxskip.flower.oracles import from_arrays, from_svmlight, from_torch
from proxskip.flower.strategy import Federated

# the names of version 0.1, for programs that import them
Outcome, Remote = FederationResult, FederatedClient


def __getattr__(name: str) -> Any:
    """``Network`` and ``TorchOracle``, the older names of ``proxskip.torch.Model``, which needs PyTorch."""
    if name in ("Network", "TorchOracle"):
        from proxskip.problems.torch_model import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Federated", "FederatedClient", "FederationResult", "Noise", "Outcome", "Remote", "client_app", "from_arrays",
    "from_svmlight", "from_torch",
]  # fmt: skip
