"""``make compare``: the same problems through proxskip and other libraries; a table and a figure in RESULTS.md.

    python benchmarks/compare.py                     all, with an environment of its own for each library
    python benchmarks/compare.py --peer flower       one of them; the table keeps what the others did last
    python benchmarks/compare.py --problem digits    one problem
    python benchmarks/compare.py --page              nothing: the page is written anew from the runs that are kept

The script of a library in ``compare/`` notes x and the clock after every round. One judge, here and in numpy, computes
the gap of each x in float64, and finds the first round that was good enough. Data, split, starting point and numbers of
rounds are the same for all, and so are the step sizes of one method; every library has one thread.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from run import machine, put

import proxskip as ps

HERE = Path(__file__).parent
WORK = HERE.parent / "build" / "compare"
"""Environments, data and what every run gave; git ignores it."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
ONE_THREAD["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
LIMIT = 900
"""Seconds that one run may take."""
PROBLEMS = {
    "digits": "logistic regression on the digits (even or odd), 20 clients by label; $f - f^\\star$ at most 1e-6 of what it is at zero",
    "w8a": "the same on w8a",
    "cohorts": "the same on w8a with 1,000 clients by label, of which 100 take part in a round; at most 1e-5",
    "network": "64-64-10 on the digits, 20 clients by label, 10 local steps of 14 rows, test error at most 0.06",
}


@dataclass(frozen=True)
class Peer:
    """A library: what pip installs, one step after the other, and its methods for each problem.

    A method is the name by which the script asks the library for it, or that the table shows, and the vectors that a
    client sends up in a round. Where it is a text, it says why there is no run.
    """

    title: str
    packages: tuple[str, ...]
    methods: dict[str, dict[str, int] | str]
    python: str = sys.executable


MOMENTUM: dict[str, dict[str, int] | str] = {
    "digits": {"FedAvg, 1 step, Nesterov at the server": 1},
    "w8a": {"FedAvg, 1 step, Nesterov at the server": 1},
    "cohorts": {"FedAvg, 1 step, momentum at the server": 1},
    "network": {"FedAdam": 1},
}
"""FedAvg with one local step and Nesterov's momentum at the server is accelerated gradient."""
HEAVY = {"FedAvgM, 1 step": 1}
SCAFFOLD = {"SCAFFOLD, 10 steps": 2}
PEERS = {
    "proxskip": Peer(
        "proxskip",
        ("torch==2.13.0", "-e" + str(HERE.parent)),
        {
            "digits": {"5gcs": 1, "accelerated": 1},
            "w8a": {"5gcs": 1, "accelerated": 1},
            "cohorts": {"5gcs": 1, "scaffnew": 1},
            "network": {"adamw+h": 1, "fedadam": 1},
        },
    ),
    "torch": Peer("plain PyTorch", ("torch==2.13.0", "numpy"), MOMENTUM),
    "flower": Peer(
        "Flower", ("torch==2.13.0", "numpy", "flwr[simulation]==1.41.0"), MOMENTUM | {"digits": HEAVY, "w8a": HEAVY}
    ),
    "fedjax": Peer("FedJAX", ("fedjax==0.0.17 jax==0.4.30 jaxlib==0.4.30 optax==0.2.3 dm-haiku==0.0.12",), MOMENTUM),
    "pfl": Peer("pfl-research", ("torch==2.13.0", "pfl[pytorch]==0.6.0"), MOMENTUM),
    "decent_bench": Peer(
        "decent-bench",
        ("decent-bench==0.3.0",),
        {
            "digits": SCAFFOLD,
            "w8a": SCAFFOLD,
            "cohorts": SCAFFOLD,
            "network": "PyTorch for Python 3.13 comes with CUDA here",
        },
        python="python3.13",
    ),
}


# -- the problems ------------------------------------------------------------------------------------------------------
def by_label(A: Any, b: Any, clients: int) -> tuple[Any, Any]:
    """Rows in the order of their labels, and the same number of them for every client; a few at the end are left out."""
    rows = len(b) // clients
    order = np.argsort(b[: rows * clients], kind="stable")
    return A[order].reshape(clients, rows, -1), b[order].reshape(clients, rows)


def smoothness(A: Any) -> float:
    """L of the logistic loss of these rows."""
    gram = A @ A.T if len(A) < A.shape[1] else A.T @ A
    return float(np.linalg.eigvalsh(gram)[-1]) / (4 * len(A))


def logistic(name: str, clients: int, cohort: int, share: float, **more: Any) -> dict[str, Any]:
    """Logistic regression whose lambda is this share of the largest smoothness of a client."""
    A, b = ps.datasets.load(name)
    sparse = not isinstance(A, np.ndarray)
    rows, labels = by_label(A.toarray() if sparse else A, b, clients)
    largest = max(map(smoothness, rows))
    l2 = share * largest
    L = smoothness(rows.reshape(-1, rows.shape[2])) + l2
    chosen = {"lr": 1 / L, "momentum": (np.sqrt(L) - np.sqrt(l2)) / (np.sqrt(L) + np.sqrt(l2))}
    chosen |= {"local_lr": 1 / (largest + l2), "target": 1e-6, "rounds": 100} | more
    problem = {"kind": "logistic", "rows": rows, "labels": labels, "l2": l2, "cohort": cohort, "sparse": sparse}
    return problem | {"best": least(problem)} | chosen


def network() -> dict[str, Any]:
    """The network of the README; weights as PyTorch draws them, from numpy."""
    from sklearn.datasets import load_digits

    A, b = load_digits(return_X_y=True)
    test = np.arange(len(b)) % 5 == 0
    rows, labels = by_label(A[~test][:1400] / 16, b[~test][:1400], 20)
    draws = np.random.default_rng(0)
    x0 = np.concatenate([draws.uniform(-1 / 8, 1 / 8, size) for size in (64 * 64, 64, 10 * 64, 10)])
    tested = {"test_rows": A[test] / 16, "test_labels": b[test], "target": 0.06}
    chosen = {"rounds": 60, "steps": 10, "batch": 14, "cohort": 20, "lr": 0.1, "server_lr": 0.03, "eps": 1e-3}
    return {"kind": "network", "rows": rows, "labels": labels, "x0": x0} | tested | chosen


MAKE = {
    "digits": lambda: logistic("digits", 20, 20, 1e-2),
    "w8a": lambda: logistic("w8a", 20, 20, 1e-2),
    "cohorts": lambda: logistic("w8a", 1000, 100, 1e-2, momentum=0.5, target=1e-5),
    "network": network,
}


# -- the judge ---------------------------------------------------------------------------------------------------------
def values(problem: dict[str, Any], x: Any) -> Any:
    """f of every row of x."""
    z = -problem["labels"].ravel()[:, None] * (problem["rows"].reshape(-1, x.shape[1]) @ x.T)
    return np.logaddexp(0, z).mean(0) + problem["l2"] / 2 * (x**2).sum(1)


def least(problem: dict[str, Any]) -> Any:
    """f at its minimum, by Newton's method."""
    A, b = problem["rows"].reshape(problem["labels"].size, -1), problem["labels"].ravel()
    x = np.zeros(A.shape[1])
    gradient = np.ones(len(x))
    while np.linalg.norm(gradient) > 1e-11:
        slope = -b / (1 + np.exp(b * (A @ x)))
        gradient = A.T @ slope / len(b) + problem["l2"] * x
        hessian = (A.T * (np.abs(slope) * (1 - np.abs(slope)))) @ A / len(b) + problem["l2"] * np.eye(len(x))
        x -= np.linalg.solve(hessian, gradient)
    return values(problem, x[None])[0]


def errors(problem: dict[str, Any], x: Any) -> Any:
    """What every row of x is judged by: the gap relative to that of zero, or the share of the test that is wrong."""
    if problem["kind"] == "logistic":
        f = values(problem, np.vstack([np.zeros(x.shape[1]), x])) - problem["best"]
        return f[1:] / f[0]
    wrong = []
    for weights in x:
        W, b, V, c = np.split(weights, np.cumsum([64 * 64, 64, 10 * 64]))
        hidden = np.maximum(problem["test_rows"] @ W.reshape(64, 64).T + b, 0)
        wrong.append(np.mean((hidden @ V.reshape(10, 64).T + c).argmax(1) != problem["test_labels"]))
    return np.array(wrong)


def lines_of(source: str, task: str) -> int:
    """Lines of the user's code for a task; blank lines, comments and the notes for the judge are not counted."""
    count, counting = 0, False
    for line in map(str.strip, source.splitlines()):
        if line.startswith("# the user's code:"):
            counting = task in line.split(":")[1].split()
        elif line == "# end":
            counting = False
        elif counting and line and not line.startswith("#") and "watch" not in line:
            count += 1
    return count


# -- runs --------------------------------------------------------------------------------------------------------------
def environment(name: str) -> str:
    """Why the environment of a library could not be made, or nothing."""
    peer, folder = PEERS[name], WORK / name
    if (folder / "made").exists():
        return ""
    if not shutil.which(peer.python):
        return f"{peer.python} is not here"
    print(f"Installing {peer.title}.", file=sys.stderr, flush=True)
    python, quiet = str(folder / "bin" / "python"), ["--disable-pip-version-check", "-q"]
    subprocess.run([peer.python, "-m", "venv", "--clear", folder], check=True)
    for package in peer.packages:
        done = subprocess.run(
            [python, "-m", "pip", "install", *quiet, *package.split()], capture_output=True, text=True
        )
        if done.returncode:
            return f"pip: {done.stderr.strip().splitlines()[-1]}"
    (folder / "made").touch()
    return ""


def file_of(problem: str, name: str, method: str) -> Path:
    return WORK / "runs" / f"{problem}-{name}-{re.sub('[^a-z0-9]+', '_', method.lower())}.npz"


def race(problem: str, name: str, method: str) -> str:
    """Why a run gave nothing, or nothing."""
    out = file_of(problem, name, method)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    script = HERE / "compare" / f"with_{name}.py"
    arguments = [script, WORK / f"{problem}.npz", method, str(time.time()), out]
    print(f"{problem}: {PEERS[name].title}, {method}.", file=sys.stderr, flush=True)
    command = [WORK / name / "bin" / "python", *arguments]
    with open(out.with_suffix(".log"), "w") as log:
        try:
            subprocess.run(command, timeout=LIMIT, stdout=log, stderr=log, env=os.environ | ONE_THREAD)
        except subprocess.TimeoutExpired:
            return f"not done in {LIMIT} seconds"
    return "" if out.exists() else f"failed; see {out.with_suffix('.log').relative_to(HERE.parent)}"


# -- the page ----------------------------------------------------------------------------------------------------------
QUANTITIES = ("rounds", "seconds", "start", "floats", "lines")


def row_of(problem: dict[str, Any], name: str, method: str, out: Path) -> dict[str, Any]:
    """What the table shows of a run; rounds, seconds and floats are None where the target was not reached."""
    with np.load(out) as run:
        error, clock = errors(problem, run["x"]), run["seconds"]
    good = np.flatnonzero(error <= problem["target"])
    row = {"name": name, "method": method, "start": clock[1], "least": error.min(), "error": error, "clock": clock}
    row |= dict.fromkeys(("rounds", "seconds", "floats"))
    row["lines"] = lines_of((HERE / "compare" / f"with_{name}.py").read_text(encoding="utf-8"), problem["kind"])
    if len(good):
        vectors = PEERS[name].methods[problem["name"]][method]
        row |= {"rounds": good[0], "seconds": clock[good[0]] - clock[1]}
        row["floats"] = good[0] * problem["cohort"] * vectors * problem["size"]
    return row


def shown(value: Any) -> str:
    """A number of the table."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | np.integer) else f"{value:.3g}"


def table(rows: list[dict[str, Any]], left_out: dict[str, str], rounds: int) -> str:
    """The rows of one problem as Markdown, the fewest rounds first."""
    head = f"| library | method | rounds | seconds | start, s | floats up | best of {rounds} rounds | lines |"
    lines = [head, "|---" * 8 + "|"]
    for row in sorted(rows, key=lambda r: (r["rounds"] is None, r["rounds"] or r["least"])):
        cells = [PEERS[row["name"]].title, row["method"]]
        cells += [shown(row[k]) for k in ("rounds", "seconds", "start", "floats", "least", "lines")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(f"| {PEERS[k].title} | not run: {why} |" + " |" * 6 for k, why in left_out.items())])


def ahead(of: dict[str, list[dict[str, Any]]]) -> str:
    """Who is first in what, and where that is not proxskip, what proxskip has."""
    lines = ["| problem | " + " | ".join(QUANTITIES) + " |", "|---" * (1 + len(QUANTITIES)) + "|"]
    for problem, rows in of.items():
        cells = []
        for quantity in QUANTITIES:
            ranked = sorted((r for r in rows if r[quantity] is not None), key=lambda r: r[quantity])
            ours = [shown(r[quantity]) for r in ranked if r["name"] == "proxskip"]
            first = f"{PEERS[ranked[0]['name']].title} {shown(ranked[0][quantity])}" if ranked else "nobody"
            behind = ranked and ranked[0]["name"] != "proxskip"
            cells.append(f"**{first}** (proxskip {ours[0] if ours else '-'})" if behind else first)
        lines.append(f"| {problem} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(of: dict[str, list[dict[str, Any]]], targets: dict[str, float], path: Path) -> None:
    """What everybody is judged by, against rounds and against seconds after the first round."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    from proxskip.support.palette import CYCLE

    styles = dict(zip(PEERS, CYCLE, strict=False))
    figure, axes = plt.subplots(2, len(of), figsize=(4 * len(of), 7), squeeze=False, layout="constrained")
    for (problem, rows), (above, below) in zip(of.items(), axes.T, strict=True):
        for row in rows:
            color, dashes, marker = styles[row["name"]]
            label = f"{PEERS[row['name']].title}: {row['method'].split(',')[0]}"
            style = {"color": color, "linestyle": dashes, "marker": marker, "markevery": 0.1, "markersize": 4}
            again = row["method"] != next(r["method"] for r in rows if r["name"] == row["name"])
            style |= {"alpha": 0.5 if again else 1.0, "label": label}
            above.semilogy(np.arange(len(row["error"])), row["error"], **style)
            below.loglog(row["clock"][2:] - row["clock"][1], row["error"][2:], **style)
        for axis, x in ((above, "rounds"), (below, "seconds after the first round")):
            axis.axhline(targets[problem], color="#7F7F7F", linewidth=0.8)
            axis.set(xlabel=x, title=problem if axis is above else "")
        above.set_ylabel("test error" if problem == "network" else "gap relative to that of zero")
        above.legend(fontsize=6)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--peer", choices=PEERS, help="run this library alone")
    options.add_argument("--problem", choices=PROBLEMS, help="run this problem alone")
    options.add_argument("--page", action="store_true", help="write the page from the runs that are kept")
    options.add_argument("--out", type=Path, default=HERE, help="the folder of RESULTS.md and compare.png")
    asked = options.parse_args()
    for folder in (WORK, asked.out):
        folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {}
    page, load = [], os.getloadavg()[0]
    wanted = [] if asked.page else [name for name in PEERS if asked.peer in (None, name)]
    missing = {name: environment(name) for name in wanted}
    for problem, words in PROBLEMS.items():
        made = MAKE[problem]()
        np.savez(WORK / f"{problem}.npz", **made)
        made |= {"name": problem, "size": len(made["x0"]) if "x0" in made else made["rows"].shape[2]}
        left_out, results[problem] = {}, []
        for name, peer in PEERS.items():
            methods = peer.methods[problem]
            if why := missing.get(name) or (methods if isinstance(methods, str) else ""):
                left_out[name] = why
                continue
            for method in methods:
                if name in wanted and asked.problem in (None, problem):
                    if failed := race(problem, name, method):
                        left_out[name] = failed
                elif not file_of(problem, name, method).exists():
                    left_out[name] = "not yet run here"
                if (out := file_of(problem, name, method)).exists():
                    results[problem].append(row_of(made, name, method, out))
        page.append(f"**{problem}**: {words}.\n\n{table(results[problem], left_out, made['rounds'])}")
    draw(results, {problem: MAKE[problem]()["target"] for problem in results}, asked.out / "compare.png")
    packages = [package for peer in PEERS.values() for package in peer.packages if "==" in package]
    part = [
        "### The same problems through other libraries",
        "Rounds, seconds after the first round and floats until the target; start is the time from the start of the "
        "process to the end of its first round (imports, compiling, processes). Lines are those of the user's code. "
        "FedAvg with one local step and Nesterov's momentum at the server is accelerated gradient descent. proxskip's "
        "seconds are those of its own clock, which stands still while it makes records; Flower has a process per core. "
        "With cohorts look at the figure too: FedAvg is far ahead at first, and stops where its cohorts' noise is.",
        *page,
        "Who is first, in bold where it is not proxskip:",
        ahead(results),
        "![The gap against rounds and seconds, for each library](compare.png)",
        f"`make compare`; {', '.join(dict.fromkeys(packages))}; the load was {load:.1f} when it began.",
    ]
    put(asked.out / "RESULTS.md", machine(), "compare", "\n\n".join(part))
    print("\n\n".join(part))


if __name__ == "__main__":
    main()
