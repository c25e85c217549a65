"""The problems of ``peers.py``: each with its own objective, with minimize, and with the solvers that people use."""

from __future__ import annotations

from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import scipy.linalg
import scipy.ndimage
import scipy.sparse

import proxskip as ps
from proxskip.problems import spectrum
from proxskip.problems.linear_model import LinearModel


class Case:
    """F = f + psi, as minimize takes it; a subclass adds solvers: name -> (solver(tol, look), its kind)."""

    name = ""
    more: ClassVar[dict] = {}

    def ours(self):
        """f, psi and further arguments, made anew: what they compute counts."""
        return self.f(), self.psi(), dict(self.more)

    @cached_property
    def made(self):
        f, psi, _ = self.ours()
        return f, psi, f.L

    @property
    def d(self):
        return self.made[0].d

    def objective(self, x):
        f, psi, _ = self.made
        return float(f.value(x) + psi(x))

    def violation(self, x):
        """The largest violation of a constraint."""
        return 0.0

    def minimize(self, tol, look):
        f, psi, more = self.ours()
        return ps.minimize(f, psi, **{"x0": np.zeros(self.d), "tol": tol * self.unit, "threads": 1} | more).x

    @cached_property
    def unit(self):
        """The certificate at zero, so that tolerances are relative."""
        f, psi, L = self.made
        return L * float(np.linalg.norm(psi.prox(-f.gradient(np.zeros(f.d)) / L, 1 / L)))

    def solvers(self):
        import cvxpy  # noqa: F401  what is imported here costs nobody time
        import pyproximal  # noqa: F401

        plain = {"minimize": (self.minimize, "compiled")}
        for label, acceleration in (("ProximalGradient", None), ("AcceleratedProximalGradient", "fista")):
            plain[f"pyproximal {label}"] = (partial(self.pyproximal, acceleration), "steps")
        return plain | self.others()

    def others(self):
        return {}

    # -- pyproximal ----------------------------------------------------------------------------------------------------
    def theirs(self):
        """psi as an operator of pyproximal; ours, where it has none of the kind."""
        from pyproximal.ProxOperator import ProxOperator

        psi = self.psi()

        class Ours(ProxOperator):
            def __call__(self, x):
                return psi(x)

            def prox(self, x, tau):
                return psi.prox(x, tau)

        return Ours(None, False)

    def pyproximal(self, acceleration, tol, look):
        """Their solver with the step 1/L; as for minimize, f and its L are made on the clock."""
        from pyproximal import ProxOperator
        from pyproximal.optimization.primal import ProximalGradient

        f = self.f()
        L = _smoothness(f)

        class Smooth(ProxOperator):
            def __call__(self, x):
                return f.value(x)

            def grad(self, x):
                return f.gradient(x)

        x0 = np.zeros(self.d)
        given = {"niter": 10**6, "tau": 1 / L, "callback": look}
        return ProximalGradient(Smooth(None, True), self.theirs(), x0, acceleration=acceleration, **given)

    # -- cvxpy ---------------------------------------------------------------------------------------------------------
    def cvxpy(self, solver, tol, look):
        """The model is built, compiled and solved on the clock, as its users do."""
        import cvxpy as cp

        x = cp.Variable(self.d)
        problem = cp.Problem(cp.Minimize(self.modelled(cp, x)), self.constraints(cp, x))
        if solver == "CLARABEL":
            given = {"tol_gap_abs": tol, "tol_gap_rel": tol, "tol_feas": tol, "max_iter": 500}
        else:
            given = {"eps_abs": tol, "eps_rel": tol, "max_iter": 10**8}
        problem.solve(solver=solver, **given)
        return x.value

    def modelled(self, cp, x):
        raise NotImplementedError

    def constraints(self, cp, x):
        return []

    def cones(self, *names):
        return {f"cvxpy {name}": (partial(self.cvxpy, name.upper()), "cones") for name in names}


