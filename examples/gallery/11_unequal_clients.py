"""Easy clients may sleep.

Clients differ in how well conditioned they are. GradSkip needs the rounds of Scaffnew, but its easy clients stop their
local steps early.
"""

# %%
import numpy as np

import proxskip as ps
from drawing import axes

base = ps.random_quadratics(8, 4, mu=0.5)
problem = ps.Problem([ps.Quadratic(2.0**i * f.H, 2.0**i * f.b) for i, f in enumerate(base)])
print("condition numbers:", np.round(problem.L_i / problem.mu).astype(int))

# %%
ax = axes("", "", log="", width=5)
found = {kind: ps.run(kind.theory(problem), problem, tol=1e-8).summary() for kind in (ps.Scaffnew, ps.GradSkip)}
for k, (kind, about) in enumerate(found.items()):
    look = kind.about.style
    bars = ax.bar(
        [k - 0.2, k + 1.8], [about["rounds"], about["grad_evals"] / 8], 0.38, color=look.color, hatch=("", "//")[k]
    )
    bars.set_label(kind.about.title)
    ax.bar_label(bars, fmt="%.0f")
ax.set_xticks([0.3, 2.3], ["rounds", "gradients per client"])
ax.legend(frameon=False)
