"""Train a small network on label-sorted digits with torchrun, with and without control variates.

    torchrun --standalone --nproc-per-node 4 --max-restarts 3 examples/torchrun/train.py

Every process sees only some of the ten digits and talks to the others once in eight steps, over gloo on this machine.
AdamW with local steps (DiLoCo's inner optimizer) fails on such data, and the control variate mends it. The curves go to
``torchrun.png``. A process that dies (try ``--die 20``) makes the others stop; torchrun starts all of them again, and
they go on from the newest checkpoint that all of them have, bit for bit as if nothing had happened.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from proxskip.support.palette import CYCLE
from proxskip.torch import Scaffnew, init_process_group

RUNS = {"AdamW + h (Scaffnew)": "gradient", "AdamW alone (local steps)": "none"}


def data(rank: int, n: int) -> tuple[torch.Tensor, ...]:
    """This rank's digits, sorted by label before they were dealt out; and a test set of all labels."""
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16.0, dtype=torch.float32), torch.tensor(y)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    train = train[torch.argsort(y[train], stable=True)]
    mine = train.tensor_split(n)[rank]
    return X[mine], y[mine], X[test], y[test]


def network() -> torch.nn.Module:
    """The same start on every rank."""
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(64, 32),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 32),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 10),
    ]
    return torch.nn.Sequential(*layers)


def newest_of_all(generations: list[Path]) -> dict[str, Any] | None:
    """This rank's checkpoint of the newest round that all ranks have saved; None if there is no such round.

    A rank may die after an average that another one has saved already. No rank is further ahead than that, since the
    next average needs all of them, and so two generations are enough.
    """
    found = [torch.load(path, weights_only=True) for path in generations if path.exists()]
    by_round = {len(saved["accuracy"]): saved for saved in found}
    newest = torch.tensor(max(by_round, default=0))
    dist.all_reduce(newest, op=dist.ReduceOp.MIN)
    return by_round.get(int(newest))


def train(name: str, rank: int, n: int, given: argparse.Namespace) -> list[float]:
    """The test accuracy after every communication."""
    X, y, X_test, y_test = data(rank, n)
    model = network()
    optimizer = Scaffnew(torch.optim.AdamW(model.parameters(), lr=0.01), period=8, control=RUNS[name])
    accuracy: list[float] = []
    generations = [given.out / f"{RUNS[name]}.{rank}.{k}.pt" for k in range(2)]
    saved = newest_of_all(generations)
    if saved is not None:  # torchrun has started us again
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        accuracy = saved["accuracy"]
    while optimizer.rounds < given.rounds:
        for k in range(8):  # local steps; the last one communicates
            batch = torch.Generator().manual_seed(10_000 * rank + 8 * optimizer.rounds + k)
            rows = torch.randint(len(y), (32,), generator=batch)
            optimizer.zero_grad()
            cross_entropy(model(X[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            accuracy.append(float((model(X_test).argmax(1) == y_test).float().mean()))
        if given.die == optimizer.rounds and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os._exit(1)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "accuracy": accuracy}
        checkpoint = generations[optimizer.rounds % 2]
        torch.save(state, checkpoint.with_suffix(".new"))
        os.replace(checkpoint.with_suffix(".new"), checkpoint)
    if rank == 0:
        print(f"{name:28} test accuracy {accuracy[-1]:.3f} after {len(accuracy)} rounds, "
              f"{optimizer.bytes_sent / 1e6:.1f} MB sent by each process", flush=True)  # fmt: skip
    return accuracy


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """Accuracy against communications."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for (name, curve), (color, dashes, marker) in zip(curves.items(), (CYCLE[0], CYCLE[4]), strict=True):
        axes.plot(range(1, len(curve) + 1), curve, dashes, color=color, marker=marker, markevery=6, lw=2, label=name)
    axes.set(xlabel="communications", ylabel="test accuracy", ylim=(0, 1), title="Digits sorted by label, 4 processes")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main() -> None:
    """What every process does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("torchrun-run"), help="folder of checkpoints and the picture")
    parser.add_argument("--die", type=int, default=-1, help="let one process die in this round, once, before it saves")
    given = parser.parse_args()
    torch.set_num_threads(1)
    init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    given.out.mkdir(parents=True, exist_ok=True)
    curves = {name: train(name, rank, n, given) for name in RUNS}
    if rank == 0:
        draw(curves, given.out / "torchrun.png")
        (given.out / "accuracy.json").write_text(json.dumps(curves))
        print(f"the picture is {given.out / 'torchrun.png'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
