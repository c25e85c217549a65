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
OF_METHODS = dict.fromkeys(("gamma", "p"), "ps.Scaffnew(gamma=..., p=...)") | {"K": "ps.LocalGD(gamma=..., K=...)"}
"""Keywords that belong to a method, and where they go."""


def refuse_unknown(name: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse the first of the given keywords that is not known, with the one that was meant if that is plain."""
    words = (*known, *OF_METHODS) if name in ("run", "sweep", "compare") else known
    for word in given:
        if word not in known:
            right = ELSEWHERE.get(word, word)
            near = [right] if right in words else closest(word, words)
            hint = f"did you mean {near[0]}=?" if near else f"its keywords are {', '.join(known)}."
            if near and near[0] not in known:
                hint = f"{near[0]} belongs to the method: pass one such as {OF_METHODS[near[0]]}."
            raise InputError(f"{name} has no keyword {word}=; {hint}")


def closest(word: str, words: Iterable[str]) -> list[str]:
    """The word that this one surely is, misspelt; none is better than a wrong one."""
    import difflib  # here, since workers do without

    plain = {known.lower(): known for known in words}
    return [plain[near] for near in difflib.get_close_matches(word.lower(), plain, n=1, cutoff=0.78)]


def check_keywords(f: Callable[P, R], name: str = "") -> Callable[P, R]:
    """The function or class, whose unknown keywords get a sentence that calls it by its own name or this one."""
    if isinstance(f, type):
        f.__init__ = check_keywords(f.__init__)  # type: ignore[misc]
        return f
    code = vars(f).get("__wrapped__", f).__code__  # also of one that is checked under another name
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(f)
    def call(*args: P.args, **given: P.kwargs) -> R:
        if not given.keys() <= set(known):
            own = type(args[0]).__name__ if f.__name__ == "__init__" else f.__name__
            refuse_unknown(name or own, given, [name for name in known if name not in ("self", "cls")])
        return f(*args, **given)

    return call
