"""Cases of the protocol: a server and its clients in lockstep, with every message as bytes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from case_table import ENTRIES, NAMED, Case

import proxskip as ps
from proxskip.flower import ClientNode, ClientState, Server, Worker
from proxskip.flower.messages import encode
from proxskip.participation import Bernoulli, Given, Uniform

RUN = bytes(range(16))
MOST = 2000
"""Steps after which a run that does not end is given up."""


def rule(cohort: Any) -> Any:
    """The public rule for a cohort."""
    if isinstance(cohort, list):
        return Given(tuple(map(tuple, cohort)))
    return Uniform(cohort) if isinstance(cohort, int) else Bernoulli(cohort)


def federate(name: str, _: Path, batch: Any, size: int, missing: Callable[[int], int | None], **given: Any) -> Any:
    """Drive a federation to its end; the states, x after every round, and a digest of all messages.

    Args:
        missing: the client that does not answer in a round, if any.
    """
    entry = NAMED[name]
    problem = entry.on(storage="sparse" if batch else "dense", batch=batch)
    given = given | ({} if entry.cohort is None else {"cohort": rule(entry.cohort)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        server = Server(entry.make(problem), problem, 8, seed=4, allow_unsafe_step=True, itemsize=size, **given)
    clients = [ClientNode(server.method, Worker(f, i, 4, batch), size) for i, f in enumerate(problem.clients)]
    memories = [ClientState(RUN) for _ in clients]
    asks = server.begin(RUN)
    path = [server.state.vectors["x"]]
    for _step in range(MOST):
        if server.under_way is None or not asks:
            break
        ticket, exchange, round, more = server.state.ticket, server.under_way.exchange, server.state.round, []
        for ask in asks:
            if ask.client == missing(round):
                continue
            raw = encode(ask, server.limit)
            memories[ask.client], answers = clients[ask.client].step(memories[ask.client], raw)
            for answer in answers:
                more += server.arrived(answer, ask.client)
        asks = more or server.deadline(ticket, exchange)
        if server.state.round > round:
            path.append(server.state.vectors["x"])
    return {"path": np.array(path), "state": vars(server.state), "memories": [_without_seal(m) for m in memories]}


def _without_seal(memory: Any) -> Any:
    """A client's state without the checksum of the last message: messages have a format with a version of its own."""
    return memory if memory.pending is None else replace(memory, pending=replace(memory.pending, asked=b""))


def nobody(round: int) -> int | None:
    return None


def one_in_two(round: int) -> int | None:
    return round % 4 if round % 2 else None


def cases() -> Iterator[Case]:
    """Every method that has a server and client halves, in each form that it has."""
    for e in ENTRIES:
        problem = e.on("quadratics")
        method = e.make(problem)
        if hasattr(method, "graph") or hasattr(method, "decay") or e.D or e.clients == 1:
            continue
        closing = ["deadline"] if e.cohort is not None else ["everyone"]
        if e.cohort is None and "cohort" in method.handles and e.psi is None:
            closing.append("deadline")
        for how in (how for how in closing if _accepted(method, problem, closing=how)):
            for batch in (None, 6) if e.batch else (None,):
                for size in (8, 4) if _accepted(method, problem, itemsize=4) else (8,):
                    label = "-".join([e.name, how, *(["batch"] if batch else []), f"float{8 * size}"])
                    given = {"batch": batch, "size": size, "missing": nobody, "closing": how, "audit": 3, "measure": 2}
                    yield Case("protocol", label, partial(federate, e.name, **given))
            if how == "deadline":
                given = {"batch": None, "size": 8, "missing": one_in_two, "closing": how, "audit": 3, "measure": 2}
                yield Case("protocol", f"{e.name}-missing", partial(federate, e.name, **given))


def _accepted(method: Any, problem: Any, **given: Any) -> bool:
    """Whether a server takes the method so, such as with clients that send float32."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ps.UnsafeStepWarning)
            Server(method, problem, 1, allow_unsafe_step=True, **given)
    except ps.InputError:
        return False
    return True
