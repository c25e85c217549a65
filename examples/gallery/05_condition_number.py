"""Rounds against the condition number.

Gradient descent needs $\\kappa \\log(1/\\varepsilon)$ rounds, Scaffnew $\\sqrt\\kappa \\log(1/\\varepsilon)$: slopes 1
and 1/2 at most, in a plot with two logarithmic axes. Nesterov's method has the slope 1/2 too, without local steps.
"""

# %%
import numpy as np

import proxskip as ps
from drawing import axes, line

kappas = np.geomspace(30, 3000, 5)
methods = (ps.GD, ps.Accelerated, ps.Scaffnew)
rounds = {kind: [] for kind in methods}
for kappa in kappas:
    # the same draws for every kappa; the first and the last coordinate are the hardest for every client
    rng = np.random.default_rng(0)
    factors = 3 ** rng.uniform(-1, 1, (6, 20))
    factors[:, [0, -1]] = 1
    spectra = np.clip(np.geomspace(1 / kappa, 1, 20) * factors, 1 / kappa, 1)
    problem = ps.Problem([ps.Quadratic(a, a * rng.standard_normal(20)) for a in spectra])
    for kind in methods:
        rounds[kind].append(ps.run(kind.theory(problem), problem, target=1e-6, rounds=100_000).rounds)

# %%
ax = axes("condition number κ", "rounds to f(x) − f* = 1e-6", log="xy")
for kind, found in rounds.items():
    slope = np.polyfit(np.log(kappas), np.log(found), 1)[0]
    line(ax, kappas, found, f"{kind.about.title}: slope {slope:.2f}", kind)
ax.legend(frameon=False)
