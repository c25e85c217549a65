"""Client drift: why plain local steps are wrong
=============================================

Two clients in the plane with different minima. Plain local steps pull each of them to its own minimum, and the mean
ends at a biased point. The more local steps, the larger the bias.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

import proxskip as ps

clients = [
    ps.Quadratic(np.diag([1.0, 0.1]), np.array([1.0, 0.1])),
    ps.Quadratic(np.diag([0.1, 1.0]), np.array([-0.1, -0.3])),
]
problem = ps.Problem(clients)

# %%
# LocalGD stalls where its drift ends; Scaffnew, with as many local steps, reaches the solution.
results = {f"LocalGD, K = {K}": ps.run(ps.LocalGD(gamma=0.5, K=K), problem, rounds=40) for K in (2, 5, 20)}
results["Scaffnew, K = 5"] = ps.run(ps.Scaffnew(gamma=0.5, p=0.2, K=5), problem, rounds=40)
ps.plot(results)
plt.show()

# %%
# The same in the plane: where LocalGD ends for every number of local steps.
ends = np.array([ps.run(ps.LocalGD(gamma=0.5, K=K), problem, rounds=200).x for K in (1, 2, 3, 5, 10, 20, 50)])
minima = np.array([np.linalg.solve(f.H, f.b) for f in clients])
plt.plot(*minima.T, "s", color="black", label="minima of the clients")
plt.plot(*ends.T, "v:", color=ps.LocalGD.about.style.color, label="LocalGD, K = 1 to 50")
plt.plot(*problem.solution.x, "*", color=ps.Scaffnew.about.style.color, markersize=14, label="solution")
plt.legend()
plt.show()
