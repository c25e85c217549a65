"""What the scripts in this folder share: the problem they are given, and a note of x after every round.

    python benchmarks/compare/with_NAME.py PROBLEM.npz METHOD SECONDS OUT.npz

SECONDS is what ``time.time()`` was when the process was started; OUT.npz gets x and the seconds since then, once for
x0 and once after each round. Nothing but numpy is imported here.
"""

import sys
import time
from functools import cache
from types import SimpleNamespace

import numpy as np


class Watch:
    """Call it with x, or with the arrays that x is made of."""

    def __init__(self, started):
        self.started, self.seconds, self.x = started, [], []

    def __call__(self, *arrays, seconds=None):
        """Note x; ``seconds`` is given by a library that has a clock of its own."""
        self.seconds.append(time.time() - self.started if seconds is None else seconds)
        self.x.append(np.concatenate([np.array(a, dtype=np.float64).ravel() for a in arrays]))


@cache
def load(path):
    """The problem in this file, with ``clients``, the rows and labels of each; a process reads it once."""
    with np.load(path) as arrays:
        problem = SimpleNamespace(path=path, **{k: v.item() if v.ndim == 0 else v for k, v in arrays.items()})
    problem.clients = list(zip(problem.rows, problem.labels, strict=True))
    return problem


def main(tasks):
    """Do the task of the problem's kind with the method that is asked for."""
    path, method, started, out = sys.argv[1:]
    problem, watch = load(path), Watch(float(started))
    problem.method = method
    tasks[problem.kind](problem, watch)
    np.savez(out, x=np.array(watch.x), seconds=np.array(watch.seconds))
