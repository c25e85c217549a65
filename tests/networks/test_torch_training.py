"""``proxskip.torch.train``: the steps of the optimizer under torchrun, for many clients in one process."""

import copy
import functools
import inspect
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import proxskip as ps
from proxskip.cli import main

torch = pytest.importorskip("torch")
from proxskip.torch import Model, every_round, plot_split, recipe, recipes, resume, split, train  # noqa: E402
from proxskip.torch.published import RECIPES  # noqa: E402
from support import torch_ranks  # noqa: E402
from support.torch_ranks import RANKS, on_ranks  # noqa: E402
from support.torch_training import Stopping, accuracy, plain, trained  # noqa: E402

pytestmark = pytest.mark.torch
cross_entropy = torch.nn.functional.cross_entropy


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    def of(n):
        return on_ranks(("virtual",), tmp_path_factory.mktemp(f"virtual{n}"), n)[0]["virtual"]

    return functools.cache(of)


@pytest.mark.slow
@pytest.mark.xdist_group("torch-ranks")
@pytest.mark.parametrize(
    ("name", "n"),
    [
        *(pytest.param(name, RANKS, marks=pytest.mark.release) for name in torch_ranks.VIRTUAL),
        *((name, n) for n, names in torch_ranks.FEW.items() for name in names),
    ],
)
def test_it_is_the_optimizer_on_as_many_ranks(name, n, ranks):
    setting = torch_ranks.VIRTUAL[name]
    for dtype, close in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        if "codec" in setting and dtype == torch.float32:
            continue
        result = trained(setting, n, dtype=dtype)
        for found in ranks(n):
            assert np.abs(result.x - found[f"{name} {dtype}"]).max() <= close
        assert result.trace["bytes_up"][-1] == sum(found[f"{name} {dtype} bytes"] for found in ranks(n))
        assert (result.h is None) == (setting["control"] in ("none", "momentum"))
        if result.h is not None:
            assert np.abs(result.h.sum(0)).max() <= close * (1 + np.abs(result.h).max())


@pytest.mark.parametrize("batch", [None, 4])
def test_plain_steps_are_those_of_a_run(batch):
    """Of Scaffnew, with its counts and the time that it takes over a network."""
    method = ps.Scaffnew(0.1, 0.2, K=5)
    network = ps.Network(latency=0.1, bandwidth=(1e3, 2e3, 3e3), gradient=(0.5, 0.2, 0.1), server=4e3)
    mine = trained(
        {"optimizer": plain, "period": 5, "control": "step", "chi": 1.0, "batch": batch}, 3, 8, network=network
    )
    module = torch_ranks.virtual_module()
    problem = ps.Problem([Model(module, cross_entropy, X, y) for X, y in torch_ranks.virtual_data(3)])
    theirs = ps.run(method, problem.with_batch(batch), rounds=8, seed=7, engine="torch", network=network)
    assert np.abs(mine.x - theirs.x).max() <= 1e-12
    assert np.abs(mine.h - theirs.h).max() <= 1e-10
    for column in ("f", "local_steps", "grad_evals", "sim_seconds"):
        assert mine.trace[column][-1] == pytest.approx(theirs.trace[column][-1], rel=1e-12), column


@pytest.mark.parametrize("weights", ["equal", "rows"])
def test_clients_count_alike_or_by_their_rows(weights):
    sizes = (3, 8, 5)
    clients = [(X[:N], y[:N]) for N, (X, y) in zip(sizes, torch_ranks.virtual_data(3), strict=True)]
    assert [len(y) for _, y in clients] == [*sizes]
    module = torch_ranks.virtual_module()
    mine = train(
        module, cross_entropy, clients, optimizer=plain, period=5, control="step", chi=1.0, weights=weights, rounds=4,
        seed=7, device="cpu",
    )  # fmt: skip
    models = [Model(module, cross_entropy, X, y) for X, y in clients]
    problem = ps.Problem(models, sizes if weights == "rows" else None)
    theirs = ps.run(ps.Scaffnew(0.1, 0.2, K=5), problem, rounds=4, seed=7, engine="torch")
    assert np.abs(mine.x - theirs.x).max() <= 1e-12
    assert mine.trace["f"][-1] == pytest.approx(theirs.trace["f"][-1], rel=1e-12)
    assert ps.Problem(models).value(mine.x) != pytest.approx(ps.Problem(models, sizes).value(mine.x), rel=1e-6)


def test_a_loss_of_shape_1_is_the_same_loss_in_a_training():
    def boxed(outputs, targets):
        return cross_entropy(outputs, targets).reshape(1)

    def values_with(loss):
        module = torch_ranks.virtual_module()
        clients = torch_ranks.virtual_data(3)
        return train(module, loss, clients, plain, period=5, rounds=4, seed=7).trace["f"].tolist()

    assert values_with(boxed) == values_with(cross_entropy)


class BoundedNorm(torch.optim.SGD):
    """Not entry by entry: the norm of a client's gradient is at most so long."""

    def __init__(self, params, lr, bound):
        super().__init__(params, lr)
        self.bound = bound

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([q for group in self.param_groups for q in group["params"]], self.bound)
        super().step(closure)


