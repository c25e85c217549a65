"""Vectors that write ``+ - * /`` down instead of computing them, so that one kernel can do several at once."""

from __future__ import annotations

from typing import Any, Self


class Written:
    """The operators of ``Lazy`` (CPU) and ``Term`` (GPU); each says in ``_with`` what it writes down."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy leaves mixed operations to us

    def _with(self, sign: str, other: Any, swapped: bool = False) -> Self:
        """``self sign other``; with ``swapped``, ``other sign self``."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Self:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Self:
        return self._with("+", other, swapped=True)

    def __sub__(self, other: Any) -> Self:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Self:
        return self._with("-", other, swapped=True)

    def __mul__(self, other: Any) -> Self:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Self:
        return self._with("*", other, swapped=True)

    def __truediv__(self, other: Any) -> Self:
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._with("/", other, swapped=True)
