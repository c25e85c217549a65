"""Any method in a federation: a Flower ClientApp around an oracle, and a Strategy around a method.

    client app      app = client_app(make_oracle)
    server app      Federated(ps.Scaffnew.theory, clients=5).start(grid=grid, num_rounds=60)

The modules, from what Flower sees down to what it knows nothing of:

    strategy, driver, nodes     the server app: deadlines, reconnecting nodes, the state on disk
    app, noise, oracles         the client app
    envelope                    our messages inside Flower's
    server, tickets, checks     the server: a ``Server`` takes events and returns messages
    server_half                 the method's server half, run again from its beginning at each message
    client, halves, worker      a client: ``ClientNode.step`` takes a state and a message and returns both
    messages                    the two messages as bytes

``server``, ``client`` and what is below them hold no clock, socket, file or randomness of their own and need no Flower,
so that a test and a simulator drive the same code. Every method whose halves go through ``interfaces`` runs unchanged.

One transaction is a ticket: a round, an audit of ``sum_i w_i h_i``, or a measurement. Its life:

    ask       the server sends vectors, and to each client the verdict on the last ticket that counted it
    answer    the client works on a copy of its memory, keeps the result as pending, and sends vectors up
    close     all answered, or the deadline came: the clients that answered are counted, or the ticket is void
    verdict   with its next ask a client hears which ticket counted it last and the outcome of that ticket;
              its pending work becomes its memory if it belongs to that ticket, and is dropped otherwise

So a client commits each ticket at most once, only if it was averaged, and with that ticket's own outcome. A driver
writes a state to disk before it sends the messages of that step.
"""

import os
from typing import TYPE_CHECKING, Any

from proxskip.lazy.names import lazy_names

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # flwr reads it at import

if TYPE_CHECKING:
    from proxskip.flower.app import client_app
    from proxskip.flower.client import ClientNode, ClientState
    from proxskip.flower.driver import FederationResult
    from proxskip.flower.messages import Answer, Ask, WireError, decode, encode
    from proxskip.flower.nodes import FederatedClient
    from proxskip.flower.noise import Noise
    from proxskip.flower.oracles import from_arrays, from_svmlight, from_torch
    from proxskip.flower.server import Server
    from proxskip.flower.strategy import Federated
    from proxskip.flower.tickets import Counts, ServerState
    from proxskip.flower.worker import Worker

# a client's process needs none of the server's modules
_lazily, __dir__ = lazy_names(__name__, {
    "proxskip.flower.app": "client_app",
    "proxskip.flower.client": "ClientNode ClientState",
    "proxskip.flower.driver": "FederationResult",
    "proxskip.flower.messages": "Answer Ask WireError decode encode",
    "proxskip.flower.nodes": "FederatedClient",
    "proxskip.flower.noise": "Noise",
    "proxskip.flower.oracles": "from_arrays from_svmlight from_torch",
    "proxskip.flower.server": "Server",
    "proxskip.flower.strategy": "Federated",
    "proxskip.flower.tickets": "Counts ServerState",
    "proxskip.flower.worker": "Worker",
})  # fmt: skip

__all__ = [
    "Answer", "Ask", "ClientNode", "ClientState", "Counts", "Federated", "FederatedClient", "FederationResult", "Noise",
    "Server", "ServerState", "WireError", "Worker", "client_app", "decode", "encode", "from_arrays", "from_svmlight",
    "from_torch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    try:
        return _lazily(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "flwr":
            raise
        hint = 'install it with pip install "proxskip[flower]"'
        raise ImportError(f"proxskip.flower.{name} needs flwr; {hint}.") from error
