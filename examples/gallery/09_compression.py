"""Fewer bits
==========

LoCoDL sends compressed differences, TAMUNA lets every coordinate be sent by some of the clients only. Both need more
rounds than Scaffnew. In bits LoCoDL is far ahead on this problem; TAMUNA, with all clients present, needs about two
thirds of Scaffnew's.
"""

# %%
import matplotlib.pyplot as plt

import proxskip as ps

A, b = ps.datasets.load("digits")
problem = ps.split(ps.Logistic(A, b, l2_relative=1e-2), clients=20, by="label", weights="equal")
methods = {
    "Scaffnew": ps.Scaffnew.theory(problem),
    "TAMUNA, s = 2": ps.Tamuna.theory(problem, s=2),
    "LoCoDL, rand-6 and natural": ps.LoCoDL.theory(problem, codec="rand-6+natural"),
}

# %%
# The same runs against rounds and against bits.
results = {label: ps.run(method, problem, target=1e-8, rounds=3000) for label, method in methods.items()}
ps.plot(results)
ps.plot(results, x="bits_up")
plt.show()
