"""A user's program with types, which ``mypy --strict`` must accept; test_types.py runs mypy on it."""

import numpy as np
import numpy.typing as npt

import proxskip as ps

Array = npt.NDArray[np.float64]


class Distance:
    """A function of the user's own:  f(x) = 1/2 |x - target|^2."""

    L = 1.0
    mu = 1.0

    def __init__(self, target: Array) -> None:
        self.target = target
        self.d = len(target)

    def value(self, x: Array) -> float:
        return 0.5 * float(np.sum((x - self.target) ** 2))

    def gradient(self, x: Array) -> Array:
        return x - self.target


def main() -> float:
    A = np.eye(6)
    problem: ps.Problem = ps.split(ps.Logistic(A, [0, 1, 0, 1, 0, 1], l2=0.1), clients=3)
    result: ps.Result = ps.run("scaffnew", problem, rounds=20, seed=1)
    theory: ps.Result = ps.run(ps.Scaffnew.theory(problem), problem, rounds=20, tol=1e-6)
    history: Array = result.trace["grad_norm"]
    own = ps.Problem([Distance(np.zeros(2)), Distance(np.ones(2))])
    middle: Array = ps.run(ps.GD.theory(own), own, rounds=50).x
    sparse: ps.Minimum = ps.minimize(ps.LeastSquares(A, np.arange(6.0)), ps.prox.L1(0.1))
    done: bool = theory.success and sparse.success and theory.status is ps.Status.CONVERGED
    return float(history[-1]) + float(middle.sum()) + float(sparse.x[0]) + float(done)


if __name__ == "__main__":
    print(main())
