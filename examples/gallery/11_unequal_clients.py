"""Easy clients may sleep
======================

Clients differ in how well conditioned they are. GradSkip needs the rounds of Scaffnew, but its easy clients stop
their local steps early.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

import proxskip as ps

base = ps.random_quadratics(8, 4, mu=0.5)
problem = ps.Problem([ps.Quadratic(2.0**i * f.H, 2.0**i * f.b) for i, f in enumerate(base)])
print("condition numbers:", np.round(problem.L_i / problem.mu).astype(int))

# %%
for k, kind in enumerate((ps.Scaffnew, ps.GradSkip)):
    costs = ps.run(kind.theory(problem), problem, tol=1e-8).summary
    heights = [costs["rounds"], costs["grad_evals"] / 8]
    bars = plt.bar([k, k + 3], heights, color=kind.about.style.color, hatch=("", "//")[k], label=kind.about.title)
    plt.bar_label(bars, fmt="%.0f")
plt.xticks([0.5, 3.5], ["rounds", "gradients per client"])
plt.legend()
plt.show()
