"""What every rank of a process group does in the tests of the optimizer: ``python torch_ranks.py CASE,... FOLDER RANK RANKS``.

Each case writes what it returns, nothing if all is well, or how it failed as ``FOLDER/CASE.RANK.json``.
"""

import copy
import datetime
import json
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from proxskip.torch import Scaffnew, SynchronizationError

torch.set_num_threads(1)
RANKS = 4
DIM = 6
SGD, ADAMW = torch.optim.SGD, torch.optim.AdamW


def quadratic(rank, dtype=torch.float64):
    """A strongly convex quadratic for each rank, with another minimum; the solution of the mean."""
    gen = torch.Generator().manual_seed(100 + rank)
    M = torch.randn(DIM, DIM, generator=gen, dtype=torch.float64)
    H = M @ M.T / DIM + 0.3 * torch.eye(DIM, dtype=torch.float64)
    return H.to(dtype), (torch.randn(DIM, generator=gen, dtype=torch.float64) * 3).to(dtype)


def solution(n):
    Hs, cs = zip(*(quadratic(r) for r in range(n)), strict=True)
    return torch.linalg.solve(sum(Hs), sum(H @ c for H, c in zip(Hs, cs, strict=True)))


class Point(torch.nn.Module):
    """Two tensors that make up x, so that parameter groups have something to cut."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(k, dtype=dtype)) for k in (2, DIM - 2))
        self.frozen = torch.nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)

    def x(self):
        return torch.cat([self.a, self.b])


def descend(point, optimizer, H, c, steps=None, rounds=None, scheduler=None):
    while (steps is None or steps > 0) and (rounds is None or optimizer.rounds < rounds):
        optimizer.zero_grad()
        e = point.x() - c.to(point.a.dtype)
        (0.5 * e @ (H.to(point.a.dtype) @ e)).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        steps = None if steps is None else steps - 1
    return point.x().detach()


def sum_of_h(optimizer):
    total = optimizer.flat.h.clone()
    size = total.abs().sum()
    dist.all_reduce(total)
    return float(total.abs().sum()), float(size)


def settings(rank, n, folder):
    """Every setting lands on the same solution on all ranks, with a sum of h that is zero and the bytes of its codec."""
    H, c = quadratic(rank)
    x_star = solution(n)
    cases = {
        "p": ({"p": 0.2}, 8 * DIM),
        "period": ({"period": 5}, 8 * DIM),
        "gradient": ({"period": 5, "control": "gradient"}, 2 * 8 * DIM),
        "adam": ({"period": 5, "control": "gradient", "adam": True}, 2 * 8 * DIM),
        "bfloat16": ({"p": 0.2, "codec": "bfloat16"}, 2 * DIM),
        "natural": ({"p": 0.2, "codec": "natural"}, DIM + 1),  # an exponent each, and six signs in a byte
        "natural gradient": ({"period": 5, "control": "gradient", "codec": "natural"}, 2 * DIM + 2),
        "outer": ({"period": 5, "outer": True}, 8 * DIM),
        "none": ({"period": 5, "control": "none"}, 8 * DIM),
    }
    for name, (given, sent) in cases.items():
        point = Point()
        groups = [{"params": [point.a]}, {"params": [point.b, point.frozen]}]
        inner = ADAMW(groups, lr=0.1, weight_decay=0) if given.pop("adam", 0) else SGD(groups, lr=0.12)
        outer = SGD([point.a, point.b], lr=0.7, momentum=0.5, nesterov=True) if given.pop("outer", 0) else None
        chi = None if given.get("control") == "none" else 1.0
        optimizer = Scaffnew(inner, outer=outer, seed=3, chi=chi, **given)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.993) if "adam" in name else None
        x = descend(point, optimizer, H, c, rounds=120, scheduler=decay)
        total, size = sum_of_h(optimizer)
        assert total <= 1e-12 * (1 + size), f"{name}: h does not sum to zero"
        assert point.frozen.sum() == 3.0
        error = float((x - x_star).abs().max())
        assert (error > 0.1) if name == "none" else (error < (0.05 if name == "adam" else 1e-6)), (name, error)
        first = x.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, x)
        assert optimizer.bytes_sent == 120 * sent, name


def made(loaded=None, inner=SGD, lr=0.12, outer=False, group=None, start=0.0, dtype=torch.float64, **settings):
    """A point and its optimizer, new or as they were saved."""
    point = Point(dtype)
    point.a.data += start
    both = [point.a, point.b]
    outer_sgd = SGD(both, 0.7, momentum=0.5) if outer else None
    optimizer = Scaffnew(
        inner(both, lr), group=group, outer=outer_sgd, **({"p": 0.2, "seed": 1, "chi": 1.0} | settings)
    )
    if loaded is not None:
        point.load_state_dict(loaded[0])
        optimizer.load_state_dict(copy.deepcopy(loaded[1]))  # PyTorch keeps its tensors
    return point, optimizer


def saved(point, optimizer):
    return copy.deepcopy((point.state_dict(), optimizer.state_dict()))


def resume(rank, n, folder):
    """A run that is saved in the middle of a round and loaded into new objects goes on bit by bit."""
    H, c = quadratic(rank, torch.float32)
    for given in (
        {"lr": 0.05, "control": "step", "codec": "float32"},
        {"inner": ADAMW, "lr": 0.02, "control": "gradient", "codec": "natural", "chi": None},
        {
            "inner": ADAMW,
            "lr": 0.02,
            "control": "momentum",
            "mix": 0.5,
            "correct": "after",
            "pull": 0.1,
            "chi": None,
            "state": "shared",
        },
    ):
        given |= {"p": 0.15, "outer": True, "dtype": torch.float32}
        point, optimizer = made(**given)
        descend(point, optimizer, H, c, steps=37)
        file = Path(folder) / f"saved.{rank}.pt"
        torch.save(saved(point, optimizer), file)
        end = descend(point, optimizer, H, c, steps=40)
        again = made(torch.load(file, weights_only=True), **given)
        assert torch.equal(end, descend(*again, H, c, steps=40))
        assert end.abs().sum() > 0


def meets(optimizer, said):
    """All ranks meet; whether this one warns of what it has not got."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer.meet()
    assert bool(seen) == said, [str(w.message) for w in seen]


