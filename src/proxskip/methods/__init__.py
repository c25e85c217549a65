"""Methods: one algorithm box per file. They know nothing of engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxskip.on_demand.names import lazy_names

if TYPE_CHECKING:
    from proxskip.methods.accelerated import Accelerated
    from proxskip.methods.apda import APDA
    from proxskip.methods.built_in import BUILT_IN as BUILT_IN
    from proxskip.methods.decaying import Decaying
    from proxskip.methods.decentralized_scaffnew import DecentralizedScaffnew
    from proxskip.methods.fedlin import FedLin
    from proxskip.methods.fista import Fista
    from proxskip.methods.five_gcs import FiveGCS
    from proxskip.methods.gradient import GD, ProxGD
    from proxskip.methods.gradient_tracking import EXTRA, DIGing
    from proxskip.methods.gradskip import GradSkip
    from proxskip.methods.local_gd import LocalGD
    from proxskip.methods.locodl import LoCoDL
    from proxskip.methods.pdhg import PDHG
    from proxskip.methods.proxskip import ProxSkip, SProxSkip
    from proxskip.methods.random_gossip import RandomGossip
    from proxskip.methods.s_local_gd import SLocalGD
    from proxskip.methods.scaffnew import Scaffnew
    from proxskip.methods.scaffold import Scaffold
    from proxskip.methods.splitskip import SplitSkip
    from proxskip.methods.tamuna import Tamuna
    from proxskip.methods.variance_reduced import ProxSkipVR, ScaffnewVR

# a worker runs the halves of one method, and loads its file alone
__getattr__, __dir__ = lazy_names(__name__, {
    "proxskip.methods.accelerated": "Accelerated",
    "proxskip.methods.apda": "APDA",
    "proxskip.methods.built_in": "BUILT_IN",
    "proxskip.methods.decaying": "Decaying",
    "proxskip.methods.decentralized_scaffnew": "DecentralizedScaffnew",
    "proxskip.methods.fedlin": "FedLin",
    "proxskip.methods.fista": "Fista",
    "proxskip.methods.five_gcs": "FiveGCS",
    "proxskip.methods.gradient": "GD ProxGD",
    "proxskip.methods.gradient_tracking": "EXTRA DIGing",
    "proxskip.methods.gradskip": "GradSkip",
    "proxskip.methods.local_gd": "LocalGD",
    "proxskip.methods.locodl": "LoCoDL",
    "proxskip.methods.pdhg": "PDHG",
    "proxskip.methods.proxskip": "ProxSkip SProxSkip",
    "proxskip.methods.random_gossip": "RandomGossip",
    "proxskip.methods.s_local_gd": "SLocalGD",
    "proxskip.methods.scaffnew": "Scaffnew",
    "proxskip.methods.scaffold": "Scaffold",
    "proxskip.methods.splitskip": "SplitSkip",
    "proxskip.methods.tamuna": "Tamuna",
    "proxskip.methods.variance_reduced": "ProxSkipVR ScaffnewVR",
})  # fmt: skip

__all__ = [
    "APDA", "EXTRA", "GD", "PDHG", "Accelerated", "DIGing", "Decaying", "DecentralizedScaffnew", "FedLin", "Fista",
    "FiveGCS", "GradSkip", "LoCoDL", "LocalGD", "ProxGD", "ProxSkip", "ProxSkipVR", "RandomGossip", "SLocalGD",
    "SProxSkip", "Scaffnew", "ScaffnewVR", "Scaffold", "SplitSkip", "Tamuna",
]  # fmt: skip
