"""Networks as clients: on every engine, with minibatches, metrics and keyed dropout, and without a made-up L."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.core.engine import Request
from proxskip.engines.local import OneClient
from proxskip.flower.worker import Worker

torch = pytest.importorskip("torch", reason="torch is not installed")
from proxskip.problems.torch_model import KeyedDropout, convolved  # noqa: E402
from proxskip.torch import Model  # noqa: E402
from support.torch_training import accuracy  # noqa: E402

pytestmark = pytest.mark.torch
nn, loss = torch.nn, torch.nn.functional.cross_entropy


def module(dropout: float = 0.0, dtype: Any = None) -> Any:
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 3))
    return made.to(dtype or torch.float64)


def clients(n: int = 3, dropout: float = 0.0, rows: int = 12, shared: Any = None, **given: Any) -> list[Model]:
    net, made = shared or module(dropout), torch.Generator().manual_seed(3)
    data = [(torch.randn(rows, 4, generator=made), torch.randint(0, 3, (rows,), generator=made)) for _ in range(n)]
    return [Model(net, loss, a.to(next(net.parameters()).dtype), b, **given) for a, b in data]


METHOD = ps.Scaffnew(0.1, 0.25)


def test_it_is_the_loss_of_the_module_and_its_gradient() -> None:
    (f, *_) = clients(l2=0.01)
    x = f.start()
    assert x.size == f.d == 4 * 6 + 6 + 6 * 3 + 3
    direct = float(loss(f.module(f.rows["inputs"]), f.rows["targets"]).detach()) + 0.005 * float(x @ x)
    assert f.value(x) == pytest.approx(direct, rel=1e-12)
    g = f.gradient(x)
    for k in range(0, f.d, 7):
        e = np.zeros(f.d)
        e[k] = 1e-6
        assert (f.value(x + e) - f.value(x - e)) / 2e-6 == pytest.approx(g[k], abs=1e-8)
    halves = [f.minibatch_gradient(x, np.arange(12)[s]) for s in (slice(0, 6), slice(6, 12))]
    assert np.allclose(np.mean(halves, axis=0), g, atol=1e-13)


def test_a_run_starts_at_the_weights_and_gives_the_module_back() -> None:
    fs = clients(metrics={"accuracy": accuracy})
    before = fs[0].start()
    problem = ps.Problem(fs).with_batch(4)
    assert np.array_equal(ps.run(METHOD, problem, rounds=0).x, before)
    result = ps.run(METHOD, problem, rounds=8, seed=1)
    assert result.summary["f"] < problem.value(before)
    assert np.array_equal(fs[0].start(), before), "the user's module was changed"
    trained = fs[0].module_at(result.x)
    assert type(trained) is type(fs[0].module)
    flat = torch.cat([p.detach().reshape(-1) for p in trained.parameters()])
    assert np.array_equal(flat.numpy(), result.x)
    found = np.mean([float(accuracy(trained(f.rows["inputs"]), f.rows["targets"])) for f in fs])
    assert result.trace["accuracy"][-1] == pytest.approx(found)
    assert result.summary["accuracy"] == pytest.approx(found)
    assert result.trace["passes"][-1] == result.summary["grad_evals"] / 36


def test_metrics_on_rows_held_out() -> None:
    test = torch.randn(9, 4).double(), torch.randint(0, 3, (9,))
    calls = []

    def counted(outputs: Any, targets: Any) -> Any:
        calls.append(len(targets))
        return accuracy(outputs, targets)

    fs = clients(metrics={"accuracy": counted}, test=test)
    result = ps.run(METHOD, ps.Problem(fs), rounds=2)
    assert calls.count(9) == len(result.trace), "clients that share the rows share the evaluation"
    assert result.trace["accuracy"][-1] == pytest.approx(float(accuracy(fs[0].module_at(result.x)(test[0]), test[1])))
    with pytest.raises(ps.InputError, match="grad_norm has the name of a trace column"):
        ps.run(METHOD, ps.Problem(clients(metrics={"grad_norm": accuracy})), rounds=1)


@pytest.mark.parametrize("act", [ps.Scaffnew.theory, lambda p: ps.run("scaffnew", p, rounds=1), lambda p: p.L])
def test_steps_of_theorems_are_refused_with_a_sentence(act: Any) -> None:
    with pytest.raises(ps.InputError, match="the L of this module is unknown"):
        act(ps.Problem(clients()))


@pytest.mark.parametrize(("batch", "dropout"), [(None, 0.3), pytest.param(4, 0.0, marks=pytest.mark.slow), (4, 0.3)])
def test_the_same_way_on_every_engine_here(batch: int | None, dropout: float) -> None:
    problem = ps.Problem(clients(dropout=dropout)).with_batch(batch)
    a, b = (ps.run(METHOD, problem, rounds=2, seed=2, engine=e) for e in ("reference", "cpu"))
    assert a.x.tobytes() == b.x.tobytes()
    f: Any = problem.clients[1]
    alone, one = Worker(f, 1, 2, batch), OneClient(problem, 1, 2, Request(None, np.arange(3), 0), 1)
    walked = [client.descend(f.start(), 0.0, 0.1, 3).tobytes() for client in (alone, one)]
    assert walked[0] == walked[1]  # a federation's client computes the same bytes


@pytest.mark.slow
def test_on_ray(ray_here: Any) -> None:
    problem = ps.Problem(clients(metrics={"accuracy": accuracy})).with_batch(4)
    a, b = (ps.run(METHOD, problem, rounds=3, seed=2, engine=e) for e in ("ray", "reference"))
    assert a.x.tobytes() == b.x.tobytes()
    assert np.array_equal(a.trace["accuracy"], b.trace["accuracy"])


class Odd(nn.Module):  # type: ignore[misc]
    """A linear layer that is used in an odd way."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.a, self.unused, self.odd = nn.Linear(3, 3), nn.Linear(2, 2), forward
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        return self.odd(self, x)


