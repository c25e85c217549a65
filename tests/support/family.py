"""Methods and codecs outside the package, written through its seam; ``test_seam.py`` runs them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import proxskip as ps
from proxskip.codecs import Codec, Float32, Key, Masks, RandK
from proxskip.core.exchange import Client, Exchange
from proxskip.methods import steps
from proxskip.types import Array, Vectors

Up = tuple[tuple[Array, ...], Vectors]


@dataclass(frozen=True)
class Signs:
    """A bit for each sign, after the mean absolute value: a size that is not a whole number of bytes."""

    unbiased, keyed = False, False

    def omega(self, d: int) -> float:
        return 1.0

    def bits(self, d: int, key: Key) -> int:
        return 64 + d

    def floats(self, d: int, key: Key) -> int:
        return 1

    def encode(self, v: Array, key: Key) -> bytes:
        return np.abs(v).mean().astype("<f8").tobytes() + np.packbits(v >= 0).tobytes()

    def decode(self, data: bytes, d: int, key: Key) -> Array:
        signs = np.unpackbits(np.frombuffer(data[8:], np.uint8), count=d)
        return float(np.frombuffer(data[:8], "<f8")[0]) * (2.0 * signs - 1.0)


@dataclass(frozen=True)
class LocalSolver(ps.core.Method):
    """5GCS for equal weights, with codecs; t, step and beta have an entry for each client.

    With ``until``, K is the most. ``first`` plain steps on f_i lead to where these begin.
    """

    gamma: float
    mu: float
    t: tuple[float, ...]
    step: tuple[float, ...]
    beta: tuple[float, ...]
    K: int = 2
    until: float | None = None
    codec: Codec | None = None
    first: int = 0

    about = ps.core.About("local-solver", handles=frozenset({"batch", "clients"}), remembers=("v",))

    @classmethod
    def of(cls, problem: ps.Problem, **given: Any) -> LocalSolver:
        """c = 1 and sigma = 1: gamma = 1/sqrt(mu Lbar), t_i = L_F,i / (gamma Lbar)."""
        mu = 0.9 * problem.mu  # any lower bound
        L = np.asarray(problem.L_i) - mu
        gamma = 1.0 / math.sqrt(mu * L.mean())
        t = L / (gamma * L.mean())
        root = np.sqrt(t / (L + t))
        return cls(gamma, mu, tuple(t), tuple(1.0 / (L + t)), tuple((1 - root) / (1 + root)), **given)

    def start(self, problem: ps.Problem, x0: Array) -> Vectors:
        return {"x": x0, "z": x0, "v": 0.0 * x0}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        xhat = (server["z"] - self.gamma * server["v"]) / (1 + self.gamma * self.mu)
        own = {"t": self.t, "step": self.step, "beta": self.beta}
        (change,) = exchange(self.local, xhat, K=self.K, own=own)
        return {"x": xhat, "z": xhat - self.gamma * change, "v": server["v"] + change}

    def local(self, client: Client, memory: Vectors, K: int, xhat: Array, t: Any, step: Any, beta: Any) -> Up:
        h, pull = memory["v"] + self.mu * xhat, (t - self.mu, xhat)  # - mu y is a part of the pull
        begin = client.descend(xhat, h, step, self.first) if self.first else xhat
        until = None if self.until is None else self.until * t
        y = client.descend(begin, h, step, K, pull=pull, momentum=beta, until=until)
        y = y if self.until is None else y[0]
        sent = client.send(t * (xhat - y), self.codec)
        return (sent,), {"v": memory["v"] + sent}


@dataclass(frozen=True)
class Halved(ps.core.Method):
    """Scaffnew whose K steps are made in two descents, which changes nothing."""

    gamma: float
    p: float
    cut: bool = True

    about = ps.core.About("halved", handles=frozenset({"batch", "clients"}), remembers=("h", "xhat"))

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        (x,) = exchange(self.local, server["x"], K=2 * steps.geometric(exchange.rng, self.p))
        exchange.settle(self.settle, x)
        return {"x": x}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Up:
        if self.cut:
            halfway = client.descend(x, memory["h"], self.gamma, K // 2)
            xhat = client.descend(halfway, memory["h"], self.gamma, K // 2)
        else:
            xhat = client.descend(x, memory["h"], self.gamma, K)
        return (xhat - (self.gamma / self.p) * memory["h"],), {"xhat": xhat}

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        return {"h": memory["h"] + (self.p / self.gamma) * (x - memory["xhat"])}


@dataclass(frozen=True)
class Mixture(ps.core.Method):
    """No method of use: in every round two exchanges, descents of all kinds, and vectors that travel in every way.

    What a client sends and what it remembers are equal where they can be, and one vector is remembered twice.
    """

    gamma: float
    steps: tuple[int, ...]
    codec: Codec
    anchored: bool = True

    about = ps.core.About(
        "mixture", handles=frozenset({"batch", "clients", "cohort"}), remembers=("u", "a", "b", "w", "gw")
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        n = exchange.problem.n
        (g,) = exchange(self.look, server["x"], own={"odd": np.arange(n) % 2})
        x, y, _ = exchange(
            self.walk, server["x"], g, K=self.steps, own={"t": 0.1 + np.arange(n), "beta": np.arange(n) / n}
        )
        exchange.settle(self.settle, x + y)
        return {"x": server["x"] + 0.1 * (x - server["x"]) + 0.01 * y}

    def look(self, client: Client, memory: Vectors, K: int, x: Array, odd: Any) -> Up:
        g = client.gradient(x, where=odd)
        return (client.send(x + 0.0 * g, self.codec),), {"w": x - 0.5 * memory["u"], "gw": g + memory["gw"]}

    def walk(self, client: Client, memory: Vectors, K: int, x: Array, g: Array, t: Any, beta: Any) -> Up:
        y = client.descend(x, 0.1 * memory["u"], self.gamma, K)
        shift, gamma = (0.1 / t) * memory["u"], 1.0 / (1.0 / self.gamma + t)
        y = client.descend(y, shift, gamma, K, pull=(t, x + 0.0 * g), momentum=beta)
        w, gw = memory["w"] + 0.1 * memory["a"], memory["gw"] - 0.1 * memory["b"]
        if self.anchored:
            y, w, gw = client.descend(y, memory["u"], self.gamma, K, anchor=(w, gw, 0.4))
        plain, coded, row = client.send(y), client.send(y - x, self.codec), client.send(x, self.codec)
        return (plain, coded, row), {"a": y, "b": y, "w": w, "gw": 0.1 * gw}

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        return {"a": memory["a"] - 0.5 * x, "u": 0.1 * (memory["b"] - memory["a"])}


__all__ = ["Float32", "Halved", "LocalSolver", "Masks", "Mixture", "RandK", "Signs"]
