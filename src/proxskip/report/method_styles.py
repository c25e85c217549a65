"""Titles and styles of the methods: the only place of the reports that knows methods by their names."""

from __future__ import annotations

from typing import NamedTuple

_TITLES = {
    "gd": "gradient descent",
    "proxgd": "proximal gradient descent",
    "accelerated": "accelerated gradient (Nesterov)",
    "fista": "FISTA with restart",
    "local-gd": "LocalGD",
    "scaffold": "Scaffold",
    "fedlin": "FedLin",
    "s-local-gd": "S-Local-GD",
    "proxskip": "ProxSkip",
    "sproxskip": "SProxSkip",
    "scaffnew": "Scaffnew",
    "decentralized-scaffnew": "decentralized Scaffnew",
    "diging": "DIGing (gradient tracking)",
    "extra": "EXTRA",
    "splitskip": "SplitSkip",
    "pdhg": "PDHG",
}


class MethodStyle(NamedTuple):
    """How a method's curves are drawn, in every figure."""

    color: str
    dashes: str
    marker: str
    highlighted: bool = False
    """The method that the paper is about is drawn with a thicker line."""


# Two methods may share a style if they never appear in the same figure.
_METHOD_STYLES = {
    "scaffnew": MethodStyle("#D55E00", "-", "o", highlighted=True),
    "gd": MethodStyle("#7F7F7F", "-", "s"),
    "accelerated": MethodStyle("#000000", "-.", "^"),
    "fista": MethodStyle("#CC79A7", ":", "D"),
    "local-gd": MethodStyle("#E69F00", ":", "v"),
    "scaffold": MethodStyle("#0072B2", "--", "P"),
    "fedlin": MethodStyle("#009E73", "-.", "X"),
    "s-local-gd": MethodStyle("#56B4E9", "--", "<"),
    "decentralized-scaffnew": MethodStyle("#CC79A7", "--", "D"),
    "diging": MethodStyle("#0072B2", "--", "P"),
    "extra": MethodStyle("#009E73", "-.", "X"),
    "proxskip": MethodStyle("#D55E00", "-", "o", highlighted=True),
    "proxgd": MethodStyle("#7F7F7F", "-", "s"),
    "sproxskip": MethodStyle("#CC79A7", "--", "D"),
    "splitskip": MethodStyle("#0072B2", "--", "P"),
    "pdhg": MethodStyle("#000000", "-.", "^"),
}

# The colours of Okabe and Ito, which people with any colour vision can tell apart, without yellow, and a grey.
CYCLE = (
    MethodStyle("#D55E00", "-", "o"),
    MethodStyle("#7F7F7F", "-", "s"),
    MethodStyle("#000000", "-.", "^"),
    MethodStyle("#E69F00", ":", "v"),
    MethodStyle("#0072B2", "--", "P"),
    MethodStyle("#009E73", "-.", "X"),
    MethodStyle("#56B4E9", "--", "<"),
    MethodStyle("#CC79A7", ":", "D"),
)
"""Styles by position, for curves that belong to no method or all to the same one."""
PALETTE = tuple(entry.color for entry in CYCLE)


def title(name: str) -> str:
    """A method's name as figures and tables print it; an unknown method keeps its plain name."""
    return _TITLES.get(name, name)


def style(name: str) -> MethodStyle | None:
    """A method's own style; None for an unknown method, which is drawn by its position in the figure."""
    return _METHOD_STYLES.get(name)
