"""NIID-Bench's setting (Li, Diao, Chen, He, ICDE 2022): MNIST on 10 clients, from iid to one label each.

    python benchmarks/niid.py                 the table of docs/torch.md; some 20 minutes on an H200
    python benchmarks/niid.py --part short    a part of it: published, long or short
    python benchmarks/niid.py --quick         digits in place of MNIST, two minutes on two cores
    python benchmarks/niid.py --speed         steps per second of ``proxskip.torch.train`` on this device
    python benchmarks/niid.py --jax           a round on one core of a CPU against JAX, which must be installed

A CNN with 6 and 16 channels of 5 x 5 and layers of 120 and 84, batch 64, 50 rounds, SGD 0.01 with momentum 0.9. Every
client takes as many local steps as 10 epochs (or 1) of 6,000 rows have, and all clients weigh the same. MNIST is read by
``mnist.py`` beside this file. Finished runs are kept in ``--out``, so that a second call goes on.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from mnist import mnist
from torch import Tensor, nn

from proxskip.problems.federated import Problem
from proxskip.torch import Model, split, train
from proxskip.torch.settings import Settings
from proxskip.torch.trainer import Training

CLIENTS = 10
SPLITS = {
    "iid": "iid", "dirichlet-0.5": "Dirichlet, alpha = 0.5", "labels-3": "three labels", "labels-2": "two labels",
    "labels-1": "one label",
}  # fmt: skip
PUBLISHED = {
    "FedAvg": {"iid": 99.09, "dirichlet-0.5": 98.89, "labels-3": 97.86, "labels-2": 96.86, "labels-1": 19.33},
    "SCAFFOLD": {"iid": 99.06, "dirichlet-0.5": 99.07, "labels-3": 97.91, "labels-2": 96.92, "labels-1": 9.93},
    "FedProx": {"iid": 99.16, "dirichlet-0.5": 99.02, "labels-3": 97.85, "labels-2": 96.85, "labels-1": 51.79},
    "FedNova": {"iid": 99.05, "dirichlet-0.5": 98.03, "labels-3": 97.62, "labels-2": 96.65, "labels-1": 52.58},
}
"""Flower's reproduction of NIID-Bench (baselines/niid_bench): the mean of three seeds, each at its best round."""
SGD, MOMENTUM = partial(torch.optim.SGD, lr=0.1), partial(torch.optim.SGD, lr=0.01, momentum=0.9)
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"optimizer": MOMENTUM, "control": "none"},
    "FedProx": {"optimizer": MOMENTUM, "control": "none", "state": "reset", "pull": 0.01},
    "SCAFFOLD": {"optimizer": MOMENTUM, "control": "step", "correct": "after", "state": "reset", "chi": 1.0},
    "FedAvg + h": {"optimizer": MOMENTUM, "control": "gradient", "chi": 1.0},
    "SCAFFOLD, plain steps": {"optimizer": SGD, "control": "step", "chi": 1.0},
    "Scaffnew": {"optimizer": SGD, "control": "step", "chi": 1.0, "drawn": True},
    "AdamW": {"optimizer": partial(torch.optim.AdamW, lr=1e-3), "control": "none"},
    "AdamW + h": {"optimizer": partial(torch.optim.AdamW, lr=1e-3), "control": "gradient", "chi": 1.0},
}
"""SCAFFOLD as NIID-Bench practises it; the one with plain steps of 0.1 = 0.01/(1 - 0.9) is Scaffnew with a fixed K."""


class Cell(NamedTuple):
    """One training."""

    method: str
    split: str
    steps: int
    seed: int
    rounds: int
    quick: bool

    @property
    def file(self) -> str:
        return "-".join(str(v).replace(" + ", "+") for v in self) + ".json"


