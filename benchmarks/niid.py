"""NIID-Bench's setting (Li, Diao, Chen, He, ICDE 2022): MNIST on 10 clients, from iid to one label each.

    python benchmarks/niid.py --part published   four methods on five splits, 10 epochs, against the published table
    python benchmarks/niid.py --part damping     chi against the number of local steps
    python benchmarks/niid.py --part short       more methods with 20 and 94 local steps
    python benchmarks/niid.py --part long        those that win at 94 steps, or tie, with 937
    python benchmarks/niid.py --split labels-1 --method FedAvg --steps 20    of all parts, these alone
    python benchmarks/niid.py --quick            digits in place of MNIST, two minutes on two cores
    python benchmarks/niid.py --speed            steps per second of ``proxskip.torch.train`` on this device
    python benchmarks/niid.py --jax              a round on one core of a CPU against JAX, which must be installed
    python benchmarks/niid.py --readme           the network of the README with every method tuned, ten minutes

A CNN with 6 and 16 channels of 5 x 5 and layers of 120 and 84, batch 64, 50 rounds, SGD 0.01 with momentum 0.9 and decay
1e-5, standardized pixels, clients weighed by rows. The three seeds are one training in which each has an x of its own.
MNIST is read by ``mnist.py`` beside this file. Finished cells are lines of ``niid.jsonl`` beside this file (or of
``--out``), so that a second call goes on and figures of the pages can be read there; ``--minutes`` begins no cell after
that time, and what was not run is listed.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mnist import mnist
from torch import Tensor, nn

from proxskip.engines.torch.engine import TorchEngine
from proxskip.problems.federated import Problem
from proxskip.torch import Model, recipe, split, train
from proxskip.torch.settings import Settings
from proxskip.torch.trainer import Training

CLIENTS = 10
SPLITS = {
    "iid": "iid", "dirichlet-0.5": "Dirichlet, alpha = 0.5", "labels-3": "three labels", "labels-2": "two labels",
    "labels-1": "one label",
}  # fmt: skip
PUBLISHED = {
    "FedAvg": {"iid": (99.09, 0.05), "dirichlet-0.5": (98.89, 0.07), "labels-3": (97.86, 0.34),
               "labels-2": (96.86, 0.30), "labels-1": (19.33, 11.82)},
    "SCAFFOLD": {"iid": (99.06, 0), "dirichlet-0.5": (99.07, 0), "labels-3": (97.91, 0), "labels-2": (96.92, 0.52),
                 "labels-1": (9.93, 0)},
    "FedProx": {"iid": (99.16, 0), "dirichlet-0.5": (99.02, 0), "labels-3": (97.85, 0), "labels-2": (96.85, 0),
                "labels-1": (51.79, 26.75)},
    "FedNova": {"iid": (99.05, 0), "dirichlet-0.5": (98.03, 0), "labels-3": (97.62, 0), "labels-2": (96.65, 0),
                "labels-1": (52.58, 14.08)},
}  # fmt: skip
"""Flower's reproduction of NIID-Bench (baselines/niid_bench): mean and deviation of three seeds, each at its best round;
0 where the deviation is not quoted."""
CHANCE = 15.0
"""Below this accuracy a method has learned nothing, and a cell in which both have is not judged."""
SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=1e-5)
ADAMW = partial(torch.optim.AdamW, lr=1e-3)
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"optimizer": SGD, "control": "none", "state": "reset"},
    "SCAFFOLD": {"optimizer": SGD, "control": "step", "correct": "after", "state": "reset", "chi": 1.0},
    "FedProx": {"optimizer": SGD, "control": "none", "state": "reset", "pull": 0.01},
    "FedNova": {"optimizer": SGD, "control": "none", "state": "reset", "normalize": True},
    "SCAFFOLD, damped": {"optimizer": SGD, "control": "step", "correct": "after", "state": "reset"},
    "momentum + h": {"optimizer": SGD, "control": "gradient", "state": "reset"},
    "AdamW": {"optimizer": ADAMW, "control": "none", "state": "kept"},
    "AdamW, shared": {"optimizer": ADAMW, "control": "none", "state": "shared"},
    "AdamW, shared squares": {
        "optimizer": ADAMW, "control": "none", "state": {"exp_avg": "reset", "exp_avg_sq": "shared"},
    },
    "AdamW + h": {"optimizer": ADAMW, "control": "gradient", "state": "kept"},
}  # fmt: skip
CHIS = (1.0, 0.3, 0.1, 0.03, 0.01)
Results = list[dict[str, Any]]
KEPT = Path(__file__).with_name("niid.jsonl")


class Cell(NamedTuple):
    """One training of all seeds; ``steps`` is 0 for ten epochs of each client's own rows, and ``chi`` None for the default."""

    method: str
    split: str
    steps: int
    chi: float | None = None
    rounds: int = 50
    quick: bool = False


