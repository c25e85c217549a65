"""Conformance of optimizers, averagers and strategies: right ones pass, and each mistake breaks the law it is said to."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip import conformance

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager  # noqa: E402
from torch.distributed.optim import PostLocalSGDOptimizer  # noqa: E402

from proxskip.torch import Scaffnew  # noqa: E402

pytestmark = pytest.mark.torch
SGD = torch.optim.SGD


@pytest.fixture(autouse=True)
def _no_card_in_use() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("another test has used CUDA in this process, which forked ranks cannot")


def nesterov(model: Any) -> Any:
    return SGD(model.parameters(), 0.7, momentum=0.9, nesterov=True)


class OwnScaffnew:
    """Scaffnew with an outer optimizer in few lines, with mistakes to choose from."""

    def __init__(self, model: Any, lr: float, K: int, mistake: str = "") -> None:
        self.params, self.lr, self.K, self.mistake = list(model.parameters()), lr, K, mistake
        self.outer, self.count, self.waiting = nesterov(model), 0, None
        self.h = [torch.zeros_like(q) for q in self.params]
        self.x = [q.detach().clone() for q in self.params]

    @torch.no_grad()
    def step(self) -> None:
        if self.waiting is not None:  # a lazy h: learnt at the next call, from the x of that time
            self.learn([q.clone() for q in self.params], self.waiting)
            self.waiting = None
        for q, h in zip(self.params, self.h, strict=True):
            q -= self.lr * (q.grad - h)
        self.count += 1
        if self.count % self.K:
            return
        y = [q.clone() for q in self.params]
        mean = [q.clone() for q in self.params]
        for m in mean:
            dist.all_reduce(m)
            m /= dist.get_world_size()
        for q, x, m in zip(self.params, self.x, mean, strict=True):
            q.copy_(x)
            q.grad = m - x if self.mistake == "flipped" else x - m
        self.outer.step()
        self.x = [q.clone() for q in self.params]
        if self.mistake == "lazy":
            self.waiting = y
        elif self.mistake != "none":
            self.learn(mean, y)

    def learn(self, mean: Any, y: Any) -> None:
        for h, m, own in zip(self.h, mean, y, strict=True):
            h += (m - own) / (self.K * self.lr)


class DiLoCoLike:
    """As torchft's DiLoCo asks its manager: hooks on the inner optimizer, pseudogradients through ``allreduce``."""

    def __init__(self, manager: Any, model: Any, inner: Any, outer: Any, sync_every: int, sign: float) -> None:
        assert not manager._use_async_quorum
        self.manager, self.model, self.inner, self.outer, self.every, self.sign = (
            manager, model, inner, outer, sync_every, sign,
        )  # fmt: skip
        self.count, self.kept = 0, [q.detach().clone() for q in model.parameters()]

    def __enter__(self) -> Any:
        self.hook = self.inner.register_step_post_hook(self.after)
        return self

    def __exit__(self, *error: Any) -> None:
        self.hook.remove()

    @torch.no_grad()
    def after(self, *unused: Any) -> None:
        self.count += 1
        if self.count % self.every:
            return
        self.manager.start_quorum()
        works = []
        for q, kept in zip(self.model.parameters(), self.kept, strict=True):
            q.grad = self.sign * (kept - q)
            q.copy_(kept)
            works.append(self.manager.allreduce(q.grad, should_quantize=False))
        for work in works:
            work.wait()
        if self.manager.should_commit():
            self.outer.step()
            self.kept = [q.clone() for q in self.model.parameters()]


def diloco(sign: float) -> Any:
    def make(model: Any, lr: float, K: int) -> Any:
        inner = SGD(model.parameters(), lr)
        return inner, DiLoCoLike(conformance.simulated_manager(), model, inner, nesterov(model), K, sign)

    return make


RIGHT = {
    "fixed": lambda m, lr, K: Scaffnew(SGD(m.parameters(), lr), period=K),
    "drawn": lambda m, lr, K: Scaffnew(SGD(m.parameters(), lr), p=1 / K),
    "gradient": lambda m, lr, K: Scaffnew(SGD(m.parameters(), lr), period=K, control="gradient"),
    "outer": lambda m, lr, K: Scaffnew(SGD(m.parameters(), lr), period=K, outer=nesterov(m)),
    "written here": OwnScaffnew,
}


@pytest.mark.parametrize("name", [pytest.param(k, marks=[pytest.mark.slow] if k != "outer" else []) for k in RIGHT])
def test_scaffnew_has_its_fixed_point_at_the_solution(name: str) -> None:
    report = conformance.check_optimizer(RIGHT[name], ranks=2, steps=600)
    assert report.ok, str(report)
    assert {"together", "sign", "like clients", "sum", "controls", "fixed point"} == {law.name for law in report.laws}


MISTAKES = {
    "flipped": (lambda *a: OwnScaffnew(*a, mistake="flipped"), {"sign", "like clients", "fixed point"}),
    "lazy": (lambda *a: OwnScaffnew(*a, mistake="lazy"), {"sum", "controls", "fixed point"}),
    "flipped, as torchft calls it": (diloco(-1.0), {"sign", "like clients", "fixed point", "controls"}),
    "never talks": (lambda m, lr, K: SGD(m.parameters(), lr), {"together", "sign", "fixed point", "controls"}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[pytest.mark.slow] if k not in ("flipped", "lazy") else []) for k in MISTAKES]
)
def test_each_mistake_breaks_its_laws(name: str) -> None:
    make, broken = MISTAKES[name]
    report = conformance.check_optimizer(make, ranks=2, steps=400)
    assert broken <= set(report.broken), str(report)
    if name == "lazy":
        assert "sign" not in report.broken


