"""The conformance laws: right round functions obey all of them, and each common mistake breaks the ones it is said to."""

from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.testing import check, scaffold

pytestmark = pytest.mark.long


def local(x: Any, h_i: Any, gradient: Any, gamma: float, K: int) -> Any:
    y = x
    for _ in range(K):
        y = y - gamma * (gradient(y) - h_i)
    return y


def scaffnew(x: Any, h: Any, g: Any, S: Any, gamma: float, K: int, *, steps: int = 0, mistake: str = "") -> Any:
    xhat = {i: local(x, h[i], g[i], gamma, K + steps) for i in S}
    x = xhat[S[-1]] if mistake == "last" else sum(xhat.values()) / (6 if mistake == "n" else len(S))
    h = h.copy()
    for i in range(6) if mistake == "all" else S:
        if mistake != "never":
            h[i] += (x - xhat.get(i, x - 1)) / (K * gamma)
    return x, h


def option(which: str, share: bool = True) -> Any:
    """Scaffold, with |S|/N in the update of c or without."""

    def round(x: Any, c_i: Any, c: Any, g: Any, S: Any, gamma: float, K: int) -> Any:
        dx, dc, new = np.zeros(5), np.zeros(5), c_i.copy()
        for i in S:
            y = local(x, c_i[i] - c, g[i], gamma, K)
            new[i] = g[i](x) if which == "I" else c_i[i] - c + (x - y) / (K * gamma)
            dx, dc = dx + (y - x) / len(S), dc + (new[i] - c_i[i]) / len(S)
        return x + dx, new, c + (len(S) / 6 if share else 1.0) * dc

    return round


class Lazy:
    """Updates h when a client is next called, with the server's x of that time."""

    def place(self, h: Any) -> Any:
        return h.copy(), {}

    def controls(self, state: Any, x: Any) -> Any:
        h, waiting = state[0].copy(), state[1]
        for i, (xhat, rate) in waiting.items():
            h[i] += rate * (x - xhat)
        return h

    def round(self, x: Any, state: Any, g: Any, S: Any, gamma: float, K: int) -> Any:
        h, waiting = state[0].copy(), dict(state[1])
        for i in S:
            if i in waiting:
                xhat, rate = waiting.pop(i)
                h[i] += rate * (x - xhat)
            waiting[i] = (local(x, h[i], g[i], gamma, K), 1 / (K * gamma))
        return sum(waiting[i][0] for i in S) / len(S), (h, waiting)


def test_right_round_functions_obey_all_laws() -> None:
    assert check(scaffnew).ok
    assert check(*scaffold(option("II"))).ok
    assert check(*scaffold(option("I")), extra=1).ok


MISTAKES = {
    "controls never updated": ((lambda *a: scaffnew(*a, mistake="never"),), {"learning", "rate", "rate on cohorts"}),
    "last client instead of the mean": (
        (lambda *a: scaffnew(*a, mistake="last"),),
        {"reduction", "learning", "sum", "sum on cohorts"},
    ),
    "division by n on a cohort": ((lambda *a: scaffnew(*a, mistake="n"),), {"sum on cohorts", "rate on cohorts"}),
    "everybody updates h": ((lambda *a: scaffnew(*a, mistake="all"),), {"sum on cohorts", "rate on cohorts"}),
    "missing |S|/N": (scaffold(option("II", share=False)), {"sum on cohorts"}),
    "lazy h": ((Lazy().round, Lazy().place, Lazy().controls), {"sum on cohorts", "rate on cohorts"}),
    "one local step too many": ((lambda *a: scaffnew(*a, steps=1),), {"local steps", "reduction", "learning"}),
    "one local step too few": ((lambda *a: scaffnew(*a, steps=-1),), {"local steps", "reduction", "learning"}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_breaks_its_laws(mistake: str) -> None:
    given, laws = MISTAKES[mistake]
    report = check(*given)
    assert laws <= set(report.broken), str(report)
    assert "fixed point" not in report.broken


def test_the_report_reads_well() -> None:
    text = str(check(lambda *a: scaffnew(*a, mistake="never")))
    assert "BROKEN  learning" in text
    assert "holds   fixed point" in text
    with pytest.raises(ps.InputError, match="shape"):
        check(lambda x, h, *rest: (np.zeros(3), h))
