"""Partial participation
=====================

In every round only some of the clients take part. Scaffnew with TAMUNA's rule still converges to the solution, with
more rounds for smaller cohorts.
"""

# %%
import matplotlib.pyplot as plt

import proxskip as ps

problem = ps.Problem(ps.random_quadratics(n=12, d=10, L=1.0, mu=0.02, seed=2))

# %%
results = {}
for cohort in (None, 6, 3):
    method = ps.Scaffnew.theory(problem, cohort=cohort)
    results[f"{cohort or 12} of 12 clients"] = ps.run(method, problem, cohort=cohort, rounds=400)
ps.plot(results)
plt.show()