with_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has Muon from 2.9 on")
OPTIMIZERS = {
    "sgd": (lambda q: torch.optim.SGD(q, 0.1, momentum=0.9, weight_decay=0.01), True),
    "adam": (lambda q: torch.optim.Adam(q), True),
    **{
        name: (lambda q, name=name: getattr(torch.optim, name)(q), True)
        for name in ("NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
    },
    "muon": (lambda q: [torch.optim.Muon([v for v in q if v.ndim == 2]), plain([v for v in q if v.ndim == 1])], False),
    "clipped": (lambda q: BoundedNorm(q, 0.1, 0.1), False),
    "no decay of biases": (
        lambda q: torch.optim.SGD(
            [{"params": [v for v in q if v.ndim == k], "weight_decay": 0.5 * (k - 1)} for k in (1, 2)], 0.1
        ),
        True,
    ),
}


@pytest.mark.parametrize("name", [pytest.param(k, marks=[with_muon] * (k == "muon")) for k in OPTIMIZERS])
def test_clients_stacked_are_clients_apart(name):
    """Either way the steps are those of single clients."""
    make, by_entry = OPTIMIZERS[name]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = trained({"optimizer": make, "period": 3, "batch": 4}, 3, 4)
    assert bool(result.warnings) == any("client by client" in str(w.message) for w in said) == (not by_entry)
    with pytest.warns(UserWarning, match="client by client") as caught:
        apart = trained({"optimizer": make, "period": 3, "batch": 4}, 3, 4, together=False)
    assert caught[0].filename == trained.__code__.co_filename
    assert np.abs(result.x - apart.x).max() <= 1e-12


def test_portions_and_cohorts():
    setting = {"optimizer": lambda q: torch.optim.AdamW(q, 0.01), "period": 3, "batch": 4}
    assert np.abs(trained(setting, 5, 4).x - trained(setting, 5, 4, clients_at_once=2).x).max() <= 1e-12
    some = trained(setting, 5, 6, cohort=2)
    assert np.abs(some.h.sum(0)).max() <= 1e-12
    assert some.trace["grad_evals"][-1] == 6 * 2 * 3 * 4


def test_the_module_is_a_copy_at_x_and_records_have_metrics(tmp_path):
    module = torch_ranks.virtual_module()
    before = [q.detach().clone() for q in module.parameters()]
    X, y = torch.randn(30, 6, dtype=torch.float64), torch.randint(0, 3, (30,))
    result = train(
        module, cross_entropy, split(X, y, clients=3), lambda q: torch.optim.AdamW(q, 0.01), period=5, rounds=4,
        test=(X, y), metrics={"accuracy": accuracy}, device="cpu",
    )  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert torch.cat([q.detach().reshape(-1) for q in result.module.parameters()]).tolist() == result.x.tolist()
    assert result.trace["accuracy"][-1] == accuracy(result.module(X), y).item()
    assert len(result.trace) == 5
    shown = repr(result)
    assert f"f = {result.trace['f'][-1]:.6g}, accuracy = {result.trace['accuracy'][-1]:.6g}" in shown
    assert f"4 rounds, 60 local steps, {result.summary['bytes_up']:,.0f} bytes up" in shown
    axes = result.plot(y="accuracy")
    assert axes.lines[0].get_ydata().tolist() == result.trace["accuracy"].tolist()
    with pytest.raises(ps.InputError, match=r"choose one of the columns round, local_steps, .*, f, accuracy"):
        result.plot(y="acuracy")
    assert result.summary["method"] == "AdamW"


@pytest.mark.parametrize("way", ["train", "torch", "cpu"])
def test_a_divergence_ends_with_advice_and_the_best_module(way):
    X, y = torch.randn(40, 6, dtype=torch.float64), torch.randn(40, 1, dtype=torch.float64)
    line, parts, mse = torch.nn.Linear(6, 1).double(), split(X, y, 4, by="iid"), torch.nn.functional.mse_loss
    if way == "train":
        given = {"p": 0.2, "control": "step", "rounds": 500, "device": "cpu"}
        result = train(line, mse, parts, lambda q: torch.optim.SGD(q, 60.0), **given)
        module, advice = result.module, "a smaller learning rate or period= in place of p= or chi= below 1"
    else:
        problem = ps.Problem([Model(line, mse, *part) for part in parts])
        result = ps.run(ps.Scaffnew(60.0, 0.2), problem, rounds=500, engine=way)
        module = problem.clients[0].module_at(result.x)
        advice = "use a smaller gamma or a fixed number of local steps (K=) or chi below 1"
    assert result.status is ps.Status.DIVERGED
    assert advice in result.message
    finite = result.trace["f"][np.isfinite(result.trace["f"])]
    assert mse(module(X), y).item() == pytest.approx(finite.min(), rel=1e-9)


def test_a_training_shows_its_progress(capsys, monkeypatch):
    monkeypatch.setattr("proxskip.running.progress.SECONDS_BEFORE_FIRST", 0.0)
    monkeypatch.setattr("proxskip.running.progress.SECONDS_BETWEEN_LINES", 0.0)
    for cohort in (None, 2):
        trained({"optimizer": plain, "period": 3}, 3, 4, every=2, cohort=cohort, progress=True)
        assert "train: round 2/4, f " in capsys.readouterr().err


def test_a_training_is_kept_in_a_folder(tmp_path):
    out = tmp_path / "a"
    setting = {"optimizer": lambda q: torch.optim.AdamW(q, 0.01), "period": 3, "batch": 4}
    result = trained(setting, 3, 4, every=1, out=out)
    kept = ps.load(out)
    assert kept.x.tolist() == result.x.tolist()
    assert kept.h.tolist() == result.h.tolist()
    assert kept.trace["f"].tolist() == result.trace["f"].tolist()
    assert ps.plot([out, result], y="f").lines[0].get_ydata().tolist() == result.trace["f"].tolist()
    module = torch_ranks.virtual_module()
    with np.load(out / "weights.npz", allow_pickle=False) as arrays:
        module.load_state_dict({k: torch.tensor(v) for k, v in arrays.items()})
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), result.module.parameters(), strict=True))


