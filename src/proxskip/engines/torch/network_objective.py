"""f = sum_i w_i f_i of networks, evaluated on the device for all clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from proxskip.engines.torch.stacked_functions import groups
from proxskip.engines.torch.stacked_steps import repeatable
from proxskip.types import Array, InputError

ROWS_AT_ONCE = 1 << 14
"""Rows of all clients together that pass through the module in one go, where they fit into the device's memory."""


class WholeNetwork:
    """The weighted sum of the clients' functions as one oracle, without dropout."""

    mu: float | None = None
    L_known = False

    def __init__(self, engine: Any) -> None:
        self.engine, self.last = engine, (np.zeros(0), 0.0, np.zeros(0))
        self.rows_at_once = ROWS_AT_ONCE

    @property
    def L(self) -> float:
        """Nobody knows it."""
        raise InputError("the L of a network is unknown.")

    @property
    def d(self) -> int:
        """The number of unknowns."""
        return int(self.engine.problem.d)

    def value(self, x: Array) -> float:
        """f(x)."""
        return self._at(x)[1]

    def gradient(self, x: Array) -> Array:
        """grad f(x)."""
        return self._at(x)[2]

    def _at(self, x: Array) -> tuple[Array, float, Array]:
        """Both; a record asks for one after the other at the same x."""
        if not np.array_equal(self.last[0], x):
            self.last = (x.copy(), *self._as_fits(x))
        return self.last

    def _as_fits(self, x: Array) -> tuple[float, Array]:
        """Computed with fewer rows at once as long as the device's memory is too small."""
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
        most = self.rows_at_once
        for part in weighted_losses(family, flat, engine.problem.weights, engine.at_once, most):
            with repeatable():
                (slope,) = torch.autograd.grad(part, flat)
            value, gradient = value + float(part.detach()), gradient + slope
        # losses of networks are without l2, which is added here once
        l2 = family.l2
        return value + 0.5 * l2 * float(x @ x), np.asarray(engine.fetch(gradient)) + l2 * x


def weighted_losses(
    family: Any, x: Any, weights: Array, at_once: int, rows_at_once: int = ROWS_AT_ONCE
) -> Iterator[Any]:
    """Numbers on the device that add up to sum_i w_i f_i(x), without l2; each is of some clients and some rows."""
    w = torch.tensor(weights).to(x.device, family.dtype)
    # groups of equal sizes, so that one N holds for all of a group's clients
    for places in groups(family.sizes, min(at_once, rows_at_once)):
        N, members = int(family.sizes[places[0]]), torch.as_tensor(places).to(x.device)
        rows = max(1, rows_at_once // len(places))
        for lo in range(0, N, rows):
            picks = torch.arange(lo, min(N, lo + rows), device=x.device).expand(len(places), -1)
            losses = family.losses_at(x, members, picks)
            # losses are means over the rows that were picked: this chunk counts by its share of the client's rows
            yield (w[members] * losses.to(family.dtype)).sum() * (picks.shape[1] / N)
