"""A signal with jumps
===================

``minimize`` solves least squares with total variation, one function and no clients. It measures what a prox and a
gradient cost and chooses its method while it runs.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

import proxskip as ps

rng = np.random.default_rng(1)
truth = np.repeat([0.0, 2.0, 1.0, 3.0, 0.5], 24)
blur = np.exp(-(np.subtract.outer(np.arange(120), np.arange(120)) ** 2) / 8)
blur /= blur.sum(axis=1, keepdims=True)
data = blur @ truth + 0.05 * rng.standard_normal(120)
f = ps.LeastSquares(blur, data, l2=1e-4)

# %%
result = ps.minimize(f, ps.prox.TV1D(2e-4), tol=1e-7)
print(result.status.name, f"with {result.nprox} proxes and {result.ngrad} gradients")

# %%
plt.plot(data, ".", color="0.6", label="data")
plt.plot(truth, ":", color="black", label="truth")
plt.plot(result.x, "-", color="crimson", label="recovered")
plt.xlabel("position")
plt.ylabel("value")
plt.legend()
plt.show()