def cells(part: str, quick: bool, known: Results) -> list[Cell]:
    """The trainings of a part, or of all if it is empty, the most telling first; "long" follows from ``known``."""
    if quick:
        methods = [("FedAvg", "iid"), ("FedAvg", "labels-2"), ("AdamW", "labels-2"), ("AdamW + h", "labels-2")]
        return [Cell(method, how, 10, None, 40, True) for method, how in methods]
    splits = ("labels-2", "labels-1", "labels-3", "dirichlet-0.5", "iid")
    parts = {
        "published": [Cell(m, how, 0) for how in splits for m in PUBLISHED],
        "damping": [
            Cell(m, how, K, chi)
            for how in splits[:2]
            for K in (20, 94)
            for m in ("momentum + h", "SCAFFOLD, damped", "AdamW + h")
            for chi in (None, *CHIS)
        ],
        "short": [
            Cell(m, how, K) for K in (94, 20) for how in splits for m in METHODS if m not in ("SCAFFOLD", "FedNova")
        ],
        "long": [Cell(r["method"], how, 937) for how in splits for r in best_of(known, how, 94)],
    }  # fmt: skip
    return [cell for name in ([part] if part else parts) for cell in parts[name]]


# -- data and network --------------------------------------------------------------------------------------------------
@cache
def data(quick: bool) -> list[Tensor]:
    """Inputs and labels for training and test, standardized."""
    if quick:
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        X, y, cut = (X[order].reshape(-1, 1, 8, 8) - 5) / 6, y[order], 1440
        arrays = X[:cut], y[:cut], X[cut:], y[cut:]
    else:
        X, y, X_test, y_test = mnist()
        X, X_test = ((v[:, None] / np.float32(255) - np.float32(0.1307)) / np.float32(0.3081) for v in (X, X_test))
        arrays = X, y, X_test, y_test
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
    if name == "labels":
        # with two labels a draw may leave none out, since client i always has label i
        return split(X, y, CLIENTS, "labels", labels=int(number), seed=seed)
    return split(X, y, CLIENTS, name, alpha=float(number or 1), minimum=10, seed=seed)


# -- runs --------------------------------------------------------------------------------------------------------------
class Seeds(Training):
    """Trainings with several seeds as one: CLIENTS rows of each, side by side, with an x for each seed."""

    def _spread(self, v: Tensor) -> Tensor:
        return v if len(v) == 1 else v.repeat_interleave(CLIENTS, 0)

    def _mean(self, v: Tensor) -> Tensor:
        weights = self.weights.view(-1, CLIENTS, 1)
        return (v.view(-1, CLIENTS, v.shape[1]) * (weights / weights.sum(1, keepdim=True)).to(v)).sum(1)

    def _is_finite(self, means: list[Tensor]) -> bool:
        return True  # a seed that diverges leaves the others alone

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def accuracies(self, X: Tensor, y: Tensor) -> list[float]:
        """Of each seed on these rows, in percent."""
        found = []
        for x in self.x:
            tensors = self.family.tensors(self.family.views(x), ())
            outputs = torch.func.functional_call(self.family.module, tensors, (X,))
            right = (outputs.argmax(-1) == y) & outputs.isfinite().all(-1)
            found.append(100 * float(right.float().mean()))
        return found


def run(cell: Cell, seeds: int, device: torch.device) -> dict[str, Any]:
    """Train all seeds, and say how accurate they were after each round."""
    X, y, X_test, y_test = data(cell.quick)
    # the recipes of the other parts are compared on rows that no client has
    held = 0 if cell.steps == 0 or cell.quick else 5000
    X_held, y_held = X[len(X) - held :].to(device), y[len(y) - held :].to(device)
    X, y, X_test, y_test = X[: len(X) - held], y[: len(y) - held], X_test.to(device), y_test.to(device)
    words = dict(METHODS[cell.method])
    optimizer, batch = words.pop("optimizer"), 32 if cell.quick else 64
    if cell.chi is not None:
        words["chi"] = cell.chi
    words |= {"epochs": 10.0} if cell.steps == 0 else {"period": cell.steps}
    began = time.perf_counter()
    nets = [lenet(cell.quick, seed).to(device) for seed in range(seeds)]
    parts = [part for seed in range(seeds) for part in clients_of(X, y, cell.split, seed)]
    models = [Model(nets[0], nn.functional.cross_entropy, a.to(device), b.to(device)) for a, b in parts]
    problem = Problem(models, np.array([f.N for f in models], dtype=np.float64))
    settings = Settings(batch=batch, weights="rows", **words)
    training = Seeds(problem, optimizer, settings, None, None, device, None, None)
    starts = [torch.nn.utils.parameters_to_vector(net.parameters()).detach() for net in nets]
    training.x = torch.stack(starts).to(training.x.dtype)
    test, kept = [training.accuracies(X_test, y_test)], []
    everybody, trained = np.arange(problem.n), 0.0
    for _ in range(cell.rounds):
        start = time.perf_counter()
        training.go_round(everybody)
        test.append(training.accuracies(X_test, y_test))
        trained += time.perf_counter() - start
        if held:
            kept.append(training.accuracies(X_held, y_held))
    finite = [bool(torch.isfinite(x).all()) for x in training.x]
    return {
        **cell._asdict(), "test": np.round(test, 2).tolist(), "held": np.round(kept, 2).tolist(),
        "finite": finite, "seconds": time.perf_counter() - began,
        "ms_a_step": 1e3 * trained / (cell.rounds * float(training.steps_of(everybody).max())),
    }  # fmt: skip


