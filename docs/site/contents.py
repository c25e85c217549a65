"""The table of contents: which page is where."""

from __future__ import annotations

import re
from pathlib import Path

CONTENTS: dict[str, tuple[str, ...]] = {
    "Start": ("start", "first-model", "idea", "choosing", "alternatives"),
    "Guide": (
        "methods", "problems", "prox", "minimize", "participation", "codecs", "graphs", "network-time", "results",
        "sklearn", "statistics",
    ),
    "Examples": ("gallery/index", "notebooks/index", "examples"),
    "Where it runs": ("speed", "torch", "torchrun", "ray", "flower", "protocol"),
    "Your own parts": ("authoring", "adding-an-engine", "how-a-run-flows"),
    "Reference": ("api", "command-line", "flags", "messages", "reliability"),
    "Measured": ("reproduction", "niid-bench"),
    "Project": (
        "decisions", "project/changelog", "project/contributing", "project/security", "project/benchmarks",
    ),
}  # fmt: skip
"""Captions with their pages. A page that is not here stands under "More"."""
GALLERY = "gallery/index"
"""Written by Sphinx when it begins."""


def append_to(work: Path) -> None:
    """The table of contents at the end of the start page, and that of the API at the end of its page."""
    known = {page for pages in CONTENTS.values() for page in pages}
    more = {str(p.relative_to(work).with_suffix("")) for p in work.glob("*.md")} - known - {"index"}
    parts = [
        toctree(caption, [p for p in pages if (work / f"{p}.md").is_file() or p == GALLERY])
        for caption, pages in CONTENTS.items()
    ]
    # a page that nobody has placed yet is still found
    parts += [toctree("More", sorted(more))] if more else []
    grow(work / "index.md", "\n".join(parts))
    # in the order of its table
    sections = re.findall(r"^\| \[[^\]]+\]\((api/[\w-]+)\.md\)", (work / "api.md").read_text("utf-8"), re.MULTILINE)
    grow(work / "api.md", toctree("", sections))


def toctree(caption: str, pages: list[str]) -> str:
    """A hidden table of contents, for the sidebar."""
    head = f":caption: {caption}\n" if caption else ""
    return "```{toctree}\n:hidden:\n" + head + "\n" + "\n".join(pages) + "\n```\n"


def grow(page: Path, text: str) -> None:
    """Append to a page."""
    page.write_text(page.read_text("utf-8") + "\n" + text, encoding="utf-8")
