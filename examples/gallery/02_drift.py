"""Client drift: why plain local steps are wrong.

Two clients in the plane with different minima. Plain local steps pull each of them to its own minimum, and the mean
ends at a biased point. The more local steps, the larger the bias.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

import proxskip as ps
from proxskip.display import palette
from drawing import axes, line

clients = [
    ps.Quadratic(np.diag([1.0, 0.1]), np.array([1.0, 0.1])),
    ps.Quadratic(np.diag([0.1, 1.0]), np.array([-0.1, -0.3])),
]
problem = ps.Problem(clients)
solution = problem.solution.x

# %%
# LocalGD ends where its drift says; Scaffnew, with as many local steps, ends at the solution.
ax = axes("communication rounds", "distance to the solution")
for k, K in enumerate((2, 5, 20)):
    found = []
    for rounds in range(0, 41, 2):
        found.append(np.linalg.norm(ps.run(ps.LocalGD(gamma=0.5, K=K), problem, rounds=rounds).x - solution))
    line(ax, range(0, 41, 2), found, f"LocalGD, K = {K}", k)
found = [
    np.linalg.norm(ps.run(ps.Scaffnew(gamma=0.5, p=0.2, K=5), problem, rounds=rounds).x - solution)
    for rounds in range(0, 41, 2)
]
line(ax, range(0, 41, 2), found, "Scaffnew, K = 5", 4)
ax.legend(frameon=False)

# %%
# The same in the plane: where LocalGD ends for every number of local steps.
ends = np.array([ps.run(ps.LocalGD(gamma=0.5, K=K), problem, rounds=200).x for K in (1, 2, 3, 5, 10, 20, 50)])
minima = np.array([np.linalg.solve(f.H, f.b) for f in clients])
fig, ax = plt.subplots(figsize=(5.2, 3.8), layout="constrained")
ax.plot(*minima.T, "s", color=palette.BLACK, label="minima of the clients")
ax.plot(*ends.T, "v:", color=palette.AMBER, label="LocalGD, K = 1 to 50")
ax.plot(*solution, "*", color=palette.ORANGE, markersize=14, label="solution")
ax.legend(frameon=False)
ax.grid(alpha=0.3)
