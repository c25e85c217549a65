"""proxskip: ``ps.run`` for logistic regression, ``ps.torch.train`` for the network."""

import time

import scipy.sparse
from watch import main

import proxskip as ps


class Note(ps.callbacks.Callback):
    """x and the run's own clock, which stands still while a record is made."""

    def __init__(self, watch):
        self.watch, self.before = watch, None

    def on_record(self, step, record):
        if self.before is None:
            self.before = time.time() - self.watch.started - record["seconds"]
        self.watch(record.x, seconds=self.before + record["seconds"])


def logistic(problem, watch):
    data = [(scipy.sparse.csr_matrix(A) if problem.sparse else A, b) for A, b in problem.clients]
    note = Note(watch)
    # the user's code: logistic
    clients = [ps.Logistic(A, b, l2=problem.l2, classes=(-1, 1)) for A, b in data]
    cohort = problem.cohort if problem.cohort < len(clients) else None
    ps.run(problem.method, ps.Problem(clients), rounds=problem.rounds, cohort=cohort, callbacks=[note])
    # end


def network(problem, watch):
    import torch

    note = Note(watch)
    # the user's code: network
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    torch.nn.utils.vector_to_parameters(torch.tensor(problem.x0, dtype=torch.float32), module.parameters())
    clients = [(torch.tensor(A, dtype=torch.float32), torch.tensor(b)) for A, b in problem.clients]
    length = {"period": problem.steps, "batch": problem.batch, "rounds": problem.rounds}
    settings = ps.torch.recipe(problem.method) | length
    ps.torch.train(module, torch.nn.functional.cross_entropy, clients, **settings, callbacks=[note])
    # end


if __name__ == "__main__":
    main({"logistic": logistic, "network": network})
