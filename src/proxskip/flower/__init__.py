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
    schema                      the states of both sides as arrays and plain data, for a file

``server``, ``client`` and what is below them hold no clock, socket, file or randomness of their own and need no Flower,
so that a test and a simulator drive the same code. Every method whose halves go through ``core`` runs unchanged.

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
from typing import Any

from proxskip.support.on_demand import attach_stub

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # flwr reads it at import

# a client's process needs none of the server's modules
_on_demand, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _on_demand(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "flwr":
            raise
        hint = 'install it with pip install "proxskip[flower]"'
        raise ImportError(f"proxskip.flower.{name} needs flwr; {hint}.") from error