def test_dropout_is_keyed() -> None:
    dropping = clients(dropout=0.5)[0]
    net = Odd(lambda self, x: self.a(nn.functional.dropout(x, 0.5, self.training)))
    no_module = Model(net, loss, torch.ones(4, 3), torch.arange(4) % 3)
    for f in (dropping, no_module):
        x = f.start()
        keys = [(0, 0, 0, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, 0, 0, 2)]
        found = [f.random_gradient(x, None, key).tobytes() for key in (*keys, *keys)]
        assert found[:5] == found[5:]
        assert len(set(found)) == len(keys), "another seed, client, round or step, another mask"
        assert f.is_random
    assert not Model(net.eval(), loss, *no_module.rows.values()).is_random
    plain, x = clients()[0], clients()[0].start()
    assert dropping.value(x) == plain.value(x)  # where f is evaluated there is none


def test_masks_have_the_right_share() -> None:
    with KeyedDropout(torch.tensor(12345)):
        out = nn.Dropout(0.3)(torch.ones(400, 500))
    assert abs(float((out == 0).float().mean()) - 0.3) < 0.01
    assert float(out.max()) == pytest.approx(1 / 0.7)


def reassigned(self: Odd, x: Any) -> Any:
    self.seen = self.seen + 1
    return self.a(x)


X, Y, NET = torch.ones(4, 3), torch.zeros(4, dtype=torch.long), nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((nn.Sequential(NET, nn.BatchNorm1d(3)),), "changes its buffer 1.running_mean"),
        ((nn.Sequential(NET, nn.AlphaDropout(0.1)),), "use nn.Dropout"),
        ((nn.Flatten(),), "nothing to train"),
        ((nn.Sequential(NET, nn.Linear(3, 3).double()),), "dtypes"),
        ((Odd(reassigned),), "changes its buffer seen"),
        ((Odd(lambda self, x: self.a(x) + self.seen.add_(1)),), "changes its buffer seen"),
        ((Odd(lambda self, x: self.a(x + torch.randn_like(x))),), "draws random numbers"),
        ((nn.Linear(3, 3).double(),), "cannot be computed"),
        ((nn.LazyLinear(3),), "not initialized"),
        ((nn.Linear(3, 3, device="meta"),), "not initialized"),
        ((nn.Linear(3, 3, dtype=torch.complex64),), "is complex"),
        ((NET, lambda o, t: loss(o, t, reduction="none")), "gives 2 numbers"),
        ((NET, lambda o, t: loss(o, t).item()), "gives a float"),
        ((NET, lambda o, t: loss(o, t).detach()), "does not depend"),
        ((nn.Embedding(3, 3, sparse=True), loss, Y), "sparse=False"),
        ((NET, loss, X, Y[:3]), "4 inputs and 3 targets"),
        ((NET, loss, X, torch.tensor([0, 1, 2, 3])), "the loss of a few rows cannot be computed .*Target 3"),
        ((NET, lambda o, t: loss(o, t, reduction="sum")), "a mean over the rows"),
        ((torch.jit.ScriptModule(),), "ScriptModule"),
        ((nn.TransformerEncoderLayer(3, 1, 5, batch_first=True),), "inside attention layers"),
    ],
)
def test_what_cannot_be_averaged_or_repeated_is_refused_and_left_as_it_was(given: Any, why: str) -> None:
    before, generator = {k: v.clone() for k, v in given[0].named_buffers()}, torch.get_rng_state()
    with pytest.raises(ps.InputError, match=why):
        Model(*given, *(loss, X, Y)[len(given) - 1 :])
    assert all(torch.equal(before[k], v) for k, v in given[0].named_buffers()), "the module was changed"
    assert torch.equal(generator, torch.get_rng_state()), "the generator was moved"


