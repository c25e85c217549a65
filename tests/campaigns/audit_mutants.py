"""One update of one client lost, doubled or altered: does the run itself report it? ``make chaos`` runs it at length.

    python tests/campaigns/audit_mutants.py [200] [--first 0] [--engine cpu]

Each case is a method on one engine. In one round before convergence the outcome that one client is told is lost, told
twice, or changed by 1e-6 of the largest h, and the result must say so: as its status, or as a warning where the method
mends it by itself. On a cluster and on a card every seed makes one fault in one case, by turns; elsewhere it makes all
faults in all cases.
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for campaigns and support

import proxskip as ps
from campaigns.chaos import tell
from proxskip.results.result import Result, Status
from proxskip.running.run import make_engine
from proxskip.types import UnsafeStepWarning

FAULTS = ("lost", "doubled", "altered")
LEAST = 1e-6
"""The share of |h| by which an update is altered."""
Made = tuple[Any, Any, dict[str, Any]]


def problem(seed: int, n: int = 5, weights: Any = None, kappa: float = 30.0) -> Any:
    """Random quadratics with rows, which every engine runs: |A x - b|^2 / 8 = x'Qx / 2 - q'x + constant."""
    quadratics = ps.random_quadratics(n, 4, L=1.0, mu=1.0 / kappa, seed=seed)
    roots = [2.0 * np.linalg.cholesky(f.H) for f in quadratics]
    return ps.Problem(
        [ps.LeastSquares(A.T, 4.0 * np.linalg.solve(A, f.b)) for A, f in zip(roots, quadratics, strict=True)], weights
    )


def rows(seed: int) -> Any:
    rng = np.random.Generator(np.random.Philox(seed))
    A = rng.standard_normal((60, 5))
    return ps.split(ps.Logistic(A, A[:, 0] + rng.standard_normal(60) > 0, l2=0.05), 5, "label")


def cases() -> Iterator[tuple[str, Callable[[int], Made]]]:
    """Names, and functions from a seed to (method, problem, further arguments of run)."""
    W = (1.0, 2.0, 3.0, 4.0, 5.0)
    # with the subdifferential of the l1 norm, some wrong h are as good as the right one, and nothing can tell
    l1, square = ps.prox.L1(0.02), ps.prox.SquaredL2(0.3)
    yield "scaffnew", lambda s: (ps.Scaffnew(0.9, 0.3), problem(s, weights=W), {})
    yield "scaffnew-rows", lambda s: ((p := rows(s)), (ps.Scaffnew.theory(p), p, {}))[1]
    yield "scaffnew-psi", lambda s: (ps.Scaffnew(0.9, 0.3), problem(s).with_psi(square), {})
    yield "scaffnew-cohort", lambda s: (ps.Scaffnew(0.9, 0.3), problem(s), {"cohort": 3})
    yield (
        "scaffnew-batch",
        lambda s: ((p := rows(s).with_batch(6)), (ps.Scaffnew(0.5 / p.es_A, 0.4), p, {"cohort": 4}))[1],
    )
    yield "scaffold", lambda s: (ps.Scaffold(0.1, K=4), problem(s, weights=W), {})
    yield "scaffold-cohort", lambda s: (ps.Scaffold(0.1, K=4), problem(s), {"cohort": 3})
    yield "5gcs", lambda s: ((p := problem(s, weights=W)), (ps.FiveGCS.theory(p, figure=True), p, {}))[1]
    yield "5gcs-psi", lambda s: ((p := problem(s).with_psi(l1)), (ps.FiveGCS.theory(p, figure=True), p, {}))[1]
    yield (
        "5gcs-cohort",
        lambda s: ((p := problem(s)), (ps.FiveGCS.theory(p, cohort=3, figure=True), p, {"cohort": 3}))[1],
    )
    yield "proxskip", lambda s: (ps.ProxSkip(0.9, 0.3), problem(s, n=1).with_psi(square), {})
    yield "splitskip", lambda s: (
        (p := problem(s, n=1).with_psi(l1, np.diff(np.eye(4), axis=0))), (ps.SplitSkip.theory(p), p, {}),
    )[1]  # fmt: skip
    yield "decentralized", lambda s: (
        (p := problem(s)), (ps.DecentralizedScaffnew.theory(p, graph=ps.graphs.graph("ring", 5)), p, {}),
    )[1]  # fmt: skip


class Faulty:
    """Makes one update of one member go wrong, in the first round from ``when`` on in which that changes something."""

    def __init__(self, engine: Any, fault: str, when: int, who: int, settles: bool) -> None:
        self.engine, self.fault, self.when, self.who = engine, fault, when, who
        self.calls, self.done = 0, False
        self.verb = engine.tell if settles else engine.run
        if settles:
            engine.tell = self.act
        else:
            engine.run = self.act

    def act(self, first: Any, *rest: Any) -> Any:
        """The verb, and the fault if it is due."""
        self.calls += 1
        before = self.engine.memory()
        out = self.verb(first, *rest)
        if self.calls >= self.when and not self.done:
            self.done = self._spoil(before, first, rest)
        return out

    def _spoil(self, before: Any, first: Any, rest: Any) -> bool:
        cohort = rest[0] if rest else first.cohort
        one = self.who % len(cohort)
        i, sound = int(cohort[one]), self.engine.memory()
        h = "h" if "h" in sound else "v"
        spoilt = {k: v.copy() for k, v in sound.items()}
        if self.fault == "lost":
            for k in spoilt:
                spoilt[k][i] = before[k][i]
        elif self.fault == "doubled":
            for k in spoilt:
                spoilt[k][i] += sound[k][i] - before[k][i]
        else:
            spoilt[h][i, self.who % sound[h].shape[1]] += 1.01 * LEAST * float(np.abs(sound[h]).max())
        size = float(np.abs(sound[h]).max())
        if np.abs(spoilt[h] - sound[h]).max() < LEAST * size or size == 0.0:
            return False  # h did not move in this round, so nothing is lost
        put(self.engine, spoilt)
        return True


def put(engine: Any, memory: Any) -> None:
    """Let an engine's clients remember this."""
    if engine.name == "torch":
        engine.remembered.stacks = {k: engine.place(v) for k, v in memory.items()}
    elif engine.name == "gpu":
        engine.kept = {k: engine.cupy.asarray(v) for k, v in memory.items()}
    elif engine.name == "ray":
        engine.open(engine.problem, memory, engine.seed)
    else:
        engine.kept = memory


