"""A mistake in a method of the user's own ends the run with one sentence that names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import proxskip as ps
from support.problems import quadratics

PROBLEM = ps.Problem(quadratics(4, 3))
engines = pytest.mark.parametrize("engine", ["cpu", "reference"])


@dataclass(frozen=True)
class Mine(ps.core.Method):
    """LocalGD with a memory, without a mistake."""

    gamma: Any = 0.1
    about = ps.core.About("mine", remembers=("xhat",))

    def round(self, server: Any, exchange: Any) -> Any:
        (x,) = exchange(self.local, server["x"], K=2)
        return {"x": x}

    def local(self, client: Any, memory: Any, K: Any, x: Any) -> Any:
        xhat = client.descend(x, 0.0, self.gamma, K)
        return (xhat,), {"xhat": xhat + 0.0 * memory["xhat"]}


class ReadsAnotherName(Mine):
    def local(self, client: Any, memory: Any, K: Any, x: Any) -> Any:
        return (x + memory["xhta"],), {}


class ReturnsAnotherName(Mine):
    def local(self, client: Any, memory: Any, K: Any, x: Any) -> Any:
        return (x,), {"xhta": x}


class ReturnsOneVector(Mine):
    def local(self, client: Any, memory: Any, K: Any, x: Any) -> Any:
        return x


class SendsNoTuple(Mine):
    def local(self, client: Any, memory: Any, K: Any, x: Any) -> Any:
        return x, {}


class ReturnsNoDictionary(Mine):
    def round(self, server: Any, exchange: Any) -> Any:
        return server["x"]


class CompletesToNothing(Mine):
    def complete(self, *_: Any) -> Any:
        return None


class ForgetsK(Mine):
    def round(self, server: Any, exchange: Any) -> Any:
        (x,) = exchange(self.local, server["x"])
        return {"x": x}


class OnlyDifferentiates(Mine):
    def round(self, server: Any, exchange: Any) -> Any:
        (g,) = exchange(self.slope, server["x"])
        return {"x": server["x"] - self.gamma * g}

    def slope(self, client: Any, memory: Any, K: Any, x: Any) -> Any:
        return (client.gradient(x),), {}


MISTAKES = {
    ReadsAnotherName: r'clients remember only xhat, and not "xhta"; name it in remembers= of the method\'s about\.',
    ReturnsAnotherName: r'clients remember only xhat, and not "xhta"',
    ReturnsOneVector: r"ReturnsOneVector\.local does not return what goes up .* return two things",
    SendsNoTuple: r"SendsNoTuple\.local does not return what goes up .* return two things",
    ReturnsNoDictionary: r'round of mine must return the server\'s vectors by name, as \{"x": x\}\.',
    CompletesToNothing: r"complete of mine must return the method, such as  replace\(self, gamma=gamma\)\.",
    ForgetsK: r"descends, but exchange was given no K; call exchange\(half, \.\.\., K=\.\.\.\)\.",
}


@engines
@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_mistake_in_a_method_gets_one_sentence(kind: type[Mine], engine: str) -> None:
    with pytest.raises(ps.InputError, match=MISTAKES[kind]):
        ps.run(kind(), PROBLEM, rounds=2, engine=engine)


@engines
@pytest.mark.parametrize("kind", [Mine, OnlyDifferentiates])
def test_a_half_without_a_mistake_is_not_accused(kind: type[Mine], engine: str) -> None:
    """Also one that takes no local steps, and so needs no K."""
    assert ps.run(kind(), PROBLEM, rounds=2, engine=engine).summary["rounds"] == 2
