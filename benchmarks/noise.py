"""Noise on what clients send, and on the mean: where Scaffnew ends.

python benchmarks/noise.py            half a minute; --quick for a taste
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

import proxskip as ps
from proxskip.flower import Noise
from proxskip.protocol import Arrived, Begin, Client, ClientState, Server, Worker
from proxskip.protocol.wire import encode

STD, CLIP = 1e-3, 0.1


def rows(problem: ps.Problem, rounds: tuple[int, ...]) -> list[tuple[str, list[float]]]:
    """|x - x*|/|x*| after this many rounds, for each place where the noise may be."""
    places: list[tuple[str, str, Any, type[Server]]] = [
        ("none", "deadline", None, Server),
        (f"clients clip to {CLIP:g}", "deadline", Noise(CLIP, 0.0), Server),
        (f"clients add {STD:g}", "deadline", Noise(1e9, STD), Server),
        (f"clients clip to {CLIP:g} and add {STD:g}", "deadline", Noise(CLIP, STD), Server),
        (f"a server adds {STD:g} to the mean, recentred in every round (prox form)", "everyone", None, Loud),
        (f"a server adds {STD:g} to the mean, not recentred", "deadline", None, Loud),
    ]
    return [(name, [error(problem, r, closing, own, kind) for r in rounds]) for name, closing, own, kind in places]


class Loud(Server):
    """What is not offered: noise on the mean."""

    def _commit(self, state: Any, done: Any) -> Any:
        x = done.vectors["x"] + STD * np.random.default_rng(state.round).standard_normal(self.problem.d)
        return super()._commit(state, replace(done, vectors={"x": x}, outcome=(x,)))


def error(problem: ps.Problem, rounds: int, closing: str, own: Any, kind: type[Server]) -> float:
    """One run."""
    server = kind(ps.Scaffnew.theory(problem), problem, rounds, closing=closing, audit=0, measure=None)
    clients = [Client(server.method, Worker(f, i), noise=own) for i, f in enumerate(problem.clients)]
    state, memories = server.start(bytes(16)), [ClientState.fresh(bytes(16)) for _ in clients]
    state, asks = server.step(state, Begin())
    while asks:  # every message is delivered in order, as bytes
        i = asks[0].client
        memories[i], answers = clients[i].step(memories[i], encode(asks.pop(0)))
        for answer in answers:
            state, more = server.step(state, Arrived(answer, i))
            asks += more
    assert problem.solution is not None
    best = problem.solution.x
    return float(np.linalg.norm(state.vectors["x"] - best) / np.linalg.norm(best))


def report(quick: bool) -> str:
    name = "digits" if quick else "a1a"
    rounds = (50, 150) if quick else (150, 600, 1500)
    A, b = ps.datasets.load(name)
    problem = ps.split(ps.Logistic(A, b, l2=1e-2, l2_relative=True), clients=10, by="label", weights="rows")
    lines = [
        f"## Noise: Scaffnew on {name}, 10 clients by label, kappa = {problem.kappa:.0f}, |x - x*|/|x*|",
        "",
        f"| noise | {' | '.join(f'{r:,} rounds' for r in rounds)} |",
        f"|---|{'---|' * len(rounds)}",
    ]
    lines += [f"| {label} | {' | '.join(f'{v:.1e}' for v in found)} |" for label, found in rows(problem, rounds)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    print(report(parser.parse_args().quick))
