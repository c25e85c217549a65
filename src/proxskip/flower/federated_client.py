"""What the server knows about the clients of a federation: names, sizes, constants."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from proxskip.flower.noise import Noise
from proxskip.flower.oracles import UNKNOWN_L
from proxskip.problems.federated import Problem
from proxskip.types import Array, InputError, Prox

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class FederatedClient:
    """A client's function as the server sees it: its constants, without a way to evaluate it."""

    node: int
    name: str
    partition: int
    d: int
    N: int
    L: float
    mu: float | None
    kind: str
    l2: float
    L_known: bool
    noise: Noise | None = None

    def value(self, x: Array) -> float:
        """Refused: only the client can evaluate it."""
        raise InputError(f"{self.name} is a remote client; only it can evaluate its function.")

    def gradient(self, x: Array) -> Array:
        """Refused: only the client can evaluate it."""
        raise InputError(f"{self.name} is a remote client; only it can evaluate its gradient.")

    @staticmethod
    def of(node: int, place: int, words: dict[str, Any]) -> FederatedClient:
        """The client from what its node declared, after checks."""
        try:
            partition = place if words["partition"] is None else int(words["partition"])
            name = str(words["name"] or f"client-{partition}")
            known = words["L"] is not None
            L = float(words["L"]) if known else UNKNOWN_L
            mu = None if words["mu"] is None or not known else float(words["mu"])
            d, N, kind, l2 = int(words["d"]), int(words["N"]), str(words["kind"])[:32], float(words["lambda"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"node {node} does not identify itself ({error}); run the same app everywhere.") from None
        if not _NAME.fullmatch(name):
            raise InputError(f"node {node} has an invalid name: use 1 to 64 of A-Z a-z 0-9 . _ -.")
        finite = math.isfinite(L) and math.isfinite(l2) and (mu is None or 0.0 <= mu < math.inf)
        if not (finite and L > 0 and d > 0 and N > 0 and 0 <= partition < 2**31):
            raise InputError(
                f"{name} says L = {L}, mu = {mu}, d = {d}, rows = {N}, partition = {partition}; some are invalid."
            )
        return FederatedClient(node, name, partition, d, N, L, mu, kind, l2, known, Noise.of(words.get("noise"), name))


class RemoteProblem(Problem):
    """The problem of all clients together, as far as the server knows it."""

    @cached_property
    def solution(self) -> None:
        """Unknown: the server has no data to compute it from."""
        return None


def as_problem(remotes: Sequence[FederatedClient], weights: str | Sequence[float], psi: Prox | None) -> Problem:
    """The problem of all clients together, as far as the server knows it."""
    first = remotes[0]
    for r in remotes:
        if r.d != first.d:
            raise InputError(
                f"{r.name} has {r.d} unknowns but {first.name} has {first.d}; every client needs the same model."
            )
        if r.l2 != first.l2:
            raise InputError(
                f"{r.name} has lambda = {r.l2:g} but {first.name} has {first.l2:g}; give every client the same."
            )
    if isinstance(weights, str):
        if weights not in ("equal", "rows"):
            raise InputError(f'weights = "{weights}" must be "equal", "rows", or one number per client.')
        w = [float(r.N) if weights == "rows" else 1.0 for r in remotes]
    else:
        w = [float(v) for v in weights]
    return RemoteProblem(list(remotes), np.array(w), psi=psi, d=first.d)