def read(out: Path) -> Results:
    """The results that are kept."""
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()] if out.is_file() else []


def everything(todo: list[Cell], out: Path, seeds: int, minutes: float) -> Iterator[dict[str, Any]]:
    """The results as they come, those that ``out`` holds first."""
    device, began, known = TorchEngine().device, time.monotonic(), read(out)
    for cell in todo:
        found = [r for r in known if all(r[name] == v for name, v in cell._asdict().items())]
        if found:
            yield found[0]
        elif time.monotonic() - began < 60 * minutes:
            result = run(cell, seeds, device)
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            yield result


def length_of(steps: int) -> str:
    """How long a round is, in words."""
    return f"{steps} steps" if steps else "10 epochs"


def published_part(results: Results) -> str:
    """The published part as its page shows it: a table and what is missing of it."""
    todo = cells("published", False, results)
    missing = [f"- {line}" for line in not_run(todo, results)]
    return "\n".join([*table([r for r in results if r["steps"] == 0]), *([""] if missing else []), *missing])


def line_of(r: dict[str, Any]) -> str:
    """A row of a Markdown table: the last and the best accuracy of each seed, and how the published one is met."""
    test = np.array(r["test"])
    last, best = test[-1], test.max(0)
    published, deviation = PUBLISHED.get(r["method"], {}).get(r["split"], (None, 0)) if r["steps"] == 0 else (None, 0)
    verdict = ""
    if published is not None:
        held = best.mean() >= published - max(1.0, deviation)
        verdict = "met" if held else f"{published - best.mean():.2f} lower"
        if max(best.mean(), published) < CHANCE:
            verdict = "both at chance"
    steps = "10 epochs" if r["steps"] == 0 else r["steps"]
    words = METHODS[r["method"]]
    chi = r["chi"] or words.get("chi", "" if words["control"] == "none" else "default")
    shown = "" if published is None else f"{published:.2f}" + (f" ± {deviation:.2f}" if deviation else "")
    return (
        f"| {SPLITS[r['split']]} | {steps} | {r['method']} | {chi} | {best.mean():.2f} ± {best.std():.2f} "
        f"| {', '.join(f'{v:.1f}' for v in best)} | {', '.join(f'{v:.1f}' for v in last)} | {shown} | {verdict} |"
    )


