"""One trainer for all methods: the networks of all clients, seeds and candidates are the rows of one matrix.

A local step of all of them is one forward and one backward pass. Every draw is keyed by (seed, client, round, step), so
that methods and candidates see the same minibatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxskip.experiments.networks.data import ShuffledRows
from proxskip.experiments.networks.forms import Form, TriedForm
from proxskip.experiments.networks.models import VectorNetwork
from proxskip.randomness import stream

BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01
"""AdamW's, as in PyTorch."""
COLUMNS = ("rounds", "bytes", "gradients", "validation_loss", "validation_accuracy", "test_loss", "test_accuracy")


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What every method gets: rounds, local steps, the size of a minibatch, and after how many rounds it is judged."""

    rounds: int
    K: int
    batch: int
    every: int = 1


class StackedTrainer:
    """All runs of one method: candidates x seeds, each with n clients.

    Shapes: x is (runs, d); y, h and AdamW's moments are (runs, n, d); runs go through the seeds first.
    """

    def __init__(
        self, network: VectorNetwork, data: Sequence[ShuffledRows], form: Form, candidates: Sequence[TriedForm],
        plan: TrainingPlan, device: str = "cpu",
    ) -> None:  # fmt: skip
        self.network, self.data, self.form, self.plan, self.device = network, data, form, plan, device
        self.n, self.seeds, self.C = len(data[0].clients), len(data), len(candidates)
        self.runs = self.C * self.seeds
        inputs, targets = np.stack([d.inputs for d in data]), np.stack([d.targets for d in data])
        self.inputs = torch.from_numpy(inputs.astype(np.float32)).to(device)
        self.targets = torch.from_numpy(targets).to(device)
        # candidates outside and seeds inside, so that what belongs to the seeds is repeated once per candidate
        column = {k: [getattr(c, k) for c in candidates for _ in data] for k in ("lr", "outer", "chi")}
        self.lr, self.outer, self.chi = (torch.tensor(column[k], device=device)[:, None] for k in column)
        starts = torch.stack([network.start(seed) for seed in range(self.seeds)]).to(device)
        self.x = starts.repeat(self.C, 1)
        self.velocity = torch.zeros_like(self.x)
        self.h = torch.zeros(self.runs, self.n, network.d, device=device)
        self.moments = [torch.zeros_like(self.h) for _ in range(2)] if form.inner == "adamw" else []
        self.taken = np.zeros(self.seeds, dtype=np.int64)  # local steps so far, of each seed
        self.gradients = np.zeros(self.seeds)

    # -- a round -------------------------------------------------------------------------------------------------------
    def round(self, r: int) -> None:
        """Local steps, the average, and the new h."""
        Ks = [self._local_steps(seed, r) for seed in range(self.seeds)]
        y = self.x[:, None, :].repeat(1, self.n, 1)
        if self.form.control == "anchor":
            self._anchor(y)
        raw = torch.zeros_like(y) if self.form.control == "gradient" else None
        for step in range(max(Ks)):
            # seeds may have drawn different K: those that are done stay where they are
            going = torch.tensor([float(step < K) for K in Ks], device=self.device).repeat(self.C)[:, None, None]
            g = self._gradients(y, r, step)
            if raw is not None:
                raw += going * g
            y += going * self._local_step(y, g - self.h, step)
        self.taken += Ks
        self.gradients += np.array(Ks) * self.plan.batch
        mean = y.mean(1)
        if raw is not None:
            # the mean gradient of the round, less its mean over the clients: the h_i sum to zero
            c = raw / self._per_run(Ks)
            self.h = c - c.mean(1, keepdim=True)
        elif self.form.control == "step":
            # the theory divides by the expected number of steps where it is drawn, not by the one that came
            p = [1.0 / self.plan.K if self.form.drawn else 1.0 / K for K in Ks]
            rate = (self.chi * self._per_run(p)[:, :, 0] / self.lr)[:, :, None]
            self.h += rate * (mean[:, None] - y)
        self._server_step(mean)

    def _local_steps(self, seed: int, r: int) -> int:
        return int(stream(seed, r, "server").geometric(1.0 / self.plan.K)) if self.form.drawn else self.plan.K

    def _per_run(self, values: Sequence[float]) -> Tensor:
        """A number of each seed, for all runs."""
        return torch.tensor(values, dtype=torch.float32, device=self.device).repeat(self.C)[:, None, None]

    def _gradients(self, y: Tensor, r: int, step: int) -> Tensor:
        rows = np.stack([d.batches(s, r, step, self.plan.batch) for s, d in enumerate(self.data)])
        return self._gradients_at(y, rows)

    def _gradients_at(self, y: Tensor, rows: Any) -> Tensor:
        """The gradients of all clients on these rows, (seeds, n, b)."""
        at = torch.from_numpy(rows).to(self.device)
        # a data set for each seed, from which its runs take their rows
        seed = torch.arange(self.seeds, device=self.device)[:, None, None]
        b, t = self.inputs[seed, at], self.targets[seed, at]
        # of all candidates the same rows, laid out as the networks are: (runs * n, b, ...)
        inputs, targets = (v.repeat(self.C, *[1] * (v.dim() - 1)).flatten(0, 1) for v in (b, t))
        return self.network.gradient(y.flatten(0, 1), inputs, targets).view_as(y)

    def _anchor(self, y: Tensor) -> None:
        """FedLin's h: the full gradients at x, which cost a pass over the client's rows."""
        # all rows of each client are one large minibatch
        g = self._gradients_at(y, np.stack([d.clients for d in self.data]))
        self.h = g - g.mean(1, keepdim=True)
        self.gradients += self.data[0].clients.shape[1]

    def _local_step(self, y: Tensor, g: Tensor, step: int) -> Tensor:
        """What a step of the local optimizer adds to y."""
        lr = self.lr[:, :, None]
        if self.form.inner == "sgd":
            return -lr * g
        t = int(self.taken[0]) + step + 1  # the same for all seeds, as AdamW never has a drawn K here
        first, second = self.moments
        first.mul_(BETAS[0]).add_(g, alpha=1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
        size = (second / (1 - BETAS[1] ** t)).sqrt_().add_(EPS)
        # the decay of AdamW is not part of the moments, and so is not shifted by h
        return -lr * (DECAY * y + first / (1 - BETAS[0] ** t) / size)

    def _server_step(self, mean: Tensor) -> None:
        d = self.x - mean
        if self.form.momentum:
            # as ``torch.optim.SGD`` with nesterov=True, on x - mean y in place of the gradient
            self.velocity = self.form.momentum * self.velocity + d
            d = d + self.form.momentum * self.velocity
        self.x = self.x - self.outer * d

    # -- a run ---------------------------------------------------------------------------------------------------------
    def run(self) -> dict[str, list[list[list[float]]]]:
        """The curves: for every column, by candidate and seed, one number per record."""
        kept: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._record(0, kept)
        for r in range(self.plan.rounds):
            self.round(r)
            if (r + 1) % self.plan.every == 0:
                self._record(r + 1, kept)
        shape = (len(kept["rounds"]), self.C, self.seeds)
        # records come last, so that a curve is one list; six digits are plenty for figures
        return {k: np.moveaxis(np.array(v).reshape(shape), 0, 2).round(6).tolist() for k, v in kept.items()}

    def _record(self, r: int, kept: dict[str, list[Any]]) -> None:
        everybody = np.ones((self.C, self.seeds))
        kept["rounds"].append(r * everybody)
        # up and down, four bytes per number
        kept["bytes"].append(2.0 * 4 * self.form.vectors * self.network.d * r * everybody)
        kept["gradients"].append(self.gradients * everybody)
        for part in ("validation", "test"):
            rows = torch.from_numpy(np.stack([getattr(d, part) for d in self.data])).to(self.device)
            seed = torch.arange(self.seeds, device=self.device)[:, None]
            inputs, targets = (v[seed, rows].repeat(self.C, *[1] * (v.dim() - 1)) for v in (self.inputs, self.targets))
            found = self.network.judge(self.x, inputs, targets).cpu().double().numpy()
            # what diverged has an infinite loss, and guesses
            loss = np.where(np.isfinite(found[:, 0]), np.minimum(found[:, 0], 1e3), 1e3)
            right = np.where(np.isfinite(found[:, 0]), found[:, 1], 0.0)
            kept[f"{part}_loss"].append(loss.reshape(self.C, self.seeds))
            kept[f"{part}_accuracy"].append(right.reshape(self.C, self.seeds))
