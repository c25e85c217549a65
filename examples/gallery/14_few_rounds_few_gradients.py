"""Few rounds, or few gradients?

Scaffnew trades gradients for rounds. Nesterov's method takes one gradient per round. 5GCS with two local steps lies
between them: fewer rounds than Nesterov's method for almost as few gradients.
"""

# %%
import proxskip as ps
from drawing import axes

A, b = ps.datasets.load("digits")
problem = ps.split(ps.Logistic(A, b, l2=1e-3, l2_relative=True), clients=20, by="label")
methods = (
    ps.GD.theory(problem),
    ps.Accelerated.theory(problem),
    ps.FiveGCS.practical(problem),
    ps.Scaffnew.theory(problem),
)

# %%
ax = axes("rounds to f(x) − f* = 1e-6", "passes over the data", log="xy")
for method in methods:
    result = ps.run(method, problem, target=1e-6, rounds=20_000)
    look, end = method.about.style, (result.rounds, result.trace["passes"][-1])
    ax.plot(*end, look.marker, color=look.color, markersize=9)
    ax.annotate(method.about.title, end, (8, -12 if method.name == "accelerated" else 4), textcoords="offset points")
ax.margins(0.25)