def cells(part: str, quick: bool, seeds: int) -> list[Cell]:
    """The trainings of a part."""
    if quick:
        methods = [("FedAvg", "iid"), ("FedAvg", "labels-2"), ("AdamW", "labels-2"), ("AdamW + h", "labels-2")]
        return [Cell(method, how, 10, 0, 40, True) for method, how in methods]
    parts = {
        "published": [(m, how, 937) for m in METHODS if m in PUBLISHED for how in SPLITS],
        "long": [(m, how, 937) for m in METHODS if m not in PUBLISHED for how in ("labels-2", "labels-1")],
        "short": [(m, how, K) for m in METHODS for K in (20, 94) for how in ("labels-2", "labels-1")],
    }
    chosen = [cell for name in ([part] if part else parts) for cell in parts[name]]
    # the first seed of everything before the second
    return [Cell(m, how, K, seed, 50, False) for seed in range(seeds) for m, how, K in chosen]


# -- data and network --------------------------------------------------------------------------------------------------
def data(quick: bool) -> list[Tensor]:
    """Inputs and labels for training and test; pixels from 0 to 1."""
    if quick:
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        X, y, cut = (X[order].reshape(-1, 1, 8, 8) - 5) / 6, y[order], 1440
        arrays = X[:cut], y[:cut], X[cut:], y[cut:]
    else:
        X, y, X_test, y_test = mnist()
        arrays = X[:, None] / np.float32(255), y, X_test[:, None] / np.float32(255), y_test
    return [torch.tensor(v, dtype=torch.float32 if v.ndim > 1 else torch.int64) for v in arrays]


def lenet(quick: bool, seed: int) -> nn.Module:
    """NIID-Bench's CNN; on the digits with kernels of 3 x 3."""
    size, flat = (3, 16 * 2 * 2) if quick else (5, 16 * 4 * 4)
    pad = 1 if quick else 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 6, size, padding=pad), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, size, padding=pad), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip


def clients_of(X: Tensor, y: Tensor, how: str, seed: int) -> list[tuple[Tensor, Tensor]]:
    """NIID-Bench's partitions: "iid", "dirichlet-A", or "labels-k", in which client i has label i and k - 1 others."""
    name, _, number = how.partition("-")
    if name != "labels":
        return split(X, y, CLIENTS, name, alpha=float(number or 1), seed=seed)
    rng = np.random.default_rng(seed)
    kinds = 10
    mine = [
        [i % kinds, *rng.permutation([k for k in range(kinds) if k != i % kinds])[: int(number) - 1]]
        for i in range(CLIENTS)
    ]
    rows: list[list[Any]] = [[] for _ in range(CLIENTS)]
    for k in range(kinds):
        owners = [i for i in range(CLIENTS) if k in mine[i]]
        for i, part in zip(
            owners, np.array_split(rng.permutation(np.flatnonzero(y.numpy() == k)), len(owners)), strict=True
        ):
            rows[i].extend(part)
    return [(X[some], y[some]) for some in map(torch.tensor, map(np.array, rows))]


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).float().mean()


