"""decent-bench: SCAFFOLD on a ``FedNetwork``; a cost of the user's own, as its logistic regression needs both labels."""

import numpy as np
from decent_array import interoperability as iop
from decent_bench.agents import Agent
from decent_bench.algorithms.federated import Scaffold
from decent_bench.costs import Cost
from decent_bench.networks import FedNetwork
from decent_bench.schemes import UniformSelection
from scipy.special import expit
from watch import main


# the user's code: logistic
class Logistic(Cost):
    m_smooth = m_cvx = np.nan

    def __init__(self, A, b, l2):
        self.A, self.b, self.l2 = A, b, l2

    @property
    def shape(self):
        return (self.A.shape[1],)

    def gradient(self, x, **kwargs):
        slopes = -self.b * expit(-self.b * (self.A @ iop.to_numpy(x)))
        return iop.from_numpy(self.A.T @ slopes / len(self.b)) + self.l2 * x

    def function(self, x, **kwargs):
        raise NotImplementedError

    hessian = proximal = function


# end


def logistic(problem, watch):
    # the user's code: logistic
    iop.set_backend("numpy", "cpu")
    network = FedNetwork([Agent(Logistic(A, b, problem.l2)) for A, b in problem.clients])
    selection = UniformSelection(num_selected_clients=problem.cohort)
    algorithm = Scaffold(step_size=problem.local_lr, num_local_steps=10, selection_scheme=selection)

    def note(k):  # for the watch
        watch(iop.to_numpy(network.server().x))

    watch(np.zeros(problem.rows.shape[2]))
    algorithm.run(network, problem.rounds, progress_callback=note)
    # end


if __name__ == "__main__":
    main({"logistic": logistic})
