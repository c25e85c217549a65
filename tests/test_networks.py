"""Control variates on networks: the stacked trainer against plain PyTorch, the splits, the choice, and the verdicts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxskip import experiments
from proxskip.cli.commands import main
from proxskip.experiments.networks import data, verdicts
from proxskip.experiments.networks.chosen import ChosenRun, choose, words
from proxskip.experiments.networks.forms import BY_NAME, FORMS, TriedForm


# -- what is learnt ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("split", ["sorted", "dirichlet-0.05", "dirichlet-1", "iid"])
def test_a_split_deals_out_every_row_once(split: str) -> None:
    rows = data.digits(split, 3)
    used = np.concatenate([rows.clients.ravel(), rows.validation, rows.test])
    assert len(np.unique(used)) == len(used) >= len(rows.targets) - data.CLIENTS
    labels = [len(np.unique(rows.targets[mine])) for mine in rows.clients]
    if split == "sorted":
        assert max(labels) <= 3
    if split == "iid":
        assert min(labels) == 10
    assert not np.array_equal(rows.test, data.digits(split, 4).test), "a seed draws its own split"


def test_a_grammar_for_each_client_and_held_out_text_of_all() -> None:
    own, mixed = data.text("grammars", 0), data.text("mixed", 0)
    assert own.clients.shape == mixed.clients.shape
    assert own.inputs.shape[1] == data.CONTEXT
    assert (own.inputs[:, 1:] == own.targets[:, :-1]).all(), "a target is the next character"
    pairs = [set(zip(*v, strict=True)) for v in ((own.inputs[c].ravel(), own.targets[c].ravel()) for c in own.clients)]
    shared = set.intersection(*pairs)
    assert all(len(p - shared) > 10 for p in pairs), "the languages are the same"


def test_minibatches_depend_on_seed_client_round_and_step_alone() -> None:
    rows = data.digits("iid", 0)
    b = rows.batches(1, 2, 3, 32)
    assert np.array_equal(b, rows.batches(1, 2, 3, 32))
    assert all(len(set(mine)) == 32 for mine in b)
    assert all(set(mine) <= set(own) for mine, own in zip(b, rows.clients, strict=True))
    others = [rows.batches(*key, 32) for key in ((0, 2, 3), (1, 0, 3), (1, 2, 0))]
    assert not any(np.array_equal(b, other) for other in others)
    m = rows.clients.shape[1]
    for mine, own in zip(rows.batches(0, 0, 0, 3 * m + 5), rows.clients, strict=True):
        times = [int(np.sum(mine == row)) for row in own]
        assert sorted(times) == [3] * (m - 5) + [4] * 5, "rows repeat where there are too few, about equally often"


@pytest.mark.parametrize("most", [2, 4, 8])
def test_every_method_tries_as_many_settings(most: int) -> None:
    for form in FORMS:
        found = form.candidates(most)
        assert len(set(found)) == len(found) == most, form.name


# -- the trainer -------------------------------------------------------------------------------------------------------
def plain(form: Any, candidate: TriedForm, rows: Any, rounds: int, K: int, batch: int) -> Any:
    """One client after another, with PyTorch's own optimizers."""
    import torch
    from torch.nn.functional import cross_entropy

    from proxskip.experiments.networks.models import VectorNetwork

    def flat(module: Any) -> Any:
        return torch.cat([q.detach().reshape(-1) for q in module.parameters()])

    def put(module: Any, v: Any) -> None:
        for q, part in zip(module.parameters(), v.split(network.sizes), strict=True):
            q.data.copy_(part.view_as(q))

    def gradient(module: Any, index: Any) -> Any:
        inputs = torch.from_numpy(rows.inputs[index].astype(np.float32))
        loss = cross_entropy(module(inputs), torch.from_numpy(rows.targets[index]))
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])

    network = VectorNetwork("mlp")
    modules = [type(network.module)() for _ in rows.clients]
    kind = torch.optim.AdamW if form.inner == "adamw" else torch.optim.SGD
    inner = [kind(m.parameters(), lr=candidate.lr) for m in modules]
    x = network.start(0)
    carrier = torch.nn.Parameter(x.clone())
    nesterov = {"momentum": form.momentum, "nesterov": True} if form.momentum else {}
    outer = torch.optim.SGD([carrier], candidate.outer, **nesterov)
    h = torch.zeros(len(modules), network.d)
    for r in range(rounds):
        for m in modules:
            put(m, x)
        if form.control == "anchor":
            g = torch.stack([gradient(m, own) for m, own in zip(modules, rows.clients, strict=True)])
            h = g - g.mean(0)
        c = torch.zeros_like(h)
        for step in range(K):
            index = rows.batches(0, r, step, batch)
            for i, m in enumerate(modules):
                g = gradient(m, index[i])
                c[i] += g / K
                for q, part in zip(m.parameters(), (g - h[i]).split(network.sizes), strict=True):
                    q.grad = part.view_as(q).clone()
                inner[i].step()
        y = torch.stack([flat(m) for m in modules])
        if form.control == "step":
            h = h + candidate.chi / (K * candidate.lr) * (y.mean(0) - y)
        if form.control == "gradient":
            h = c - c.mean(0)
        carrier.grad = x - y.mean(0)
        outer.step()
        x = carrier.detach().clone()
    return x, h


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f.name, marks=[] if f.name in ("diloco-sgd", "scaffnew", "adamw-h") else [pytest.mark.slow])
        for f in FORMS
        if not f.drawn
    ],
)
@pytest.mark.torch
def test_the_stacked_trainer_is_plain_pytorch(name: str) -> None:
    pytest.importorskip("torch")
    from proxskip.experiments.networks.models import VectorNetwork
    from proxskip.experiments.networks.trainer import StackedTrainer, TrainingPlan

    form, rows = BY_NAME[name], [data.digits("sorted", seed) for seed in range(2)]
    lr = 0.002 if form.inner == "adamw" else 0.05
    candidates = [TriedForm(7 * lr, 0.5), TriedForm(lr, form.server[-1], form.damping[-1])]
    stacked = StackedTrainer(VectorNetwork("mlp"), rows, form, candidates, TrainingPlan(2, 2, 8))
    for r in range(2):
        stacked.round(r)
    x, h = plain(form, candidates[1], rows[0], 2, 2, 8)
    mine = stacked.x[2], stacked.h[2]  # the second candidate, the first seed
    for a, b in zip(mine, (x, h), strict=True):
        assert float((a - b).abs().max()) <= 2e-5 * (1 + float(b.abs().max()))
    assert float(stacked.h.sum(1).abs().max()) <= 1e-4 * (1 + float(stacked.h.abs().max()))
    assert (stacked.gradients == 2 * (16 + 134 * (form.control == "anchor"))).all()


