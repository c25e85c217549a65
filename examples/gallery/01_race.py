"""The race of the first page
==========================

How many rounds does each method need for :math:`f(x) - f^\\star \\le 10^{-8}`? The problem is that of the first page
and of the first run in ``docs/start.md``, and every method has the parameters of its theorem. Scaffnew takes about
:math:`1/p` local steps between two communications.
"""

# %%
# The problem: logistic regression, split so that every client but one sees only even digits or only odd ones.
import matplotlib.pyplot as plt

import proxskip as ps

A, b = ps.datasets.load("digits")
problem = ps.split(ps.Logistic(A, b, l2_relative=1e-2), clients=20, by="label")
print(f"{problem.n} clients, d = {problem.d}, kappa = {problem.kappa:.0f}")

# %%
# Every method runs until it reaches the target. The curve of gradient descent goes on to the right.
results = []
for name in ("gd", "accelerated", "scaffnew"):
    results.append(ps.run(name, problem, target=1e-8))
    print(f"{name}: {results[-1].rounds} rounds")
ps.plot(results).set_xlim(0, 150)
plt.show()