UNCONTROLLED = {
    "PostLocalSGDOptimizer": lambda m, lr, K: PostLocalSGDOptimizer(
        SGD(m.parameters(), lr), PeriodicModelAverager(period=K, warmup_steps=0)
    ),
    "averager": lambda m, lr, K: (SGD(m.parameters(), lr), PeriodicModelAverager(period=K, warmup_steps=0)),
    "DiLoCo": diloco(1.0),
    "Scaffnew without h": lambda m, lr, K: Scaffnew(SGD(m.parameters(), lr), period=K, control="none"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[pytest.mark.slow] if k == "DiLoCo" else []) for k in UNCONTROLLED]
)
def test_without_control_variates_there_is_no_fixed_point_at_the_solution(name: str) -> None:
    """Nothing else is wrong with them: signs are right, and on like clients they end at the solution."""
    report = conformance.check_optimizer(UNCONTROLLED[name], ranks=2, steps=800 if name == "DiLoCo" else 400)
    assert report.broken == ("controls", "fixed point"), str(report)
    found = {law.name: law.measured for law in report.laws}
    assert found["fixed point"] > 0.01
    assert found["controls"] == pytest.approx(1.0, abs=1e-6)


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(ps.InputError, match="at least 2"):
        conformance.check_optimizer(RIGHT["fixed"], ranks=1)
    with pytest.raises(ps.InputError, match="no average_parameters"):
        conformance.check_optimizer(lambda m, lr, K: (SGD(m.parameters(), lr), 3), ranks=2, steps=5)

    def broken(model: Any, lr: float, K: int) -> Any:
        if dist.get_rank() == 1:
            raise KeyError("on one rank only")
        return Scaffnew(SGD(model.parameters(), lr), period=K)

    with pytest.raises(KeyError, match="on one rank only"):
        conformance.check_optimizer(broken, ranks=2, steps=9)
    assert not dist.is_initialized(), "the group was left behind"
    assert not multiprocessing.active_children()


def test_a_rank_that_fails_ends_the_others() -> None:
    class Local(Exception):
        """Cannot be sent to another process, since it has no name outside of this function."""

    def on_rank_1(act: Any) -> Any:
        def make(model: Any, lr: float, K: int) -> Any:
            if dist.get_rank() == 1:
                act()
            return Scaffnew(SGD(model.parameters(), lr), period=K)

        return make

    def raises() -> None:
        raise Local("words")

    with pytest.raises(RuntimeError, match="Local: words"):
        conformance.check_optimizer(on_rank_1(raises), ranks=2, steps=9)
    # the other rank may be the first to say so
    with pytest.raises((ps.InputError, RuntimeError), match=r"rank 1 ended|a rank died"):
        conformance.check_optimizer(on_rank_1(lambda: os._exit(3)), ranks=2, steps=9)
    with pytest.raises(TimeoutError, match="did not finish within 2 seconds"):
        conformance.check_optimizer(on_rank_1(lambda: time.sleep(1000)), ranks=2, steps=9, timeout=2.0)
    with pytest.raises(ps.InputError, match="timeout"):
        conformance.check_optimizer(RIGHT["fixed"], ranks=2, timeout=-1.0)
    assert not multiprocessing.active_children()


def test_without_fork_the_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ps.InputError, match="forked"):
        conformance.check_optimizer(RIGHT["fixed"], ranks=2)


def test_corrections_are_read_only_off_plain_steps() -> None:
    report = conformance.check_optimizer(RIGHT["fixed"], ranks=2, steps=60, plain=False, tol=1.0)
    assert {"sum", "controls"}.isdisjoint(law.name for law in report.laws)


# -- Flower ------------------------------------------------------------------------------------------------------------
def scaffnew_client() -> Any:
    """A client of FedAvg with control variates; it learns what became of the round when it is asked again.

    The mean of the round is sent by the strategy to everybody at the next round, so it is right if everybody takes
    part in every round. On cohorts the x of "the next call" is not that of the client's own round: the lazy h.
    """
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

    def make(gradient: Any, lr: float, K: int) -> Any:
        h, sent = np.zeros(5), None

        def train(message: Any, context: Any) -> Any:
            nonlocal h, sent
            (key, record) = next(iter(message.content.array_records.items()))
            x = record["x"].numpy()
            if sent is not None:
                h = h + (x - sent) / (K * lr)
            y = x
            for _ in range(K):
                y = y - lr * (gradient(y) - h)
            sent = y
            content = {key: ArrayRecord({"x": Array(y)}), "m": MetricRecord({"num-examples": 1})}
            return Message(RecordDict(content), reply_to=message)

        return train

    return make


@pytest.mark.flower
@pytest.mark.slow
def test_strategies_of_flower() -> None:
    pytest.importorskip("flwr")
    from flwr.serverapp.strategy import FedAdam, FedAvg

    def flipped() -> Any:
        return FedAdam(eta=-0.1, fraction_evaluate=0.0)

    assert conformance.check_strategy(FedAvg, clients=2, rounds=100).broken == ("controls", "fixed point")
    assert "sign" in conformance.check_strategy(flipped, clients=2, rounds=20).broken
    right = conformance.check_strategy(FedAvg, scaffnew_client(), clients=2, rounds=100)
    assert right.ok, str(right)
    half = conformance.check_strategy(lambda: FedAvg(fraction_train=0.5), scaffnew_client(), rounds=100)
    assert "fixed point" in half.broken, "a lazy h on cohorts"
