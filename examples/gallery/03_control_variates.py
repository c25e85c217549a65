"""The control variates are learned
================================

In Scaffnew the vector :math:`h_i` of client i tends to its gradient at the solution. This is what makes local steps
harmless: shifted by it, they do not move the solution. Here is the distance, next to the error of x.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

import proxskip as ps

problem = ps.Problem(ps.random_quadratics(n=8, d=10, L=1.0, mu=0.02, seed=3))
solution = problem.solution.x
goal = np.stack([f.gradient(solution) for f in problem.clients])
method = ps.Scaffnew.theory(problem)

# %%
# A warm start continues from the x and the h of an earlier result.
rounds, errors, sums, result = [], [], [], None
for _ in range(30):
    result = ps.run(method, problem, rounds=10, warm=result, seed=len(rounds))
    rounds.append(10 * (len(rounds) + 1))
    errors.append((np.linalg.norm(result.x - solution), np.linalg.norm(result.h - goal)))
    sums.append(np.abs(result.h.mean(axis=0)).max())

color = ps.Scaffnew.about.style.color
plt.semilogy(rounds, [e[0] for e in errors], "o-", color=color, markevery=4, label="|x − x*|")
plt.semilogy(rounds, [e[1] for e in errors], "s--", color=color, markevery=4, label="|h − ∇f(x*)|")
plt.xlabel("communication rounds")
plt.ylabel("error")
plt.legend()
plt.show()

# %%
# After every round the control variates sum to zero, up to rounding.
print(f"largest |mean of h|: {max(sums):.1e}")
