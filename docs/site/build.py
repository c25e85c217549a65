"""Build the documentation as a folder of HTML pages: ``python docs/site/build.py --out site``.

The pages of ``docs/`` are copied to a working folder together with the notebooks and the files that pages link to.
Sphinx turns them into HTML, runs the examples and reads the docstrings. Warnings are errors, and nothing asks for the
network.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import contents  # noqa: E402
import flags_page  # noqa: E402
import method_pages  # noqa: E402

SKILL = ROOT / "src" / "proxskip" / ".agents" / "skills" / "proxskip" / "SKILL.md"
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
LINKS = """- **Begin:** [install and a first run](start.md), [from a data frame to a prediction](first-model.md), [the
  idea](idea.md), [choosing a method](choosing.md), [when to use something else](alternatives.md).
- **Use it:** [all methods](methods.md), [problems and data](problems.md), [exact statistics](statistics.md),
  [networks](torch.md), [torchrun](torchrun.md), [an expensive prox](minimize.md), [the gallery](../examples/gallery).
- **Look it up:** [messages](messages.md), [the API](api.md), [the command line](command-line.md), [the paper,
  reproduced](reproduction.md).
"""
"""The body of the start page below the example; all pages are in the sidebar."""
PHOTOGRAPHS = ("deblurring", "photograph")
"""Pictures with photographs, which have a twin for dark pages; all others are inverted there."""
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".sh": "bash", ".json": "json", ".md": "markdown"}


def stage(work: Path) -> None:
    """Fill the working folder."""
    pages = {f"docs/{p.relative_to(ROOT / 'docs')}": str(p.relative_to(ROOT / "docs")) for p in sources()}
    pages |= {there: here for there, here in PROJECT.items() if (ROOT / there).is_file() and here != "index.md"}
    where = pages | {"README.md": "index.md"}
    where |= {"examples/gallery": "gallery/index.rst", "examples/notebooks": "notebooks/index.md"}
    where |= {"docs/site/flags_page.py": "flags.md"}
    shown: set[str] = set()
    texts = {(there, here): (ROOT / there).read_text("utf-8") for there, here in pages.items()}
    methods = method_pages.pages(texts["docs/methods.md", "methods.md"])
    where |= {f"docs/methods.md#{anchor}": here for anchor, here in method_pages.anchors(methods).items()}
    texts |= {("docs/methods.md", here): text for here, text in methods.items()}
    texts["docs/flags.md", "flags.md"] = flags_page.page()
    texts["docs/index.md", "index.md"] = home(texts["docs/index.md", "index.md"])
    if find_spec("torch") is None:
        print("the page of proxskip.torch has no entries: PyTorch is not installed")
        entries = re.compile(r"```\{eval-rst\}.*?```", re.DOTALL)
        page = ("docs/api/proxskip-torch.md", "api/proxskip-torch.md")
        texts[page] = entries.sub("These pages were built without PyTorch.", texts[page])
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
    notebooks(work / "notebooks")
    for folder in ("methods", "notebooks"):
        # the working folder of a kernel, where matplotlib looks for its settings
        shutil.copy(HERE / "matplotlibrc", work / folder)
    contents.append_to(work)
    shutil.copytree(HERE / "static", work / "static")


def home(text: str) -> str:
    """The start page: what it is, how to install it, a picture, and a few links."""
    text = text.split("\n- **")[0].rstrip()
    before, picture, after = text.partition("![")
    return f"{before}{INSTALL}\n{picture}{after}\n\n{LINKS}"


def notebooks(out: Path) -> None:
    """The notebooks of examples/notebooks, which run while the site is built, and a page that lists them."""
    out.mkdir(parents=True)
    files = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
    for file in files:
        shutil.copy(file, out)
    names = "\n".join(file.stem for file in files)
    text = "Notebooks of `examples/notebooks`, to read here or to run yourself."
    write(out / "index.md", f"# Notebooks\n\n{text}\n\n```{{toctree}}\n{names}\n```\n")


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
    stage(work)
    shutil.rmtree(given.out, ignore_errors=True)
    if given.only is not None:
        os.environ["PROXSKIP_EXAMPLES"] = " ".join(given.only)
    failed = build_main(["-W", "--keep-going", "-q", "-E", "-b", "html", "-c", str(HERE), str(work), str(given.out)])
    shutil.rmtree(given.out / ".doctrees", ignore_errors=True)
    # what programs that write code are told, where they look for it
    shutil.copy(SKILL, given.out / "llms.txt")
    print(f"{given.out / 'index.html'}: {'failed' if failed else 'built'} in {time.perf_counter() - start:.0f} s")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
