"""Methods: one class per algorithm. They know nothing of engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxskip.lazy.names import lazy_names

if TYPE_CHECKING:
    from proxskip.methods.accelerated import Accelerated, Fista
    from proxskip.methods.apda import APDA
    from proxskip.methods.built_in import BUILT_IN as BUILT_IN
    from proxskip.methods.decaying import Decaying
    from proxskip.methods.fedlin import FedLin, SLocalGD
    from proxskip.methods.five_gcs import FiveGCS
    from proxskip.methods.gossip_methods import EXTRA, DecentralizedScaffnew, DIGing, RandomGossip
    from proxskip.methods.gradient import GD, LocalGD, ProxGD
    from proxskip.methods.gradskip import GradSkip
    from proxskip.methods.locodl import LoCoDL
    from proxskip.methods.proxskip import ProxSkip, SProxSkip
    from proxskip.methods.scaffnew import Scaffnew
    from proxskip.methods.scaffold import Scaffold
    from proxskip.methods.splitskip import PDHG, SplitSkip
    from proxskip.methods.tamuna import Tamuna
    from proxskip.methods.variance_reduced import ProxSkipVR, ScaffnewVR

# a worker only loads the file of its method
__getattr__, __dir__ = lazy_names(__name__, {
    "proxskip.methods.accelerated": "Accelerated Fista",
    "proxskip.methods.apda": "APDA",
    "proxskip.methods.built_in": "BUILT_IN",
    "proxskip.methods.decaying": "Decaying",
    "proxskip.methods.fedlin": "FedLin SLocalGD",
    "proxskip.methods.five_gcs": "FiveGCS",
    "proxskip.methods.gossip_methods": "DecentralizedScaffnew EXTRA DIGing RandomGossip",
    "proxskip.methods.gradient": "GD ProxGD LocalGD",
    "proxskip.methods.gradskip": "GradSkip",
    "proxskip.methods.locodl": "LoCoDL",
    "proxskip.methods.proxskip": "ProxSkip SProxSkip",
    "proxskip.methods.scaffnew": "Scaffnew",
    "proxskip.methods.scaffold": "Scaffold",
    "proxskip.methods.splitskip": "PDHG SplitSkip",
    "proxskip.methods.tamuna": "Tamuna",
    "proxskip.methods.variance_reduced": "ProxSkipVR ScaffnewVR",
})  # fmt: skip

__all__ = [
    "APDA", "EXTRA", "GD", "PDHG", "Accelerated", "DIGing", "Decaying", "DecentralizedScaffnew", "FedLin", "Fista",
    "FiveGCS", "GradSkip", "LoCoDL", "LocalGD", "ProxGD", "ProxSkip", "ProxSkipVR", "RandomGossip", "SLocalGD",
    "SProxSkip", "Scaffnew", "ScaffnewVR", "Scaffold", "SplitSkip", "Tamuna",
]  # fmt: skip