def table(results: Results) -> list[str]:
    """Rows of a Markdown table."""
    lines = [
        "| split | local steps | method | chi | best round, mean | seeds | last round | published | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for how, K, method in product(SPLITS, sorted({r["steps"] for r in results}), METHODS):
        same = [r for r in results if (r["split"], r["steps"], r["method"]) == (how, K, method)]
        lines += [line_of(r) for r in sorted(same, key=lambda r: -(r["chi"] or 2.0))]
    return lines


def best_of(results: Results, how: str, K: int) -> Results:
    """Who is best with the default chi on the rows that no client has, after the last round, and then who ties."""
    same = [r for r in results if (r["split"], r["steps"], r["chi"]) == (how, K, None) and r["held"]]
    pairs = sorted(((np.array(r["held"])[-1], r) for r in same), key=lambda pair: -float(pair[0].mean()))
    # a tie: the means differ by no more than the larger spread of the seeds
    return [r for v, r in pairs if pairs[0][0].mean() - v.mean() <= max(v.std(), pairs[0][0].std(), 0.2)]


def winners(results: Results) -> list[str]:
    """For each split and number of steps, who is best and who ties."""
    lines = []
    for how, K in sorted({(r["split"], r["steps"]) for r in results}):
        best = best_of(results, how, K)
        if best:
            score, (winner, *others) = np.array(best[0]["test"])[-1], [r["method"] for r in best]
            ties = f"; ties: {', '.join(others)}" if others else ""
            lines.append(f"{SPLITS[how]}, {K} steps: {winner}, {score.mean():.1f} on the test set{ties}")
    return lines


def not_run(todo: list[Cell], results: Results) -> list[str]:
    """The cells without a result."""
    ran = [Cell(*(r[name] for name in Cell._fields)) for r in results]
    missing = [cell for cell in todo if cell not in ran]
    return [f"not run: {cell.method}, {SPLITS[cell.split]}, {length_of(cell.steps)}" for cell in missing]


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
    for title, make in (("momentum", SGD), ("AdamW", adamw)):
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


def tuned_for_the_readme(seeds: int) -> Iterator[str]:
    """The README's network, with AdamW as there and other methods each at the best of a few step sizes.

    The accuracy is that of the last round on the test rows, in the mean over seeds; the best is chosen by it too.
    """
    from sklearn.datasets import load_digits

    X, y = (torch.tensor(v) for v in load_digits(return_X_y=True))
    X, test = (X / 16).float(), torch.arange(len(y)) % 5 == 0
    clients = split(X[~test], y[~test], clients=20, by="label")

    def trained(words: dict[str, Any], seed: int) -> tuple[float, float]:
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        unknowns = sum(v.numel() for v in module.parameters())
        trace = train(
            module, nn.functional.cross_entropy, clients, **words, period=10, batch=20, rounds=60, every=60, seed=seed,
            test=(X[test], y[test]), metrics={"accuracy": lambda out, y: (out.argmax(-1) == y).float().mean()},
        ).trace  # fmt: skip
        return float(trace["accuracy"][-1]), float(trace["floats_up"][-1]) / (20 * 60 * unknowns)

    rates = (0.03, 0.1, 0.3, 1.0)
    nesterov = partial(torch.optim.SGD, momentum=0.9, nesterov=True)
    candidates: dict[str, dict[str, dict[str, Any]]] = {
        "AdamW with h, as in the README": {"3e-3": recipe("adamw+h")},
        "AdamW alone, as in the README": {"3e-3": recipe("adamw+h") | {"control": "none"}},
        "AdamW with h": {f"{lr:g}": recipe("adamw+h", lr=lr) for lr in (1e-3, 3e-3, 1e-2, 2e-2)},
        "DiLoCo with SGD": {
            f"{lr:g}, outer {outer:g}": recipe("fedavg", lr=lr) | {"outer": partial(nesterov, lr=outer)}
            for lr, outer in product(rates, (0.3, 0.7, 1.0))
        },
        "FedAdam": {
            f"{lr:g}, outer {outer:g}": recipe("fedadam", lr=lr, outer_lr=outer)
            for lr, outer in product(rates, (0.03, 0.1, 0.3))
        },
        "FedAvg with momentum": {f"{lr:g}": recipe("fedavg", lr=lr, momentum=0.9) for lr in rates},
    }
    yield "| method | best step size | accuracy | vectors a client sends in a round |\n|---|---|---|---|"
    for name, settings in candidates.items():
        found = {lr: np.mean([trained(words, seed) for seed in range(seeds)], axis=0) for lr, words in settings.items()}
        best = max(found, key=lambda lr: found[lr][0])
        yield f"| {name} | {best} | {found[best][0]:.3f} | {found[best][1]:g} |"


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("published", "damping", "short", "long"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--jax", action="store_true")
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--seeds", type=int, help="3; 1 with --quick")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no cell after this time")
    parser.add_argument("--split", choices=SPLITS)
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--steps", type=int, choices=(0, 20, 94, 937), help="0 for ten epochs")
    parser.add_argument("--out", type=Path, help="niid.jsonl beside this file; with --quick niid-quick.jsonl, here")
    o = parser.parse_args(arguments)
    if o.speed or o.jax:
        speed() if o.speed else against_jax()
        return []
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = False
    else:
        torch.set_num_threads(1)
    if o.readme:
        for line in tuned_for_the_readme(o.seeds or 3):
            print(line, flush=True)
        return []
    out = o.out or (Path("niid-quick.jsonl") if o.quick else KEPT)
    asked = {"split": o.split, "method": o.method, "steps": o.steps}
    results: Results = []
    todo = [
        cell for cell in cells(o.part or "", o.quick, read(out))
        if all(v is None or getattr(cell, name) == v for name, v in asked.items())
    ]  # fmt: skip
    for r in everything(todo, out, o.seeds or (1 if o.quick else 3), o.minutes):
        results.append(r)
        print(line_of(r), f"{r['seconds']:.0f} s, {r['ms_a_step']:.2f} ms a step", flush=True)
    print("\n".join(["", *table(results), *winners(results), *not_run(todo, results)]))
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