def test_splits():
    X, y = torch.arange(12.0)[:, None], torch.arange(12) % 3
    assert [set(b.tolist()) for _, b in split(X, y, clients=3)] == [{0}, {1}, {2}]
    for how in (
        {"clients": 4, "by": "iid"}, {"clients": 2, "by": "dirichlet", "alpha": 5.0}, {"by": "group", "groups": y.numpy()},
        {"clients": 3, "by": "labels", "labels": 2}, {"clients": 3, "by": "quantity", "minimum": 2},
        {"clients": 3, "by": "power", "alpha": 1.0}, {"clients": 4, "by": "dirichlet", "alpha": 0.3, "minimum": 3},
    ):  # fmt: skip
        parts = split(X, y, **how)
        assert sorted(float(v) for a, _ in parts for v in a[:, 0]) == list(range(12))
        assert all(int(a[0]) % 3 == int(b[0]) for a, b in parts)
        assert min(len(b) for _, b in parts) >= how.get("minimum", 1)


def test_what_a_partition_promises():
    X, y = torch.arange(600.0)[:, None], torch.arange(600) % 10
    two = split(X, y, 10, "labels", labels=2)
    assert [sorted(set(b.tolist())) for _, b in two] == [sorted({i, *set(b.tolist())}) for i, (_, b) in enumerate(two)]
    assert all(len(set(b.tolist())) == 2 for _, b in two)
    sizes = [len(b) for _, b in split(X, y, 4, "power", alpha=1.0)]
    assert sizes == [288, 144, 96, 72]
    counts = [len(b) for _, b in split(X, y, 20, "dirichlet", alpha=0.3, minimum=25, seed=3)]
    assert min(counts) == 25
    axes = plot_split(two)
    assert len(axes.collections[0].get_offsets()) == 20


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"by": "iid", "groups": torch.arange(12)}, 'groups= needs by="group"'),
        ({"by": "power", "groups": torch.arange(12)}, 'groups= needs by="group"'),
        ({"by": "group"}, "needs groups="),
        ({"by": "dirichlet", "y": torch.full((12,), torch.nan)}, "needs a label for every row"),
        ({"by": "labels", "labels": 4}, "more than the 3 labels"),
        ({"clients": 2, "by": "labels", "labels": 1}, "leave out the label 2"),
        ({"by": "iid", "minimum": 5}, "cannot have 5 rows each"),
        ({"by": "power", "clients": 13}, "from 1 to 12"),
        ({"by": "sorted"}, "is not known"),
    ],
)
def test_partitions_that_cannot_be_are_refused(given, words):
    usual = {"X": torch.arange(12.0)[:, None], "y": torch.arange(12) % 3, "clients": 3}
    with pytest.raises(ps.InputError, match=words):
        split(**usual | given)


