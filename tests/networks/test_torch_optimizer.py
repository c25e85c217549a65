"""Scaffnew as an optimizer of PyTorch, on four real processes with gloo."""

import copy
import functools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import proxskip as ps

torch = pytest.importorskip("torch")
from proxskip.torch import Scaffnew  # noqa: E402
from proxskip.torch.wire import NATURAL_BLOCK, Wire  # noqa: E402
from support.tiers import needs  # noqa: E402
from support.torch_ranks import RANKS, on_ranks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("torch-ranks")]


SHORT = ("resume", "refuse", "fewer", "one_file", "starts", "without_parameters")
LONG = ("settings", "rejoin", "scaler", "nodes", "sharded", "other_shards", "batch_norm")
NEW = ("buckets", "conformance", "distributed_checkpoint", "rejoin_schedule", "rejoin_momentum", "killed", "dual")


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What each rank says of the cases that one group of processes runs."""
    return functools.cache(lambda cases: on_ranks(cases, tmp_path_factory.mktemp("ranks"))[0])


@pytest.mark.slow
@pytest.mark.parametrize("case", [*SHORT, *(pytest.param(case, marks=pytest.mark.release) for case in LONG), *NEW])
def test_what_holds_on_four_ranks(case, together):
    """Each case is a function of torch_ranks.py, which says what holds."""
    (cases,) = (cases for cases in (SHORT, LONG, NEW) if case in cases)
    assert together(cases)[case] == [None] * RANKS


@pytest.mark.slow
@pytest.mark.parametrize("package", [pytest.param(name, marks=needs(name)) for name in ("accelerate", "lightning")])
def test_recipes_for_other_trainers(package, tmp_path):
    assert on_ranks((package,), tmp_path, 2)[0][package] == [None, None]


@pytest.mark.slow
def test_a_dead_rank_ends_the_others_with_a_sentence(tmp_path):
    found, codes = on_ranks(("death",), tmp_path)
    assert codes[1] == 7
    assert found["death"] == [None] * (RANKS - 1)


@pytest.mark.slow
def test_torchrun_starts_again_and_goes_on_bit_by_bit(tmp_path):
    """The example, once undisturbed and once with a process that dies after an average that the other one saves."""
    script = Path(__file__).parents[2] / "examples" / "torchrun" / "train.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # torchrun looks so rarely that the other process mostly saves before it is ended
    torchrun += ["--max-restarts", "2", "--monitor-interval", "2"]
    curves = []
    for name, extra in (("whole", []), ("killed", ["--die", "3"])):
        call = [*torchrun, str(script), "--rounds", "6", "--out", str(tmp_path / name), *extra]
        done = subprocess.run(call, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, timeout=600)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        assert (b"exitcode: 1" in done.stderr) == (name == "killed")
        curves.append(json.loads((tmp_path / name / "accuracy.json").read_text()))
        assert (tmp_path / name / "torchrun.png").stat().st_size > 10_000
    assert curves[0] == curves[1]


def parameters(count=2):
    return [torch.nn.Parameter(torch.ones(3)) for _ in range(count)]


Q = parameters()
PLAIN, HEAVY, ADAMW = torch.optim.SGD(Q, 0.1), torch.optim.SGD(Q, 0.1, momentum=0.9), torch.optim.AdamW(Q)


@pytest.mark.parametrize(
    ("local", "given", "sentence"),
    [
        (PLAIN, {}, "pass one of p="),
        (PLAIN, {"p": 0.0}, "p = 0 must be positive"),
        (PLAIN, {"p": "often"}, "p = 'often' is not a number"),
        (PLAIN, {"period": 0}, "at least 1"),
        (PLAIN, {"period": 2.5}, "a whole number"),
        (PLAIN, {"period": float("nan")}, "a whole number"),
        (PLAIN, {"p": 0.1, "control": "steps"}, "is not known"),
        (PLAIN, {"p": 0.1, "chi": 2.0}, "between 0 and 1"),
        (PLAIN, {"p": 0.1, "control": "none", "chi": 0.5}, "damps"),
        (PLAIN, {"p": 0.1, "codec": "int8"}, "is not known"),
        (PLAIN, {"p": 0.1, "control": "dual"}, "is learned from the pull"),
        (PLAIN, {"p": 0.1, "control": "dual", "pull": 0.1, "outer": torch.optim.SGD(Q, 0.7)}, "a step of its own"),
        (PLAIN, {"p": 0.1, "control": "momentum"}, "mix=, the weight of the last global step"),
        (PLAIN, {"p": 0.1, "control": "gradient", "correct": "after"}, "goes with"),
        (PLAIN, {"p": 0.1, "pull": -1.0}, "pull"),
        (PLAIN, {"p": 0.1, "state": "lost"}, 'state = "lost" is not known'),
        (torch.optim.NAdam(Q), {"p": 0.1, "control": "none", "state": "reset"}, "whose memory begins at zero"),
        (PLAIN, {"p": 0.1, "seed": -1}, "a whole number from 0"),
        (PLAIN, {"p": 0.1, "outer": PLAIN}, "the local optimizer itself"),
        (PLAIN, {"p": 0.1, "outer": torch.optim.SGD(Q[:1], 0.7)}, "other parameters"),
        (PLAIN, {"p": 0.1, "outer": torch.optim.SGD(parameters(), 0.7)}, "other parameters"),
        (HEAVY, {"p": 0.1}, "needs SGD without momentum"),
        (ADAMW, {"p": 0.1}, "needs SGD without momentum"),
        (torch.optim.LBFGS(Q), {"p": 0.1, "control": "gradient"}, "LBFGS cannot be the local optimizer"),
        (torch.optim.SGD([torch.ones(2, dtype=torch.cfloat, requires_grad=True)], 0.1), {"p": 0.1}, "complex"),
    ],
)
def test_settings_that_cannot_work_are_refused(local, given, sentence):
    with pytest.raises(ValueError, match=sentence):
        Scaffnew(local, **given)
    if local in (HEAVY, ADAMW):
        Scaffnew(local, control="gradient", **given)


def test_parameters_that_nobody_averages_are_noticed():
    a, b = parameters()
    b.requires_grad_(False)
    optimizer = Scaffnew(torch.optim.SGD([a, b], 0.1), period=2)
    b.requires_grad_(True)
    ((a**2).sum() + (b**2).sum()).backward()
    optimizer.step()
    with pytest.raises(ValueError, match="were unfrozen"):
        optimizer.step()


def test_a_checkpoint_without_its_model_is_noticed():
    def trained(state=None, steps=2):
        (q,) = parameters(1)
        optimizer = Scaffnew(torch.optim.SGD([q], 0.1), period=2)
        if state is not None:
            optimizer.load_state_dict(state)
        for _ in range(steps):
            optimizer.zero_grad()
            (q**2).sum().backward()
            optimizer.step()
        return optimizer.state_dict()

    with pytest.raises(ValueError, match="also load the model's state"):
        trained(trained())
    with pytest.raises(ValueError, match="from another optimizer"):
        trained(torch.optim.SGD(parameters(1), 0.1).state_dict())


def test_an_incomplete_state_is_refused_and_changes_nothing():
    optimizer = Scaffnew(torch.optim.SGD(parameters(1), 0.1), period=2)
    for change, sentence in (
        (lambda s: s["param_groups"][0]["scaffnew"].pop("outer"), "lacks outer"),
        (lambda s: s["param_groups"][0].update(params=[]), "has 0 parameters but this optimizer 1"),
        (lambda s: s["state"][0].pop("scaffnew.h"), "lacks h"),
        (lambda s: s["state"][0].update({"scaffnew.h": [1.0, 2.0, 3.0]}), "has no numbers"),
        (lambda s: s["state"][0].update({"scaffnew.h": torch.zeros(4)}), r"has \(4,\) numbers"),
        (lambda s: s["param_groups"].append({"params": []}), "optim of the checkpoint does not match"),
    ):
        state = copy.deepcopy(optimizer.state_dict())
        state["state"][0]["scaffnew.x"] += 1.0
        change(state)
        with pytest.raises(ps.InputError, match=sentence):
            optimizer.load_state_dict(state)
        assert (optimizer.flat.x == 1.0).all()


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_the_optimizer_itself_is_not_copied(copied):
    with pytest.raises(ps.InputError, match="state_dict"):
        copied(Scaffnew(torch.optim.SGD(parameters(1), 0.1), period=2))


def test_momentum_that_a_scheduler_turns_on_is_refused_at_the_step():
    (q,) = parameters(1)
    optimizer = Scaffnew(torch.optim.SGD([q], 0.1), period=2)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    (q**2).sum().backward()
    with pytest.raises(ps.InputError, match="needs SGD without momentum"):
        optimizer.step()
    assert (q == 1.0).all()


def test_saving_takes_no_local_step_and_a_step_with_lr_zero_is_one():
    """torch.distributed.checkpoint makes the state of an optimizer that has none by a step of zero."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    module = torch.nn.Linear(2, 1)
    optimizer = Scaffnew(torch.optim.SGD(module.parameters(), 0.1), period=3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(k, 1))
    for steps in (1, 2):
        optimizer.zero_grad()
        module(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        warm_up.step()
        optimizer.zero_grad()
        get_state_dict(module, optimizer)
        assert (optimizer.steps, optimizer.rounds) == (steps, 0)


def test_parameters_keep_their_precision_and_h_has_more():
    a, b = torch.nn.Parameter(torch.tensor([1 / 3], dtype=torch.float64)), torch.nn.Parameter(torch.ones(1))
    optimizer = Scaffnew(torch.optim.SGD([a, b], 0.0), period=1)
    (a.sum() + b.sum()).backward()
    optimizer.step()
    assert a.item() == 1 / 3
    assert b.dtype == torch.float32
    q = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = Scaffnew(torch.optim.SGD([q], 0.1), period=2)
    for _ in range(4):
        (q**2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert q.dtype == torch.bfloat16
    assert optimizer.flat.h.dtype == optimizer.flat.x.dtype == torch.float32


def sent_of(wire, v, round):
    """What the others read of v."""
    (sent,) = wire.average([v.__getitem__], v, round)[1]
    return sent(slice(0, len(v)))


def test_natural_compression_reads_what_is_not_a_number_as_infinity():
    v = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    wire = Wire(None, "natural", None, seed=5)
    for r in range(50):
        sent = sent_of(wire, v, r)
        assert sent.isinf().tolist() == [True, True, True, False]
        assert sent[2] < 0


def test_a_long_vector_is_compressed_in_blocks_of_their_own_randomness():
    v = torch.linspace(1.0, 2.0, NATURAL_BLOCK).repeat(3)[: 2 * NATURAL_BLOCK + 3]
    sent = sent_of(Wire(None, "natural", None, seed=5), v, 1)
    assert sent.unique().tolist() == [1.0, 2.0]
    first, second, last = sent.split(NATURAL_BLOCK)
    assert 0.3 < (first != second).double().mean() < 0.37  # of 2 u (1 - u) the mean is 1/3
    assert last.tolist() == [1.0, 1.0, 1.0]
    assert abs(float(sent.double().mean() - v.double().mean())) < 0.01


def test_alone_it_is_the_optimizer_itself():
    trajectories = []
    for wrap in (lambda o: o, lambda o: Scaffnew(o, period=3)):
        (q,) = parameters(1)
        optimizer = wrap(torch.optim.SGD([q], 0.1))
        for _ in range(9):
            optimizer.zero_grad()
            (q**2).sum().backward()
            optimizer.step()
        trajectories.append(q.detach())
    assert torch.allclose(*trajectories, rtol=1e-6)


def test_natural_compression_is_unbiased_within_its_variance():
    v = torch.tensor([1.5, -3.0, 0.0, 1e-40, 7.0, -0.1, 2.0**100 * 1.3, 4.0])
    wire = Wire(None, "natural", None, seed=5)
    draws = torch.stack([sent_of(wire, v, r) for r in range(1500)]).double()
    powers = torch.frexp(draws[draws != 0])[0].abs()
    assert (powers == 0.5).all(), "not powers of two"
    error = (draws.mean(0) - v).abs() / v.abs().clamp(min=1e-38)
    assert (error <= 0.05).all()
    variance = ((draws - v.double()) ** 2).mean(0).sum()
    assert variance <= (1 / 8) * (v.double() ** 2).sum()
    assert (draws[:, [2, 7]] == v[[2, 7]]).all(), "zeros and powers of two stay"
