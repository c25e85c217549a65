"""The costs and the summary of a federated run, with the fields of ``proxskip run``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from proxskip.flower.federated_client import FederatedClient
from proxskip.loop.line import Ledger
from proxskip.protocol import Ask, Server, ServerState, wire
from proxskip.results import description
from proxskip.results.result import Summary


class MessageLedger(Ledger):
    """The ledger of a run, written as messages leave and arrive; bytes include the headers."""

    def asked(self, asks: Sequence[Ask]) -> None:
        """Count an exchange that begins."""
        self.exchanges += bool(asks)
        self.iterations += max((a.K for a in asks), default=0)
        self.local_steps += sum(a.K for a in asks)

    def sent(self, raw: bytes) -> None:
        """Count a message to a client."""
        self.bytes_down += len(raw)
        self.vectors_down += raw[wire.COUNT]

    def answered(self, raw: bytes, gradients: object) -> None:
        """Count a reply."""
        self.bytes_up += len(raw)
        self.vectors_up += raw[wire.COUNT] if len(raw) >= wire.HEADER else 0
        # the number is the client's own, so it may be anything
        self.grad_evals += gradients if isinstance(gradients, int) and 0 <= gradients < 2**53 else 0

    def measured(self, s: ServerState, d: int, N: int) -> dict[str, float]:
        """A row as a run's trace would have it: the costs, and what the server has measured."""
        sizes = {f"floats_{way}": d * vars(self)[f"vectors_{way}"] for way in ("up", "down")}
        sizes |= {f"bits_{way}": 8 * vars(self)[f"bytes_{way}"] for way in ("up", "down")}
        unknown = dict.fromkeys(("gap", "lyapunov", "lyapunov_bound"), math.nan)
        found = {"round": s.round, "passes": self.grad_evals / N, "f": s.f, "grad_norm": s.grad_norm, "sum_h": s.sum_h}
        return self.row() | sizes | unknown | found


def summary(
    server: Server, s: ServerState, remotes: Sequence[FederatedClient], costs: MessageLedger, batch: int | None
) -> Summary:
    """The content of summary.json; null for what the server does not know."""
    problem, first, N = server.problem, remotes[0], sum(r.N for r in remotes)
    about = {
        "data": "the clients' own data", "data_sha256": None, "split": "the federation", "samples": N, "d": problem.d,
        "clients": problem.n, "weights": description.weighting(problem), "lambda": first.l2, "loss": first.kind,
        "batch": batch, "psi": None if problem.psi is None else repr(problem.psi),
    }  # fmt: skip
    config = {
        "method": server.method.name, "parameters": description.parameters(server.method), "problem": about,
        "seed": server.seed, "engine": "flower", "cohort": description.cohort(server.cohort, problem.n),
    }  # fmt: skip
    notes = (*server.unsafe, *s.notes)
    found = description.summary(config, problem, costs.measured(s, problem.d, N), *server.verdict(s), None, notes)
    if not all(r.L_known for r in remotes):
        found |= {"L_kind": "unknown", "kappa": None}
    participation = dict(zip(server.names, s.participated, strict=True))
    found |= {"closing": server.closing, "participation": participation, "counts": dict(vars(s.counts))}
    return found
