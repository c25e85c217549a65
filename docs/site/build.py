"""Build the documentation as a folder of HTML pages: ``python docs/site/build.py --out site``.

The pages of ``docs/`` are copied to a working folder together with those made here (the gallery, the notebooks, the
files that pages link to), and Sphinx turns them into HTML. Warnings are errors, and nothing asks for the network.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import contents  # noqa: E402
import gallery  # noqa: E402
import method_pages  # noqa: E402

LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
PROJECT = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "README.md": "index.md",
    "benchmarks/RESULTS.md": "project/benchmarks.md",
}
"""Pages from elsewhere in the repository, and where they are in the site."""
INSTALL = """From a copy of the repository, with Python 3.11 or newer:

```console
$ pip install .
$ proxskip demo --race
```
"""
LINKS = """- **Begin:** [install and a first run](start.md), [the idea](idea.md), [choosing a method](choosing.md).
- **Use it:** [all methods](methods.md), [problems and data](problems.md), [networks](torch.md), [an expensive
  prox](minimize.md), [the gallery](../examples/gallery).
- **Look it up:** [the API](api.md), [the command line](command-line.md), [the paper, reproduced](reproduction.md).
"""
"""The body of the start page below the example; all pages are in the sidebar."""
PHOTOGRAPHS = ("deblurring", "photograph")
"""Pictures with photographs, which have a twin for dark pages; all others are inverted there."""
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".sh": "bash", ".json": "json", ".md": "markdown"}


def stage(work: Path, only: list[str] | None) -> None:
    """Fill the working folder."""
    pages = {f"docs/{p.relative_to(ROOT / 'docs')}": str(p.relative_to(ROOT / "docs")) for p in sources()}
    pages |= {there: here for there, here in PROJECT.items() if (ROOT / there).is_file() and here != "index.md"}
    where = pages | {"README.md": "index.md"}
    where |= {f"examples/{name}": f"{name}/index.md" for name in ("gallery", "notebooks")}
    shown: set[str] = set()
    texts = {(there, here): (ROOT / there).read_text("utf-8") for there, here in pages.items()}
    methods = method_pages.pages(texts["docs/methods.md", "methods.md"], work / "methods", only is None)
    where |= {f"docs/methods.md#{anchor}": here for anchor, here in method_pages.anchors(methods).items()}
    texts |= {("docs/methods.md", here): text for here, text in methods.items()}
    texts["docs/index.md", "index.md"] = home(texts["docs/index.md", "index.md"], only is None or "01_race" in only)
    for (there, here), text in texts.items():
        write(work / here, relinked(text, Path(there).parent, Path(here).parent, where, shown))
    for name in sorted(shown):
        if name.endswith(".png"):
            write(work / "pictures" / name, (ROOT / name).read_bytes())
        else:
            write(work / "files" / f"{name}.md", source_page(name))
    for picture in ROOT.glob("docs/**/*.png"):
        write(work / picture.relative_to(ROOT / "docs"), picture.read_bytes())
    for name in PHOTOGRAPHS:
        darken(work / f"{name}.png", work / f"{name}-dark.png")
    gallery.write_pages(ROOT / "examples" / "gallery", work / "gallery", only)
    gallery.write_notebooks(ROOT / "examples" / "notebooks", work / "notebooks", only)
    contents.append_to(work)
    shutil.copytree(HERE / "static", work / "static")


def home(text: str, drawn: bool) -> str:
    """The start page: what it is, how to install it, a picture that can be read on a phone, and a few links."""
    text = text.split("\n- **")[0].rstrip()
    if drawn:
        text = text.replace("(demo.png)", "(gallery/01_race-1.png)")
    before, picture, after = text.partition("![")
    return f"{before}{INSTALL}\n{picture}{after}\n\n{LINKS}"


def darken(picture: Path, twin: Path) -> None:
    """The same picture for dark pages, light on dark but for its photographs: blocks where few pixels are white."""
    import numpy as np
    from matplotlib import image

    pixels = image.imread(picture)[:, :, :3]
    white = pixels.min(axis=2) > 0.99
    # at least 40 rows in a row: a line of a grid is no photograph
    rows = np.convolve(white.mean(axis=1) < 0.3, np.ones(41), "same") > 20
    photographs = rows[:, None] & (white[rows].mean(axis=0) < 0.5)
    # hues stay, what was white has the color of the page
    inverted = 1 - pixels.max(axis=2, keepdims=True) - pixels.min(axis=2, keepdims=True) + pixels
    image.imsave(twin, np.where(photographs[:, :, None], pixels, 0.075 + 0.925 * inverted))


def sources() -> list[Path]:
    """The pages of docs/."""
    return [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "api").glob("*.md"))]


def relinked(text: str, folder: Path, target: Path, where: dict[str, str], shown: set[str]) -> str:
    """Links between files of the repository as links between pages of the site."""

    def link(found: re.Match[str]) -> str:
        opening, path, anchor, closing = found.groups()
        if re.match(r"[a-z]+:", path):
            return found[0]
        there = os.path.normpath(folder / path)
        if there + (anchor or "") in where:
            new, anchor = where[there + (anchor or "")], None
        elif there in where:
            new = where[there]
        elif there.startswith("docs/"):
            new = there.removeprefix("docs/")
        elif opening.startswith("!"):
            new = f"pictures/{there}"
            shown.add(there)
        else:
            shown.add(there)
            new = f"files/{there}.md"
        return f"{opening}{os.path.relpath(new, target)}{anchor or ''}{closing}"

    for name in PHOTOGRAPHS:
        pair = rf"\1{name}.png){{.only-light}} \1{name}-dark.png){{.only-dark}}"
        text = re.sub(rf"(!\[[^\]]*\]\(){name}\.png\)", pair, text)
    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def source_page(name: str) -> str:
    """A file of the repository as a page."""
    text = (ROOT / name).read_text("utf-8")
    language = LANGUAGES.get(Path(name).suffix, "text")
    return f"---\norphan: true\n---\n\n# {name}\n\n``````{language}\n{text.rstrip()}\n``````\n"


def write(path: Path, content: str | bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def main() -> int:
    """Stage, then build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("site"), help="where the HTML goes")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "site-source", help="a folder for its sources")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="run these examples alone, for drafts and tests")
    given = parser.parse_args()
    from sphinx.cmd.build import build_main

    start = time.perf_counter()
    work = given.work
    shutil.rmtree(work, ignore_errors=True)
    stage(work, given.only)
    shutil.rmtree(given.out, ignore_errors=True)
    failed = build_main(["-W", "--keep-going", "-q", "-E", "-b", "html", "-c", str(HERE), str(work), str(given.out)])
    shutil.rmtree(given.out / ".doctrees", ignore_errors=True)
    print(f"{given.out / 'index.html'}: {'failed' if failed else 'built'} in {time.perf_counter() - start:.0f} s")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
