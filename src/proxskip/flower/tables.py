"""A table of standard errors from a federation: which clients can give one, and the names of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxskip.flower.nodes import FederatedClient
from proxskip.results.inference import MODELS
from proxskip.types import InputError


def check(remotes: Sequence[FederatedClient], weights: Any, psi: Any, batch: int | None) -> None:
    """Refuse a federation whose mean function is not minus the log likelihood of all rows, per row."""
    kinds = sorted({r.kind for r in remotes})
    if len(kinds) > 1 or kinds[0] not in MODELS:
        raise InputError(f"inference=True needs clients that all have the same of {', '.join(MODELS)}, not {kinds}.")
    without = [r.name for r in remotes if not r.has_hessian]
    if without or psi is not None or batch is not None or remotes[0].l2:
        raise InputError("inference=True needs clients with Hessians and l2 = 0, no psi and no minibatches.")
    if weights != "rows":
        raise InputError('inference=True needs weights="rows", so that every row counts the same.')


def check_rows(remotes: Sequence[FederatedClient]) -> None:
    """Refuse a site that will not send its Hessian, before anybody works."""
    for r in remotes:
        if r.least_rows > r.N:
            raise InputError(
                f"{r.name} has {r.N} rows, and sends no Hessian of fewer than {r.least_rows}, which would reveal much "
                "about each; leave this site out, or let its owner set client_app(..., least_rows=)."
            )


def names(remotes: Sequence[FederatedClient], d: int) -> tuple[str, ...]:
    """The names of the unknowns."""
    return remotes[0].columns or tuple(f"x{j + 1}" for j in range(d))
