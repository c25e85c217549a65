"""An expensive prox: the nuclear norm.

The prox of the nuclear norm is a singular value decomposition. ProxSkip skips most of them.
"""

# %%
import numpy as np

import proxskip as ps
from drawing import axes, line

rng = np.random.default_rng(0)
shape = (60, 60)
truth = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 60))
precision = 10 ** rng.uniform(-3, 0, shape)
noisy = truth + 0.1 * rng.standard_normal(shape) / np.sqrt(precision)
f = ps.Quadratic(precision.ravel(), (precision * noisy).ravel())
psi = ps.prox.NuclearNorm(0.3, shape)

# %%
ax = axes("singular value decompositions", "certificate")
for k, (label, options) in enumerate(
    {
        "ProxGD": {"method": "proxgd"},
        "FISTA with restart": {"method": "fista-restart"},
        "ProxSkip, p = 0.1": {"method": "proxskip", "p": 0.1},
    }.items()
):
    result = ps.minimize(f, psi, tol=1e-4, seconds=10, **options)
    line(ax, result.trace["nprox"], result.trace["certificate"], label, k)
    print(f"{label}: {result.nprox} proxes, {result.ngrad} gradients")
ax.legend(frameon=False)
