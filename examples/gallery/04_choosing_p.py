"""Which p?
========

Theorem 3.6 says that :math:`p` may fall to :math:`1/\\sqrt\\kappa` before the rate per iteration suffers. On the
digits data the number of rounds has its minimum there.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

import proxskip as ps

A, b = ps.datasets.load("digits")
problem = ps.split(ps.Logistic(A, b, l2_relative=1e-2), clients=20, by="label")

# %%
values = np.geomspace(0.03, 1.0, 8)
rounds, gradients = [], []
for p in values:
    runs = [ps.run(ps.Scaffnew(gamma=1 / problem.L, p=p), problem, target=1e-6, seed=s, rounds=20_000) for s in (0, 1)]
    rounds.append(np.mean([r.rounds for r in runs]))
    gradients.append(np.mean([r.summary["iterations"] for r in runs]))

# %%
# Fewer rounds for a smaller p, until the control variates become too slow. The gradients per client stay constant on
# the right of the minimum.
color = ps.Scaffnew.about.style.color
plt.loglog(values, rounds, "o-", color=color, label="rounds")
plt.loglog(values, gradients, "s--", color=color, label="gradients per client")
plt.axvline(1 / np.sqrt(problem.kappa), color="black", linestyle=":", label="p = 1/√κ")
plt.xlabel("p")
plt.ylabel("to f(x) − f* = 1e-6")
plt.legend()
plt.show()
