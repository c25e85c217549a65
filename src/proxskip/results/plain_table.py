"""One table for everybody: it prints as text, shows itself in a notebook, and goes to LaTeX, CSV and pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxskip.results.atomic import atomic_write_text
from proxskip.support import display
from proxskip.types import Array, InputError

_SPECIAL = str.maketrans({"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "^": r"\^{}"})


class Tabled:
    """What shows itself as a table: a subclass has ``as_table``."""

    __slots__ = ()

    def as_table(self) -> Table:
        """The table, with what is printed and the numbers behind it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.as_table().text()

    def _repr_html_(self) -> str:
        table = self.as_table()
        return display.table(table.title, table.head, table.lines, table.remarks)

    def records(self) -> list[dict[str, Any]]:
        """The numbers behind the table, one dict for each row."""
        return list(self.as_table().rows)

    def to_frame(self) -> Any:
        """The numbers behind the table as a pandas DataFrame."""
        return frame_of(self.records())

    def to_csv(self, path: str | Path) -> None:
        """Write the numbers behind the table; every one reads back as the same number."""
        atomic_write_text(Path(path), csv_of(self.records()))

    def to_latex(self) -> str:
        """The table for a paper that loads the package booktabs."""
        table = self.as_table()
        escaped = [[cell.translate(_SPECIAL) for cell in row] for row in (table.head, *table.lines)]
        head, *lines = (" & ".join(row) + r" \\" for row in escaped)
        begin = rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}"
        return "\n".join([begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"])


@dataclass(frozen=True, repr=False)
class Table(Tabled):
    """A table for people, as texts, and the numbers behind it.

    Args:
        title: what stands above it.
        head: the names of the columns.
        lines: the texts below each of them.
        rows: the numbers, one dict for each row.
        remarks: sentences below it.
    """

    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    rows: Sequence[dict[str, Any]] = ()
    remarks: Sequence[str] = ()

    def as_table(self) -> Table:
        return self

    def text(self) -> str:
        """Lines of text: the first column to the left, the others to the right."""
        first, *others = (max(map(len, column)) for column in zip(self.head, *self.lines, strict=True))
        lines = []
        for name, *cells in (self.head, *self.lines):
            aligned = [cell.rjust(width) for cell, width in zip(cells, others, strict=True)]
            lines.append("  ".join([name.ljust(first), *aligned]).rstrip())
        return "\n".join([self.title, *lines, *self.remarks])


def csv_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """These rows as CSV, with a column for every name that occurs."""
    kept = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(name for row in kept for name in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    return text.getvalue()


def frame_of(rows: list[dict[str, Any]] | dict[str, Array]) -> Any:
    """A pandas DataFrame of these rows, or of these columns."""
    try:
        import pandas
    except ImportError:
        raise InputError("to_frame needs pandas; install it with pip install pandas.") from None
    return pandas.DataFrame(rows)
