"""pfl-research: ``FederatedAveraging`` on a ``SimulatedBackend``, as in its introduction."""

import torch
from pfl.model.pytorch import PyTorchModel

# isort: split
# the model came first, as pfl asks for: it sets the framework
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from torch.nn.functional import cross_entropy, softplus
from watch import main


class Note(TrainingProcessCallback):
    def __init__(self, watch):
        self.watch = watch

    def on_train_begin(self, *, model):
        self.watch(*(p.detach() for p in model.pytorch_model.parameters()))
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.on_train_begin(model=model)
        return False, Metrics()


def simulate(problem, watch, module, server, training):
    note = Note(watch)
    # the user's code: logistic network
    module.metrics = lambda x, y, eval=True: {}
    users = [
        Dataset((torch.tensor(A, dtype=torch.float32), torch.tensor(b)), user_id=str(i))
        for i, (A, b) in enumerate(problem.clients)
    ]
    sampler = get_user_sampler("minimize_reuse" if problem.cohort == len(users) else "random", range(len(users)))
    backend = SimulatedBackend(training_data=FederatedDataset(users.__getitem__, sampler), val_data=None)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=problem.rounds,
            evaluation_frequency=problem.rounds,
            train_cohort_size=problem.cohort,
            val_cohort_size=0,
        ),
        backend=backend,
        model=PyTorchModel(module, local_optimizer_create=torch.optim.SGD, central_optimizer=server),
        model_train_params=training,
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[note],
    )
    # end


def logistic(problem, watch):
    # the user's code: logistic
    module = torch.nn.Linear(problem.rows.shape[2], 1, bias=False)
    torch.nn.init.zeros_(module.weight)

    def loss(A, b, eval=False):
        return softplus(-b * module(A)[:, 0]).mean() + problem.l2 / 2 * (module.weight**2).sum()

    module.loss = loss
    momentum = {"momentum": problem.momentum, "nesterov": problem.momentum > 0}
    server = torch.optim.SGD(module.parameters(), lr=1.0, **momentum)
    training = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=problem.lr, local_batch_size=None)
    # end
    simulate(problem, watch, module, server, training)


def network(problem, watch):
    # the user's code: network
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    torch.nn.utils.vector_to_parameters(torch.tensor(problem.x0, dtype=torch.float32), module.parameters())
    module.loss = lambda X, y, eval=False: cross_entropy(module(X), y)
    server = torch.optim.Adam(module.parameters(), lr=problem.server_lr, eps=problem.eps)
    training = NNTrainHyperParams(
        local_num_epochs=problem.steps * problem.batch // problem.rows.shape[1],
        local_learning_rate=problem.lr,
        local_batch_size=problem.batch,
    )
    # end
    simulate(problem, watch, module, server, training)


if __name__ == "__main__":
    main({"logistic": logistic, "network": network})