@pytest.mark.torch
def test_drawn_periods_stop_each_seed_at_its_own_time() -> None:
    pytest.importorskip("torch")
    from proxskip.experiments.networks.models import VectorNetwork
    from proxskip.experiments.networks.trainer import StackedTrainer, TrainingPlan

    rows = [data.digits("sorted", seed) for seed in range(2)]
    form, network, plan = BY_NAME["scaffnew-drawn"], VectorNetwork("mlp"), TrainingPlan(1, 4, 8)
    both = StackedTrainer(network, rows, form, [TriedForm(0.05)], plan)
    alone = StackedTrainer(network, rows[:1], form, [TriedForm(0.05)], plan)
    both.round(0)
    alone.round(0)
    assert len(set(both.taken.tolist())) == 2, "the seeds drew the same K, so this shows nothing"
    assert float((both.x[0] - alone.x[0]).abs().max()) <= 1e-6
    assert both.gradients.tolist() == [8 * k for k in both.taken.tolist()]


@pytest.mark.parametrize("name", ["mlp", "cnn", "text"])
@pytest.mark.torch
def test_stacked_layers_are_those_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    from proxskip.experiments.networks.models import StackedLinear, StackedNorm, VectorNetwork

    network, rows = VectorNetwork(name), data.text("mixed", 0) if name == "text" else data.digits("iid", 0)
    inputs = torch.tensor(rows.inputs[:10], dtype=torch.float32).view(2, 5, -1)
    targets = torch.from_numpy(rows.targets[:10]).view(2, 5, *rows.targets.shape[1:])
    # away from the start, where biases and scales differ from 0 and 1
    theta = torch.stack([network.start(seed) + 0.1 * seed + 0.1 for seed in range(2)])
    for i in range(2):
        module = VectorNetwork(name).module
        torch.nn.utils.vector_to_parameters(theta[i].clone(), module.parameters())
        for layer in module.modules():
            own = {StackedLinear: torch.nn.Linear, StackedNorm: torch.nn.LayerNorm}.get(type(layer))
            layer.__class__ = own or type(layer)
        logits = module(inputs[i])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets[i].flatten())
        g = torch.cat([v.reshape(-1) for v in torch.autograd.grad(loss, list(module.parameters()))])
        assert torch.allclose(network.logits(theta, inputs)[i], logits, rtol=1e-4, atol=1e-4)
        assert torch.allclose(network.gradient(theta, inputs, targets)[i], g, rtol=1e-3, atol=1e-5)
        assert float(network.judge(theta, inputs, targets)[i, 0]) == pytest.approx(loss.item(), rel=1e-4)


