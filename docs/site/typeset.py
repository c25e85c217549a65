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
    targets = app.env.get_domain("py").objects
    found = next((n for n in (f"proxskip.{name}", f"proxskip.{name.split('.')[0]}") if n in targets), None)
    if found is None or in_link(code) or targets[found].docname == docname or len(name) < 2:
        return
    uri = f"{app.builder.get_relative_uri(docname, targets[found].docname)}#{targets[found].node_id}"
    code.replace_self(nodes.reference("", "", code.deepcopy(), internal=True, refuri=uri, classes=["api"]))


def scroll_wide_pictures(app: Any, doctree: nodes.document) -> None:
    """Wide pictures scroll inside a box of their own."""
    for image in doctree.findall(nodes.image):
        file = Path(app.srcdir) / image["uri"]
        if file.suffix == ".png" and file.is_file():
            # the header of a PNG file
            width, height = struct.unpack(">II", file.read_bytes()[16:24])
            if width > 1.4 * height:
                image["classes"].append("wide")


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
    app.connect("doctree-read", scroll_wide_pictures)
    app.connect("doctree-resolved", link_names)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
