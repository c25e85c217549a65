"""Runs of the rows of the METHODS table, all alike, on any engine."""

import warnings
from typing import Any

import proxskip as ps
from support.methods import Row

ROUNDS = 10


def run(row: Row, problem: ps.Problem, engine: Any = "cpu", rounds: int = ROUNDS, **options: Any) -> ps.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        options = {"every": 1, "cohort": row.cohort, "allow_unsafe_step": True, "seed": 4} | options
        return ps.run(row.make(problem), problem, rounds=rounds, engine=engine, **options)