def broken(make: Callable[[int], Made], fault: str, seed: int, engine: Any) -> tuple[Result | None, str]:
    """A run in which one update goes wrong, and what was done; None if h had stopped moving before."""
    engine = make_engine(engine) if isinstance(engine, str) else engine
    method, problem, given = make(seed)
    problem.__dict__.setdefault("solution", None)  # not needed here, and it takes long
    rng = np.random.Generator(np.random.Philox((seed, 7)))
    when, who = int(rng.integers(2, 20)), int(rng.integers(100))
    # whether a round ends with what the clients are told, and not with what they send
    settles = method.name != "5gcs" and not (method.name == "scaffold" and "cohort" in given)
    faulty = Faulty(engine, fault, when, who, settles)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)
        result = ps.run(method, problem, rounds=25, every=1, seed=seed, engine=engine, allow_unsafe_step=True, **given)
    if not faulty.done:
        return None, f"{fault} update {when}: h did not move any more, seed {seed}"
    return result, f"{fault} update {when} of member {who} on {engine.name}, seed {seed}"


def reported(result: Result) -> bool:
    """Whether the result says that something went wrong."""
    return result.status is Status.CORRUPTED or any("repairs" in note for note in result.warnings)


def main() -> int:
    """All cases and faults with these seeds; 1 if one is not reported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="?", default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--engine", choices=["cpu", "reference", "torch", "ray", "gpu"], default="cpu")
    o = parser.parse_args()
    engine, by_turns = o.engine, o.engine in ("ray", "gpu")
    if o.engine == "ray":
        from proxskip.engines.ray.engine import RayEngine

        engine = RayEngine(2, stay=True)
    every = [(name, make, fault) for fault in FAULTS for name, make in cases()]
    made, missed, refused = 0, 0, Counter[str]()
    for seed in range(o.first, o.first + o.seeds):
        for name, make, fault in [every[seed % len(every)]] if by_turns else every:
            try:
                result, what = broken(make, fault, seed, engine)
            except ps.InputError as error:  # a method that this engine does not run
                refused[f"{name}: {error}"] += 1
                continue
            made += result is not None
            if result is not None and not reported(result):
                missed += 1
                print(f"not reported: {name}, {what}", flush=True)
    for sentence, times in refused.items():
        print(f"refused {times} times: {sentence}")
    return tell(o.seeds, missed, **{"faults made": made} | ({"refused": refused.total()} if refused else {}))


if __name__ == "__main__":
    sys.exit(main())
