"""The state of a training between rounds, and a round of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxskip.engines.torch.network_objective import client_losses
from proxskip.engines.torch.stacked_functions import Networks, Parts, Portion, portions
from proxskip.engines.torch.stacked_steps import StackedSteps
from proxskip.problems.federated import Problem
from proxskip.problems.torch_model import Model
from proxskip.torch.rule import news, to_send
from proxskip.torch.settings import Schedule, Settings, rate_at
from proxskip.torch.stacked_optimizer import Make, StackedOptimizer, acts_by_entry
from proxskip.torch.wire import decode, encode
from proxskip.types import Array, Indices


class Training:
    """The state of a training between rounds: x, h, the parameters of all clients and their optimizers."""

    def __init__(
        self, problem: Problem, optimizer: Make, settings: Settings, outer: Make | None, schedule: Schedule | None,
        device: torch.device, at_once: int | None, together: bool | None,
    ) -> None:  # fmt: skip
        self.problem, self.make, self.settings = problem, optimizer, settings
        self.schedule, self.device = schedule, device
        self.control, self.after = settings.control, settings.correct == "after"
        self.family = Networks(problem, device, one_by_one=True)
        self.model: Model = self.family.model
        self.dtype = self.model.torch_dtype
        sizes = self.family.sizes
        self.batches = sizes if settings.batch is None else np.minimum(sizes, settings.batch)
        self.chi = settings.damping(minibatches=bool((self.batches < sizes).any()))
        self.mix = settings.mix or 0.0
        self.equal = np.ptp(problem.weights) == 0
        self.weights = torch.tensor(problem.weights).to(device, self.family.dtype)
        self.steps = StackedSteps(self.family, settings.seed, settings.batch, device, device.type == "cuda")
        self.x = torch.as_tensor(self.model.start()).to(device, self.family.dtype)[None]
        """The common point, as a row."""
        copies = problem.n if settings.buffers == "local" else 1
        self.buffers = [v.expand(copies, *v.shape).clone() for v in self.family.buffers()]
        """The module's buffers that move: with a row for each client, or one for all."""
        rows = {"none": 0, "momentum": 1}.get(self.control, problem.n)
        self.h = self._zeros(rows)
        """The control variate of each client; with "momentum" one vector for all of them."""
        self.errors = self._zeros(problem.n if settings.codec == "top-k" else 0)
        """What top-k has not sent yet, in the order of ``_columns``."""
        self.at_once = at_once or problem.n
        self.outer = None if outer is None else StackedOptimizer(outer, self._copies(1), False)
        weights = [torch.nn.Parameter(v[0]) for v in self._copies(1)]
        self.by_entry = acts_by_entry(optimizer, weights) if together is None else together
        self.own_tests = len({id(f.test) for f in problem.clients}) > 1  # type: ignore[attr-defined]
        self.last: Tensor | None = None
        """The last local step of each member, where these differ."""
        self.members: Indices = np.zeros(0, dtype=np.int64)
        self.optimizer: StackedOptimizer | None = None
        self.factor = 1.0
        self.y: Parts = []
        self.own_buffers: Parts = []
        """Those of the members in their local steps."""
        self.round = self.local_steps = self.grad_evals = self.floats_up = self.floats_down = self.bytes_up = 0
        self.participated = np.zeros(problem.n, dtype=np.int64)

    def _zeros(self, rows: int) -> Tensor:
        return torch.zeros((rows, self.problem.d), dtype=self.family.dtype, device=self.device)

    def _copies(self, c: int) -> Parts:
        """The parameters of c clients that stand at x."""
        return [v.to(self.dtype) for v in self.family.parts(self._spread(self.x).expand(c, -1))]

    def _spread(self, v: Tensor) -> Tensor:
        """What the server has, as a row for each member or as one for all."""
        return v

    # -- a round -------------------------------------------------------------------------------------------------------
    def _join(self, members: Indices) -> None:
        """Let these clients take part, at x."""
        everybody = len(members) == self.problem.n
        # a view of everybody's rows where all take part
        self.mine: Tensor | slice = slice(None) if everybody else torch.as_tensor(members).to(self.device)
        if everybody and len(self.members) == self.problem.n and not self.settings.resets:
            _set(self.y, self.family.views(self._spread(self.x)))
        else:
            self._gather(members)
        rows = self.mine if self.settings.buffers == "local" else slice(None)
        _set(self.own_buffers, [v[rows] for v in self.buffers])
        self.h_rows: Tensor | slice = slice(None) if self.control in ("momentum", "none") else self.mine
        if self.control == "momentum":
            _set(self.shift, self.family.views(-self.mix * self.h))
        elif self.control != "none":
            _set(self.shift, self.family.views(self.h[self.mine]))
        if self.settings.pull:
            _set(self.center, self.family.views(self._spread(self.x)))
        for c in self.raw:
            c.zero_()
        self._set_rates()

    def _gather(self, members: Indices) -> None:
        """New tensors and optimizers for these clients; what all of them remember alike goes on."""
        before, self.members, self.y = self.optimizer, members, self._copies(len(members))
        self.own_buffers = [v[:1].expand(len(members), *v.shape[1:]).clone() for v in self.buffers]
        self.optimizer = StackedOptimizer(self.make, self.y, self.by_entry)
        self.factor = 1.0
        if before is not None and self.settings.state is not None and not self.settings.resets:
            self.optimizer.adopt(before)
        rows = 1 if self.control == "momentum" else len(members)
        self.shift = self.family.parts(self._zeros(rows)) if self.control != "none" else []
        self.raw = self.family.parts(self._zeros(rows)) if self.control == "gradient" else []
        self.center = self._copies(len(self._spread(self.x))) if self.settings.pull else []
        self.steps.forget()

    def _set_rates(self) -> None:
        assert self.optimizer is not None
        factor = rate_at(self.schedule, self.round)
        if factor != self.factor:
            self.factor = factor
            self.optimizer.scale_rates(factor)
            self.steps.forget()  # graphs fix the learning rates as numbers

    def steps_of(self, members: Indices) -> Indices:
        """The local steps of each of these clients in this round."""
        settings = self.settings
        if settings.epochs is not None:
            return np.ceil(settings.epochs * self.family.sizes[members] / self.batches[members]).astype(np.int64)
        return np.full(len(members), settings.local_steps(self.round))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def go_round(self, members: Indices) -> bool:
        """A round of these clients; False where the average is not finite, and nothing was changed."""
        settings, own_K = self.settings, self.steps_of(members)
        self._join(members)
        self._limit(own_K)
        all_alike = len(members) == self.problem.n and self.by_entry and not self.family.apart
        has_graph = all_alike and (settings.batch is None or settings.batch <= self.family.smallest)
        self.steps.repeat(self._step, "train" if has_graph else None, int(own_K.max()), members, self.round, 0)
        # one number, or one for each client
        K: Tensor | int = int(own_K[0]) if self.last is None else self.last.to(self.x.dtype)[:, None]
        moved = self.family.stack(self.y).to(self.x.dtype).sub_(self._spread(self.x))
        if settings.normalize:
            moved *= self._weight_of_steps(own_K)
        mean_gradient = self.family.stack(self.raw).div_(K) if self.raw else None
        h = self.h[self.h_rows]
        over_steps = (settings.p or 1.0 / K) * self._over_lr() if self.control in ("step", "momentum") else 0.0
        vectors = to_send(self.control, moved, mean_gradient, h, None if self.last is None else over_steps)
        sent = self._sent(vectors)
        means = [self._mean(v) for v in sent]
        if not self._is_finite(means):
            return False
        if self.control != "none":
            new = news(self.control, h, sent, [self._spread(v) for v in means], over_steps, settings.pull)
            self.h[self.h_rows] = h.add_(new, alpha=self.chi)
        self._move(means[0])
        self._keep_buffers()
        self._count(own_K, len(vectors))
        return True

    def _is_finite(self, means: list[Tensor]) -> bool:
        return all(bool(torch.isfinite(m).all()) for m in means)

    def _limit(self, K: Indices) -> None:
        """Let each member end after its own steps, if they differ."""
        differ = bool(np.ptp(K))
        if self.last is None or not differ or len(self.last) != len(K):
            # graphs read these two where they are
            self.last = torch.zeros(len(K), dtype=torch.int64, device=self.device) if differ else None
            self.taken = torch.zeros(1, dtype=torch.int64, device=self.device)
        if self.last is not None:
            self.last.copy_(torch.as_tensor(K))
            self.taken.zero_()

    def _weight_of_steps(self, K: Indices) -> Tensor:
        """FedNova's factors: the mean of what the clients' steps weigh, over what those of each do."""
        assert self.optimizer is not None
        momentum = torch.tensor(self.optimizer.setting("momentum"), dtype=torch.float64)
        K_each = torch.as_tensor(K, dtype=torch.float64)[:, None]
        # with momentum m a gradient that k steps follow counts 1 + m + ... + m^k
        weight = (K_each - momentum * (1 - momentum**K_each) / (1 - momentum)) / (1 - momentum)
        sizes = torch.tensor(self.family.numels)
        weight = weight.repeat_interleave(sizes, dim=1).to(self.device, self.x.dtype)
        return self._spread(self._mean(weight)) / weight

    def _step(self, batch: list[Portion]) -> None:
        """A local step of all members, or of those that have steps left."""
        if self.last is None:
            self._unmasked_step(batch)
            return
        going = self.taken < self.last
        tensors = self.y + self.own_buffers + self.raw
        before = [v.clone() for v in tensors]
        self._unmasked_step(batch)
        for v, old in zip(tensors, before, strict=True):
            v.copy_(torch.where(going.view(-1, *[1] * (v.ndim - 1)), v, old))
        self.taken.add_(1)

    def _unmasked_step(self, batch: list[Portion]) -> None:
        assert self.optimizer is not None
        gradients = self._gradient(batch)
        for c, g in zip(self.raw, gradients, strict=False):
            c.add_(g)
        if self.center:
            pulls = zip(gradients, self.y, self.center, strict=True)
            gradients = [g + self.settings.pull * (y - x) for g, y, x in pulls]
        if self.shift and not self.after:
            share = 1.0 - self.mix
            gradients = [(g if share == 1.0 else share * g) - h for g, h in zip(gradients, self._shift(), strict=True)]
        self.optimizer.step(gradients)
        if self.after:
            for y, h, lr in zip(self.y, self._shift(), self.optimizer.learning_rates(), strict=True):
                y.add_(h, alpha=lr)

    def _shift(self) -> Parts:
        return [h.to(self.dtype) for h in self.shift]

    def _gradient(self, batch: list[Portion]) -> Parts:
        """With fewer clients at once as long as the device's memory is too small."""
        parts = [v.detach() for v in self.y]
        while True:
            try:
                return self.family.gradient(parts, portions(batch, self.at_once), self.own_buffers)
            except torch.OutOfMemoryError:
                if self.at_once == 1:
                    raise
                self.at_once = -(-min(self.at_once, len(self.members)) // 2)

    def _mean(self, v: Tensor) -> Tensor:
        """The weighted mean of the members' rows, as a row."""
        if self.equal:
            return v.mean(0, keepdim=True)
        return torch.mv(v.t(), self._shares())[None]

    def _shares(self) -> Tensor:
        """The members' weights, which add up to one."""
        w = self.weights[self.mine]
        return w / w.sum()

    def _keep_buffers(self) -> None:
        """Those of each member, or their mean."""
        for v, own in zip(self.buffers, self.own_buffers, strict=True):
            if self.settings.buffers == "local":
                v[self.mine] = own
            else:
                v.copy_(_whole_where(v, torch.tensordot(self._shares(), own.to(self.x.dtype), dims=1)))

    def _sent(self, vectors: list[Tensor]) -> list[Tensor]:
        """What the server reads of each member's vectors."""
        settings = self.settings
        if settings.codec == "float32":
            self.bytes_up += sum(v.numel() * v.element_size() for v in vectors)
            return vectors
        order = self._columns()
        due = torch.cat([v[:, order] for v in vectors], dim=1)
        has_errors = len(self.errors) > 0
        if has_errors:
            due += self.errors[self.mine]
        read = torch.empty_like(due)
        for row, i in enumerate(self.members.tolist()):
            payload = encode(due[row], settings.codec, settings.share, settings.seed, i, self.round)
            read[row] = decode(payload, settings.codec, due[row])
            self.bytes_up += payload.numel()
        if has_errors:
            self.errors[self.mine] = due - read
        back = torch.argsort(order)
        return [v[:, back] for v in read.split(self.problem.d, dim=1)]

    def _columns(self) -> Tensor:
        """The unknowns in the order in which the optimizer has its parameters."""
        assert self.optimizer is not None
        columns = torch.arange(self.problem.d, device=self.device).split(self.family.numels)
        return torch.cat([columns[k] for k in self.optimizer.order()])

    def _over_lr(self) -> Tensor:
        """1 / lr of each unknown; 0 where that is 0: nothing moved there."""
        assert self.optimizer is not None
        rates = [1.0 / lr if lr else 0.0 for lr in self.optimizer.learning_rates()]
        sizes = torch.tensor(self.family.numels, device=self.device)
        return torch.tensor(rates, dtype=self.x.dtype, device=self.device).repeat_interleave(sizes)

    def _move(self, mean: Tensor) -> None:
        """The step of the server."""
        if self.control == "dual":
            mean = mean - torch.mv(self.h.t(), self.weights) / self.settings.pull
        if self.outer is None:
            self.x = self.x + mean
            return
        _set(self.outer.parts, self.family.views(self.x))
        self.outer.step([g.to(self.dtype) for g in self.family.parts(-mean)])
        self.x = self.family.stack(self.outer.parts).to(self.x.dtype)

    def _count(self, K: Indices, vectors: int) -> None:
        """Share what the optimizers remember, and count the round."""
        assert self.optimizer is not None
        members, shared = self.members, 0
        if self.settings.state not in (None, "kept", "reset"):
            shared = self.optimizer.settle(self.settings.rule_of, self._shares())
        if self.settings.buffers == "mean":
            shared += sum(v[0].numel() for v in self.buffers)
        self.round += 1
        self.local_steps += int(K.sum())
        self.grad_evals += int(self.batches[members] @ K)
        self.floats_up += len(members) * (vectors * self.problem.d + shared)
        self.bytes_up += len(members) * shared * self.x.element_size()
        # with "momentum" the clients get the last step of the server, which they can tell from two x in a row
        self.floats_down += len(members) * (vectors * self.problem.d + shared)
        self.participated[members] += 1

    # -- records and checkpoints -------------------------------------------------------------------------------------
    def vector(self) -> Array:
        """x, here."""
        x: Array = self.x[0].to("cpu", torch.float64, copy=True).numpy()
        return x

    def common_buffers(self) -> Parts:
        """The moving buffers, averaged over the clients where each has its own."""
        if self.settings.buffers != "local":
            return [v[0].clone() for v in self.buffers]
        means = [torch.tensordot(self.weights, v.to(self.x.dtype), dims=1) for v in self.buffers]
        return [_whole_where(v, mean).to(v.dtype) for v, mean in zip(self.buffers, means, strict=True)]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def measured(self) -> tuple[dict[str, float], dict[str, Array]]:
        """The numbers of a record, without the time; and those of each client."""
        of_clients = {"f": self._losses()}
        numbers: dict[str, float] = {name: getattr(self, name) for name in COUNTS}
        numbers |= {"bytes_down": self.floats_down * self.x.element_size()}
        numbers["f"] = float(of_clients["f"] @ self.problem.weights)
        tensors = self.family.tensors(self.family.views(self.x[0]), self.common_buffers())
        if not self.own_tests:
            return numbers | self.model.measured(tensors, self.family.quiet), of_clients
        rows = []
        for i, f in enumerate(self.problem.clients):
            own = [v[i % len(v)] for v in self.buffers]
            tensors = self.family.tensors(self.family.views(self.x[0]), own)
            rows.append(f.measured(tensors, self.family.quiet))  # type: ignore[attr-defined]
        for name in self.model.metrics:
            of_clients[name] = np.array([row[name] for row in rows])
            numbers[name] = float(of_clients[name] @ self.problem.weights)
        return numbers, of_clients

    def _losses(self) -> Array:
        """The mean loss of each client on all its rows."""
        losses = torch.zeros(self.problem.n, dtype=self.x.dtype, device=self.device)
        for members, part, share in client_losses(self.family, self.x[0], self.at_once, buffers=self.buffers):
            losses.index_add_(0, members, part * share)
        values: Array = losses.to("cpu", torch.float64).numpy()
        return values

    def saved(self) -> dict[str, Tensor | float]:
        """Tensors and numbers from which ``load`` makes this state."""
        state: dict[str, Tensor | float] = {name: getattr(self, name) for name in COUNTS}
        state |= {"x": self.x, "h": self.h, "errors": self.errors}
        state |= {f"buffers.{k}": v for k, v in enumerate(self.buffers)}
        state |= {"participated": torch.as_tensor(self.participated), "members": torch.as_tensor(self.members)}
        if self.optimizer is not None:
            state |= self.optimizer.saved("optimizer")
        if self.outer is not None:
            state |= self.outer.saved("outer")
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``saved`` gave."""
        for name in COUNTS:
            setattr(self, name, int(state[name]))
        self.x, self.h, self.errors = (state[name] for name in ("x", "h", "errors"))
        _set(self.buffers, [state[f"buffers.{k}"] for k in range(len(self.buffers))])
        self.participated, members = (state[name].cpu().numpy() for name in ("participated", "members"))
        if len(members):
            self._gather(members)
            assert self.optimizer is not None
            self.optimizer.load("optimizer", state)
        if self.outer is not None:
            self.outer.load("outer", state)


COUNTS = ("round", "local_steps", "grad_evals", "floats_up", "floats_down", "bytes_up")


def _whole_where(buffer: Tensor, mean: Tensor) -> Tensor:
    """The mean of a buffer; rounded where it holds whole numbers, such as a count of batches."""
    return mean if buffer.is_floating_point() else mean.round()


def _set(parts: Parts, values: Parts) -> None:
    """Copy values into tensors that stay where they are, since graphs read them there."""
    for v, value in zip(parts, values, strict=True):
        v.copy_(value.expand_as(v))
