"""The candidate of each method that did best on the validation rows, and what it cost to reach the target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proxskip.experiments.networks.forms import Form, TriedForm
from proxskip.types import Array

AXES = {
    "rounds": "communication rounds",
    "bytes": "bytes per client, up and down",
    "gradients": "gradients of single rows per client",
}
NEVER = math.inf


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A method with the candidate that was chosen for it.

    Args:
        curves: for each column of the trainer, (seeds, records).
        metric: what is judged, "accuracy" or "loss".
        target: its value at which a run has arrived.
        at_end: whether the step size is the largest or the smallest that was tried.
    """

    form: Form
    candidate: TriedForm
    curves: Mapping[str, Array]
    metric: str
    target: float
    at_end: bool

    @property
    def test(self) -> Array:
        """The metric on the test rows, (seeds, records)."""
        return self.curves[f"test_{self.metric}"]

    def costs(self, axis: str) -> list[float]:
        """For each seed the cost of the first record at the target; infinite if there is none."""
        there = self.test >= self.target if self.metric == "accuracy" else self.test <= self.target
        at = self.curves[axis]
        # argmax of booleans finds the first that is true
        return [float(at[s, np.argmax(hit)]) if hit.any() else NEVER for s, hit in enumerate(there)]

    def cost(self, axis: str) -> float:
        """The median over the seeds; infinite if most of them never arrived."""
        # the upper one of two in the middle: a cost that some seed had, and never a mean with an infinity
        return float(np.sort(self.costs(axis))[len(self.test) // 2])

    def final(self) -> Array:
        """The mean of the last records of each seed, a tenth of them."""
        last = max(1, self.test.shape[1] // 10)
        return np.asarray(self.test[:, -last:].mean(axis=1))


def choose(
    form: Form, candidates: Sequence[TriedForm], curves: Mapping[str, Array], metric: str, target: float
) -> ChosenRun:
    """The candidate with the best mean over seeds and records on the validation rows.

    The mean over the records is large for those who learn fast and for those who end well.

    Args:
        curves: (candidates, seeds, records) of each column.
    """
    validation = curves[f"validation_{metric}"].mean(axis=(1, 2))
    best = int(np.argmax(validation) if metric == "accuracy" else np.argmin(validation))
    rates = sorted({c.lr for c in candidates})
    at_end = candidates[best].lr in (rates[0], rates[-1])
    return ChosenRun(form, candidates[best], {k: v[best] for k, v in curves.items()}, metric, target, at_end)


def words(costs: Sequence[float], unit: float = 1.0) -> str:
    """The median of a cost, and how many seeds arrived if not all did."""
    arrived = sum(map(math.isfinite, costs))
    middle = float(np.sort(costs)[len(costs) // 2])
    if not arrived:
        return "never"
    few = "" if arrived == len(costs) else f" ({arrived} of {len(costs)})"
    return (f"{middle / unit:.3g}" if math.isfinite(middle) else "never") + few
