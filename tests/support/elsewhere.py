"""Engines whose vectors live elsewhere."""

from dataclasses import replace
from typing import Any

from proxskip.engines.in_process import NearEngine


class Far:
    """A vector that numpy cannot read: only + - * / with its like and with numbers."""

    __array_ufunc__ = None
    ndim = 1

    def __init__(self, v: Any) -> None:
        self.v, self.shape = v, v.shape

    def __array__(self, *_: object, **__: object) -> Any:
        raise TypeError("this vector is elsewhere")

    @staticmethod
    def of(v: Any) -> Any:
        assert isinstance(v, (Far, float, int)), type(v)
        return v.v if isinstance(v, Far) else v


for _verb in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv"):

    def _act(self: Far, other: Any, verb: str = f"__{_verb}__") -> Far:
        return Far(getattr(self.v, verb)(Far.of(other)))

    setattr(Far, f"__{_verb}__", _act)


class Elsewhere(NearEngine):
    """Before an engine's class: as if it were on another machine; it counts what is fetched."""

    fetched = 0

    def is_far(self) -> bool:
        return True

    def place(self, v: Any) -> Any:
        return Far(v)

    def fetch(self, v: Any) -> Any:
        self.fetched += 1
        return v.v

    def wait(self) -> None: ...

    def run(self, request: Any) -> Any:
        return super().run(replace(request, down=tuple(Far.of(v) for v in request.down)))

    def tell(self, half: Any, cohort: Any, outcome: Any) -> None:
        super().tell(half, cohort, tuple(v.v if isinstance(v, Far) else v for v in outcome))

    def sums(self, rows: Any, up: Any) -> Any:
        return tuple(map(Far, super().sums(rows, up)))
