"""Settings of Sphinx for the documentation site; see build.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import proxskip

project = "proxskip"
author = "The ProxSkip developers"
copyright = "The ProxSkip developers, MIT license"
version = release = proxskip.__version__
extensions = ["myst_parser", "typeset"]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
# pages of docs/ are written for GitHub too, whose anchors of headings these are
suppress_warnings = ["misc.highlighting_failure"]
exclude_patterns = ["static"]
html_theme = "furo"
html_title = f"proxskip {release}"
html_static_path = [str(Path(__file__).resolve().parent / "static")]
html_css_files = ["site.css"]
html_extra_path = [str(Path(__file__).resolve().parents[1] / "llms.txt")]
html_copy_source = False
html_show_sphinx = False
html_permalinks_icon = "#"
pygments_style = "friendly"
html_theme_options = {
    "footer_icons": [],
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}
