"""f = sum_i w_i f_i of networks, evaluated on the device for all clients at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxskip.engines.torch.stacked_functions import Networks, groups
from proxskip.engines.torch.stacked_steps import repeatable
from proxskip.types import Array, InputError

ROWS_AT_ONCE = 1 << 14
"""Rows of all clients that pass through the module at once, if the device's memory allows."""


class WholeNetwork:
    """The weighted sum of the clients' functions as one oracle, without dropout."""

    mu: float | None = None
    L_known = False
    in_one_pass = True

    def __init__(self, engine: Any) -> None:
        self.engine, self.last = engine, (np.zeros(0), 0.0, np.zeros(0))
        self.rows_at_once = ROWS_AT_ONCE

    @property
    def L(self) -> float:
        raise InputError("the L of a network is unknown; pass a method with a fixed gamma.")

    @property
    def d(self) -> int:
        return int(self.engine.problem.d)

    def value(self, x: Array) -> float:
        return self._at(x)[1]

    def gradient(self, x: Array) -> Array:
        return self._at(x)[2]

    def _at(self, x: Array) -> tuple[Array, float, Array]:
        """Value and gradient; a record asks for both at the same x."""
        if not np.array_equal(self.last[0], x):
            self.last = (x.copy(), *self._as_fits(x))
        return self.last

    def _as_fits(self, x: Array) -> tuple[float, Array]:
        """Compute with fewer rows at once each time the device runs out of memory."""
        while True:
            try:
                return self._computed(x)
            except torch.OutOfMemoryError:
                if self.rows_at_once == 1:
                    raise
                self.rows_at_once //= 2
                self.engine.steps.forget()

    def _computed(self, x: Array) -> tuple[float, Array]:
        engine, family = self.engine, self.engine.family
        flat = engine.place(x).clone().requires_grad_(True)
        value, gradient = 0.0, torch.zeros_like(flat)
        weights = torch.tensor(engine.problem.weights).to(flat)
        for members, losses, share in client_losses(family, flat, engine.at_once, self.rows_at_once):
            part = (weights[members] * losses).sum() * share
            with repeatable():
                (slope,) = torch.autograd.grad(part, flat)
            value += float(part.detach())
            gradient += slope
        # the losses do not include l2
        l2 = family.l2
        return value + 0.5 * l2 * float(x @ x), np.asarray(engine.fetch(gradient)) + l2 * x


def client_losses(
    family: Networks, x: Tensor, at_once: int, rows_at_once: int = ROWS_AT_ONCE, buffers: Sequence[Tensor] = ()
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Some clients, their mean losses at x on some of their rows, and the share of these among the rows of each.

    Args:
        buffers: the moving buffers, with a row for each client, or one for all.
    """
    # all clients of a group have N rows
    for places in groups(family.sizes, min(at_once, rows_at_once)):
        N, members = int(family.sizes[places[0]]), torch.as_tensor(places).to(x.device)
        mine = [v.expand(len(family.sizes), *v.shape[1:])[members] for v in buffers]
        rows = max(1, rows_at_once // len(places))
        for lo in range(0, N, rows):
            picks = torch.arange(lo, min(N, lo + rows), device=x.device).expand(len(places), -1)
            losses = family.losses_at(x, members, picks, mine)
            yield members, losses.to(family.dtype), picks.shape[1] / N