REFUSED = [
    ({}, "No stopping rule"),
    ({"rounds": 0}, "rounds"),
    ({"rounds": 2, "control": "mine"}, 'control = "mine" is not known'),
    ({"rounds": 2, "codec": "zip"}, 'codec = "zip" is not known'),
    ({"rounds": 2, "optimizer": lambda q: torch.optim.SGD(q[:1], 0.1)}, "over all the parameters"),
    ({"rounds": 2, "optimizer": lambda q: plain([torch.zeros(1)])}, "over all the parameters"),
    ({"rounds": 2, "optimizer": lambda q: 3}, "must return a torch.optim.Optimizer"),
    ({"rounds": 2, "outer": torch.optim.LBFGS}, "LBFGS calls the loss itself"),
    ({"rounds": 2, "batch": 0}, "batch"),
    ({"rounds": 2, "cohort": 9}, "9"),
    ({"rounds": 2, "network": "mobile"}, "every client answers in every round"),
    ({"rounds": 2, "network": "moon"}, 'network "moon" is not known'),
    ({"rounds": 2, "metrics": {"mine": lambda a, b: 0.0}}, "metrics need test="),
    ({"rounds": 2, "metrics": [max], "test": torch_ranks.virtual_data(1)[0]}, "a dict of functions"),
    ({"rounds": 2, "test": torch.zeros(3)}, "a client is a Tensor"),
    ({"rounds": 3, "schedule": lambda r: float("nan") if r == 2 else 1.0}, "the schedule gives nan for round 2"),
    ({"rounds": 3, "schedule": lambda r: -1.0}, "the schedule gives -1.0 for round 0"),
    ({"rounds": 2, "schedule": torch.optim.lr_scheduler.StepLR}, "schedule, a function of the round, gives no factor"),
    (
        {"rounds": 2, "schedule": every_round(torch.optim.lr_scheduler.ReduceLROnPlateau)},
        "schedule, a function of the round, gives no factor",
    ),
    ({"rounds": 2, "schedule": 0.5}, "schedule, a function of the round, gives no factor"),
    ({"rounds": 2, "clients": []}, "clients must be a list"),
    ({"rounds": 2, "clients": [1, 2]}, "client 0: a client is a int"),
    ({"rounds": 2, "clients_at_once": -1}, "clients_at_once = -1 must be"),
    ({"rounds": 2, "device": "gpu"}, 'no device "gpu"'),
    ({"rounds": 2, "optimizer": torch.optim.SGD([torch.zeros(1)], 0.1)}, "functions of parameters"),
    ({"rounds": 2, "metrics": {"f": lambda a, b: 0.0}, "test": torch_ranks.virtual_data(1)[0]}, "a trace column"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED, ids=[words[:30] for _, words in REFUSED])
def test_what_cannot_be_trained_gets_a_sentence(given, words):
    usual = {"optimizer": plain, "period": 2, "device": "cpu", "clients": torch_ranks.virtual_data(3)}
    settings = usual | given
    with pytest.raises(ps.InputError, match=words):
        train(torch_ranks.virtual_module(), cross_entropy, settings.pop("clients"), **settings)


@pytest.mark.parametrize(
    ("module", "loss", "words"),
    [
        (torch.nn.LazyLinear(3), cross_entropy, "the parameter weight is not initialized"),
        (torch.nn.Flatten(), cross_entropy, "has no parameter that requires a gradient"),
        (torch.nn.Linear, cross_entropy, "module must be a torch.nn.Module"),
        (torch.nn.Linear(6, 3), functools.partial(cross_entropy, reduction="none"), "the loss gives 2 numbers"),
        (torch.nn.Linear(6, 3), functools.partial(cross_entropy, reduction="sum"), "a mean over the rows"),
        (torch.nn.Linear(6, 3), lambda o, t: 1.0, "the loss gives a float"),
        (torch.nn.Linear(5, 3), cross_entropy, "the loss of a few rows cannot be computed"),
    ],
)
def test_modules_and_losses_that_cannot_be_trained_get_a_sentence(module, loss, words):
    data = torch_ranks.virtual_data(2, torch.float32)
    with pytest.raises(ps.InputError, match=words):
        train(module, loss, data, plain, period=2, rounds=1, device="cpu")


def test_the_command_line_says_where_a_training_is_resumed(tmp_path, capsys):
    clients = torch_ranks.virtual_data(3)
    train(torch_ranks.virtual_module(), cross_entropy, clients, plain, period=2, rounds=1, device="cpu", out=tmp_path)
    assert main(["resume", str(tmp_path)]) == 2
    said = f"proxskip: {tmp_path} holds a training of a network; resume it in Python with proxskip.torch.resume."
    assert " ".join(capsys.readouterr().err.split()) == said
    again = resume(tmp_path, torch_ranks.virtual_module(), cross_entropy, clients, plain, rounds=2, device="cpu")
    assert again.rounds == 2


class LateClip(torch.optim.SGD):
    """Clips by the norm of a client's gradient, from the seventh step on."""

    taken = 0

    def step(self, closure=None):
        self.taken += 1
        if self.taken > 6:
            torch.nn.utils.clip_grad_norm_([q for group in self.param_groups for q in group["params"]], 0.1)
        super().step(closure)


def test_only_optimizers_that_are_known_step_for_all_clients_unless_asked():
    def make(q):
        return LateClip(q, 0.1)

    setting = {"period": 10, "batch": 4}
    with pytest.warns(UserWarning, match="client by client"):
        found = trained({"optimizer": make, **setting}, 3, 2)
    with pytest.warns(UserWarning, match="client by client"):
        apart = trained({"optimizer": make, **setting}, 3, 2, together=False)
    assert np.abs(found.x - apart.x).max() <= 1e-12
    assert not trained({"optimizer": make, **setting}, 3, 2, together=True).warnings


def clip(optimizer, *given):
    torch.nn.utils.clip_grad_norm_([q for group in optimizer.param_groups for q in group["params"]], 0.1)


def hooked(q):
    optimizer = plain(q)
    optimizer.register_step_pre_hook(clip)
    return optimizer


def bounded_after(q):
    """The norm of a client's parameters is at most one."""

    def shorten(optimizer, *given):
        length = torch.cat([v.detach().reshape(-1) for v in q]).norm()
        with torch.no_grad():
            for v in q:
                v.mul_(min(1.0, 1.0 / float(length)))

    optimizer = plain(q)
    optimizer.register_step_post_hook(shorten)
    return optimizer


def replaced(q):
    optimizer = plain(q)
    step = optimizer.step

    def clipped(closure=None):
        clip(optimizer)
        step()

    optimizer.step = clipped
    return optimizer


@pytest.mark.parametrize("make", [hooked, bounded_after, replaced])
def test_an_optimizer_with_hooks_or_a_step_of_its_own_steps_client_by_client(make):
    setting = {"optimizer": make, "period": 3, "batch": 4}
    with pytest.warns(UserWarning, match="client by client"):
        found = trained(setting, 3, 2)
    with pytest.warns(UserWarning, match="client by client"):
        apart = trained(setting, 3, 2, together=False)
    assert np.abs(found.x - apart.x).max() <= 1e-12
    assert np.abs(found.x - trained({**setting, "optimizer": plain}, 3, 2).x).max() > 1e-3


def test_optimizers_of_a_cohort_begin_anew_even_if_it_is_drawn_twice():
    """Momentum does nothing in rounds of one step."""
    given = {"n": 3, "rounds": 4, "cohort": ps.participation.Given([[0, 1]] * 4), "period": 1, "control": "gradient"}
    makers = (lambda q: torch.optim.SGD(q, 0.1, momentum=0.9), plain)
    with_memory, without = (trained({"optimizer": make}, **given) for make in makers)
    assert np.abs(with_memory.x - without.x).max() < 1e-12


class Listener(ps.callbacks.Callback):
    """Notes what it hears, as a tracker does."""

    def __init__(self):
        self.config, self.losses, self.end = {}, [], None

    def on_run_start(self, config):
        self.config = config

    def on_record(self, step, metrics):
        self.losses.append(metrics["f"])

    def on_run_end(self, result):
        self.end = result


def test_callbacks_hear_a_training_and_end_it_early():
    tracker = Listener()
    enough = ps.callbacks.StopWhen(lambda record: record["round"] >= 2, "enough")
    result = trained({"optimizer": plain, "period": 3}, 3, 9, every=1, callbacks=[tracker, enough])
    assert result.status is ps.Status.STOPPED
    assert result.message == "stopped by a callback after 2 rounds: enough."
    assert tracker.config["lr"] == 0.1
    assert tracker.losses == result.trace["f"].tolist()
    assert tracker.end is result


RESUMED = {
    "adamw": {"optimizer": lambda q: torch.optim.AdamW(q, 0.01), "batch": 4},
    "drawn periods": {"optimizer": plain, "p": 0.3, "period": None, "control": "step", "codec": "natural"},
    "outer": {"optimizer": lambda q: torch.optim.Adagrad(q, 0.01), "outer": lambda q: torch.optim.SGD(q, 0.7, 0.9)},
    "shared on cohorts": {
        "optimizer": lambda q: torch.optim.AdamW(q, 0.01), "control": "none", "state": "shared", "cohort": 2,
    },
    "momentum": {"optimizer": plain, "control": "momentum", "mix": 0.5, "schedule": lambda r: np.float32(0.9**r)},
    "top-k": {"optimizer": plain, "control": "none", "codec": "top-k", "share": 0.2},
    "epochs": {"optimizer": plain, "period": None, "epochs": 0.5, "batch": 4},
    "client by client": {"optimizer": lambda q: torch.optim.SGD(q, 0.1, 0.9), "together": False},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:the optimizer is not known")
@pytest.mark.parametrize("name", list(RESUMED))
def test_a_resumed_training_is_the_whole_one_bit_by_bit(name, tmp_path):
    """After Ctrl-C, which lets the round end, and again after a limit."""
    setting = {"period": 3, **RESUMED[name]}
    module, data = torch_ranks.virtual_module(), torch_ranks.virtual_data(3)
    whole = trained(setting, 3, 9, every=1)
    first = trained(setting, 3, 9, every=1, out=tmp_path / "a", callbacks=[Stopping(3)])
    assert (first.status, first.rounds) == (ps.Status.INTERRUPTED, 4)
    again = {k: v for k, v in setting.items() if k in ("outer", "schedule", "cohort", "together")}
    optimizer = setting["optimizer"]
    assert resume(tmp_path / "a", module, cross_entropy, data, optimizer, rounds=6, device="cpu", **again).rounds == 6
    last = resume(tmp_path / "a", module, cross_entropy, data, optimizer, rounds=9, device="cpu", **again)
    assert last.x.tobytes() == whole.x.tobytes()
    assert whole.h is None or last.h.tobytes() == whole.h.tobytes()
    for column in ("round", "f", "bytes_up", "grad_evals"):
        assert last.trace[column].tolist() == whole.trace[column].tolist()
    assert last.of_clients["f"].shape == (10, 3)
    assert last.of_clients["f"].tolist() == whole.of_clients["f"].tolist()
    assert ps.load(tmp_path / "a").x.tobytes() == whole.x.tobytes()


def test_a_finished_training_is_given_back_whole_by_resume_and_without_code_by_load(tmp_path):
    setting = {"optimizer": lambda q: torch.optim.AdamW(q, 0.01), "period": 3}
    whole = trained(setting, 3, 4, every=1, out=tmp_path / "a")
    data = torch_ranks.virtual_data(3)
    module, optimizer = torch_ranks.virtual_module(), setting["optimizer"]
    again = resume(tmp_path / "a", module, cross_entropy, data, optimizer, rounds=4, device="cpu")
    assert again.rounds == 4
    assert again.of_clients["f"].tolist() == whole.of_clients["f"].tolist()
    assert all(torch.equal(a, b) for a, b in zip(again.module.parameters(), whole.module.parameters(), strict=True))
    loaded = ps.load(tmp_path / "a")
    assert loaded.x.tobytes() == whole.x.tobytes()
    assert repr(loaded).splitlines()[1:] == repr(whole).splitlines()[1:], "what it cost and measured is shown alike"
    assert [hasattr(loaded, name) for name in ("module", "of_clients", "buffers")] == [False] * 3


KILLED = """
import sys
from support.torch_training import Stopping, plain, trained
import proxskip.results.folder as folder
folder.SECONDS_BETWEEN_CHECKPOINTS = folder.SHARE_OF_CHECKPOINTS = 0.0
folder.Folder.due = lambda keep, round: True
trained({"optimizer": plain, "period": 3}, 3, 9, every=1, out=sys.argv[1], callbacks=[Stopping(5, 9)])
"""


def test_a_killed_training_is_resumed_bit_by_bit(tmp_path):
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "a")], env=env, capture_output=True, timeout=300
    )
    assert done.returncode == -9, done.stderr.decode()[-2000:]
    assert ps.load(tmp_path / "a").status is ps.Status.INTERRUPTED
    module, data = torch_ranks.virtual_module(), torch_ranks.virtual_data(3)
    with pytest.raises(ps.InputError, match=r"go on with proxskip\.torch\.resume"):
        trained({"optimizer": plain, "period": 3}, 3, 9, out=tmp_path / "a")
    last = resume(tmp_path / "a", module, cross_entropy, data, plain, rounds=9, device="cpu")
    assert last.x.tobytes() == trained({"optimizer": plain, "period": 3}, 3, 9, every=1).x.tobytes()


