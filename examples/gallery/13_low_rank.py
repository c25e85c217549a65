"""An expensive prox: the nuclear norm
===================================

The prox of the nuclear norm is a singular value decomposition. ProxSkip skips most of them.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

import proxskip as ps

rng = np.random.default_rng(0)
shape = (60, 60)
truth = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 60))
precision = 10 ** rng.uniform(-3, 0, shape)
noisy = truth + 0.1 * rng.standard_normal(shape) / np.sqrt(precision)
f = ps.Quadratic(precision.ravel(), (precision * noisy).ravel())
psi = ps.prox.NuclearNorm(0.3, shape)

# %%
runs = (
    (ps.ProxGD, {"method": "proxgd"}),
    (ps.Fista, {"method": "fista-restart"}),
    (ps.ProxSkip, {"method": "proxskip", "p": 0.1}),
)
for kind, options in runs:
    result = ps.minimize(f, psi, tol=1e-4, seconds=10, **options)
    title, style = kind.about.title, kind.about.style
    looks = {"color": style.color, "linestyle": style.dashes, "marker": style.marker, "markevery": 0.1}
    plt.semilogy(result.trace["nprox"], result.trace["certificate"], label=title, **looks)
    print(f"{title}: {result.nprox} proxes, {result.ngrad} gradients")
plt.xlabel("singular value decompositions")
plt.ylabel("certificate")
plt.legend()
plt.show()
