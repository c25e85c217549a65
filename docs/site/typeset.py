"""A Sphinx extension: formulas become MathML while the pages are built, and names of the API become links."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def link_names(app: Any, doctree: nodes.document, docname: str) -> None:
    """Link the names of the API on one page."""
    for code in list(doctree.findall(nodes.literal)):
        link(app, code, docname)


def in_link(node: nodes.Node) -> bool:
    """Whether something around it is a link or a heading already."""
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.reference | nodes.title):
            return True
    return False


def link(app: Any, code: nodes.literal, docname: str) -> None:
    """`ps.run(...)`, `Scaffnew.theory(problem)`, `prox.L1`: a link to its entry of the API."""
    name = re.split(r"[(\s]", code.astext())[0].removeprefix("ps.").removeprefix("proxskip.")
    targets = app.env.proxskip_api
    found = next((n for n in (name, name.split(".")[0]) if n in targets), None)
    if found is None or in_link(code) or targets[found][0] == docname or len(name) < 2:
        return
    page, anchor = targets[found]
    uri = f"{app.builder.get_relative_uri(docname, page)}#{anchor}"
    code.replace_self(nodes.reference("", "", code.deepcopy(), internal=True, refuri=uri, classes=["api"]))


def size_pictures(app: Any, doctree: nodes.document) -> None:
    """Pictures made by the builder are shown in half their size; wide ones scroll inside a box of their own."""
    for image in doctree.findall(nodes.image):
        file = Path(app.srcdir) / image["uri"]
        if file.suffix != ".png" or not file.is_file():
            continue
        # the header of a PNG file
        width, height = struct.unpack(">II", file.read_bytes()[16:24])
        if file.parent.name in ("gallery", "methods", "notebooks"):
            image["width"] = f"{width // 2}px"
            image["classes"].append("made")
        elif width > 1.4 * height:
            image["classes"].append("wide")


def collect(app: Any, doctree: nodes.document) -> None:
    """The entries of an API page."""
    docname = app.env.docname
    if not docname.startswith("api/"):
        return
    for section in doctree.findall(nodes.section):
        title = section.next_node(nodes.title)
        # names of modules that extend the library are too plain (load, check) to be linked by their last word
        if docname != "api/extending" and title is not None and section.parent is not doctree:
            app.env.proxskip_api[title.astext()] = (docname, section["ids"][0])


def start(app: Any, env: Any, docnames: list[str]) -> None:
    """No entries yet."""
    env.proxskip_api = {}


def write(self: Any, node: nodes.Element) -> None:
    """Write a formula, which pages have in LaTeX, as MathML."""
    block = isinstance(node, nodes.math_block)
    # docutils would set an index below the letter under a hat
    formula = re.sub(r"(\\(?:hat|bar|tilde)\{\w\})(?=[_^])", r"{\1{}}", node.astext())
    math = tex2mathml(formula, as_block=block)
    self.body.append(f'<div class="formula">{math}</div>' if block else math)
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", inline_renderers=(write, None), block_renderers=(write, None))
    app.config.html_math_renderer = "mathml"
    app.connect("env-before-read-docs", start)
    app.connect("doctree-read", collect)
    app.connect("doctree-read", size_pictures)
    app.connect("doctree-resolved", link_names)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
