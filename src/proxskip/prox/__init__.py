"""Convex functions with a proximity operator.

    psi.prox(x, t) = argmin_y  psi(y) + |y - x|^2 / (2 t)             psi(x) is inf outside the domain

Closed forms (``norms``, ``sets``, ``spectral``, ``blocks``) are exact up to rounding. They are those of Parikh and
Boyd, "Proximal algorithms" (2014), chapter 6, unless a docstring says otherwise. A point counts as inside a set up to
1e-9 of the size of the set or of the point. Operators with an inner solver keep the contract of ``Inexact``: their
accuracy is requested, certified and recorded, since an inexact prox limits the accuracy that the methods can reach.

``as_prox`` accepts operators of pyproximal, and any object with psi(x) and psi.prox(x, t).
"""

from proxskip.prox.adapted import Adapted, as_prox
from proxskip.prox.blocks import Blocks, Sum, intersection
from proxskip.prox.contract import Checked, Inexact, Inner, Iterative, ProxWarning, accuracy_of, inner_state
from proxskip.prox.norms import L1, L2, ElasticNet, GroupL1, Huber, SquaredL2, Zero
from proxskip.prox.parts import INSIDE, Operator, conjugate_prox
from proxskip.prox.polyhedron import Polyhedron
from proxskip.prox.sets import Box, Consensus, L1Ball, L2Ball, NonNegative, Simplex, Singleton
from proxskip.prox.spectral import Eigenvalues, NuclearNorm, SingularValues, nuclear_ball, psd, spectral_ball
from proxskip.prox.tv import TV1D, TV2D

__all__ = [
    "INSIDE", "L1", "L2", "TV1D", "TV2D", "Adapted", "Blocks", "Box", "Checked", "Consensus", "Eigenvalues",
    "ElasticNet", "GroupL1", "Huber", "Inexact", "Inner", "Iterative", "L1Ball", "L2Ball", "NonNegative",
    "NuclearNorm", "Operator", "Polyhedron", "ProxWarning", "Simplex", "Singleton", "SingularValues", "SquaredL2",
    "Sum", "Zero", "accuracy_of", "as_prox", "conjugate_prox", "inner_state", "intersection", "nuclear_ball", "psd",
    "spectral_ball",
]  # fmt: skip