# -- the choice and the verdicts ---------------------------------------------------------------------------------------
def chosen(name: str, rounds: list[float], vectors: int = 0) -> ChosenRun:
    """A run whose seeds reach 0.95 after so many rounds of 100."""
    at = np.arange(101.0)
    test = np.array([np.where(at >= r, 0.96, 0.5) for r in rounds])
    cost = np.tile(at, (len(rounds), 1))
    curves = {"rounds": cost, "bytes": cost * BY_NAME[name].vectors, "gradients": cost, "test_accuracy": test}
    return ChosenRun(BY_NAME[name], TriedForm(0.1), curves, "accuracy", 0.95, False)


def everybody(default: float, **given: float) -> dict[str, ChosenRun]:
    named = {k.replace("_", "-"): v for k, v in given.items()}
    return {f.name: chosen(f.name, [named.get(f.name, default)] * 5) for f in FORMS}


def test_the_choice_is_made_on_validation_rows_alone() -> None:
    shape = (2, 3, 4)
    good, bad = np.stack([np.ones(shape[1:]), np.zeros(shape[1:])]), np.zeros(shape)
    curves = {"validation_accuracy": good[::-1], "test_accuracy": good, "rounds": bad, "validation_loss": good[::-1]}
    candidates = [TriedForm(0.1), TriedForm(0.2)]
    assert choose(FORMS[0], candidates, curves, "accuracy", 0.5).candidate == candidates[1]
    curves["test_loss"] = good
    assert choose(FORMS[0], candidates, curves, "loss", 0.5).candidate == candidates[0], "a loss is best if small"


def test_costs_are_medians_and_say_how_many_arrived() -> None:
    r = chosen("local-sgd", [10, 20, math.inf, 30, 5])
    assert r.cost("rounds") == 20
    assert words(r.costs("rounds")) == "20 (4 of 5)"
    assert words(chosen("local-sgd", [math.inf] * 5).costs("rounds")) == "never"


def by_id(found: list[Any]) -> dict[str, str]:
    return {c.id: c.verdict for c in found}


