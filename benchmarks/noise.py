"""Noise on what clients send, and on the mean: where Scaffnew ends.

python benchmarks/noise.py            half a minute; --quick for a taste
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np

import proxskip as ps
from proxskip.flower.noise import Noise, disturbed
from proxskip.protocol import Client, Server, Worker
from proxskip.protocol.lockstep import drive

STD, CLIP = 1e-3, 0.1


def rows(problem: ps.Problem, rounds: tuple[int, ...]) -> list[tuple[str, list[float]]]:
    """|x - x*|/|x*| after so many rounds, for each place where the noise may be."""
    loose = partial(disturbed, std=STD)
    places: list[tuple[str, str, Any, Any]] = [
        ("none", "deadline", None, None),
        (f"clients clip to {CLIP:g}", "deadline", Noise(CLIP), None),
        (f"clients add {STD:g}", "deadline", Noise(1e9, STD), None),
        (f"clients clip to {CLIP:g} and add {STD:g}", "deadline", Noise(CLIP, STD), None),
        (f"the server adds {STD:g} to the mean, everybody takes part", "everyone", None, loose),
        ("the same in rounds that close at a deadline (refused)", "deadline", None, loose),
    ]
    return [(name, [error(problem, r, closing, own, mean) for r in rounds]) for name, closing, own, mean in places]


def error(problem: ps.Problem, rounds: int, closing: str, own: Any, mean: Any) -> float:
    """One run, past the refusal where there is one."""
    server = Server(ps.Scaffnew.theory(problem), problem, rounds, closing=closing, audit=0, measure=None)
    object.__setattr__(server, "noise", mean)
    state, _ = drive(server, [Client(server.method, Worker(f, i), noise=own) for i, f in enumerate(problem.clients)])
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
