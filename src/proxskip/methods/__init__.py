"""Methods: one class per algorithm. They know nothing of engines."""

from proxskip.methods.accelerated import Accelerated, Fista
from proxskip.methods.apda import APDA
from proxskip.methods.decaying import Decaying
from proxskip.methods.fedlin import FedLin, SLocalGD
from proxskip.methods.five_gcs import FiveGCS
from proxskip.methods.gossip_methods import EXTRA, DecentralizedScaffnew, DIGing, RandomGossip
from proxskip.methods.gradient import GD, LocalGD, ProxGD
from proxskip.methods.gradskip import GradSkip
from proxskip.methods.locodl import LoCoDL
from proxskip.methods.newton import Newton
from proxskip.methods.proxskip import ProxSkip, SProxSkip
from proxskip.methods.scaffnew import Scaffnew
from proxskip.methods.scaffold import Scaffold
from proxskip.methods.splitskip import PDHG, SplitSkip
from proxskip.methods.tamuna import Tamuna
from proxskip.methods.variance_reduced import ProxSkipVR, ScaffnewVR

__all__ = [
    "APDA", "EXTRA", "GD", "PDHG", "Accelerated", "DIGing", "Decaying", "DecentralizedScaffnew", "FedLin", "Fista",
    "FiveGCS", "GradSkip", "LoCoDL", "LocalGD", "Newton", "ProxGD", "ProxSkip", "ProxSkipVR", "RandomGossip",
    "SLocalGD", "SProxSkip", "Scaffnew", "ScaffnewVR", "Scaffold", "SplitSkip", "Tamuna",
]  # fmt: skip