def test_verdicts_follow_the_runs() -> None:
    never = {"local_adamw": math.inf, "diloco_adamw": math.inf}
    hard, easy = everybody(30, adamw_h=10, **never), everybody(10, local_adamw=5, diloco_adamw=5, adamw_h=6)
    middle = everybody(20, adamw_h=8, local_adamw=16, diloco_adamw=16)
    found = by_id(verdicts.judged("mlp", {"sorted": hard, "dirichlet-1": middle, "iid": easy}, True))
    assert found["mlp-adamw"] == found["mlp-rounds"] == found["mlp-bytes"] == found["mlp-alike"] == "PASS"
    assert found["mlp-falling"] == "PASS"
    assert found["mlp-scaffnew-local-sgd"] == "FAIL", "equal is not fewer"

    other = everybody(30, adamw_h=20, diloco_sgd=25, local_adamw=40)
    found = by_id(verdicts.judged("mlp", {"sorted": other, "iid": hard}, True))
    assert found["mlp-adamw"] == "FAIL", "it arrives without h"
    assert found["mlp-rounds"] == "PASS"
    assert found["mlp-bytes"] == "FAIL", "two vectors a round"
    assert found["mlp-alike"] == "FAIL"

    nobody = everybody(math.inf)
    found = by_id(verdicts.judged("text", {"grammars": nobody}, True))
    assert found["text-rounds"] == found["text-scaffnew-fedlin"] == "INCONCLUSIVE"
    assert set(by_id(verdicts.judged("mlp", {"sorted": hard}, False)).values()) == {"REPORTED"}


def test_the_page_says_where_control_variates_do_not_help() -> None:
    runs = {"sorted": everybody(30, adamw_h=10), "iid": everybody(10, local_adamw=5)}
    rounds, sent, _ = verdicts.when_not(runs)
    assert "help on sorted; they do not help on iid" in rounds
    assert "bytes" in sent


# -- the command -------------------------------------------------------------------------------------------------------
def test_without_pytorch_it_is_one_sentence(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("proxskip.experiments.reproduce.importlib.util.find_spec", lambda name: None)
    out = tmp_path / "out"
    assert main(["reproduce", "--networks", "--quick", "--out", str(out)]) == 2
    assert 'networks need PyTorch; install it with: pip install "proxskip[torch]"' in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("more", [["mlp"], ["--family"]])
def test_the_networks_have_experiments_of_their_own(more: list[str], capsys: Any) -> None:
    assert main(["reproduce", *more, "--networks", "--out", "nowhere"]) == 2
    assert "give no names" in capsys.readouterr().err


@pytest.mark.torch
def test_other_data_are_refused(capsys: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert main(["reproduce", "--networks", "--data", "w8a", "--out", str(tmp_path / "out")]) == 2
    assert "leave out --data" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.torch
def test_threads_are_refused(capsys: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert main(["reproduce", "--networks", "--threads", "2", "--out", str(tmp_path / "out")]) == 2
    assert "give --jobs in place of --threads" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.slow
def test_a_small_run_writes_the_page_and_processes_change_no_bit(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("torch")
    right = experiments.preset
    short = {"rounds": 1, "K": 1, "batch": 2, "seeds": 1}
    monkeypatch.setattr(experiments, "preset", lambda name, quick=False: right(name, quick) | (short if quick else {}))

    def made(jobs: int) -> dict[str, Any]:
        call = ["reproduce", "--networks", "--quick", "--out", str(tmp_path / f"out{jobs}"), "--quiet"]
        assert main([*call, "--jobs", str(jobs)]) == 0
        found = json.loads((tmp_path / f"out{jobs}" / "results.json").read_text("utf-8"))
        timed = ("seconds", "cpu_seconds", "command")
        return {e["id"]: {k: v for k, v in e.items() if k not in timed} for e in found["experiments"]}

    alone = made(1)
    assert set(alone) == set(experiments.NETWORKS)
    assert alone == made(2)
    out = tmp_path / "out1"
    page = (out / "index.html").read_text("utf-8")
    assert "Control variates on networks" in page
    assert "Counted in rounds, control variates" in page
    assert {p.name for p in (out / "figures").glob("*.png")} == {"mlp.png", "cnn.png", "text.png"}
    trained = {p.name: p.stat().st_mtime_ns for p in (out / "cache").glob("text-*")}
    assert len(trained) == len(FORMS)
    made(1)
    assert trained == {p.name: p.stat().st_mtime_ns for p in (out / "cache").glob("text-*")}, "trained twice"
