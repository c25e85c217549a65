"""`proxskip demo`: the race of Figure 1b at once, live in the terminal, then the whole report."""

from __future__ import annotations

import math
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from proxskip.cli import reproduce_command
from proxskip.cli.flags import parser
from proxskip.data import datasets
from proxskip.interfaces import Method
from proxskip.methods import GD, FedLin, LocalGD, Scaffnew
from proxskip.problems.federated import Problem
from proxskip.problems.glm import Logistic
from proxskip.problems.split import split
from proxskip.results.result import Result
from proxskip.running import run
from proxskip.types import UnsafeStepWarning
from proxskip.version import __version__

if TYPE_CHECKING:
    from rich.table import Table

ROUNDS, LAP, DECADES, WIDTH = 150, 10, 6, 44
"""Rounds of the race, rounds between two pictures, the decades that the bars show, and their width."""
State = dict[str, tuple[Method, Result]]


def command(o: Namespace) -> tuple[int, str]:
    """The race, then ``reproduce --quick``."""
    _show(race())
    if o.race:
        return 0, ""
    print(f"\nNow all figures and tables of the paper on this data, in {Path(o.out)}; this takes some minutes.\n")
    top, _ = parser(__version__)
    return reproduce_command.command(top.parse_args(["reproduce", "--quick", "--out", str(o.out)]))


def race(rounds: int = ROUNDS) -> Iterator[tuple[int, State]]:
    """Every method by turns, some rounds each: the round, and where they are.

    The reference engine compiles nothing, so the race begins at once. A lap starts from the x and h of the last one;
    none of these methods remembers anything else.
    """
    A, b = datasets.load("digits")
    problem: Problem = split(Logistic(A, b, l2=1e-3, l2_relative=True), clients=20, by="label")
    methods: list[Method] = [kind.paper_figure(problem) for kind in (Scaffnew, FedLin, GD, LocalGD)]
    state: State = {}
    for lap in range(rounds // LAP):
        for method in methods:
            last = state[method.name][1] if method.name in state else None
            with warnings.catch_warnings():
                # the figure's step sizes are larger than the proofs of some methods allow
                warnings.simplefilter("ignore", UnsafeStepWarning)
                result = run(method, problem, rounds=LAP, seed=lap, engine="reference", warm=last, every=LAP)
            state[method.name] = (method, result)
            yield LAP * (lap + 1), state


def _show(laps: Iterator[tuple[int, State]]) -> None:
    """In a terminal a picture that moves, elsewhere a line now and then; the last state in words."""
    done, state = 0, State()
    if sys.stdout.isatty():
        from rich.live import Live

        with Live(refresh_per_second=12) as live:
            for done, state in laps:
                live.update(picture(done, state))
    else:
        for done, state in laps:
            if done % 50 == 0 and all(result.about["seed"] == done // LAP - 1 for _, result in state.values()):
                print(f"round {done}: " + ", ".join(f"{m.about.title} {gap(r):.1e}" for m, r in state.values()))
    print(words(done, state))


def gap(result: Result) -> float:
    """f(x) - f* at the end."""
    return float(result.trace["gap"][-1])


def words(done: int, state: State) -> str:
    """One sentence about the end."""
    ours = gap(state["scaffnew"][1])
    others = min(gap(result) for name, (_, result) in state.items() if name != "scaffnew")
    return f"After {done} rounds Scaffnew is at f - f* = {ours:.1e}, and the best of the others at {others:.1e}."


def picture(done: int, state: State) -> Table:
    """One bar per method: the further to the right, the smaller the error."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, title=f"20 clients, even and odd digits apart, round {done}", title_justify="left")
    table.add_column("method")
    table.add_column(f"error, from 1 to 1e-{DECADES}")
    table.add_column("f(x) - f*", justify="right")
    for method, result in state.values():
        value = gap(result)
        share = min(max(-math.log10(max(value, 1e-300)) / DECADES, 0.0), 1.0)
        bar = "\N{FULL BLOCK}" * round(share * WIDTH)
        look = method.about.style
        table.add_row(method.about.title, Text(bar.ljust(WIDTH), style=look.color if look else ""), f"{value:.1e}")
    return table
