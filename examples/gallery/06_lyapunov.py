"""The theorem, measured
=====================

Theorem 3.6 bounds the expected value of a Lyapunov function, :math:`\\mathrm{E}\\,\\Psi_t \\le (1 -
\\zeta)^t\\,\\Psi_0` with :math:`\\zeta = \\min(\\gamma\\mu, p^2)`. The mean over seeds stays below the bound.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

import proxskip as ps

problem = ps.Problem(ps.random_quadratics(n=6, d=8, L=1.0, mu=0.02, seed=1))
method = ps.Scaffnew.theory(problem)
traces = [ps.run(method, problem, rounds=100, seed=seed, every=1).trace for seed in range(20)]

# %%
# Runs have different numbers of local steps, so we compare them on one grid of iterations.
grid = np.arange(0, 600, 10)
values = np.array([np.exp(np.interp(grid, t["iterations"], np.log(t["lyapunov"]))) for t in traces])
bound = values[0, 0] * (1 - method.zeta(problem)) ** grid

color = ps.Scaffnew.about.style.color
plt.fill_between(grid, values.min(axis=0), values.max(axis=0), color=color, alpha=0.15, label="20 seeds")
plt.semilogy(grid, values.mean(axis=0), color=color, label="mean")
plt.semilogy(grid, bound, "--", color="black", label="Theorem 3.6")
plt.xlabel("iterations (local steps of one client)")
plt.ylabel("Lyapunov function Ψ")
plt.legend()
plt.show()