def test_another_training_is_not_resumed(tmp_path):
    trained({"optimizer": plain, "period": 3}, 3, 2, out=tmp_path / "a")
    module, data = torch_ranks.virtual_module(), torch_ranks.virtual_data(3)
    for other, words in (
        ((module, cross_entropy, data, lambda q: torch.optim.SGD(q, 0.2)), "optimizer: saved"),
        ((module, cross_entropy, torch_ranks.virtual_data(4), plain), "data: saved"),
    ):
        with pytest.raises(ps.InputError, match=f"belongs to another training: .*{words}"):
            resume(tmp_path / "a", *other, rounds=4, device="cpu")

    def smoothed(outputs, targets):
        return cross_entropy(outputs, targets, label_smoothing=0.01)

    with pytest.raises(ps.InputError, match=r"where this training recorded .*; pass the loss that train got"):
        resume(tmp_path / "a", module, smoothed, data, plain, rounds=4, device="cpu")
    ps.run("gd", ps.Problem(ps.random_quadratics(3, 2)), rounds=2, out=tmp_path / "b")
    with pytest.raises(ps.InputError, match="holds no training"):
        resume(tmp_path / "b", module, cross_entropy, data, plain, rounds=4, device="cpu")
    with pytest.raises(ps.InputError, match="not a run folder"):
        resume(tmp_path / "c", module, cross_entropy, data, plain, rounds=4, device="cpu")