# -- regression: the prox is separable ---------------------------------------------------------------------------------
class Regression(Case):
    """1/2 mean (Ax - b)^2 + alpha |x|_1, alpha a share of the largest that leaves anything."""

    share = 0.05

    def __init__(self):
        rng = np.random.default_rng(0)
        self.A, truth = self.data(rng)
        self.b = self.A @ truth
        self.b += 0.1 * np.std(self.b) * rng.standard_normal(len(self.b))
        self.alpha = self.share * float(np.max(np.abs(self.A.T @ self.b))) / len(self.b)

    def f(self):
        return ps.LeastSquares(self.A, self.b)

    def psi(self):
        return ps.prox.L1(self.alpha)

    def theirs(self):
        from pyproximal import L1

        return L1(self.alpha)

    def modelled(self, cp, x):
        return cp.sum_squares(self.A @ x - self.b) / (2 * len(self.b)) + self.alpha * cp.norm1(x)

    def others(self):
        return {
            "scikit-learn Lasso": (self.sklearn, "compiled"),
            "skglm Lasso": (self.skglm, "compiled"),
            **self.cones("Clarabel", "OSQP"),
        }

    def sklearn(self, tol, look):
        from sklearn.linear_model import Lasso

        return Lasso(self.alpha, fit_intercept=False, tol=tol, max_iter=10**6).fit(self.A, self.b).coef_

    def skglm(self, tol, look):
        from skglm import Lasso

        return Lasso(self.alpha, fit_intercept=False, tol=tol * float(np.std(self.b))).fit(self.A, self.b).coef_


class DenseLasso(Regression):
    name = "lasso, dense 1000 x 4000"

    def data(self, rng):
        A = np.asfortranarray(rng.standard_normal((1000, 4000)) + 0.5 * rng.standard_normal((1000, 1)))
        return A, np.where(np.arange(4000) % 80 == 0, 1.0, 0.0)


class SparseLasso(Regression):
    name = "lasso, sparse 10,000 x 20,000, 10 a row"

    def data(self, rng):
        A = scipy.sparse.random_array((10_000, 20_000), density=5e-4, rng=rng, format="csc")
        return scipy.sparse.csc_matrix(A), np.where(np.arange(20_000) % 100 == 0, 1.0, 0.0)


class LogisticL1(Regression):
    name = "logistic l1, dense 5000 x 500"
    share = 0.02

    def data(self, rng):
        A = np.asfortranarray(rng.standard_normal((5000, 500)) * np.geomspace(1, 0.1, 500))
        return A, np.where(np.arange(500) % 10 == 0, 1.0, 0.0)

    def __init__(self):
        super().__init__()
        self.sign = np.where(self.b > 0, 1.0, -1.0)
        self.alpha = self.share * float(np.max(np.abs(self.A.T @ self.sign))) / (2 * len(self.b))

    def f(self):
        return ps.Logistic(self.A, self.sign > 0)

    def modelled(self, cp, x):
        loss = cp.sum(cp.logistic(cp.multiply(-self.sign, self.A @ x))) / len(self.sign)
        return loss + self.alpha * cp.norm1(x)

    def others(self):
        return {
            "scikit-learn liblinear": (partial(self.sklearn, "liblinear"), "compiled"),
            "scikit-learn saga": (partial(self.sklearn, "saga"), "compiled"),
            "skglm SparseLogisticRegression": (self.skglm, "compiled"),
            **self.cones("Clarabel"),
        }

    def sklearn(self, solver, tol, look):
        from sklearn.linear_model import LogisticRegression

        C = 1.0 / (len(self.sign) * self.alpha)
        model = LogisticRegression(
            C=C, penalty="l1", solver=solver, fit_intercept=False, tol=tol, max_iter=10**6, random_state=0
        )
        return model.fit(self.A, self.sign).coef_

    def skglm(self, tol, look):
        from skglm import SparseLogisticRegression

        return SparseLogisticRegression(self.alpha, fit_intercept=False, tol=tol).fit(self.A, self.sign).coef_


def _smoothness(f):
    """L; where eigenvalues take longer than many gradients, from some products with the Hessian, as minimize does."""
    if isinstance(f, LinearModel) and f.constants_are_costly:
        return 1.02 * spectrum.lanczos(partial(f.hessp, np.zeros(f.d)), f.d, 20)
    return f.L


# -- the prox is not separable -----------------------------------------------------------------------------------------
class Blurred:
    """1/2 |K x K - b|^2 for a picture x and a symmetric K; without K, 1/2 |x - b|^2."""

    L = 1.0

    def __init__(self, K, b):
        self.K, self.b, self.d = K, b, b.size
        self.mu = 1.0 if K is None else 0.0
        self.normal, self.kb = (None, b) if K is None else (K @ K, K @ b @ K)

    def value(self, x):
        X = x.reshape(self.b.shape)
        return 0.5 * float(np.sum(((X if self.K is None else self.K @ X @ self.K) - self.b) ** 2))

    def gradient(self, x):
        X = x.reshape(self.b.shape)
        return ((X if self.K is None else self.normal @ X @ self.normal) - self.kb).ravel()


