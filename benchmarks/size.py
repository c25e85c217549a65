"""How large the package is, room by room: AST nodes, statements, expressions a statement, ternaries, files.

    python benchmarks/size.py                  this tree
    python benchmarks/size.py --rooms          every room: a folder or file of src/proxskip, and each engine
    python benchmarks/size.py --tree OTHER     another checkout; the rooms of release 0.3 are counted where they are now

A node is a statement or an expression of Python's syntax tree. Docstrings and annotations are left out, so that neither
words nor types cost anything, and neither do line breaks: packing two lines into one saves nothing.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path("src") / "proxskip"

HALVES: dict[str, tuple[str, ...]] = {
    "PyTorch": ("torch", "engines/torch", "problems/torch_model.py"),
    "above the loop": (
        "cli", "experiments", "report", "results", "sklearn", "flower", "callbacks.py", "datasets", "testing.py",
        "running/sweep.py", "running/tune.py", "running/plan.py", "running/many_runs.py", "report/plotting.py",
        "__init__.py", "__main__.py",
    ),
}  # fmt: skip
"""The rooms of each half; all others are below the loop."""
MOVED: dict[str, str] = {
    "authoring.py": "core", "interfaces": "core", "seam.py": "core", "links/gossip.py": "core",
    "registry.py": "methods", "composite": "minimizing", "minimizing.py": "minimizing",
    "codecs.py": "codecs", "links/codecs": "codecs", "links/graphs.py": "graphs.py",
    "links/cohorts.py": "participation.py", "links/network.py": "networks.py", "links/profiles.py": "networks.py",
    "links": "support", "lazy": "support", "display": "support", "cores.py": "support", "keywords.py": "support",
    "randomness.py": "support", "timeouts.py": "support", "version.py": "support",
    "loop": "running", "running.py": "running", "processes.py": "running",
    "sweeping.py": "running/sweep.py", "tuning.py": "running/tune.py", "many_runs.py": "running/many_runs.py",
    "planner.py": "running/plan.py", "planning": "running/plan.py", "plotting.py": "report/plotting.py",
    "data": "datasets", "callbacks": "callbacks.py", "conformance.py": "testing.py", "protocol": "flower",
}  # fmt: skip
"""Where the rooms of release 0.3 are now; those that are not named have kept their place."""
BELOW = "below the loop"


@dataclass
class Size:
    """Counts of one file, or of several together."""

    statements: int = 0
    expressions: int = 0
    ternaries: int = 0
    nested: int = 0
    untyped: int = 0
    files: int = 0

    def __iadd__(self, other: Size) -> Size:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def row(self, name: str) -> str:
        """A row of the table."""
        statements = max(self.statements, 1)
        density = f"{self.expressions / statements:.1f}"
        ternaries = f"{100 * self.ternaries / statements:.1f} ({self.nested})"
        nodes = self.statements + self.expressions
        return f"| {name} | {nodes:,} | {self.statements:,} | {density} | {ternaries} | {self.untyped} | {self.files} |"


def size_of(path: Path) -> Size:
    """The counts of one file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = set(map(id, _docstrings_and_annotations(tree)))
    size = Size(files=1)
    for node in ast.walk(tree):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if isinstance(annotation, ast.AST):
            size.untyped += any(isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(annotation))
        if id(node) in left_out:
            continue
        size.statements += isinstance(node, ast.stmt)
        size.expressions += isinstance(node, ast.expr)
        if isinstance(node, ast.IfExp):
            size.ternaries += 1
            inner = (part for part in ast.walk(node) if part is not node)
            size.nested += any(isinstance(part, ast.IfExp) for part in inner)
    return size


def _docstrings_and_annotations(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):
            yield from (node, node.value)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(annotation, ast.AST):
                yield from ast.walk(annotation)


def place_of(file: str) -> str:
    """The path of a file below the package, with the room where it would be now."""
    for old in sorted(MOVED, key=len, reverse=True):  # links/codecs before links
        if file == old or file.startswith(f"{old}/"):
            new = MOVED[old]
            return new if new.endswith(".py") else f"{new}/{file.rpartition('/')[2]}"
    return file


def room_of(file: str) -> str:
    """The room of a file: a folder, or a file that lies in none; of the engines each is a room."""
    parts = place_of(file).split("/")
    return "/".join(parts[:2]) if parts[0] == "engines" and len(parts) > 2 else parts[0]


def half_of(file: str) -> str:
    """Which half of the package a file belongs to, by its path below the package."""
    file = place_of(file)
    for half, rooms in HALVES.items():
        if any(file == room or file.startswith(f"{room}/") for room in rooms):
            return half
    return BELOW


def measure(package: Path) -> dict[str, Size]:
    """The size of every file, by its path below the package."""
    return {path.relative_to(package).as_posix(): size_of(path) for path in sorted(package.rglob("*.py"))}


def grouped(sizes: dict[str, Size], by_room: bool) -> dict[str, Size]:
    """The sizes by half of the package, or by room."""
    groups: dict[str, Size] = {}
    for file, size in sizes.items():
        name = room_of(file) if by_room else half_of(file)
        group = groups.setdefault(name, Size())
        group += size
    return groups


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="a checkout of the project")
    options.add_argument("--rooms", action="store_true", help="a row for each room")
    arguments = options.parse_args()
    package = arguments.tree / PACKAGE
    sizes = measure(package)
    print("| room | nodes | statements | expressions a statement | ternaries per 100 (nested) | Any | files |")
    print("|---|---|---|---|---|---|---|")
    for name, size in sorted(grouped(sizes, arguments.rooms).items()):
        print(size.row(name))
    total = Size()
    for size in sizes.values():
        total += size
    print(total.row("**all**"))
    entries = [path for path in package.iterdir() if not path.name.startswith((".", "__pycache__", "py.typed"))]
    print(f"\n{sum(path.suffix != '.pyi' for path in entries)} files and folders in {PACKAGE.as_posix()}.")


if __name__ == "__main__":
    main()
