"""Minibatches, with and without noise
===================================

With minibatches Scaffnew converges to a ball around the solution, whose size is that of the gradient noise.
Scaffnew-VR reduces the variance with an anchor, and reaches the solution itself.
"""

# %%
import matplotlib.pyplot as plt

import proxskip as ps

A, b = ps.datasets.load("breast-cancer")
problem = ps.split(ps.Logistic(A, b, l2_relative=0.1), clients=4, by="label").with_batch(8)

# %%
results = [ps.run(kind.theory(problem), problem, rounds=400) for kind in (ps.Scaffnew, ps.ScaffnewVR)]
ps.plot(results, x="passes")
plt.show()
