"""A network on clients with one or two labels each
================================================

AdamW takes ten local steps between two rounds on twenty clients, each with one or two of the ten digits. With a
control variate :math:`h_i` for each client it learns all of them; without, the clients pull the network apart.
"""

# %%
# The data, and an MLP with 64 hidden units.
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import proxskip as ps

X, y = load_digits(return_X_y=True)
X, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
test = torch.arange(len(y)) % 5 == 0
clients = ps.torch.split(X[~test], y[~test], clients=20, by="label")
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
print(f"{len(clients)} clients with the labels", [sorted(set(labels.tolist())) for _, labels in clients])


# %%
# Four trainings of the same network: AdamW and SGD, with h and without.
def accuracy(outputs, targets):
    return (outputs.argmax(-1) == targets).float().mean()


optimizers = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=3e-3),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.3),
}
results = {
    f"{name} {'with h' if control == 'gradient' else 'alone'}": ps.torch.train(
        module, torch.nn.functional.cross_entropy, clients, make, control=control, period=10, batch=20, rounds=60,
        test=(X[test], y[test]), metrics={"accuracy": accuracy},
    )
    for name, make in optimizers.items()
    for control in ("gradient", "none")
}  # fmt: skip

# %%
# Learning curves: any column of a trace can be drawn.
ps.plot(results, y="accuracy")
print({title: round(result.trace["accuracy"][-1], 3) for title, result in results.items()})
plt.show()
