"""The Strategy: it moves the protocol's messages through Flower's Grid, keeps the deadlines and the server's disk."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from proxskip.flower import find_clients
from proxskip.flower.federation_run import FederationResult, FederationRun
from proxskip.flower.remote_client import RemoteClient, as_problem
from proxskip.links.cohorts import as_participation
from proxskip.problems.federated import Problem
from proxskip.protocol import Begin, Server, halves, wire
from proxskip.results import description
from proxskip.seam import Method
from proxskip.types import InputError, Prox


def patience(deadline: float) -> float:
    """Seconds that one call to the SuperLink may take."""
    return max(30.0, deadline)


class Federated(Strategy):
    """Any method of this library as a Flower strategy.

    Args:
        method: a method, or a function from the problem to one, such as ``ps.Scaffnew.theory``: L and mu are known once
            the clients have said who they are.
        clients: how many there are; the run waits for them for ``wait`` seconds.
        deadline: seconds after which a round closes with the clients that answered, or is void.
        closing, cohort, audit, measure, tol, least, patience: as in ``proxskip.protocol.Server``.
        weights: "equal", "rows", or one number a client.
        upload: "float64" or "float32".
        batch: rows of a minibatch, or None for full gradients.
        folder: keep the server's state there before every message, and go on from it if it is there.
        insist: run with step sizes that are refused otherwise.
    """

    def __init__(
        self,
        method: Method | Callable[..., Method],
        clients: int,
        *,
        deadline: float = 600.0,
        wait: float = 120.0,
        closing: str | None = None,
        cohort: Any = None,
        audit: int = 50,
        measure: int = 0,
        tol: float | None = None,
        least: int = 2,
        patience: int = 5,
        weights: str | Sequence[float] = "equal",
        psi: Prox | None = None,
        upload: str = "float64",
        batch: int | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
        insist: bool = False,
        limit: int = wire.LIMIT,
        pause: float = 0.05,
    ) -> None:
        if upload not in ("float64", "float32"):
            raise InputError(f'upload = "{upload}" must be "float64" or "float32".')
        for name, v in (("deadline", deadline), ("wait", wait), ("pause", pause)):
            if not (math.isfinite(v) and v > 0):
                raise InputError(f"{name} = {v} must be a positive number of seconds.")
        if clients < 1:
            raise InputError(f"clients = {clients} must be at least 1.")
        self.method, self.clients, self.deadline, self.wait, self.pause = method, clients, deadline, wait, pause
        self.weights, self.psi, self.itemsize, self.batch, self.seed = weights, psi, int(upload[5:]) // 8, batch, seed
        self.folder, self.insist, self.limit = None if folder is None else Path(folder), insist, limit
        self.options: dict[str, Any] = {
            "closing": closing, "audit": audit, "measure": measure, "tol": tol, "least": least, "patience": patience,
            "cohort": as_participation(cohort),
        }  # fmt: skip

    # -- the interface of Flower ---------------------------------------------------------------------------------------
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Only within ``start``: a wrapper that alters updates on their way would break the sum of the h."""
        raise InputError(
            "Federated runs its own rounds, so that h is learnt from what was averaged; call its start, and leave out "
            "wrappers that change updates (docs/flower.md says what works)."
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """See ``configure_train``."""
        nowhere: Any = None
        self.configure_train(server_round, ArrayRecord(), ConfigRecord(), nowhere)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Clients are measured by the protocol; evaluate at the server with ``evaluate_fn``."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing."""
        return None

    def summary(self) -> None:
        """A line in Flower's log."""
        name = getattr(self.method, "name", getattr(self.method, "__qualname__", "?"))
        log(INFO, "\tproxskip: %s with %d clients, rounds close after %g s", name, self.clients, self.deadline)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FederationResult:
        """Run to the end.

        Args:
            initial_arrays: where to start (zeros); the answer comes back in its shapes.
            timeout: seconds a round, in place of ``deadline``.
        """
        if train_config or evaluate_config:
            raise InputError("clients get their settings from the method; leave out train_config and evaluate_config.")
        self.summary()
        post = find_clients.Mailbox(grid, self.pause)
        try:
            post.patience = patience(self.wait)
            remotes = find_clients.find(post, self.clients, self.wait, self.batch, self.limit)
            if len(remotes) > self.clients:
                raise InputError(f"there are {len(remotes)} clients, not {self.clients}; say clients={len(remotes)}.")
            server = self._server(remotes, num_rounds)
            post.patience = patience(timeout or self.deadline)
            run = FederationRun(self, server, remotes, post, timeout or self.deadline, evaluate_fn, initial_arrays)
            return run.go()
        finally:
            post.close()

    def _server(self, remotes: Sequence[RemoteClient], rounds: int) -> Server:
        problem = as_problem(remotes, self.weights, self.psi)
        unknown = [r.name for r in remotes if not r.L_known]
        method: Any = self.method
        if not hasattr(method, "remembers") or isinstance(method, type):
            make: Any = getattr(method, "theory", method)
            method = make(problem)
            if unknown and description.parameters(method) != description.parameters(make(self._steep(remotes))):
                raise InputError(
                    f"{', '.join(unknown)} do not know their L, so no step size follows from it; give a method with "
                    "a gamma of its own."
                )
        if unknown:
            log(WARNING, "\t%s do not know their L, so the step size is not checked", ", ".join(unknown))
        server = Server(
            method, problem, rounds, seed=self.seed, itemsize=self.itemsize, limit=self.limit,
            names=tuple(r.name for r in remotes), insist=self.insist or bool(unknown),
            **(self.options | self._quiet(remotes)),
        )  # fmt: skip
        if server.measure is None:
            (first, *_) = server.step(server.start(bytes(16)), Begin())[1]
            halves.check_points(server.method, first.half)
        return server

    def _steep(self, remotes: Sequence[RemoteClient]) -> Problem:
        """The problem if every L that nobody knows were huge: a method that is another then depends on them."""
        steep = [r if r.L_known else dataclasses.replace(r, L=1e30) for r in remotes]
        return as_problem(steep, self.weights, self.psi)

    def _quiet(self, remotes: Sequence[RemoteClient]) -> dict[str, Any]:
        """With noise nobody is asked for an exact gradient."""
        if all(r.noise is None for r in remotes):
            return {}
        if self.options["measure"] or self.options["tol"] is not None:
            raise InputError("with noise no gradients are measured, which are exact; leave out measure and tol.")
        return {"measure": None}