def lands(optimizer, point, ranks, rank, said=False, rounds=150, group=None):
    """Where a run ends: at the solution of these ranks, with a sum of h that is zero."""
    meets(optimizer, said)
    x = descend(point, optimizer, *quadratic(rank), rounds=optimizer.rounds + rounds)
    total = optimizer.flat.h.clone()
    dist.all_reduce(total, group=group)
    assert (x - solution(ranks)).abs().max() < 1e-6
    assert total.abs().max() < 1e-10


def rejoin(rank, n, folder):
    """A rank that lost everything re-enters: the sum of h is zero again, and the answer the same."""
    point, optimizer = made()
    before = descend(point, optimizer, *quadratic(rank), rounds=30)
    point, optimizer = made(None if rank == 1 else saved(point, optimizer))
    meets(optimizer, said=rank == 1)
    assert optimizer.rounds == 30
    assert torch.equal(point.x().detach(), before)
    total, size = sum_of_h(optimizer)
    assert total <= 1e-12 * (1 + size)
    lands(optimizer, point, n, rank, rounds=120)


def rejoin_momentum(rank, n, folder):
    """A rank that lost everything takes over the last global step of the others."""
    given = {"control": "momentum", "mix": 0.5, "chi": None}
    point, optimizer = made(**given)
    descend(point, optimizer, *quadratic(rank), rounds=10)
    last = optimizer.flat.h.clone()
    point, optimizer = made(None if rank == 1 else saved(point, optimizer), **given)
    meets(optimizer, said=rank == 1)
    assert torch.equal(optimizer.flat.h, last)
    assert last.abs().max() > 0


