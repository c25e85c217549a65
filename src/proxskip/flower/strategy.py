"""The Strategy: any method of the library over Flower's Grid, with deadlines and a server that can restart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from proxskip.core.method import Method
from proxskip.flower import halves, messages, nodes, tables
from proxskip.flower.driver import FederationResult, FederationRun
from proxskip.flower.envelope import log
from proxskip.flower.nodes import FederatedClient, as_problem
from proxskip.flower.server import Server
from proxskip.participation import as_participation
from proxskip.types import InputError, Prox


class Federated(Strategy):
    """Any method of this library as a Flower strategy.

    Args:
        method: a method, or a function that makes one from the problem, such as ``ps.Scaffnew.theory``, because L and
            mu are known only after the clients have identified themselves.
        clients: the number of clients.
        deadline: seconds after which a round closes with the clients that have answered, or fails.
        wait: seconds in which all clients must have connected.
        closing, cohort, audit, measure, tol, least, patience: as in ``Server``.
        weights: "equal", "rows", or one number per client.
        psi: a regularizer at the server with a prox, such as ``ps.prox.L1(0.1)``; None for none.
        upload: the precision of uploads, "float64" or "float32".
        batch: rows of a minibatch; None for full gradients.
        inference: ask for the Hessians at the end, from which ``result.inference()`` makes a table of standard errors;
            needs weights="rows".
        seed: random seed of cohorts, numbers of local steps and minibatches, but not of the clients' noise.
        folder: where the server saves its state before every message; a run that is saved there is resumed.
        allow_unsafe_step: accept step sizes that are refused otherwise.
        limit: the largest message in bytes.
        pause: seconds between two polls of the SuperLink.
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
        inference: bool = False,
        seed: int = 0,
        folder: str | Path | None = None,
        allow_unsafe_step: bool = False,
        limit: int = messages.LIMIT,
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
        self.folder, self.limit = None if folder is None else Path(folder), limit
        self.allow_unsafe_step = allow_unsafe_step
        self.options: dict[str, Any] = {
            "closing": closing, "audit": audit, "measure": measure, "tol": tol, "least": least, "patience": patience,
            "cohort": as_participation(cohort), "inform": inference,
        }  # fmt: skip

    # -- Flower's interface --------------------------------------------------------------------------------------------
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refused: only ``start`` runs rounds, because a wrapper that changes updates would break the sum of the h."""
        raise InputError(
            "Federated runs its own rounds, so that h is computed from what is averaged; call start, and leave out "
            "wrappers that change updates (see docs/flower.md)."
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refused, as ``configure_train``."""
        nowhere: Any = None
        self.configure_train(server_round, ArrayRecord(), ConfigRecord(), nowhere)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: use ``evaluate_fn`` to evaluate at the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Write one line to Flower's log."""
        name = getattr(self.method, "__qualname__", "?") if callable(self.method) else self.method.name
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
            grid: as Flower gives it to the server app.
            initial_arrays: the starting point (default: zeros); the solution is returned in the same shapes.
            num_rounds: stop after this many rounds, or earlier if ``tol`` is reached.
            timeout: seconds per round, instead of ``deadline``.
            train_config, evaluate_config: refused unless empty; parameters belong to the method.
            evaluate_fn: called after every round with its number and the arrays; returns metrics, or None.
        """
        if train_config or evaluate_config:
            raise InputError("train_config and evaluate_config are not used; set parameters on the method instead.")
        self.summary()
        mailbox = nodes.Mailbox(grid, self.pause)
        mailbox.timeout = max(nodes.MIN_TIMEOUT, self.wait)
        remotes = nodes.RollCall(mailbox, self.clients, self.wait, self.batch, self.limit).take()
        if len(remotes) > self.clients:
            raise InputError(f"{len(remotes)} clients are connected, not {self.clients}; pass clients={len(remotes)}.")
        deadline = timeout or self.deadline
        mailbox.timeout = max(nodes.MIN_TIMEOUT, deadline)
        run = FederationRun(
            self, self._server(remotes, num_rounds), remotes, mailbox, deadline, evaluate_fn, initial_arrays
        )
        return run.go()

    def _server(self, remotes: Sequence[FederatedClient], rounds: int) -> Server:
        problem = as_problem(remotes, self.weights, self.psi)
        unknown, options = [r.name for r in remotes if not r.L_known], dict(self.options)
        method: Any = self.method
        if unknown:
            if callable(method):
                raise InputError(
                    f"the L of {', '.join(unknown)} is unknown, so no step size follows from it; pass a method with a "
                    "fixed gamma, or Newton()."
                )
            log(WARNING, "\tthe L of %s is unknown, so the step size is not checked", ", ".join(unknown))
        elif callable(method):
            make: Any = method
            method = make.theory(problem) if isinstance(method, type) else make(problem)
        if options["inform"]:
            tables.check(remotes, self.weights, self.psi, self.batch)
        noisy = any(r.noise is not None for r in remotes)
        if noisy:
            if options["measure"] or options["tol"] is not None:
                raise InputError("clients that add noise do not report gradients; leave out measure and tol.")
            options["measure"] = None
        server = Server(
            method, problem, rounds, seed=self.seed, itemsize=self.itemsize, limit=self.limit,
            names=tuple(r.name for r in remotes), allow_unsafe_step=self.allow_unsafe_step or bool(unknown), **options,
        )  # fmt: skip
        if options["inform"] or server.method.about.needs_hessians:
            tables.check_rows(remotes)
        if noisy:
            (first, *_) = server.begin(bytes(16))
            halves.check_points(server.method, first.half)
        return server