class Noted(torch.nn.Linear):
    """A layer whose state holds more than tensors."""

    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        pass


def of_batch(module, batch):
    return cross_entropy(module(batch["a"]), batch["b"])


def test_data_sets_and_dicts_are_the_same_clients():
    """Pairs, data sets of pairs, dicts, and data sets of dicts, with metrics on test sets in the same forms."""
    pairs, given = torch_ranks.virtual_data(3), {"optimizer": plain, "period": 3, "batch": 4, "rounds": 3, "seed": 7}
    dicts = [{"a": X, "b": y} for X, y in pairs]
    items = [[{"a": v, "b": w} for v, w in zip(X, y, strict=True)] for X, y in pairs]
    sets = [torch.utils.data.TensorDataset(*pair) for pair in pairs]
    listed = [torch.utils.data.Subset(rows, range(len(rows))) for rows in items]
    found = []
    for clients in (pairs, sets, dicts, listed):
        by_batch = clients is dicts or clients is listed
        loss = of_batch if by_batch else cross_entropy
        metric = (
            (lambda module, batch: of_batch(module, batch) + 1) if by_batch else lambda o, t: cross_entropy(o, t) + 1
        )
        result = train(
            torch_ranks.virtual_module(), loss, clients, device="cpu", test=clients, metrics={"m": metric}, **given
        )
        numbers = result.of_clients
        assert numbers["f"].shape == numbers["m"].shape == (4, 3)
        assert np.abs(numbers["f"] + 1 - numbers["m"]).max() <= 1e-12
        assert result.trace["m"].tolist() == pytest.approx(numbers["m"].mean(1).tolist(), rel=1e-12)
        found.append(result.x)
    assert max(np.abs(x - found[0]).max() for x in found) <= 1e-12
    losses = [float(cross_entropy(result.module(X), y).detach()) for X, y in pairs]
    assert numbers["f"][-1].tolist() == pytest.approx(losses, rel=1e-12)


class Words(torch.nn.Module):
    """A small network on six letters: their embedding, layers of one kind, and a line on top."""

    def __init__(self, layers, tied=False, frozen=False):
        super().__init__()
        self.letters, self.layers, self.top = torch.nn.Embedding(5, 4), layers, torch.nn.Linear(4, 5)
        if tied:
            self.top.weight = self.letters.weight
        self.letters.requires_grad_(not frozen)

    def forward(self, letters):
        found = self.layers(self.letters(letters))
        return self.top((found[0] if isinstance(found, tuple) else found).mean(1))


