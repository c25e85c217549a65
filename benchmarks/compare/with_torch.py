"""Plain PyTorch: the gradient of all rows with Nesterov's momentum, and all clients' local steps at once with vmap."""

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, softplus
from watch import main


def logistic(problem, watch):
    # the user's code: logistic
    A, b = torch.tensor(problem.rows, dtype=torch.float32), torch.tensor(problem.labels, dtype=torch.float32)
    x = torch.zeros(A.shape[2], requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=problem.lr, momentum=problem.momentum, nesterov=problem.momentum > 0)
    everybody = problem.cohort == len(A)
    watch(x.detach())
    for _ in range(problem.rounds):
        here = slice(None) if everybody else torch.randperm(len(A))[: problem.cohort]
        optimizer.zero_grad()
        loss = softplus(-b[here] * (A[here] @ x)).mean() + problem.l2 / 2 * x @ x
        loss.backward()
        optimizer.step()
        watch(x.detach())
    # end


def network(problem, watch):
    # the user's code: network
    X, y = torch.tensor(problem.rows, dtype=torch.float32), torch.tensor(problem.labels)
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    torch.nn.utils.vector_to_parameters(torch.tensor(problem.x0, dtype=torch.float32), module.parameters())
    server = torch.optim.Adam(module.parameters(), lr=problem.server_lr, eps=problem.eps)

    def loss(params, inputs, targets):
        return cross_entropy(functional_call(module, params, (inputs,)), targets)

    gradients = vmap(grad(loss))
    watch(*(p.detach() for p in module.parameters()))
    for _ in range(problem.rounds):
        local = {k: p.detach().expand(len(X), *p.shape) for k, p in module.named_parameters()}
        for _ in range(problem.steps):
            batch = torch.rand(X.shape[:2]).argsort(1)[:, : problem.batch]
            inputs = torch.take_along_dim(X, batch[:, :, None], 1)
            g = gradients(local, inputs, torch.take_along_dim(y, batch, 1))
            local = {k: p - problem.lr * g[k] for k, p in local.items()}
        for k, p in module.named_parameters():
            p.grad = p.detach() - local[k].mean(0)
        server.step()
        watch(*(p.detach() for p in module.parameters()))
    # end


if __name__ == "__main__":
    main({"logistic": logistic, "network": network})