def dual(rank, n, folder):
    """FedDyn with rates that fall in every local step is a plain loop over all ranks; its mean of h survives a loss."""
    lr, pull, chi, K, rounds = 0.1, 1.0, 0.7, 3, 12
    given = {"lr": lr, "control": "dual", "pull": pull, "chi": chi, "p": None, "period": K}
    point, optimizer = made(**given)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.97**k)
    x = descend(point, optimizer, *quadratic(rank), rounds=rounds, scheduler=schedule)
    plain, h = torch.zeros(DIM, dtype=torch.float64), torch.zeros(n, DIM, dtype=torch.float64)
    for t in range(rounds):
        ends = []
        for r in range(n):
            (H, c), y = quadratic(r), plain.clone()
            for k in range(K):
                y = y - lr * 0.97 ** (t * K + k) * (H @ (y - c) - h[r] + pull * (y - plain))
            ends.append(y)
        for r in range(n):
            h[r] -= chi * pull * (ends[r] - plain)
        plain = sum(ends) / n - h.mean(0) / pull
    assert (x - plain).abs().max() < 1e-10
    assert (optimizer.flat.h - h[rank]).abs().max() < 1e-10
    assert optimizer.bytes_sent == rounds * 8 * DIM
    point, optimizer = made(None if rank == 1 else saved(point, optimizer), **given)
    meets(optimizer, said=rank == 1)
    for group in optimizer.param_groups:
        group["lr"] = lr
    left = h.sum(0) - h[1]
    assert (optimizer.flat.mean_h - left / n).abs().max() < 1e-10
    x = descend(point, optimizer, *quadratic(rank), rounds=rounds + 200)
    assert (x - solution(n)).abs().max() < 1e-6


def rejoin_schedule(rank, n, folder):
    """A new rank brings its scheduler to where the others' are; without that it is refused."""
    H, c = quadratic(rank)
    point, optimizer = made()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.9**k)
    descend(point, optimizer, H, c, rounds=5, scheduler=schedule)
    count, state, kept = optimizer.steps, schedule.state_dict(), saved(point, optimizer)
    for caught_up in (False, True):
        point, again = made(None if rank == 1 else kept)
        meets(again, said=rank == 1)
        assert again.steps == count
        schedule = torch.optim.lr_scheduler.LambdaLR(again, lambda k: 0.9**k)
        if rank != 1:
            schedule.load_state_dict(state)
            again.param_groups[0]["lr"] = state["_last_lr"][0]
        elif caught_up:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of PyTorch, that no step was taken
                for _ in range(again.steps):
                    schedule.step()
        if caught_up:
            descend(point, again, H, c, rounds=8, scheduler=schedule)
            assert again.rounds == 8
        else:
            with pytest.raises(ValueError, match="different learning rates"):
                descend(point, again, H, c, rounds=8, scheduler=schedule)