# -- runs --------------------------------------------------------------------------------------------------------------
def run(cell: Cell) -> dict[str, Any]:
    """Train, and say how accurate it was."""
    X, y, X_test, y_test = data(cell.quick)
    words = dict(METHODS[cell.method])
    period = {"p": 1 / cell.steps} if words.pop("drawn", False) else {"period": cell.steps}
    torch.set_num_threads(1)
    began = time.perf_counter()
    result = train(
        lenet(cell.quick, cell.seed), nn.functional.cross_entropy, clients_of(X, y, cell.split, cell.seed), **words, **period,
        batch=32 if cell.quick else 64, rounds=cell.rounds, every=max(1, cell.rounds // 10), seed=cell.seed,
        test=(X_test, y_test), metrics={"accuracy": accuracy}, progress=False,
    )  # fmt: skip
    values = result.trace["accuracy"]
    return {
        **cell._asdict(), "accuracy": 100 * float(values[-1]), "best": 100 * float(np.nanmax(values)),
        "status": result.status.name, "seconds": time.perf_counter() - began,
        "ms_a_step": 1e3 * float(result.trace["seconds"][-1]) / max(1.0, float(result.trace["local_steps"][-1])),
    }  # fmt: skip


def kept(work: tuple[Path, Cell]) -> dict[str, Any]:
    """The result of a cell, from its file if it has one."""
    folder, cell = work
    path = folder / cell.file
    if path.is_file():
        known: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return known
    result = run(cell)
    path.with_suffix(".part").write_text(json.dumps(result), "utf-8")
    path.with_suffix(".part").replace(path)
    return result


def everything(todo: list[Cell], out: Path, jobs: int) -> Iterator[dict[str, Any]]:
    """The results as they come."""
    out.mkdir(parents=True, exist_ok=True)
    work = [(out, cell) for cell in todo]
    if jobs == 1:
        yield from map(kept, work)
        return
    yield from Parallel(jobs, return_as="generator_unordered")(delayed(kept)(one) for one in work)


def table(results: list[dict[str, Any]]) -> list[str]:
    """Rows of a Markdown table: last and best accuracy, the mean of the seeds, each of them, and the published best."""
    lines = ["| split | local steps | method | last | seeds | best | published best |", "|---|---|---|---|---|---|---|"]
    for how, K, method in product(SPLITS, sorted({r["steps"] for r in results}, reverse=True), METHODS):
        runs = [r for r in results if (r["split"], r["steps"], r["method"]) == (how, K, method)]
        if not runs:
            continue
        values = [r["accuracy"] for r in sorted(runs, key=lambda r: r["seed"])]
        best = np.mean([r["best"] for r in runs])
        published = PUBLISHED.get(method, {}).get(how, "") if K == 937 else ""
        diverged = sum(r["status"] == "DIVERGED" for r in runs)
        seeds = ", ".join(f"{v:.1f}" for v in values) if len(values) > 1 else "one seed"
        seeds += f"; {diverged} diverged" if diverged else ""
        lines.append(f"| {SPLITS[how]} | {K} | {method} | {np.mean(values):.1f} | {seeds} | {best:.1f} | {published} |")
    return lines


# -- speed -------------------------------------------------------------------------------------------------------------
def speed() -> None:
    """An MLP with 100 clients against a loop over them, and the CNN with 10 clients."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    draw = torch.Generator().manual_seed(0)
    n, rows, b, K = 100, 200, 16, 20
    clients = [(torch.randn(rows, 64, generator=draw), torch.randint(0, 10, (rows,), generator=draw)) for _ in range(n)]
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    adamw, rounds = partial(torch.optim.AdamW, lr=1e-3), 20
    result = train(
        module,
        nn.functional.cross_entropy,
        clients,
        adamw,
        period=K,
        batch=b,
        rounds=rounds,
        every=rounds // 2,
        progress=False,
    )
    seconds = result.trace["seconds"]
    mine = (seconds[2] - seconds[1]) / (rounds / 2 * K)
    copies = [copy.deepcopy(module).to(device) for _ in range(n)]
    optimizers = [adamw(m.parameters()) for m in copies]
    moved = [(X.to(device), y.to(device)) for X, y in clients]
    for count in (1, 3):  # the first step warms up
        began = time.perf_counter()
        for _ in range(count):
            for m, optimizer, (X, y) in zip(copies, optimizers, moved, strict=True):
                picks = torch.randint(0, rows, (b,), device=device)
                optimizer.zero_grad()
                nn.functional.cross_entropy(m(X[picks]), y[picks]).backward()
                optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        loop = (time.perf_counter() - began) / count
    print(
        f"MLP 64-64-10, {n} clients, AdamW, batch {b}: {1e3 * mine:.3f} ms a step, a loop over clients {1e3 * loop:.1f} ms, {loop / mine:.0f} times"
    )
    X, y = torch.rand(10 * 600, 1, 28, 28, generator=draw), torch.randint(0, 10, (6000,), generator=draw)
    for title, make in (("momentum", MOMENTUM), ("AdamW", adamw)):
        result = train(
            lenet(False, 0), nn.functional.cross_entropy, split(X, y, CLIENTS, "iid"), make, period=200, batch=64, rounds=4,
            every=2, progress=False,
        )  # fmt: skip
        seconds = result.trace["seconds"]
        print(f"LeNet, 10 clients, {title}, batch 64, h: {1e3 * (seconds[2] - seconds[1]) / 400:.3f} ms a step")


def against_jax(n: int = 100, rows: int = 200, b: int = 16, K: int = 5, lr: float = 0.05) -> None:
    """A round of Scaffnew with an MLP 64-64-10 against a vmapped JAX program: CPU time of one core, in turns."""
    import jax
    import jax.numpy as jnp

    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    X, y = torch.randn(n, rows, 64, generator=draw), torch.randint(0, 10, (n, rows), generator=draw)
    inputs, targets = jnp.array(X.numpy()), jnp.array(y.numpy())
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def loss(w: Any, x: Any, y: Any) -> Any:
        logits = jax.nn.relu(x @ w[0] + w[1]) @ w[2] + w[3]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    def local(w: Any, h: Any, x: Any, y: Any, key: Any) -> Any:
        def step(w: Any, key: Any) -> Any:
            picks = jax.random.randint(key, (b,), 0, rows)
            return jax.tree.map(lambda w, g, h: w - lr * (g - h), w, jax.grad(loss)(w, x[picks], y[picks]), h), None

        return jax.lax.scan(step, w, jax.random.split(key, K))[0]

    @jax.jit
    def a_round(w: Any, h: Any, key: Any) -> Any:
        ends = jax.vmap(local, in_axes=(None, 0, 0, 0, 0))(w, h, inputs, targets, jax.random.split(key, n))
        means = jax.tree.map(lambda v: v.mean(0), ends)
        return means, jax.tree.map(lambda h, m, v: h + (m - v) / (K * lr), h, means, ends)

    cpu, clients = torch.device("cpu"), list(zip(X, y, strict=True))
    problem = Problem([Model(module, nn.functional.cross_entropy, X, y) for X, y in clients])
    settings = Settings(period=K, control="step", chi=1.0, batch=b)
    ours = Training(problem, partial(torch.optim.SGD, lr=lr), settings, None, None, cpu, None, None)
    w = [jnp.array(q.detach().numpy().T) for q in module.parameters()]
    state, pairs = (w, [jnp.zeros((n, *v.shape)) for v in w]), []
    for turn in range(16):
        times = [time.process_time()]
        for _ in range(5):
            ours.go_round(np.arange(n))
        times.append(time.process_time())
        for k in range(5):
            state = jax.block_until_ready(a_round(*state, jax.random.key(5 * turn + k)))
        times.append(time.process_time())
        pairs.append(np.diff(times) / 5)
    # the first turn compiles
    ratio, (mine, theirs) = np.median([a / b for a, b in pairs[1:]]), 1e3 * np.median(pairs[1:], axis=0)
    print(
        f"MLP 64-64-10, {n} clients, {K} steps, batch {b}: {mine:.1f} ms a round, JAX {theirs:.1f} ms, ratio {ratio:.2f}"
    )


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("published", "long", "short"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--jax", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the device")
    parser.add_argument("--out", type=Path, default=Path("niid"))
    o = parser.parse_args(arguments)
    if o.speed or o.jax:
        speed() if o.speed else against_jax()
        return []
    results = []
    for r in everything(cells(o.part or "", o.quick, o.seeds), o.out, o.jobs):
        results.append(r)
        print(
            f"{r['split']:14} {r['steps']:4} steps  {r['method']:10} seed {r['seed']}: {r['accuracy']:.1f} % (best {r['best']:.1f}, {r['status']}), "
            f"{r['seconds']:.0f} s, {r['ms_a_step']:.2f} ms a step",
            flush=True,
        )
    print("\n".join(table(results)))
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
