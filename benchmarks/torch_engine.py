"""The torch engine against a loop over clients: python benchmarks/torch_engine.py.

A *step* is one local step of all clients, on minibatches of 20 rows, shifted by h. The loop is the usual one of
simulators: one client after another, each with its own module, gradients by autograd, the update by foreach kernels.
It has its minibatches at hand; the engine draws and gathers them in every step. Both use TF32 on a card.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import proxskip as ps
from proxskip.engines.torch.engine import TorchEngine
from proxskip.participation import Everyone, as_participation
from proxskip.running.metered_exchange import MeteredExchange
from proxskip.torch import Model

BATCH, ROWS, K, GAMMA = 20, 40, 10, 0.01
BARS = {("MLP", 100): 200, ("MLP", 1000): 400, ("CNN", 100): 14}
LOOPED = 10
"""Clients that the loop really runs; its time grows in proportion."""


class Mlp(nn.Module):
    """210 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(784, 200), nn.Linear(200, 200), nn.Linear(200, 62)

    def forward(self, x: Any) -> Any:
        return self.c(F.relu(self.b(F.relu(self.a(x.flatten(-3))))))


class Cnn(nn.Module):
    """The network of LEAF for FEMNIST, with 512 hidden units: 1.7 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.f1, self.f2 = nn.Linear(64 * 49, 512), nn.Linear(512, 62)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.f2(F.relu(self.f1(x.flatten(-3))))


NETWORKS = {"MLP": Mlp, "CNN": Cnn}


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(act: Callable[[], Any], repeats: int, device: str) -> float:
    """The time of one call, after one that does not count; the best of three series."""
    clock = time.perf_counter if device == "cuda" else time.process_time  # a processor may be busy with others' work
    act()
    found = []
    for _ in range(3):
        wait(device)
        began = clock()
        for _ in range(repeats):
            act()
        wait(device)
        found.append((clock() - began) / repeats)
    return min(found)


def problem_of(name: str, n: int, device: str) -> ps.Problem:
    torch.manual_seed(0)
    module = NETWORKS[name]().to(device)
    X = torch.randn(n, ROWS, 1, 28, 28, device=device)
    Y = torch.randint(0, 62, (n, ROWS), device=device)
    return ps.Problem([Model(module, F.cross_entropy, X[i], Y[i]) for i in range(n)]).with_batch(BATCH)


def loop_step(problem: ps.Problem, repeats: int, device: str) -> float:
    """A step of all clients, one after another."""
    few: list[Any] = list(problem.clients[:LOOPED])
    modules = [copy.deepcopy(f.module) for f in few]
    parameters = [list(m.parameters()) for m in modules]
    H = [[torch.zeros_like(p) for p in ps_] for ps_ in parameters]
    batches = [tuple(v[:BATCH].clone() for v in f.rows.values()) for f in few]

    def step() -> None:
        for m, p, h, (x, y) in zip(modules, parameters, H, batches, strict=True):
            g = torch.autograd.grad(F.cross_entropy(m(x), y), p)
            with torch.no_grad():
                torch._foreach_add_(p, torch._foreach_sub(g, h), alpha=-GAMMA)

    return seconds(step, repeats, device) / len(few) * problem.n


def engine_times(problem: ps.Problem, device: str, repeats: int, cohort: Any = None, **how: Any) -> tuple[float, float]:
    """Seconds of K local steps of all clients, and of a whole round of Scaffnew with K steps."""
    engine = TorchEngine(device, **how)
    method = ps.Scaffnew(GAMMA, 1 / K, K=K, chi=None if cohort is None else 0.9)
    x0 = problem.clients[0].start()  # type: ignore[attr-defined]
    engine.open(problem, {k: np.zeros((problem.n, problem.d)) for k in method.remembers}, 0)
    line = MeteredExchange(engine, problem, 0, Everyone() if cohort is None else as_participation(cohort))
    state = {"server": {"x": line.place(x0)}, "round": 0}

    def a_round() -> None:
        line.begin(state["round"])
        state["server"] = method.round(state["server"], line)
        state["round"] += 1

    for _ in range(8 if device == "cuda" else 1):
        a_round()
    whole = seconds(a_round, repeats, device)
    c = problem.n if cohort is None else cohort
    members = np.arange(c)
    Y = torch.zeros((c, problem.d), device=engine.device)
    Y.copy_(state["server"]["x"])
    H = torch.zeros_like(Y)

    def steps() -> None:
        for lo in range(0, c, engine.at_once):
            some = slice(lo, lo + engine.at_once)
            engine.steps.run(Y[some], H[some], GAMMA, K, members[some], 0, 0, None)

    local = seconds(steps, repeats, device)
    engine.close()
    return local, whole


def row_of(name: str, n: int, device: str, repeats: int) -> str:
    problem = problem_of(name, n, device)
    looped = loop_step(problem, repeats, device)
    local, whole = engine_times(problem, device, repeats)
    bar = BARS.get((name, n), "") if device == "cuda" else 1
    return (
        f"| {name} | {n} | {1e3 * looped:.2f} | {1e3 * local / K:.3f} | {looped * K / local:.1f} | {bar} | "
        f"{looped * K / whole:.1f} | {100 * (whole - local) / local:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default="", help="such as MLP:100,CNN:100")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device, card = options.device, options.device == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    sizes = options.sizes or ("MLP:100,MLP:1000,CNN:100" if card else "MLP:20,CNN:8")
    name = torch.cuda.get_device_name() if card else f"processor, {torch.get_num_threads()} thread(s)"
    lines = [
        f"## The torch engine on one {name}", "",
        f"PyTorch {torch.__version__}, {'TF32, ' if card else ''}float32, batch {BATCH}, K = {K} local steps a round. "
        "`benchmarks/torch_engine.py` says what is compared.", "",
        "| network | clients | loop: a step (ms) | engine: a step (ms) | times as fast | bar | with the round's rest | "
        "rest of a round (%) |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    print("\n".join(lines), flush=True)
    repeats = 20 if card else 1
    for size in sizes.split(","):
        kind, n = size.split(":")
        print(row_of(kind, int(n), device, repeats), flush=True)


if __name__ == "__main__":
    main()
