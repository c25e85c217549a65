"""Few rounds, or few gradients?
=============================

Scaffnew trades gradients for rounds. Nesterov's method takes one gradient per round. 5GCS with two local steps lies
between them: fewer rounds than Nesterov's method for almost as few gradients.
"""

# %%
import matplotlib.pyplot as plt

import proxskip as ps

A, b = ps.datasets.load("digits")
problem = ps.split(ps.Logistic(A, b, l2_relative=1e-3), clients=20, by="label")
methods = (
    ps.GD.theory(problem),
    ps.Accelerated.theory(problem),
    ps.FiveGCS.theory(problem, figure=True),
    ps.Scaffnew.theory(problem),
)

# %%
for method in methods:
    result = ps.run(method, problem, target=1e-6, rounds=20_000)
    style, end = method.about.style, (result.rounds, result.trace["passes"][-1])
    plt.loglog(*end, style.marker, color=style.color, markersize=9, label=method.about.title)
plt.xlabel("rounds to f(x) − f* = 1e-6")
plt.ylabel("passes over the data")
plt.margins(0.2)
plt.legend()
plt.show()
