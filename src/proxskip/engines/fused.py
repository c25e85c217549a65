"""A client half's arithmetic in one launch: ``+ - * /`` are written down, and a kernel is made of them when needed.

A round of Scaffnew has five such operations; a launch for each would cost more than the local steps of a small problem.
Numbers are arguments of the kernel, so that one is compiled for each half and not for each step size. Nothing is
contracted into fused multiply-adds: the bytes are those of numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from proxskip.engines import cuda
from proxskip.engines.launch import NOTHING

NUMBER, VECTOR, COLUMN, STACK, KEPT = "number", "vector", "column", "stack", "kept"
READ = {
    VECTOR: "{0}[k]",
    COLUMN: "{0}[i]",
    STACK: "{0}[t]",
    KEPT: "{0}[row * d + k]",
}


class Term:
    """A leaf (a number, or an array on the card and how to read it) or an operation on two terms."""

    __array_ufunc__ = None
    __array_priority__ = 1000.0
    __slots__ = ("kind", "left", "operator", "right", "value")

    def __init__(
        self, kind: str = "", value: Any = None, operator: str = "", left: Any = None, right: Any = None
    ) -> None:
        self.kind, self.value, self.operator, self.left, self.right = kind, value, operator, left, right

    @staticmethod
    def of(v: Any) -> Term:
        """A term as it is; a number or an array on the card as a leaf."""
        if isinstance(v, Term):
            return v
        if np.ndim(v) == 0:
            return Term(NUMBER, float(v))
        return Term(VECTOR if v.ndim == 1 else COLUMN if v.shape[1] == 1 else STACK, v)

    def __add__(self, other: Any) -> Term:
        return Term(operator="+", left=self, right=Term.of(other))

    def __radd__(self, other: Any) -> Term:
        return Term(operator="+", left=Term.of(other), right=self)

    def __sub__(self, other: Any) -> Term:
        return Term(operator="-", left=self, right=Term.of(other))

    def __rsub__(self, other: Any) -> Term:
        return Term(operator="-", left=Term.of(other), right=self)

    def __mul__(self, other: Any) -> Term:
        return Term(operator="*", left=self, right=Term.of(other))

    def __rmul__(self, other: Any) -> Term:
        return Term(operator="*", left=Term.of(other), right=self)

    def __truediv__(self, other: Any) -> Term:
        return Term(operator="/", left=self, right=Term.of(other))

    def __rtruediv__(self, other: Any) -> Term:
        return Term(operator="/", left=Term.of(other), right=self)

    def __neg__(self) -> Term:
        return Term(operator="*", left=Term(NUMBER, -1.0), right=self)

    def __pos__(self) -> Term:
        return self


def compute(outputs: Sequence[tuple[Term, Any, bool]], c: int, d: int, members: Any) -> None:
    """Store each term into its array: row i of the cohort, or, if the last entry says so, the row of member i."""
    leaves: list[Term] = []
    seen: dict[int, str] = {}
    texts = tuple((_text(term, leaves, seen), kept) for term, _, kept in outputs)
    kernel = _kernel(tuple(leaf.kind for leaf in leaves), texts)
    arguments = [leaf.value if leaf.kind != NUMBER else np.float64(leaf.value) for leaf in leaves]
    arguments += [array for _, array, _ in outputs]
    at = NOTHING if members is None else members
    kernel((-(-c * d // 256),), (256,), (np.int32(c), np.int32(d), at, *arguments))


def _text(term: Term, leaves: list[Term], seen: dict[int, str]) -> str:
    if term.operator:
        return f"({_text(term.left, leaves, seen)} {term.operator} {_text(term.right, leaves, seen)})"
    key = id(term.value) if term.kind != NUMBER else id(term)
    if key not in seen:
        seen[key] = f"a{len(leaves)}"
        leaves.append(term)
    return seen[key]


@cache
def _kernel(kinds: tuple[str, ...], texts: tuple[tuple[str, bool], ...]) -> Any:
    import cupy  # type: ignore[import-not-found]

    return cuda.steady(cupy.RawKernel(source(kinds, texts), "fused", options=("--fmad=false",), backend="nvrtc"))


def source(kinds: tuple[str, ...], texts: tuple[tuple[str, bool], ...]) -> str:
    """The kernel: every thread reads all it needs before it stores anything."""
    given = [f"double a{j}" if kind == NUMBER else f"const double* p{j}" for j, kind in enumerate(kinds)]
    given += [f"double* o{j}" for j in range(len(texts))]
    reads = [f"    const double a{j} = {READ[k].format(f'p{j}')};" for j, k in enumerate(kinds) if k != NUMBER]
    values = [f"    const double v{j} = {text};" for j, (text, _) in enumerate(texts)]
    stores = [f"    {READ[KEPT if kept else STACK].format(f'o{j}')} = v{j};" for j, (_, kept) in enumerate(texts)]
    lines = [
        'extern "C" __global__ void fused(int c, int d, const int* at, ' + ", ".join(given) + ") {",
        "    const long long t = (long long)blockIdx.x * blockDim.x + threadIdx.x;",
        "    if (t >= (long long)c * d) return;",
        "    const int i = (int)(t / d), k = (int)(t % d);",
        "    const long long row = at ? at[i] : i;",
        *reads, *values, *stores,
        "}",
    ]  # fmt: skip
    return "\n".join(lines)
