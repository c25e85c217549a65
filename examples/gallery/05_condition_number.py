"""Rounds against the condition number
===================================

Gradient descent needs :math:`\\kappa \\log(1/\\varepsilon)` rounds, Scaffnew :math:`\\sqrt\\kappa
\\log(1/\\varepsilon)`: slopes 1 and 1/2 at most, in a plot with two logarithmic axes. Nesterov's method has the slope
1/2 too, without local steps.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

import proxskip as ps

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
for kind, counts in rounds.items():
    slope = np.polyfit(np.log(kappas), np.log(counts), 1)[0]
    style, label = kind.about.style, f"{kind.about.title}: slope {slope:.2f}"
    plt.loglog(kappas, counts, color=style.color, linestyle=style.dashes, marker=style.marker, label=label)
plt.xlabel("condition number κ")
plt.ylabel("rounds to f(x) − f* = 1e-6")
plt.legend()
plt.show()
