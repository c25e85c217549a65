"""The race of Figure 1b.

Four methods, each with the step size of the paper's Figure 1b, on the digits data with twenty clients sorted by label.
Scaffnew takes about $1/p$ local steps between two communications, and needs far fewer rounds.
"""

# %%
# The problem: logistic regression, split so that every client but one sees only even digits or only odd ones.
import warnings

import matplotlib.pyplot as plt

import proxskip as ps

A, b = ps.datasets.load("digits")
problem = ps.split(ps.Logistic(A, b, l2=1e-3, l2_relative=True), clients=20, by="label")
print(f"{problem.n} clients, d = {problem.d}, kappa = {problem.kappa:.0f}")

# %%
# Every method runs for the same number of rounds.
results = []
for kind in (ps.GD, ps.LocalGD, ps.Scaffold, ps.Scaffnew):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)  # the figure's steps are larger than the proofs allow
        results.append(ps.run(kind.paper_figure(problem), problem, rounds=300))
ps.plot(results)
plt.show()
