"""The gallery: runs the scripts of ``examples/gallery`` and the notebooks, and writes a page with what they show.

A script is a docstring (its title and introduction) and cells that begin with ``# %%``; comments right after that line
are text. ``python docs/site/gallery.py 01_race docs/demo.png`` draws the picture of README.md, on white.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
import time
import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SIZE, SHOWN_DPI = (5.0, 3.5), 104
"""Width and height of a picture in inches, and its pixels per inch on the page; files have twice as many."""


@dataclass
class Cell:
    """Text, or code with what it printed and drew."""

    kind: str
    source: str
    printed: str = ""
    pictures: list[str] = field(default_factory=list)


def cells_of(script: str) -> list[Cell]:
    """The introduction, then text and code in turn."""
    intro = ast.get_docstring(ast.parse(script)) or ""
    title, _, rest = intro.partition("\n")
    cells = [Cell("text", f"# {title.rstrip('.')}\n{rest}")]
    code = script.split('"""', 2)[2]
    for number, part in enumerate(re.split(r"^# %%.*\n", code, flags=re.MULTILINE)):
        lines = part.split("\n")
        count = next((k for k, line in enumerate(lines) if not line.startswith("#")), len(lines)) if number else 0
        if count:
            cells.append(Cell("text", "\n".join(line[1:].strip() for line in lines[:count])))
        if rest := "\n".join(lines[count:]).strip():
            cells.append(Cell("code", rest))
    return cells


def cells_of_notebook(text: str) -> list[Cell]:
    """The cells of a notebook, without what it was stored with."""
    kinds = {"markdown": "text", "code": "code"}
    return [Cell(kinds[c["cell_type"]], "".join(c["source"])) for c in json.loads(text)["cells"]]


def execute(cells: list[Cell], folder: Path, name: str) -> float:
    """Run the code cells in one namespace, and keep what they print and draw; the seconds it took."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    start, names, count = time.perf_counter(), {"__name__": "__main__"}, 0
    for cell in (c for c in cells if c.kind == "code"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
            value = run_cell(cell.source, names)
        cell.printed = printed.getvalue() + (f"{value!r}\n" if value is not None else "")
        for number in plt.get_fignums():
            if alike := lines_alike(plt.figure(number)):
                raise SystemExit(f"{name}: without color these lines look alike: {', '.join(alike)}.")
            count += 1
            picture = f"{name}-{count}.png"
            save(plt.figure(number), folder / picture)
            cell.pictures.append(picture)
        plt.close("all")
    return time.perf_counter() - start


def save(figure: Any, file: Path, dpi: int = 2 * SHOWN_DPI, transparent: bool = True) -> None:
    """Write a picture of a size whose letters can be read on a phone; without a background, for dark pages."""
    if len(figure.axes) == 1:
        figure.set_layout_engine("constrained")
        figure.set_size_inches(SIZE)
        for side in ("top", "right"):
            figure.axes[0].spines[side].set_visible(False)
    figure.savefig(file, dpi=dpi, transparent=transparent)


def lines_alike(figure: Any) -> list[str]:
    """Labels of lines of the same axes that only their colors tell apart."""
    found = []
    for ax in figure.axes:
        looks = [
            (
                str(line.get_label()),
                (line.get_linestyle(), str(line.get_marker()), line.get_markerfacecolor() == "white"),
            )
            for line in ax.get_lines()
        ]
        named = [(label, look) for label, look in looks if not label.startswith("_")]
        found += [label for label, look in named if sum(other == look for _, other in named) > 1]
    return found


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run it; the value is that of its last line if this is an expression, as in a notebook."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    # calls that draw return what they drew
    return None if type(value).__module__.startswith("matplotlib") or isinstance(value, list) else value


def page(cells: list[Cell], seconds: float, source: str) -> str:
    """The page as Markdown."""
    parts = []
    for cell in cells:
        parts.append(cell.source if cell.kind == "text" else f"```python\n{cell.source}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        alt = cells[0].source.lstrip("# ").split("\n")[0]
        parts += [f"![{alt}]({picture})" for picture in cell.pictures]
    took = f" It took {seconds:.1f} s when this page was built." if seconds else ""
    return "\n\n".join([*parts, f"*This page is `{source}`.{took}*"]) + "\n"


def build(files: list[Path], reader: Any, out: Path, only: list[str] | None) -> list[tuple[str, str, str]]:
    """A page for each file; their names, titles and first pictures."""
    out.mkdir(parents=True)
    found = []
    for file in files:
        cells, name = reader(file.read_text("utf-8")), file.stem
        is_run = only is None or name in only
        if is_run and any("import torch" in cell.source for cell in cells) and find_spec("torch") is None:
            print(f"{name} is not run: PyTorch is not installed", flush=True)
            is_run = False
        sys.path.insert(0, str(file.parent))
        seconds = execute(cells, out, name) if is_run else 0.0
        sys.path.pop(0)
        (out / f"{name}.md").write_text(page(cells, seconds, "/".join(file.parts[-3:])), encoding="utf-8")
        print(f"{name}: {seconds:.1f} s", flush=True)
        pictures = [picture for cell in cells for picture in cell.pictures]
        found.append((name, cells[0].source.lstrip("# ").split("\n")[0], pictures[-1] if pictures else ""))
    return found


def write_pages(folder: Path, out: Path, only: list[str] | None) -> None:
    """The scripts, and a page with all their pictures."""
    files = [file for file in sorted(folder.glob("*.py")) if file.read_text("utf-8").count("# %%")]
    write_index(build(files, cells_of, out, only), out, "Gallery", (
        "Each example is a short script in `examples/gallery`. The pictures were made when these pages were built."
    ))  # fmt: skip


def write_notebooks(folder: Path, out: Path, only: list[str] | None) -> None:
    """The notebooks, likewise."""
    found = build(sorted(folder.glob("*.ipynb")), cells_of_notebook, out, only)
    write_index(found, out, "Notebooks", "Notebooks of `examples/notebooks`, to read here or to run yourself.")


def write_index(found: list[tuple[str, str, str]], out: Path, title: str, text: str) -> None:
    """Pictures and titles that lead to the pages."""
    cards = [f"[{f'![{about}]({picture}) ' if picture else ''}{about}]({name}.md)" for name, about, picture in found]
    inside = "\n\n".join(cards)
    tree = "\n".join(name for name, _, _ in found)
    (out / "index.md").write_text(
        f"# {title}\n\n{text}\n\n:::{{container}} gallery\n{inside}\n:::\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n",
        encoding="utf-8",
    )


def main(script: str, picture: str) -> None:
    """Draw the picture of one script on white, for pages outside the site."""
    import matplotlib

    matplotlib.use("Agg")
    warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
    from matplotlib import pyplot as plt

    text = (Path(__file__).parents[2] / "examples" / "gallery" / f"{script}.py").read_text("utf-8")
    names = {"__name__": "__main__"}
    for cell in cells_of(text):
        if cell.kind == "code":
            run_cell(cell.source, names)
    save(plt.gcf(), Path(picture), dpi=140, transparent=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
