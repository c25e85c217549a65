"""The methods as Flower apps: a ClientApp around an oracle, and a Strategy around a method.

    client app      app = client_app(make_oracle)
    server app      Federated(ps.Scaffnew.theory, clients=5).start(grid=grid, num_rounds=60)

``proxskip.protocol`` decides what is sent, when h is updated, and what happens after a failure. This package carries
its messages, stores its state on disk, and enforces the deadlines.
"""

import gc
import os
import sys
from typing import TYPE_CHECKING

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # flwr reads it at import

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError('proxskip.flower needs flwr; install it with pip install "proxskip[flower]".') from error

from proxskip.lazy.names import lazy_names

TASK = "flwr.supernode.runtime.run_clientapp"
"""The module in which a SuperNode runs the app, in a new process for every message."""
if TASK in sys.modules:
    gc.freeze()  # a collection over everything that Flower imports takes 0.1 s

if TYPE_CHECKING:
    from proxskip.flower.client import client_app
    from proxskip.flower.federation_run import FederationResult
    from proxskip.flower.find_clients import FederatedClient
    from proxskip.flower.noise import Noise
    from proxskip.flower.oracles import from_arrays, from_svmlight, from_torch
    from proxskip.flower.strategy import Federated

    Outcome, Remote = FederationResult, FederatedClient

# a client's process needs none of the server's modules; Outcome, Remote, Network and TorchOracle are names of 0.1
__getattr__, __dir__ = lazy_names(__name__, {
    "proxskip.flower.client": "client_app",
    "proxskip.flower.find_clients": "FederatedClient Remote=FederatedClient",
    "proxskip.flower.federation_run": "FederationResult Outcome=FederationResult",
    "proxskip.flower.noise": "Noise",
    "proxskip.flower.oracles": "from_arrays from_svmlight from_torch",
    "proxskip.flower.strategy": "Federated",
    "proxskip.problems.torch_model": "Network=Model TorchOracle=Model",
})  # fmt: skip

__all__ = [
    "Federated", "FederatedClient", "FederationResult", "Noise", "Outcome", "Remote", "client_app", "from_arrays",
    "from_svmlight", "from_torch",
]  # fmt: skip