def killed(rank, n, folder):
    """Checkpoints of one average go on bit by bit, schedule and all, without a warning; of different steps they do not."""
    H, c = quadratic(rank)

    def begun():
        point, optimizer = made(p=None, period=8)
        return point, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.99**k)

    def loaded(checkpoint):
        all_three = begun()
        for part, state in zip(all_three, copy.deepcopy(checkpoint), strict=True):
            part.load_state_dict(state)
        return all_three

    point, optimizer, schedule = begun()
    checkpoints = {}
    for step in range(1, 97):
        end = descend(point, optimizer, H, c, steps=1, scheduler=schedule)
        checkpoints[step] = copy.deepcopy([part.state_dict() for part in (point, optimizer, schedule)])
        assert optimizer.synchronized == (step % 8 == 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        point, optimizer, schedule = loaded(checkpoints[64])
        optimizer.meet()
        assert torch.equal(end, descend(point, optimizer, H, c, steps=96 - optimizer.steps, scheduler=schedule))
    # rank 1 was killed after step 65, while the others went on towards the next average
    point, optimizer, schedule = loaded(checkpoints[60 if rank == 1 else 70])
    meets(optimizer, said=rank == 0)
    with pytest.raises(ValueError, match="or they resumed at different steps"):
        descend(point, optimizer, H, c, steps=8, scheduler=schedule)


def fewer(rank, n, folder):
    """Three ranks save in the middle of a round and two load; then three, of which the last has no state."""
    three, two = dist.new_group([0, 1, 2]), dist.new_group([0, 1])
    if rank > 2:
        return
    for outer in (False, True):
        given = {"period": 7, "p": None, "outer": outer}
        point, optimizer = made(group=three, **given)
        descend(point, optimizer, *quadratic(rank), steps=38)
        assert not optimizer.synchronized
        state = saved(point, optimizer)
        for group, ranks in ((two, 2), (three, 3)):
            if rank >= ranks:
                continue
            point, optimizer = made(None if (rank, ranks) == (2, 3) else state, group=group, **given)
            lands(optimizer, point, ranks, rank, said=rank == (2 if ranks == 3 else 0), group=group)


def one_file(rank, n, folder):
    """All ranks load what rank 0 saved."""
    point, optimizer = made(period=5, p=None)
    descend(point, optimizer, *quadratic(rank), steps=33)
    file = Path(folder) / "one_file.pt"
    if rank == 0:
        torch.save(saved(point, optimizer), file)
    dist.barrier()
    point, optimizer = made(torch.load(file, weights_only=True), period=5, p=None)
    lands(optimizer, point, n, rank, said=rank == 0)


def starts(rank, n, folder):
    """Ranks begin at the parameters of the first, also of those that were set after the optimizer was made."""
    point, optimizer = made(start=5 * rank)
    with torch.no_grad():
        point.b += 3 + rank
    lands(optimizer, point, n, rank)
    point, optimizer = made(start=5 * rank)
    with torch.no_grad():
        point.a.fill_(2.0)  # as weights that are loaded later: they are kept
    optimizer.meet()
    assert (point.a == 2.0).all()


def without_parameters(rank, n, folder):
    """A state of the middle of a round whose parameters were not loaded on one rank is refused on all of them."""
    point, optimizer = made(period=5, p=None)
    descend(point, optimizer, *quadratic(rank), steps=33)
    state = saved(point, optimizer)
    point, optimizer = made((Point().state_dict(), state[1]) if rank == 2 else state, period=5, p=None)
    with pytest.raises(ValueError, match=r"load the model.s state of the same rank"):
        descend(point, optimizer, *quadratic(rank), steps=1)
    point.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    lands(optimizer, point, n, rank)


def refuse(rank, n, folder):
    """What would break the sum silently is refused on every rank."""
    point = Point()
    both = [point.a, point.b]
    with pytest.raises(ValueError, match="settings of the optimizer differ"):
        Scaffnew(SGD(both, 0.1), p=0.2, seed=rank).meet()
    for lr, outer in ((0.1, SGD(both, 0.7 + rank)), (0.1 * (1 + rank), None)):
        with pytest.raises(ValueError, match="different learning rates"):
            descend(point, Scaffnew(SGD(both, lr), period=3, outer=outer), *quadratic(rank), steps=5)
    optimizer = Scaffnew(SGD(both, 1e200), period=3)
    optimizer.meet()
    x = optimizer.flat.x.clone()
    with pytest.raises(SynchronizationError, match="not finite"):
        descend(point, optimizer, *quadratic(rank), steps=5)
    assert torch.equal(x, optimizer.flat.x), "x changed although nothing could be committed"
    assert optimizer.rounds == 0


def scaler(rank, n, folder):
    """Gradients of rank 1 overflow once: it leaves the step out, still comes to the average, and the end is the same."""
    H, c = quadratic(rank, torch.float32)
    point, optimizer = made(p=None, period=4, lr=0.1, dtype=torch.float32)
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for k in range(500):
        optimizer.zero_grad()
        for _ in range(2):  # gradient accumulation
            e = point.x() - c
            loss = 0.25 * e @ (H @ e)
            scale.scale(loss * (float("inf") if (rank, k) == (1, 6) else 1.0)).backward()
        scale.unscale_(optimizer)
        optimizer.step(skip_nonfinite=True)
        scale.update()
    total, size = sum_of_h(optimizer)
    assert (point.x().detach().double() - solution(n)).abs().max() < 1e-5
    assert optimizer.rounds == 125
    assert total <= 1e-5 * size


def virtual_module(dtype=torch.float64):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).to(dtype)


def virtual_data(n, dtype=torch.float64):
    """Rows of n clients, with labels that they do not share alike, and more of them at some than at others."""
    gen = torch.Generator().manual_seed(4)
    sizes = [12 + 3 * i for i in range(n)]
    return [
        (
            torch.randn(m, 6, generator=gen, dtype=torch.float64).to(dtype) + i,
            torch.randint(0, 1 + i % 3, (m,), generator=gen),
        )
        for i, m in enumerate(sizes)
    ]


