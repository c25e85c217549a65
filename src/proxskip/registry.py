"""Methods by name: the built-in ones, those of installed packages, and your own.

A method becomes known by ``register``, by an entry point of the group ``proxskip.methods`` in an installed package, or
by ``--plugin FILE`` on the command line. Everything that meets a method by its name (the command line, run folders,
plots, reports, federations) finds it here, and reads what it is from its ``about``.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from proxskip.methods import BUILT_IN
from proxskip.seam import Method
from proxskip.theory.steps import Setting, StepLimits
from proxskip.types import InputError

GROUP = "proxskip.methods"
"""The group of entry points."""
HALF_NAME = re.compile(r"[a-z][a-z0-9_I]{0,22}")
"""What a message of the protocol can name: a client half."""
METHOD_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
Kind = TypeVar("Kind", bound=type[Method])


class Methods(Mapping[str, type[Method]]):
    """All known methods by name, in the order in which they became known."""

    def __init__(self) -> None:
        self._known: dict[str, type[Method]] = {m.name: m for m in BUILT_IN}
        self._looked = False

    def _all(self) -> dict[str, type[Method]]:
        """With those of installed packages, which are looked for once."""
        if not self._looked:
            self._looked = True
            for point in entry_points(group=GROUP):
                self.add(point.load())
        return self._known

    def __getitem__(self, name: str) -> type[Method]:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def add(self, kind: type[Method]) -> None:
        """One more, checked."""
        check(kind)
        there = self._known.get(kind.name)
        # the same class defined again (a file that is loaded twice, a notebook's cell) takes the old one's place
        if there is not None and (there.__qualname__, there in BUILT_IN) != (kind.__qualname__, False):
            raise InputError(f'a method with the name "{kind.name}" is known already; give yours another name.')
        self._known[kind.name] = kind


METHODS = Methods()
"""Every method by its name on the command line."""


def register(kind: Kind) -> Kind:
    """Make a method known by its name; also as a decorator.

    >>> import proxskip as ps
    >>> ps.register(object)
    Traceback (most recent call last):
    ...
    proxskip.types.InputError: object is not a method; derive it from proxskip.Method.
    """
    METHODS.add(kind)
    return kind


def check(kind: Any) -> None:
    """Refuse what could not be found again by its name, or what a message could not name."""
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        name = kind.__name__ if isinstance(kind, type) else type(kind).__name__
        raise InputError(f"{name} is not a method; derive it from proxskip.Method.")
    if "about" not in vars(kind):
        raise InputError(f'{kind.__name__} does not describe itself; give it  about = About(name="...").')
    if not METHOD_NAME.fullmatch(kind.name):
        raise InputError(f'"{kind.name}" cannot be a method\'s name; use lower-case letters, digits and hyphens.')
    for half in client_halves(kind):
        if not HALF_NAME.fullmatch(half):
            raise InputError(
                f'the client half "{half}" of {kind.name} cannot be named in a message; use at most 23 lower-case '
                "letters, digits and underscores."
            )


def client_halves(kind: type[Method]) -> list[str]:
    """The names of the client halves: public methods with the arguments (self, client, memory, ...)."""
    found = []
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and list(inspect.signature(member).parameters)[1:3] == ["client", "memory"]:
            found.append(name)
    return found


def bound_halves(method: Method) -> dict[str, Callable[..., Any]]:
    """The client halves of this method by name."""
    return {name: getattr(method, name) for name in client_halves(type(method))}


def load_plugin(path: str | Path) -> list[type[Method]]:
    """Run a Python file and register the methods that it defines (or registers itself)."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}; --plugin takes a Python file that defines methods.")
    name = "proxskip_plugin_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file; --plugin takes one that defines methods.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path} cannot be loaded ({type(error).__name__}: {error}).") from error
    own = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Method) and v.__module__ == name]
    own = [kind for kind in own if "about" in vars(kind)]
    if not own:
        raise InputError(f"{path} defines no method; derive one from proxskip.Method and give it an about.")
    for kind in own:
        METHODS.add(kind)
    return own


def named(name: str) -> type[Method]:
    """The method of this name (any case, with or without hyphens), or a sentence with the nearest one."""
    plain = name.lower().replace("_", "-").replace(" ", "-")
    for known, kind in METHODS.items():
        names = (known, *kind.about.other_names)
        if any(plain in (n, n.replace("-", "")) for n in names):
            return kind
    near = difflib.get_close_matches(plain, METHODS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InputError(f'method "{name}" is not known; {hint}The methods are {", ".join(METHODS)}.')


def title(name: str) -> str:
    """A method's title by its name; the name itself where no such method is known here."""
    kind = METHODS.get(name)
    return name if kind is None else kind.about.title or name


def step_limits(method: str, L: float, **given: Any) -> StepLimits:
    """What is known about the step size of a method, by its name.

    Args:
        given: K, p, eta_g, mu, n, cohort, lmax, sigma, as far as the method's step depends on them: see
            ``theory.steps.Setting``.
    """
    kind = named(method)
    found = kind.limits(Setting.of(L, **given))
    if found is None:
        raise InputError(f"no step sizes are known for {kind.name}.")
    return found
