"""Many results: one line for each setting, in the terminal, in a paper and in pandas."""

from __future__ import annotations

from proxskip import display
from proxskip.results import fields
from proxskip.results.result import RunResult


class Results(list[RunResult]):
    """A list of results that prints as a table; the seeds of a method follow each other.

    Args:
        iterable: the results.
    """

    def __repr__(self) -> str:
        return "\n".join([f"{len(self)} results", *display.columns(*self._table())])

    def _repr_html_(self) -> str:
        return display.table(*self._table(), f"{len(self)} results")

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head, rows = fields.table([(str(r.summary["method"]), [r.summary]) for r in self])
        seeds = [str(r.summary["seed"]) for r in self]
        return ["method", "seed", *head[1:]], [[row[0], seed, *row[1:]] for row, seed in zip(rows, seeds, strict=True)]
