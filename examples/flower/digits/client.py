"""What a client minimizes: logistic loss on its own part of the data."""

import numpy as np
from flwr.app import Context

from proxskip.flower import client_app, from_arrays


def make_oracle(context: Context):
    """The node's own file where it has one; in a simulation, its part of the bundled digits."""
    l2 = float(context.run_config["l2"])
    if "data" in context.node_config:
        data = np.load(str(context.node_config["data"]))
        return from_arrays(data["A"], data["b"], l2=l2)
    from proxskip import datasets

    A, b = datasets.load("digits")
    n, i = int(context.run_config["clients"]), int(context.node_config["partition-id"])
    part = np.argsort(b, kind="stable")[i * len(b) // n : (i + 1) * len(b) // n]
    return from_arrays(A[part], b[part], l2=l2)


app = client_app(make_oracle)
