"""The table of contents: which page is where."""

from __future__ import annotations

from pathlib import Path

CONTENTS: dict[str, tuple[str, ...]] = {
    "Start": ("start", "idea", "playground", "choosing"),
    "User guide": (
        "everyday", "methods", "problems", "minimize", "prox", "sklearn", "cohorts", "network-time", "codecs",
        "results", "speed", "command-line", "notation",
    ),
    "Examples": ("gallery/index", "notebooks/index", "examples"),
    "How-to": (
        "howto-data", "howto-oracle", "howto-prox", "adding-a-method", "adding-an-engine", "ray", "flower", "torch",
        "howto-graphs", "protocol", "conformance",
    ),
    "The paper": ("reproduction", "networks", "niid", "baselines"),
    "API": ("api",),
    "Project": (
        "reliability", "decisions", "migrating", "release", "project/changelog", "project/contributing",
        "project/security", "project/benchmarks", "project/benchmarks-gpu",
    ),
}  # fmt: skip
"""Captions with their pages. A page that is not here stands under "More"."""


def append_to(work: Path) -> None:
    """The table of contents at the end of the start page, and that of the API at the end of its page."""
    known = {page for pages in CONTENTS.values() for page in pages}
    more = {str(p.relative_to(work).with_suffix("")) for p in work.glob("*.md")} - known - {"index"}
    parts = [
        toctree(caption, [p for p in pages if (work / f"{p}.md").is_file()]) for caption, pages in CONTENTS.items()
    ]
    # a page that nobody has placed yet is still found
    parts += [toctree("More", sorted(more))] if more else []
    grow(work / "index.md", "\n".join(parts))
    grow(work / "api.md", toctree("", sorted(f"api/{p.stem}" for p in (work / "api").glob("*.md"))))


def toctree(caption: str, pages: list[str]) -> str:
    """A hidden table of contents, for the sidebar."""
    head = f":caption: {caption}\n" if caption else ""
    return "```{toctree}\n:hidden:\n" + head + "\n" + "\n".join(pages) + "\n```\n"


def grow(page: Path, text: str) -> None:
    """Append to a page."""
    page.write_text(page.read_text("utf-8") + "\n" + text, encoding="utf-8")
