"""The costs and the summary of a federated run, with the fields of ``proxskip run``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxskip.flower.federated_client import FederatedClient
from proxskip.links.cohorts import Everyone
from proxskip.protocol import Ask, Server, ServerState, wire
from proxskip.results import description
from proxskip.results.result import Status, Summary


@dataclass
class Costs:
    """Costs, counted as messages leave and arrive; bytes include the headers."""

    exchanges: int = 0
    iterations: int = 0
    local_steps: int = 0
    vectors_up: int = 0
    vectors_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    grad_evals: int = 0
    seconds: float = 0.0

    def asked(self, asks: Sequence[Ask]) -> None:
        """Count an exchange that begins."""
        self.exchanges += bool(asks)
        self.iterations += max((a.K for a in asks), default=0)
        self.local_steps += sum(a.K for a in asks)

    def sent(self, raw: bytes) -> None:
        """Count a message to a client."""
        self.bytes_down += len(raw)
        self.vectors_down += raw[wire.COUNT]

    def answered(self, raw: bytes, gradients: Any) -> None:
        """Count a reply."""
        self.bytes_up += len(raw)
        self.vectors_up += raw[wire.COUNT] if len(raw) >= wire.HEADER else 0
        self.grad_evals += gradients if isinstance(gradients, int) and 0 <= gradients < 2**53 else 0


def summary(
    server: Server, s: ServerState, remotes: Sequence[FederatedClient], costs: Costs, batch: int | None
) -> Summary:
    """The content of summary.json; null for what the server does not know."""
    problem, first, N = server.problem, remotes[0], sum(r.N for r in remotes)
    given = description.parameters(server.method)
    known = all(r.L_known for r in remotes)
    equal = float(problem.weights.max() - problem.weights.min()) == 0.0
    status, message = _status(server, s)
    finite = {
        k: v if math.isfinite(v) else None for k, v in (("f", s.f), ("grad_norm", s.grad_norm), ("sum_h", s.sum_h))
    }
    own = {k: v for k, v in given.items() if k not in (*description.SHOWN, "graph", "a")}
    return Summary(
        {
            **own,
            "method": server.method.name, "data": "the clients' own data", "samples": N, "d": problem.d,
            "clients": problem.n, "split": "the federation", "engine": "flower", "seed": server.seed,
            "L": problem.L, "L_kind": "max" if known else "unknown", "L_max": problem.L_max,
            "L_global": problem.L_global, "mu": problem.mu, "kappa": problem.kappa if known else None,
            "weights": "equal" if equal else "given", "lambda": first.l2, "loss": first.kind, "batch": batch,
            "psi": None if problem.psi is None else repr(problem.psi),
            **{k: given.get(k) for k in ("gamma", "p", "K", "tau", "q", "chi", "eta_g", "option", "beta")},
            "cohort": None if isinstance(server.cohort, Everyone) else description._cohort(server.cohort),
            "graph": None, "delta": None, "closing": server.closing, "rounds": s.round,
            "exchanges": costs.exchanges, "vectors_up": costs.vectors_up, "vectors_down": costs.vectors_down,
            "floats_up": costs.vectors_up * problem.d, "floats_down": costs.vectors_down * problem.d,
            "bytes_up": costs.bytes_up, "bytes_down": costs.bytes_down, "iterations": costs.iterations,
            "local_steps": costs.local_steps, "grad_evals": costs.grad_evals, "prox_evals": 0,
            "passes": costs.grad_evals / N, "seconds": costs.seconds, **finite, "gap": None, "lyapunov": None,
            "lyapunov_bound": None, "f_star": None, "status": status.name, "success": status is Status.CONVERGED,
            "message": message, "warnings": [*server.unsafe, *s.notes], "versions": description.versions(),
            "participation": dict(zip(server.names, s.participated, strict=True)), "counts": dict(vars(s.counts)),
        }
    )  # fmt: skip


def _status(server: Server, s: ServerState) -> tuple[Status, str]:
    if s.failed:
        return (Status.DIVERGED if "take a smaller gamma" in s.failed else Status.INTERRUPTED), s.failed
    if s.reached:
        return Status.CONVERGED, f"the tolerance is reached after {s.round} rounds."
    missed = " without reaching the tolerance" if server.tol is not None else ", as asked"
    return Status.MAX_ROUNDS, f"stopped after {s.round} rounds{missed}."
