"""minimize with psi(D x): proxes / gradients of every method to a certificate of 1e-7, and of apda with a wrong mu.

python benchmarks/split.py
"""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse as sp

import proxskip as ps

MOST = 60_000
"""Proxes after which a method is given up."""


def chain(d):
    return sp.diags([-1.0, 1.0], [0, 1], shape=(d - 1, d)).tocsr()


def grid(side):
    E, eye = chain(side), sp.eye(side)
    return sp.vstack([sp.kron(E, eye), sp.kron(eye, E)]).tocsr()


def quadratic(d, kappa):
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    H = (Q * np.geomspace(1 / kappa, 1, d)) @ Q.T
    return ps.Quadratic((H + H.T) / 2, H @ np.repeat(rng.standard_normal(d // 4), 4) + 1e-2 * rng.standard_normal(d))


CASES = {
    "chain of 60": (chain(60), None),
    "grid of 8 x 8": (grid(8), 0.1),  # its rows are not independent: splitskip has no theorem, and takes p = 0.1
    "random 20 x 60": (sp.csr_matrix(np.random.default_rng(3).standard_normal((20, 60))), None),
}


def cell(f, D, method, **given):
    found = ps.minimize(f, ps.prox.L1(1e-2), D=D, method=method, tol=1e-7, max_prox=MOST, **given)
    return f"{found.nprox:,} / {found.ngrad:,}" + ("" if found.success else " (no)")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(
        "| D, kappa | papc | pdhg | splitskip | apda | apda, mu = 0 | mu 100 times too large | too small |\n"
        + "|---" * 8
        + "|"
    )
    for name, (D, p) in CASES.items():
        for kappa in (1e2, 1e4):
            f = quadratic(D.shape[1], kappa)
            cells = [cell(f, D, "papc"), cell(f, D, "pdhg"), cell(f, D, "splitskip", p=p), cell(f, D, "apda")]
            cells += [cell(f, D, "apda", mu=mu) for mu in (0.0, min(100 * f.mu, f.L), f.mu / 100)]
            print(f"| {name}, {kappa:g} | " + " | ".join(cells) + " |", flush=True)
