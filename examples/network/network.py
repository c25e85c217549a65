"""A small network on digits, Dirichlet(0.1) clients: Scaffnew against FedAvg at equal communication.

    python examples/network/network.py [--rounds 60] [--seeds 2] [--out examples/network]

Ten clients hold very different mixtures of the ten digits. Both methods send one vector each way a round and take the
same local minibatch steps on average; FedAvg is LocalGD. Every message goes through the protocol that the Flower app
uses, here in one process.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import proxskip as ps
from proxskip.protocol import Arrived, Begin, Client, ClientState, Server, Worker
from proxskip.protocol.wire import encode
from proxskip.torch import Model

CLIENTS, BATCH, K, L2 = 10, 16, 20, 1e-3


def two_layers(seed: int) -> torch.nn.Module:
    """64 -> 32 -> 10."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))


def parts(labels: np.ndarray, alpha: float, seed: int) -> list[np.ndarray]:
    """Rows of each client: each digit dealt in proportions from Dirichlet(alpha), nobody below a batch."""
    rng = np.random.default_rng(seed)
    while True:
        out: list[list[int]] = [[] for _ in range(CLIENTS)]
        for digit in range(10):
            rows = rng.permutation(np.flatnonzero(labels == digit))
            cuts = (np.cumsum(rng.dirichlet([alpha] * CLIENTS))[:-1] * len(rows)).astype(int)
            for mine, piece in zip(out, np.split(rows, cuts), strict=True):
                mine.extend(piece.tolist())
        if min(map(len, out)) >= BATCH:
            return [np.array(mine) for mine in out]


def accuracy(network: Model, x: np.ndarray, inputs: Any, targets: Any) -> float:
    with torch.no_grad():
        return float((network.module_at(x)(inputs).argmax(dim=1) == targets).float().mean())


def train(method: Any, seed: int, rounds: int) -> dict[str, list[float]]:
    """Test accuracy and training loss after every round."""
    A, b = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(b))
    A, b = A[order] / 16.0, b[order]
    inputs, targets = torch.tensor(A, dtype=torch.float32), torch.tensor(b)
    train_rows, test = np.arange(1437), slice(1437, None)
    nets = [
        Model(two_layers(seed), torch.nn.functional.cross_entropy, inputs[rows], targets[rows], l2=L2)
        for rows in (train_rows[p] for p in parts(b[:1437], 0.1, seed))
    ]
    problem = ps.Problem(nets, np.array([float(f.N) for f in nets]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        server = Server(method, problem, rounds, seed=seed, audit=50, insist=True)
    clients = [Client(server.method, Worker(f, i, seed, BATCH)) for i, f in enumerate(nets)]
    run = bytes(16)
    state, memories = server.start(run, nets[0].start()), [ClientState.fresh(run) for _ in clients]
    trace: dict[str, list[float]] = {"accuracy": [], "loss": []}
    state, asks = server.step(state, Begin())
    while asks:
        before, batch, asks = state.round, asks, []
        for ask in batch:
            memories[ask.client], answers = clients[ask.client].step(memories[ask.client], encode(ask))
            for raw in answers:
                state, more = server.step(state, Arrived(raw, ask.client))
                asks += more
        if state.round > before:
            x = state.vectors["x"]
            trace["accuracy"].append(accuracy(nets[0], x, inputs[test], targets[test]))
            trace["loss"].append(float(sum(w * f.value(x) for w, f in zip(problem.weights, nets, strict=True))))
    assert not state.failed, state.failed
    trace["sum_h"] = [state.sum_h]
    return trace


def main() -> None:
    """Train, draw, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--gamma", type=float, default=0.1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    given = parser.parse_args()
    torch.set_num_threads(1)
    methods = {"Scaffnew": ps.Scaffnew(given.gamma, 1 / K), "FedAvg": ps.LocalGD(given.gamma, K)}
    runs = {name: [train(m, seed, given.rounds) for seed in range(given.seeds)] for name, m in methods.items()}

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axis, what, label in ((axes[0], "accuracy", "test accuracy"), (axes[1], "loss", "training loss")):
        for name, method in methods.items():
            look = method.about.style
            curves = np.array([r[what] for r in runs[name]])
            middle = np.median(curves, axis=0)
            at = np.arange(1, len(middle) + 1)
            axis.plot(at, middle, look.dashes, color=look.color, marker=look.marker, markevery=0.12, label=name)
            axis.fill_between(at, curves.min(axis=0), curves.max(axis=0), color=look.color, alpha=0.2)
        axis.set_xlabel("rounds (one vector each way)")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[1].set_yscale("log")
    axes[0].legend()
    figure.suptitle(f"Digits, ten clients, Dirichlet(0.1), 64-32-10 network, {given.seeds} seeds")
    figure.savefig(given.out / "network.png", dpi=130)
    found = {
        name: {
            "final accuracy": [round(r["accuracy"][-1], 4) for r in rs],
            "final loss": [round(r["loss"][-1], 5) for r in rs],
        }
        for name, rs in runs.items()
    }
    (given.out / "network.json").write_text(
        json.dumps({"rounds": given.rounds, "gamma": given.gamma, **found}, indent=2) + "\n"
    )
    for name, values in found.items():
        print(f"{name:9} accuracy {values['final accuracy']}  loss {values['final loss']}")


if __name__ == "__main__":
    main()