VIRTUAL = {
    "step": {"optimizer": lambda q: SGD(q, 0.1), "period": 4, "control": "step", "chi": 1.0, "batch": 4},
    "drawn": {"optimizer": lambda q: SGD(q, 0.1), "p": 0.3, "control": "step", "chi": 0.5, "batch": 5},
    "groups": {
        "optimizer": lambda q: SGD([{"params": q[2:]}, {"params": q[:2], "lr": 0.03}], 0.1),
        "period": 3, "control": "step", "codec": "natural", "chi": 1.0,
    },
    "momentum": {"optimizer": lambda q: SGD(q, 0.05, momentum=0.9), "period": 4, "control": "gradient", "chi": 0.3, "batch": 4},
    "adamw": {"optimizer": lambda q: ADAMW(q, 0.01), "period": 5, "control": "gradient", "chi": 1.0, "batch": 6},
    "diloco": {
        "optimizer": lambda q: ADAMW(q, 0.01), "p": 0.4, "control": "none", "batch": 6,
        "outer": lambda q: SGD(q, 0.7, momentum=0.9, nesterov=True),
    },
    "outer": {
        "optimizer": lambda q: ADAMW(q, 0.01), "period": 3, "control": "gradient", "chi": 1.0, "batch": 6,
        "outer": lambda q: SGD(q, 0.7, momentum=0.9, nesterov=True),
    },
    "natural": {"optimizer": lambda q: ADAMW(q, 0.01), "period": 3, "control": "gradient", "codec": "natural", "chi": 1.0},
    "bfloat16": {"optimizer": lambda q: SGD(q, 0.1), "p": 0.5, "control": "step", "codec": "bfloat16", "chi": 1.0},
    "top-k": {"optimizer": lambda q: ADAMW(q, 0.01), "period": 3, "control": "none", "codec": "top-k", "share": 0.2},
    "pull": {"optimizer": lambda q: ADAMW(q, 0.01), "period": 3, "control": "none", "pull": 0.3, "batch": 6},
    "pull and h": {"optimizer": lambda q: ADAMW(q, 0.01), "period": 3, "control": "gradient", "pull": 0.3, "chi": 1.0},
    "scaffold": {
        "optimizer": lambda q: SGD(q, 0.05, momentum=0.9), "period": 4, "control": "step", "correct": "after",
        "state": "reset", "chi": 0.5,
    },
    "feddyn": {"optimizer": lambda q: ADAMW(q, 0.01), "period": 3, "control": "dual", "pull": 0.3, "batch": 6},
    "fedcm": {"optimizer": lambda q: SGD(q, 0.1), "p": 0.3, "control": "momentum", "mix": 0.6, "batch": 4},
    "fedadamw": {
        "optimizer": lambda q: ADAMW(q, 0.01), "period": 4, "control": "momentum", "mix": 0.5, "correct": "after",
        "state": {"exp_avg_sq": "shared"},
    },
    "begun anew": {"optimizer": lambda q: ADAMW(q, 0.01), "period": 3, "control": "gradient", "state": "reset", "chi": 0.5},
    "shared": {
        "optimizer": lambda q: ADAMW(q, 0.01), "period": 3, "control": "none", "state": "shared",
        "outer": lambda q: SGD(q, 0.7, momentum=0.9, nesterov=True),
    },
    "damped": {"optimizer": lambda q: ADAMW(q, 0.01), "period": 4, "control": "gradient", "batch": 4},
    "damped steps": {"optimizer": lambda q: SGD(q, 0.1), "p": 0.3, "control": "step", "batch": 4},
}  # fmt: skip


FEW = {2: ("drawn", "adamw"), 3: ("drawn", "adamw", "scaffold", "fedadamw", "pull", "top-k", "shared")}
"""Settings that are also compared on so many ranks, which takes seconds."""


def virtual(rank, n, folder):
    """What ``train`` does for n clients, on n ranks: x after 20 rounds of each setting, also in single precision."""
    from proxskip.support.randomness import minibatch

    both = [(name, dtype) for name in FEW.get(n, VIRTUAL) for dtype in (torch.float64, torch.float32)]
    found = {}
    for name, dtype in both:
        given = dict(VIRTUAL[name])
        if "codec" in given and dtype == torch.float32:
            continue
        batch, make, outer = given.pop("batch", None), given.pop("optimizer"), given.pop("outer", None)
        module, (X, y) = virtual_module(dtype), virtual_data(n, dtype)[rank]
        params = list(module.parameters())
        optimizer = Scaffnew(make(params), outer=None if outer is None else outer(params), seed=7, **given)
        while optimizer.rounds < 20:
            f = optimizer.flat
            rows = slice(None) if batch is None else minibatch(7, rank, f.round, f.local_step, len(X), batch)
            optimizer.zero_grad()
            cross_entropy(module(X[rows]), y[rows]).backward()
            optimizer.step()
        found[f"{name} {dtype}"] = torch.cat([q.detach().reshape(-1) for q in params]).tolist()
        found[f"{name} {dtype} bytes"] = optimizer.bytes_sent
    return found


