"""FedJAX: ``federated_averaging`` with an optimizer at the server, as in its tutorial on algorithms."""

import fedjax
import jax
import jax.numpy as jnp
import optax
from fedjax.algorithms.fed_avg import federated_averaging
from watch import main


def rounds_of(problem, watch, algorithm, params):
    # the user's code: logistic network
    data = {str(i): {"x": A.astype("float32"), "y": b} for i, (A, b) in enumerate(problem.clients)}
    federated = fedjax.InMemoryFederatedData(data)
    sampler = fedjax.client_samplers.UniformGetClientSampler(federated, num_clients=problem.cohort, seed=0)
    state = algorithm.init(params)
    watch(*jax.tree_util.tree_leaves(state.params))
    for _ in range(problem.rounds):
        state, _ = algorithm.apply(state, sampler.sample())
        watch(*jax.tree_util.tree_leaves(state.params))
    # end


def logistic(problem, watch):
    # the user's code: logistic
    def loss(x, batch, key):
        return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ x))) + problem.l2 / 2 * x @ x

    algorithm = federated_averaging(
        jax.jit(jax.grad(loss)),
        fedjax.optimizers.sgd(problem.lr),
        fedjax.optimizers.sgd(1.0, momentum=problem.momentum, nesterov=problem.momentum > 0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=problem.rows.shape[1]),
    )
    params = jnp.zeros(problem.rows.shape[2])
    # end
    rounds_of(problem, watch, algorithm, params)


def network(problem, watch):
    # the user's code: network
    def loss(params, batch, key):
        W, b, V, c = params
        outputs = jax.nn.relu(batch["x"] @ W.T + b) @ V.T + c
        return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["y"]).mean()

    algorithm = federated_averaging(
        jax.jit(jax.grad(loss)),
        fedjax.optimizers.sgd(problem.lr),
        fedjax.optimizers.adam(problem.server_lr, eps=problem.eps),
        fedjax.ShuffleRepeatBatchHParams(batch_size=problem.batch, num_epochs=None, num_steps=problem.steps),
    )
    W, b, V, c = jnp.split(jnp.array(problem.x0, jnp.float32), [4096, 4160, 4800])
    params = [W.reshape(64, 64), b, V.reshape(10, 64), c]
    # end
    rounds_of(problem, watch, algorithm, params)


if __name__ == "__main__":
    main({"logistic": logistic, "network": network})