def test_clients_that_do_not_go_together_are_refused() -> None:
    for metric, why in ((lambda o, t: (o.argmax(1) == t).float(), "each gives 2 numbers"), (print, "each gives None")):
        with pytest.raises(ps.InputError, match=why):
            Model(NET, loss, X, Y, metrics={"each": metric})
    right = Model(NET, loss, X, Y, metrics={"accuracy": accuracy})
    for other, why in ((NET, "client 1 has other metrics"), (nn.Linear(3, 3), "start from different weights")):
        with pytest.raises(ps.InputError, match=why):
            ps.run(METHOD, ps.Problem([right, Model(other, loss, X, Y)]), rounds=1)


def test_the_metrics_are_tried_on_the_test_rows() -> None:
    with pytest.raises(ps.InputError, match="the metrics cannot be computed"):
        Model(NET, loss, X, Y, metrics={"accuracy": accuracy}, test=(torch.ones(4, 5), Y))


@pytest.mark.parametrize("engine", ["reference", "torch"])
def test_a_loss_of_shape_1_is_the_same_loss(engine: str) -> None:
    def boxed(outputs: Any, targets: Any) -> Any:
        return loss(outputs, targets).reshape(1)

    ends = []
    for given in (loss, boxed):
        fs = [Model(f.module, given, *f.rows.values()) for f in clients(4)]
        ends.append(ps.run(METHOD, ps.Problem(fs), rounds=3, engine=engine).trace["f"].tolist())
    assert ends[0] == ends[1]


def test_batch_normalization_in_eval_mode_is_a_constant() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    net.eval()
    before = net[1].running_mean.clone()
    ps.run(METHOD, ps.Problem([Model(net, loss, X, Y)] * 2), rounds=2, engine="torch")
    assert torch.equal(before, net[1].running_mean)


def test_parameters_that_are_shared_or_unused_and_compiled_modules() -> None:
    odd = Odd(lambda self, x: self.a(torch.tanh(self.b(x))))
    odd.b = nn.Linear(3, 3, bias=False)
    odd.b.weight = odd.a.weight
    f = Model(torch.compile(odd, backend="eager"), loss, torch.randn(4, 3), torch.zeros(4, dtype=torch.uint8))
    g = f.parameters_at(torch.as_tensor(f.gradient(f.start())))
    assert set(g) == {"a.weight", "a.bias", "unused.weight", "unused.bias"}
    assert not g["unused.weight"].any()
    made = f.module_at(f.start() + 1.0)
    assert made.a.weight is made.b.weight
    assert type(made) is Odd


def test_it_resumes_and_knows_its_data(tmp_path: Path) -> None:
    problem = ps.Problem(clients(metrics={"accuracy": accuracy}, dropout=0.2)).with_batch(4)
    whole = ps.run(METHOD, problem, rounds=4, seed=1)
    ps.run(METHOD, problem, rounds=2, seed=1, out=tmp_path / "run")
    resumed = ps.resume(tmp_path / "run", problem, rounds=4)
    assert resumed.x.tobytes() == whole.x.tobytes()
    assert resumed.trace["accuracy"].tobytes() == whole.trace["accuracy"].tobytes()
    other = ps.Problem(clients(metrics={"accuracy": accuracy}, dropout=0.2, rows=13)).with_batch(4)
    with pytest.raises(ps.InputError):
        ps.resume(tmp_path / "run", other, rounds=9)


def test_frozen_parameters_and_buffers_stay_and_are_part_of_its_identity() -> None:
    net = Odd(lambda self, x: self.a(x) * self.seen)
    net.unused.requires_grad_(False)
    prints = []
    for v in (net.seen, net.unused.weight, net.seen):
        f = Model(net, loss, X, Y)
        prints.append(f.fingerprint())
        assert f.d == 12
        assert torch.equal(f.module_at(f.start() + 1.0).unused.weight, net.unused.weight)
        v.data.add_(1.0)
    assert len(set(prints)) == 3


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 2), (2, (1, 0))])
def test_convolutions_as_products(stride: int, padding: Any) -> None:
    made = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(s, generator=made).double() for s in ((4, 3, 9, 8), (5, 3, 3, 2), (5,)))
    w.requires_grad_(True)
    x.requires_grad_(True)
    grads = []
    for conv in (convolved, nn.functional.conv2d):
        out = conv(x, w, b, stride, padding)
        grads.append((out, *torch.autograd.grad(out.sin().sum(), (x, w))))
    for mine, theirs in zip(*grads, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)
