"""`proxskip demo`: a race of four methods, live in the terminal, then the whole report."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator

from proxskip import datasets
from proxskip.cli import reproduce_command
from proxskip.cli.parser import parser
from proxskip.core.method import Method
from proxskip.methods import GD, FedLin, LocalGD, Scaffnew
from proxskip.problems.glm import Logistic
from proxskip.problems.split import split
from proxskip.results.result import RunResult
from proxskip.running.run import run
from proxskip.support.version import __version__

ROUNDS, LAP, DECADES, WIDTH = 100, 10, 8, 44
"""Rounds of the race, rounds between two pictures, the decades that the bars show, and their width."""
State = dict[str, RunResult]
"""Where each method is, by its title."""


def command(o: Namespace) -> int:
    """The race, then ``reproduce --quick``."""
    _show(race())
    if o.race:
        return 0
    print(f"\nNow the figures, tables and claims of the paper on the same data; the report goes to {o.out}.")
    print("This takes about three minutes on two cores.\n")
    top, _ = parser(__version__)
    return reproduce_command.command(top.parse_args(["reproduce", "--quick", "--out", str(o.out)]))


def race(rounds: int = ROUNDS) -> Iterator[tuple[int, State]]:
    """Every method in turn, some rounds each, with the parameters of its theorem: the round, and where they are.

    The reference engine compiles nothing, so the race begins at once. A lap starts from the x and h of the last one;
    none of these methods remembers anything else.
    """
    A, b = datasets.load("digits")
    # the problem of the first run in docs/start.md
    problem = split(Logistic(A, b, l2_relative=1e-2), clients=20, by="label")
    methods: list[Method] = [kind.theory(problem) for kind in (Scaffnew, FedLin, GD, LocalGD)]
    state: State = {}
    for lap in range(rounds // LAP):
        for method in methods:
            title = method.about.title
            state[title] = run(
                method, problem, rounds=LAP, seed=lap, engine="reference", warm=state.get(title), every=LAP
            )
            yield LAP * (lap + 1), state


def _show(laps: Iterator[tuple[int, State]]) -> None:
    """A picture, which moves in a terminal; then the end in words."""
    from rich.console import Console
    from rich.live import Live

    done, state = 0, State()
    with Live(console=Console(), refresh_per_second=12) as live:  # elsewhere it prints the last picture alone
        for done, state in laps:
            live.update(picture(done, state))
        live.update(picture(done, state) + "\n" + words(done, state))


def gap(result: RunResult) -> float:
    """f(x) - f* at the end."""
    return float(result.trace["gap"][-1])


def words(done: int, state: State) -> str:
    """One sentence about the end."""
    others = min(gap(result) for title, result in state.items() if title != "Scaffnew")
    ours = gap(state["Scaffnew"])
    return f"After {done} rounds, f - f* is {ours:.1e} for Scaffnew and {others:.1e} for the best of the others."


def picture(done: int, state: State) -> str:
    """One bar per method: the further to the right, the smaller the error."""
    lines = [f"digits, 20 clients, round {done}: f - f* from 1 (left) to 1e-{DECADES} (right)"]
    for title, result in state.items():
        share = min(max(-math.log10(max(gap(result), 1e-300)) / DECADES, 0.0), 1.0)
        lines.append(f"{title:<18}{'█' * round(share * WIDTH):<{WIDTH}}{gap(result):9.1e}")
    return "\n".join(lines)
