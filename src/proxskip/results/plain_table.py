"""A table for the terminal, for notebooks, for LaTeX and for pandas."""

from __future__ import annotations

from typing import Any

from proxskip.support import display
from proxskip.types import Array, InputError

_SPECIAL = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "^": r"\^{}"}


class PlainTable(display.Tabled):
    """A table for a paper and for pandas too; a subclass has ``records``, ``_title`` and ``_shown``."""

    def records(self) -> list[dict[str, Any]]:
        """The table as plain numbers, one dict for each line."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The table as a pandas DataFrame."""
        return frame_of(self.records())

    def to_latex(self) -> str:
        """The table for a paper that loads the package booktabs."""
        head, rows = self._shown()
        lines = [" & ".join(map(_latex, row)) + r" \\" for row in (head, *rows)]
        begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
        return "\n".join([begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"])


def _latex(text: str) -> str:
    return "".join(_SPECIAL.get(c, c) for c in text)


def frame_of(rows: list[dict[str, Any]] | dict[str, Array]) -> Any:
    """A pandas DataFrame of these lines, or of these columns."""
    try:
        import pandas
    except ImportError:
        raise InputError("to_frame needs pandas; install it with pip install pandas.") from None
    return pandas.DataFrame(rows)
