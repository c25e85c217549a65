"""Rounds between a server and clients that may fail: pure state machines, and the bytes they exchange.

``Server.step`` and ``Client.step`` take a state and an event and return a state and messages. They hold no clock,
socket, file or randomness of their own, so Flower, a test and a simulator drive the same code. Every method whose
halves go through ``interfaces`` runs here unchanged.

One transaction is a ticket: a round, an audit of ``sum_i w_i h_i``, or a measurement. Its life:

    ask       the server sends vectors, and to each client the verdict on the last ticket that counted it
    answer    the client works on a copy of its memory, keeps the result as pending, and sends vectors up
    close     all answered, or the deadline came: the clients that answered are counted, or the ticket is void
    verdict   with its next ask a client hears which ticket counted it last and the outcome of that ticket;
              its pending work becomes its memory if it belongs to that ticket, and is dropped otherwise

So a client commits each ticket at most once, only if it was averaged, and with that ticket's own outcome. Drivers write
a state to disk before they send the messages of that step.
"""

from typing import TYPE_CHECKING

from proxskip.lazy.names import lazy_names

if TYPE_CHECKING:
    from proxskip.protocol.client import ClientNode, ClientState
    from proxskip.protocol.events import Again, Arrived, Begin, Deadline, Restarted
    from proxskip.protocol.server import Server
    from proxskip.protocol.state import Counts, ServerState
    from proxskip.protocol.wire import Answer, Ask, WireError
    from proxskip.protocol.worker import Worker

    Client = ClientNode

__getattr__, __dir__ = lazy_names(__name__, {
    "proxskip.protocol.client": "Client=ClientNode ClientNode ClientState",
    "proxskip.protocol.events": "Again Arrived Begin Deadline Restarted",
    "proxskip.protocol.server": "Server",
    "proxskip.protocol.state": "Counts ServerState",
    "proxskip.protocol.wire": "Answer Ask WireError",
    "proxskip.protocol.worker": "Worker",
})  # fmt: skip

__all__ = [
    "Again", "Answer", "Arrived", "Ask", "Begin", "Client", "ClientNode", "ClientState", "Counts", "Deadline",
    "Restarted", "Server", "ServerState", "WireError", "Worker",
]  # fmt: skip