MODULES = {
    "lstm": (lambda: Words(torch.nn.LSTM(4, 4, batch_first=True)), True),
    "gru": (lambda: Words(torch.nn.GRU(4, 4, batch_first=True)), True),
    "transformer": (lambda: Words(torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)), False),
    "tied": (lambda: Words(torch.nn.Tanh(), tied=True), False),
    "frozen": (lambda: Words(torch.nn.Linear(4, 4), frozen=True), False),
}
WEIGHTED = functools.partial(cross_entropy, weight=torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("name", list(MODULES))
def test_any_module_trains_as_it_does_in_a_loop_over_clients(name):
    make, apart = MODULES[name]
    loss = WEIGHTED if name == "tied" else cross_entropy
    torch.manual_seed(5)
    module, draw = make().double(), torch.Generator().manual_seed(6)
    data = [(torch.randint(0, 5, (m, 6), generator=draw), torch.arange(m) % 5) for m in (10, 10, 15)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = train(module, loss, data, plain, control="none", period=3, rounds=2, device="cpu")
    assert any("gradients are computed client by client" in str(w.message) for w in said) == apart
    x = copy.deepcopy(module)
    for _ in range(2):
        ends = [copy.deepcopy(x) for _ in data]
        for net, (inputs, targets) in zip(ends, data, strict=True):
            optimizer = plain([q for q in net.parameters() if q.requires_grad])
            for _ in range(3):
                optimizer.zero_grad()
                loss(net(inputs), targets).backward()
                optimizer.step()
        x.load_state_dict({k: sum(net.state_dict()[k] for net in ends) / 3 for k in x.state_dict()})
    for k, v in x.state_dict().items():
        assert (result.module.state_dict()[k] - v).abs().max() <= 1e-10, k
    assert torch.equal(module.letters.weight, result.module.letters.weight) == (name == "frozen")


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield 1


RAGGED = [(torch.ones(2), 0), (torch.ones(3), 0)]


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (torch.utils.data.DataLoader([(torch.ones(6), 0)]), "client 1: a client is a DataLoader; give its data set"),
        (Endless(), "client 1: a client is a Endless; give its data set"),
        (torch.utils.data.Subset(RAGGED, [0, 1]), "client 1: the items of a data set cannot be stacked"),
        (torch.utils.data.Subset(RAGGED, []), "client 1: a client has an empty data set"),
        ((torch.ones(3, 6), torch.zeros(2, dtype=torch.long)), "client 1: there are 3 inputs and 2 targets"),
        ((torch.ones(0, 6), torch.zeros(0, dtype=torch.long)), "client 1: there are 0 inputs and 0 targets"),
        ((torch.ones(3, 7).double(), torch.zeros(3, dtype=torch.long)), "the loss of a few rows cannot be computed"),
        (
            (torch.ones(3, 6).double(), torch.full((3,), 3)),
            "client 1: the loss of a few rows cannot be computed .*Target 3",
        ),
        ((torch.ones(3, 6).double(), "abc"), "client 1: a client's data must be tensors"),
        (
            (torch.ones(3, 6), torch.zeros(3, dtype=torch.long)),
            "client 1: .*inputs are torch.float32 and the parameters torch.float64, so perhaps convert one of them",
        ),
    ],
)
def test_a_client_that_cannot_be_used_gets_a_sentence(client, words):
    clients = [torch_ranks.virtual_data(1)[0], client]
    with pytest.raises(ps.InputError, match=words):
        train(torch_ranks.virtual_module(), cross_entropy, clients, plain, period=2, rounds=1, device="cpu")


def of_words(module, batch):
    return cross_entropy(module(batch["words"]), batch["labels"])


@pytest.mark.parametrize("where", ["words", "labels", "test"])
def test_labels_and_words_out_of_range_get_a_sentence_before_any_work(where, tmp_path):
    """In any row of any integer tensor, also of a client whose module was tried with another one's rows."""
    torch.manual_seed(0)
    rows = [
        {"weights": torch.ones(9, 1), "words": torch.arange(54).reshape(9, 6) % 5, "labels": torch.arange(9) % 5}
        for _ in range(3)
    ]
    test = {name: v.clone() for name, v in rows[0].items()}
    wrong = test if where == "test" else rows[1]
    wrong["words" if where == "test" else where][7] = 5
    sentence = "^client 0: the metrics cannot" if where == "test" else "^client 1: the loss of a few rows cannot"
    with pytest.raises(ps.InputError, match=sentence):
        train(Words(torch.nn.Tanh()), of_words, rows, plain, period=2, rounds=1, device="cpu", test=test,
              metrics={"m": of_words}, out=tmp_path / "a")  # fmt: skip
    assert not (tmp_path / "a").exists()


def test_batch_normalization_is_refused_without_buffers_and_resumes_with_them(tmp_path):
    layers = torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)
    module, data = torch.nn.Sequential(*layers).double(), torch_ranks.virtual_data(3)
    given = {"period": 2, "batch": 4, "device": "cpu"}
    with pytest.raises(ps.InputError, match=r"changes its buffer 1.running_mean, .* or pass buffers= to train"):
        train(module, cross_entropy, data, plain, rounds=1, **given)
    for buffers in ("mean", "local"):
        out = tmp_path / buffers
        whole = train(module, cross_entropy, data, plain, buffers=buffers, rounds=4, **given)
        train(module, cross_entropy, data, plain, buffers=buffers, rounds=2, out=out, **given)
        last = resume(out, module, cross_entropy, data, plain, rounds=4, device="cpu")
        assert last.x.tobytes() == whole.x.tobytes()
        for name, v in whole.module.state_dict().items():
            assert torch.equal(v, last.module.state_dict()[name])
        assert module[1].num_batches_tracked == 0
        batch = data[0][0][:5]
        alone = last.module(batch[:1])
        assert torch.allclose(last.module(batch)[:1], alone), "the batch's own statistics are not used"
        assert last.module[1].num_batches_tracked == whole.module[1].num_batches_tracked, "and buffers stay"
        assert module.training, "the module that was given stays as it was"
    with pytest.raises(ps.InputError, match="test has 2 test sets for 3 clients"):
        train(module, cross_entropy, data, plain, buffers="mean", rounds=1, test=data[:2],
              metrics={"a": accuracy}, **given)  # fmt: skip


