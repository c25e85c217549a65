"""All methods of the package."""

from __future__ import annotations

from proxskip.methods.accelerated import Accelerated
from proxskip.methods.apda import APDA
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

BUILT_IN = (
    GD, ProxGD, Accelerated, Fista, LocalGD, Scaffold, FedLin, SLocalGD, ProxSkip, SProxSkip, ProxSkipVR, APDA,
    Scaffnew, ScaffnewVR, GradSkip, FiveGCS, Tamuna, LoCoDL, DecentralizedScaffnew, RandomGossip, DIGing, EXTRA,
    SplitSkip, PDHG,
)  # fmt: skip
"""Every method of the package, in the order in which lists show them."""
