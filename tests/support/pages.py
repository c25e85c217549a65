"""The pages of docs/ as the tests read them, and a terminal that is none."""

import io
import re
from pathlib import Path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def code_of(page: str, block: int) -> str:
    """A block of Python code of a page in docs/, numbered from 0."""
    text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text("utf-8")
    found: list[str] = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return found[block]
