"""Settings of Sphinx for the documentation site; see build.py."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import proxskip

project = "proxskip"
author = "The ProxSkip developers"
copyright = "The ProxSkip developers, MIT license"
version = release = proxskip.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery", "typeset"]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
# pages of docs/ are written for GitHub too, whose anchors of headings these are
suppress_warnings = ["misc.highlighting_failure", "config.cache"]
# of the files that the gallery writes, the pages alone
exclude_patterns = ["static", *(f"gallery/*.{kind}" for kind in ("ipynb", "py", "json", "md5", "zip", "txt"))]
html_theme = "furo"
html_title = f"proxskip {release}"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_permalinks_icon = "#"
pygments_style = "friendly"
html_theme_options = {
    "footer_icons": [],
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}

# -- what runs while the pages are built -------------------------------------------------------------------------------
# ONLY names the examples that run in a draft or a test; without it all of them do
ONLY = os.environ.get("PROXSKIP_EXAMPLES")
NEEDS_TORCH = ("15_networks", "4_networks")  # a script of the gallery, and a notebook
left_out = () if find_spec("torch") else NEEDS_TORCH
for name in left_out:
    print(f"{name} is left out: PyTorch is not installed")


def is_run(name: str) -> bool:
    """Whether this script or notebook runs."""
    return name not in left_out and (ONLY is None or name in ONLY.split())


SCRIPTS = sorted(path.stem for path in (ROOT / "examples" / "gallery").glob("[0-9]*.py"))
NOTEBOOKS = sorted(path.stem for path in (ROOT / "examples" / "notebooks").glob("*.ipynb"))


def plain_looks(gallery_conf: Any, file: str) -> None:
    """The pictures of every script look alike."""
    from matplotlib import pyplot as plt

    plt.style.use(HERE / "matplotlibrc")


sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "notebook_extensions": set(),
    "filename_pattern": "|".join(rf"/{re.escape(name)}\.py" for name in SCRIPTS if is_run(name)) or "nothing",
    "ignore_pattern": "|".join((r"__init__\.py", *(rf"^{name}\.py" for name in left_out))),
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": ("matplotlib", plain_looks),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
}
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_excludepatterns = [f"**/{name}.ipynb" for name in NOTEBOOKS if not is_run(name)]
if ONLY is not None:
    nb_execution_excludepatterns.append("methods/*.md")

# -- the API -----------------------------------------------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
autodoc_mock_imports = [name for name in ("flwr", "ray") if find_spec(name) is None]


SECTION = re.compile(r"(Args|Returns|Raises|Yields|Examples?|Attributes|Notes?):$")
FORMULA = re.compile(r"\S+ +(=|<-) ")


def as_written(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Our docstrings in Sphinx's language: boxes of formulas become literal blocks, and bars of norms stay bars."""
    result: list[str] = []
    in_section = False
    for paragraph in "\n".join(lines).split("\n\n"):
        rows = paragraph.strip("\n").split("\n")
        in_section = bool(SECTION.match(rows[0])) or (in_section and rows[0].startswith(" "))
        is_box = not in_section and (rows[0].startswith("    ") or FORMULA.match(rows[0]))
        if is_box:
            result += ["::", "", *("    " + row for row in rows), ""]
        elif rows[0].startswith(">>>"):
            result += [*rows, ""]
        else:
            result += [*map(with_bars, rows), ""]
    lines[:] = result


def with_bars(line: str) -> str:
    """A line outside code whose bars are no substitutions."""
    return "".join(part if part.startswith("``") else part.replace("|", r"\|") for part in re.split(r"(``.*?``)", line))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    # before napoleon reads the sections
    app.connect("autodoc-process-docstring", as_written, priority=400)
