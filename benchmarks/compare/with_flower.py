"""Flower's simulation: a ServerApp with a strategy, a ClientApp with PyTorch, as in Flower's quickstart."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvgM
from flwr.simulation import run_simulation
from torch.nn.functional import cross_entropy, softplus
from watch import load, main


def simulate(problem, watch, module, strategy, train):
    path, rounds = problem.path, problem.rounds  # Flower sends a client what its function refers to, so no data
    # the user's code: logistic network
    server, client = ServerApp(), ClientApp()

    @server.main()
    def serve(grid, context):
        def evaluate(round, arrays):  # for the watch
            watch(*(a.numpy() for a in arrays.values()))

        arrays = ArrayRecord(module.state_dict())
        strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)

    @client.train()
    def answer(message, context):
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        A, b = load(path).clients[context.node_config["partition-id"]]
        train(torch.tensor(A, dtype=torch.float32), torch.tensor(b))
        metrics = MetricRecord({"num-examples": len(b)})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=len(problem.rows), backend_config=resources)
    # end


def logistic(problem, watch):
    # the user's code: logistic
    module, lr, l2 = torch.nn.Linear(problem.rows.shape[2], 1, bias=False), problem.lr, problem.l2
    torch.nn.init.zeros_(module.weight)

    def train(A, b):
        optimizer = torch.optim.SGD(module.parameters(), lr=lr, weight_decay=l2)
        softplus(-b * module(A)[:, 0]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    share = problem.cohort / len(problem.rows)
    strategy = FedAvgM(fraction_train=share, fraction_evaluate=0.0, server_momentum=problem.momentum)
    # end
    simulate(problem, watch, module, strategy, train)


def network(problem, watch):
    # the user's code: network
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    torch.nn.utils.vector_to_parameters(torch.tensor(problem.x0, dtype=torch.float32), module.parameters())
    lr, steps, rows = problem.lr, problem.steps, problem.batch

    def train(X, y):
        optimizer = torch.optim.SGD(module.parameters(), lr=lr)
        for _ in range(steps):
            batch = torch.randperm(len(y))[:rows]
            optimizer.zero_grad()
            cross_entropy(module(X[batch]), y[batch]).backward()
            optimizer.step()

    strategy = FedAdam(fraction_evaluate=0.0, eta=problem.server_lr, eta_l=problem.lr, tau=problem.eps)
    # end
    simulate(problem, watch, module, strategy, train)


if __name__ == "__main__":
    main({"logistic": logistic, "network": network})
