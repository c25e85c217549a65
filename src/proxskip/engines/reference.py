"""The reference engine: plain numpy, one client at a time. All other engines are tested against it."""

from __future__ import annotations

from proxskip.core.engine import Request
from proxskip.engines.in_process import NearEngine
from proxskip.engines.local import OneClient
from proxskip.types import Indices


class ReferenceEngine(NearEngine):
    """Runs client halves one after another on ``(d,)`` vectors."""

    name = "reference"

    def client(self, members: Indices, request: Request, place: int) -> OneClient:
        return OneClient(self.problem, int(members[0]), self.seed, request, place)
