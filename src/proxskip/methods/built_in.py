"""All methods of the package, in the order in which lists show them."""

from __future__ import annotations

from proxskip import methods as m

BUILT_IN = (
    m.GD, m.ProxGD, m.Accelerated, m.Fista, m.Newton, m.LocalGD, m.Scaffold, m.FedLin, m.SLocalGD, m.ProxSkip,
    m.SProxSkip, m.ProxSkipVR, m.APDA, m.Scaffnew, m.ScaffnewVR, m.GradSkip, m.FiveGCS, m.Tamuna, m.LoCoDL,
    m.DecentralizedScaffnew, m.RandomGossip, m.DIGing, m.EXTRA, m.SplitSkip, m.PDHG,
)  # fmt: skip