def nodes(rank, n, folder):
    """Two nodes of two ranks: DDP inside a node, Scaffnew between them; as two ranks with the mean of each pair."""
    inside = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    H, c = quadratic(rank)
    point, optimizer = made(group=across[rank % 2])
    point.forward = point.x
    wrapped = torch.nn.parallel.DistributedDataParallel(point, process_group=inside[rank // 2])
    while optimizer.rounds < 20:
        optimizer.zero_grad()
        e = wrapped() - c
        (0.5 * e @ (H @ e)).backward()
        optimizer.step()
    pair = [quadratic(r) for r in (2 * (rank // 2), 2 * (rank // 2) + 1)]
    H, Hc = sum(H for H, _ in pair) / 2, sum(H @ c for H, c in pair) / 2
    x = descend(*made(group=across[rank % 2]), H, torch.linalg.solve(H, Hc), rounds=20)
    assert point.x().tolist() == pytest.approx(x.tolist(), rel=1e-11)


def sharded(rank, n, folder):
    """FSDP2 inside a node, Scaffnew between nodes: each rank averages its shard with its counterpart."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "inside"))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    plain = copy.deepcopy(net)
    start = torch.cat([q.detach().reshape(-1) for q in net.parameters()])
    fully_shard(net, mesh=mesh["inside"])
    node = rank // 2
    gen = torch.Generator().manual_seed(node)
    X, y = torch.randn(12, 4, generator=gen, dtype=torch.float64), torch.randint(0, 3, (12,), generator=gen)
    ends = []
    for model in (net, plain):
        optimizer = Scaffnew(torch.optim.SGD(model.parameters(), 0.2), period=3, group=mesh["across"].get_group())
        for _ in range(12):
            optimizer.zero_grad()
            cross_entropy(model(X), y).backward()
            optimizer.step()
        full = [q.full_tensor() if hasattr(q, "full_tensor") else q for q in model.parameters()]
        ends.append(torch.cat([q.detach().reshape(-1) for q in full]))
    assert (ends[0] - ends[1]).abs().max() < 1e-12
    assert (ends[0] - start).abs().max() > 0.01


def other_shards(rank, n, folder):
    """Shards of one copy are never averaged with each other, nor with other shards of another copy."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    whole = init_device_mesh("cpu", (4,))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "inside"))
    everybody, inside = torch.nn.Linear(4, 8), torch.nn.Linear(4, 8)
    fully_shard(everybody, mesh=whole)
    fully_shard(inside, mesh=mesh["inside"])
    for net in (everybody, inside):
        with pytest.raises(ValueError, match="hold other shards of the same parameters"):
            Scaffnew(SGD(net.parameters(), 0.1), period=2)
    crossed = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    optimizer = Scaffnew(SGD(inside.parameters(), 0.1), period=2, group=crossed[rank in (1, 2)])
    with pytest.raises(ValueError, match="shapes of the parameters differ"):
        optimizer.meet()


def batch_norm(rank, n, folder):
    """Running means are averaged with the parameters where they are given, and differ where they are not."""
    for given in (True, False):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
        more = {"buffers": net.buffers()} if given else {}
        optimizer = Scaffnew(SGD(net.parameters(), 0.1), period=3, **more)
        torch.manual_seed(1 + rank)
        X, y = torch.randn(12, 4) + rank, torch.randint(0, 3, (12,))
        for _ in range(6):
            optimizer.zero_grad()
            cross_entropy(net(X), y).backward()
            optimizer.step()
        assert optimizer.synchronized
        mean = net[1].running_mean.clone()
        dist.broadcast(mean, 0)
        assert bool((mean == net[1].running_mean).all()) == (given or rank == 0)
        size = 4 * (optimizer.flat.size + 16 * given)
        assert optimizer.bytes_sent == 2 * size
        assert optimizer.bytes_received == 2 * (2 * size * (n - 1) // n) or given
    _, low = made(codec="bfloat16", period=2, p=None)
    descend(_, low, *quadratic(rank), rounds=2)
    assert low.bytes_received == (n - 1) * low.bytes_sent == 2 * (n - 1) * 2 * DIM


def distributed_checkpoint(rank, n, folder):
    """torch.distributed.checkpoint saves and loads the state, of FSDP2 as well; the run goes on bit by bit."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "inside"))
    inside, copy_of_all = mesh["inside"].get_group(), rank // 2
    for inner, outer in ((ADAMW, True), (SGD, False)):

        def made_again(seed, inner=inner, outer=outer):
            torch.manual_seed(seed)
            net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
            fully_shard(net, mesh=mesh["inside"])
            outside = SGD(net.parameters(), 0.7, momentum=0.5) if outer else None
            across = mesh["across"].get_group()
            optimizer = Scaffnew(
                inner(net.parameters(), 0.01), period=3, control="gradient", outer=outside, group=across
            )
            return net, optimizer

        def steps(net, optimizer, count):
            for k in range(count):
                gen = torch.Generator().manual_seed(10 * copy_of_all + k)
                X, y = torch.randn(12, 4, generator=gen), torch.randint(0, 3, (12,), generator=gen)
                optimizer.zero_grad()
                cross_entropy(net(X), y).backward()
                optimizer.step()
            return torch.cat([q.full_tensor().detach().reshape(-1) for q in net.parameters()])

        net, optimizer = made_again(0)
        steps(net, optimizer, 7)
        model_state, state = get_state_dict(net, optimizer)
        place = f"{folder}/dcp-{inner.__name__}-{copy_of_all}"
        dcp.save({"model": model_state, "optimizer": state}, checkpoint_id=place, process_group=inside)
        end = steps(net, optimizer, 5)
        net, optimizer = made_again(1)
        model_state, state = get_state_dict(net, optimizer)
        both = {"model": model_state, "optimizer": state}
        dcp.load(both, checkpoint_id=place, process_group=inside)
        set_state_dict(net, optimizer, model_state_dict=both["model"], optim_state_dict=both["optimizer"])
        assert optimizer.rounds == 2
        assert torch.equal(end, steps(net, optimizer, 5)), inner


class Wrong(Scaffnew):
    """DiLoCo with a mistake."""

    def __init__(self, *given, mistake, **more):
        super().__init__(*given, **more)
        self.mistake = mistake

    def _move(self, mean):
        wrong = {"sign": -mean, "scale": mean * 4, "unequal": mean + 1e-3 * dist.get_rank()}
        super()._move(wrong.get(self.mistake, mean))

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.mistake == "state":
            self.outer.state.clear()


def conformance(rank, n, folder):
    """The test of outer steps passes ours and finds each mistake."""
    from proxskip.torch import check_outer_steps

    def inner(q):
        return ADAMW(q, 0.05)

    def plain(q):
        return SGD(q, 0.7)

    def momentum(q):
        return SGD(q, 0.7, momentum=0.9, nesterov=True)

    mistakes = {
        None: None,
        "sign": "wrong sign",
        "scale": "wrong scale: it is 4 times",
        "unequal": "differ between the ranks",
    }
    for mistake, said in mistakes.items():

        def wrong(q, mistake=mistake):
            return Wrong(inner(q), period=3, control="none", outer=plain(q), mistake=mistake)

        found = check_outer_steps(wrong, inner, plain, 3)
        assert (found == []) if said is None else said in found[0], (mistake, found)
    for mistake, said in ((None, None), ("state", "state_dict lacks something")):

        def forgetful(q, mistake=mistake):
            return Wrong(inner(q), period=3, control="none", outer=momentum(q), mistake=mistake)

        found = check_outer_steps(forgetful, inner, momentum, 3)
        assert (found == []) if said is None else said in found[0], (mistake, found)
    assert check_outer_steps(lambda q: Scaffnew(inner(q), period=3, control="none"), inner, None, 3) == []


def buckets(rank, n, folder):
    """A round in small buckets is the round in one, and keeps no more than its settings need."""
    from proxskip.torch import wire

    H, c = quadratic(rank)
    before, ends = wire.BUCKET, []
    for size in (before, 2):
        wire.BUCKET = size
        for given in ({"control": "gradient", "chi": None}, {"control": "step"}, {"control": "none", "chi": None}):
            point, optimizer = made(period=3, p=None, **given)
            ends.append(descend(point, optimizer, H, c, rounds=4).clone())
            vectors = [len(v) > 0 for v in (optimizer.flat.h, optimizer.flat.c, optimizer.flat.error)]
            assert vectors == [given["control"] != "none", given["control"] == "gradient", False]
            assert optimizer.bytes_sent == 4 * 8 * DIM * (2 if given["control"] == "gradient" else 1)
    wire.BUCKET = before
    for whole, pieces in zip(ends[:3], ends[3:], strict=True):
        assert (whole - pieces).abs().max() <= 1e-12


def rank_data(rank):
    """Rows of a rank, in minibatches of four; and a network that is the same on all ranks."""
    gen = torch.Generator().manual_seed(rank)
    rows = torch.utils.data.TensorDataset(torch.randn(12, 4, generator=gen), torch.randint(0, 3, (12,), generator=gen))
    torch.manual_seed(0)
    return torch.utils.data.DataLoader(rows, batch_size=4), torch.nn.Linear(4, 3)


def plain_training(rank, steps):
    """What the recipes for other trainers have to reach."""
    loader, net = rank_data(rank)
    optimizer = Scaffnew(ADAMW(net.parameters(), 0.01), period=2, control="gradient")
    batches = [batch for _ in range(steps) for batch in loader][:steps]
    for inputs, targets in batches:
        optimizer.zero_grad()
        cross_entropy(net(inputs), targets).backward()
        optimizer.step()
    return net.weight.detach()


def accelerate(rank, n, folder):
    """The recipe for Accelerate takes the same steps."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "ACCELERATE_USE_CPU": "true"}
    from accelerate import Accelerator

    loader, net = rank_data(rank)
    accelerator = Accelerator(cpu=True)
    net.to(accelerator.device)  # neither the network nor the loader is prepared
    optimizer = Scaffnew(ADAMW(net.parameters(), 0.01), period=2, control="gradient")
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(net(inputs), targets))
            optimizer.step()
    assert optimizer.rounds == 3
    assert torch.equal(net.weight, plain_training(rank, 6))


def lightning(rank, n, folder):
    """The recipe for Lightning takes the same steps."""
    import lightning

    class Network(lightning.LightningModule):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def training_step(self, batch, k):
            inputs, targets = batch
            return cross_entropy(self.net(inputs), targets)

        def configure_optimizers(self):
            return Scaffnew(ADAMW(self.net.parameters(), 0.01), period=2, control="gradient")

    loader, net = rank_data(rank)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=2, use_distributed_sampler=False, **quiet)
    module = Network(net)
    trainer.fit(module, loader)
    assert trainer.optimizers[0].rounds == 3
    assert torch.equal(net.weight, plain_training(rank, 6))


def death(rank, n, folder):
    """Rank 1 dies in the middle: the others raise a sentence, and x and h are those of the last communication."""
    H, c = quadratic(rank)
    point, optimizer = made(p=None, period=4)
    descend(point, optimizer, H, c, rounds=3)
    kept = optimizer.flat.x.clone(), optimizer.flat.h.clone()
    if rank == 1:
        os._exit(7)
    said = "a rank died, hangs or left. This round was not committed"
    with pytest.raises(SynchronizationError, match=said):
        descend(point, optimizer, H, c, rounds=4)
    assert torch.equal(kept[0], optimizer.flat.x)
    assert torch.equal(kept[1], optimizer.flat.h)
    assert optimizer.rounds == 3


def main():
    cases, folder, rank, n = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=n,
                            timeout=datetime.timedelta(seconds=300))  # fmt: skip
    for case in cases:
        try:
            said = globals()[case](rank, n, folder)
        except Exception:
            said = traceback.format_exc()
        Path(folder, f"{case}.{rank}.json").write_text(json.dumps(said))
    if "death" in cases:
        os._exit(0)  # the group is broken, and leaving it properly would wait for the dead
    dist.destroy_process_group()


def on_ranks(cases, folder, n=RANKS):
    """Run cases of this module on n processes; what each rank found, by case."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, __file__, ",".join(cases), str(folder), str(r), str(n)], env=env)
        for r in range(n)
    ]
    try:
        codes = [rank.wait(600) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    found = {c: [json.loads(f.read_text()) for f in sorted(folder.glob(f"{c}.*.json"))] for c in cases}
    return found, codes


if __name__ == "__main__":
    main()
