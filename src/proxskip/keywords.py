"""Keywords of public functions that are misspelt, or those of other libraries, get a sentence with the right word."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

from proxskip.types import InputError

P = ParamSpec("P")
R = TypeVar("R")
ELSEWHERE = {
    "lr": "gamma", "learning_rate": "gamma", "step_size": "gamma", "local_steps": "K", "num_clients": "clients",
    "num_rounds": "rounds", "epochs": "rounds", "random_state": "seed", "maxiter": "max_iter",
}  # fmt: skip
"""What other libraries call these keywords."""


def refuse_unknown(name: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse the first of the given keywords that is not known, with the one that was meant if that is plain."""
    for word in given:
        if word not in known:
            right = ELSEWHERE.get(word)
            near = [right] if right in known else closest(word, known)
            hint = f"did you mean {near[0]}=?" if near else f"its keywords are {', '.join(known)}."
            raise InputError(f"{name} has no keyword {word}=; {hint}")


def closest(word: str, words: Iterable[str]) -> list[str]:
    """The word that this one surely is, misspelt; none is better than a wrong one."""
    import difflib  # here, since workers do without

    return difflib.get_close_matches(word, words, n=1, cutoff=0.78)


def check_keywords(f: Callable[P, R], name: str = "") -> Callable[P, R]:
    """The function, whose unknown keywords get a sentence that calls it by its own name or this one."""
    code = f.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(f)
    def call(*args: P.args, **given: P.kwargs) -> R:
        if not given.keys() <= set(known):
            refuse_unknown(name or f.__name__, given, [name for name in known if name not in ("self", "cls")])
        return f(*args, **given)

    return call
