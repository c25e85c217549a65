"""A federation in one process that never fails: every message is delivered, in order, as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from proxskip.protocol.client import ClientNode, ClientState
from proxskip.protocol.events import Arrived, Begin
from proxskip.protocol.server import Server
from proxskip.protocol.state import ServerState
from proxskip.protocol.wire import encode


def drive(
    server: Server, clients: Sequence[ClientNode], run: bytes = bytes(16), x0: object = None
) -> tuple[ServerState, list[ClientState]]:
    """Run to the end; the states of the server and of all clients."""
    state, memories = server.start(run, x0), [ClientState.fresh(run) for _ in clients]
    state, asks = server.step(state, Begin())
    while asks:
        batch, asks = asks, []
        for ask in batch:
            i = ask.client
            memories[i], answers = clients[i].step(memories[i], encode(ask, server.limit))
            for raw in answers:
                state, more = server.step(state, Arrived(raw, i))
                asks += more
    return state, memories