def test_a_parameter_may_be_called_file(tmp_path):
    class Filed(torch.nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.file = torch.nn.Parameter(torch.ones(()))

    X, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    train(Filed(), cross_entropy, split(X, y, 3, "iid"), plain, period=2, rounds=2, device="cpu", out=tmp_path / "a")
    with np.load(tmp_path / "a" / "weights.npz") as kept:
        assert set(kept) == {"file", "weight", "bias"}


def test_a_folder_is_kept_of_every_module_and_shown(tmp_path):
    X, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    clients, settings = split(X, y, 3, by="iid"), {"period": 2, "rounds": 2, "device": "cpu"}
    train(Noted(4, 3), cross_entropy, clients, plain, out=tmp_path / "a", **settings)
    assert "LIMIT" in repr(ps.load(tmp_path / "a"))
    with pytest.raises(ps.InputError, match="already holds a run; choose another folder"):
        train(Noted(4, 3), cross_entropy, clients, plain, out=tmp_path / "a", **settings)
    slow, fast = (
        train(Noted(4, 3), cross_entropy, clients, functools.partial(torch.optim.SGD, lr=lr), **settings)
        for lr in (0.1, 0.2)
    )
    assert len(ps.plot([slow, fast], y="f").get_legend().get_texts()) == 2, "learning rates are no seeds"


def test_what_is_wrong_with_the_data_or_a_layer_is_said():
    X, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    broken = train(torch.nn.Linear(4, 3), cross_entropy, split(X * torch.nan, y, 3, by="iid"), plain, period=2, rounds=2,
                   device="cpu")  # fmt: skip
    assert "check the clients' data" in broken.message
    dropped = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Dropout(1.0), torch.nn.Linear(5, 3))
    result = train(dropped, cross_entropy, split(X, y, 3, by="iid"), plain, period=2, rounds=2, device="cpu")
    assert np.isfinite(result.trace["f"]).all()
    off = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Dropout(0.0))
    assert not Model(off, cross_entropy, X, y).is_random
    off[1].p = 0.5
    assert Model(off, cross_entropy, X, y).is_random
    letters = torch.nn.Sequential(torch.nn.Embedding(7, 4, max_norm=0.1), torch.nn.Flatten(), torch.nn.Linear(8, 3))
    before = letters[0].weight.detach().clone()
    Model(letters, cross_entropy, torch.randint(0, 7, (12, 2)), y)
    assert torch.equal(before, letters[0].weight)


@pytest.fixture(scope="module")
def readme():
    """The problem of the README: 20 clients with one or two digits each."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
    test = torch.arange(len(y)) % 5 == 0
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    return module, split(X[~test], y[~test], clients=20, by="label"), (X[test], y[test])


MUON = ("local-muon", "fedmuon", "muloco")


@pytest.mark.filterwarnings("ignore:the optimizer is not known")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n != "fedavg") + [with_muon] * (n in MUON)) for n in recipes()],
)
def test_recipes_train_the_problem_of_the_readme_without_settings(name, readme):
    """To 85 % within 30 rounds; Muon, which steps client by client, within 10."""
    module, clients, test = readme
    rounds = 10 if name in MUON else 30
    result = train(
        module, cross_entropy, clients, **recipe(name), period=10, batch=20, rounds=rounds, device="cpu", test=test,
        metrics={"accuracy": accuracy},
    )  # fmt: skip
    assert result.trace["accuracy"].max() >= 0.85


def row_of(name):
    """A recipe as a row of the table of docs/torch.md."""
    settings, matrix_and_vector = (
        recipe(name),
        [torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))],
    )
    made = inspect.signature(RECIPES[name][0])
    local, outer = settings.pop("optimizer")(matrix_and_vector), settings.pop("outer", lambda params: None)
    kinds = [type(o).__name__ for o in (local if isinstance(local, list) else [local])]
    after = outer(matrix_and_vector)
    settings |= {} if after is None else {"outer": type(after)}
    words = [f"{k}={v.__name__ if isinstance(v, type) else repr(v)}".replace("'", '"') for k, v in settings.items()]
    numbers = ", ".join(f"{k}={v.default}" for k, v in made.parameters.items())
    return f"| `{name}` | {numbers} | {', '.join(kinds)} | `{', '.join(words)}` | {recipes()[name]} |"


@with_muon
def test_the_table_of_recipes_is_made_from_them():
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text("utf-8")
    rows = "\n".join(row_of(name) for name in recipes())
    assert rows in page, f"the table should be\n{rows}"


def test_recipes_take_their_own_settings():
    assert recipe("fedprox", mu=0.2)["pull"] == 0.2
    assert len(recipes()) == 17
    with pytest.raises(ps.InputError, match='there is no recipe "fedfast"'):
        recipe("fedfast")
    with pytest.raises(ps.InputError, match="fedavg has no setting mu; it has lr, momentum"):
        recipe("fedavg", mu=0.1)