def image(side):
    """Discs and a ramp with noise: edges, flat parts and a slope."""
    i, j = np.mgrid[:side, :side] / side
    clean = 0.3 * i + 0.5 * ((i - 0.4) ** 2 + (j - 0.5) ** 2 < 0.05) + 0.4 * ((i - 0.7) ** 2 + (j - 0.7) ** 2 < 0.02)
    return scipy.ndimage.uniform_filter(clean, 3) + 0.1 * np.random.default_rng(0).standard_normal((side, side))


class Picture(Case):
    """Total variation, isotropic."""

    def __init__(self, side, blurred):
        self.side, self.lam = side, 1e-3 if blurred else 0.1
        self.name = f"TV {'deblurring' if blurred else 'denoising'}, {side} x {side}"
        clean, rng = image(side), np.random.default_rng(1)
        self.K = None
        if blurred:
            away = np.minimum(np.arange(side), side - np.arange(side))
            weight = np.where(away <= 6, np.exp(-0.5 * (away / 1.5) ** 2), 0.0)
            self.K = scipy.linalg.circulant(weight / weight.sum())
            clean = self.K @ clean @ self.K
        self.b = clean + (3e-3 if blurred else 0.1) * rng.standard_normal(clean.shape)

    def f(self):
        return Blurred(self.K, self.b)

    def psi(self):
        return ps.prox.TV2D(self.lam, (self.side, self.side), threads=1)

    def theirs(self):
        from pyproximal import TV

        return TV((self.side, self.side), sigma=self.lam, niter=50)

    def others(self):
        more = self.cones("Clarabel")
        return more if self.K is not None else {"scikit-image Chambolle": (self.chambolle, "compiled"), **more}

    def chambolle(self, tol, look):
        from skimage.restoration import denoise_tv_chambolle

        return denoise_tv_chambolle(self.b, weight=self.lam, eps=tol / 10, max_num_iter=10**6)

    def modelled(self, cp, x):
        X = cp.reshape(x, (self.side, self.side), order="C")
        side = self.side
        E = scipy.sparse.diags([np.r_[-np.ones(side - 1), 0.0], np.ones(side - 1)], [0, 1])
        down, right = E @ X, X @ E.T
        both = cp.vstack([cp.reshape(down, (1, self.d), order="C"), cp.reshape(right, (1, self.d), order="C")])
        if self.K is not None:
            K = scipy.sparse.csr_matrix(self.K)
            self.half, self.seen = cp.Variable((side, side)), cp.Variable((side, side))
            self.blur = [self.half == K @ X, self.seen == self.half @ K]
            X = self.seen
        return 0.5 * cp.sum_squares(X - self.b) + self.lam * cp.sum(cp.norm(both, 2, axis=0))

    def constraints(self, cp, x):
        return [] if self.K is None else self.blur


class Shape(Case):
    """A polyhedron: logistic regression whose coefficients, ordered in time, increase and are concave, from 0 to 1."""

    d_, rows, loss = 120, 20_000, "logistic"
    name = "polyhedron: logistic 20,000 x 120, increasing and concave"

    def __init__(self):
        rng, d = np.random.default_rng(0), self.d_
        self.A = rng.standard_normal((self.rows, d)) @ np.tril(np.ones((d, d))) / d
        truth = np.sqrt(np.arange(d) / d)
        z = self.A @ truth
        self.sign = np.where(z + 0.3 * np.std(z) * rng.standard_normal(self.rows) > 0, 1.0, -1.0)
        slope = np.diff(np.eye(d), axis=0)
        self.G = np.vstack([-slope, np.diff(slope, axis=0), -np.eye(d)[:1], np.eye(d)[-1:]])
        self.u = np.r_[np.zeros(2 * d - 3), 0.0, 1.0]

    def f(self):
        return ps.Logistic(self.A, self.sign > 0, l2=1e-3)

    def psi(self):
        return ps.prox.Polyhedron(G=self.G, u=self.u)

    def objective(self, x):
        return float(self.made[0].value(x))

    def violation(self, x):
        return max(float(np.max(self.G @ x - self.u)), 0.0)

    def modelled(self, cp, x):
        loss = cp.sum(cp.logistic(cp.multiply(-self.sign, self.A @ x))) / self.rows
        return loss + 0.5e-3 * cp.sum_squares(x)

    def constraints(self, cp, x):
        return [self.G @ x <= self.u]

    def others(self):
        return self.cones("Clarabel")


CASES = (
    DenseLasso, SparseLasso, LogisticL1, partial(Picture, 64, False), partial(Picture, 256, False),
    partial(Picture, 64, True), partial(Picture, 256, True), Shape,
)  # fmt: skip
