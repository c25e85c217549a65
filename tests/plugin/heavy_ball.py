"""A method from outside the package: gradient descent with a heavy ball, and a parameter that no other method has."""

from dataclasses import dataclass

import proxskip as ps


@dataclass(frozen=True, slots=True)
class HeavyBall(ps.Method):
    """x+ = x - gamma sum_i w_i g_i(x) + theta (x - x_before)."""

    gamma: float
    theta: float = 0.5

    about = ps.About(name="heavy-ball", title="Heavy ball", style=ps.Style("#123456", "--", "X"))

    def start(self, problem, x0):
        return {"x": x0, "before": x0}

    def round(self, server, exchange):
        (x,) = exchange(self.local, server["x"], K=1)
        return {"x": x + self.theta * (server["x"] - server["before"]), "before": server["x"]}

    def local(self, client, memory, K, x):
        return (client.send(client.descend(x, 0.0, self.gamma, K)),), {}

    @classmethod
    def theory(cls, problem):
        return cls(gamma=1.0 / problem.L)
