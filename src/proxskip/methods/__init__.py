"""Methods: one algorithm box a file. They know nothing of engines."""

from __future__ import annotations

import difflib
from typing import Any

from proxskip.methods.accelerated import Accelerated
from proxskip.methods.decaying import Decaying
from proxskip.methods.decentralized_scaffnew import DecentralizedScaffnew
from proxskip.methods.fedlin import FedLin
from proxskip.methods.fista import Fista
from proxskip.methods.gradient import GD, ProxGD
from proxskip.methods.gradient_tracking import EXTRA, DIGing
from proxskip.methods.local_gd import LocalGD
from proxskip.methods.pdhg import PDHG
from proxskip.methods.proxskip import ProxSkip, SProxSkip
from proxskip.methods.s_local_gd import SLocalGD
from proxskip.methods.scaffnew import Scaffnew
from proxskip.methods.scaffold import Scaffold
from proxskip.methods.splitskip import SplitSkip
from proxskip.types import InputError

__all__ = [
    "EXTRA", "GD", "METHODS", "PDHG", "Accelerated", "DIGing", "Decaying", "DecentralizedScaffnew", "FedLin", "Fista",
    "LocalGD", "ProxGD", "ProxSkip", "SLocalGD", "SProxSkip", "Scaffnew", "Scaffold", "SplitSkip", "named",
]  # fmt: skip

METHODS: dict[str, Any] = {
    m.name: m
    for m in (
        GD, ProxGD, Accelerated, Fista, LocalGD, Scaffold, FedLin, SLocalGD, ProxSkip, SProxSkip, Scaffnew,
        DecentralizedScaffnew, DIGing, EXTRA, SplitSkip, PDHG,
    )
}  # fmt: skip
"""Every method by its name on the command line."""

_OTHER_NAMES = {
    "local-sgd": "local-gd",
    "fedavg": "local-gd",
    "gradient-tracking": "diging",
    "nesterov": "accelerated",
    "agd": "accelerated",
}


def named(name: str) -> Any:
    """The method of this name (any case, with or without hyphens), or a sentence with the nearest one."""
    plain = name.lower().replace("_", "-")
    plain = _OTHER_NAMES.get(plain, plain)
    for known in METHODS:
        if plain in (known, known.replace("-", "")):
            return METHODS[known]
    near = difflib.get_close_matches(plain, METHODS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InputError(f'method "{name}" is not known; {hint}The methods are {", ".join(METHODS)}.')
