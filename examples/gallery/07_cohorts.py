"""Partial participation.

In every round only some of the clients take part. Scaffnew with TAMUNA's rule still converges to the solution, with
more rounds for smaller cohorts.
"""

# %%
import proxskip as ps
from drawing import axes, line

problem = ps.Problem(ps.random_quadratics(n=12, d=10, L=1.0, mu=0.02, seed=2))

# %%
ax = axes("communication rounds", "f(x) − f*")
for k, c in enumerate((12, 6, 3)):
    method = ps.Scaffnew.theory(problem, cohort=None if c == 12 else c)
    result = ps.run(method, problem, cohort=None if c == 12 else c, rounds=400)
    line(ax, result.trace["round"], result.trace["gap"], f"{c} of 12 clients", k)
ax.legend(frameon=False)
