"""Methods by name: the built-in ones, those of installed packages, and your own.

A method becomes known through ``register``, an entry point in the group ``proxskip.methods``, or ``--plugin FILE`` on
the command line. Whatever meets a method by name (command line, run folders, plots, federations) finds it here and
reads its ``about``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from proxskip import methods
from proxskip.core.method import HANDLES, About, Method
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import InputError

GROUP = "proxskip.methods"
"""The group of entry points."""
HALF_NAME = re.compile(r"[a-z][a-z0-9_I]{0,22}")
"""Names of client halves that fit into a message."""
METHOD_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
Kind = TypeVar("Kind", bound=type[Method])


class Methods(Mapping[str, type[Method]]):
    """All known methods by name, in the order they became known."""

    _looked = False
    """Whether installed packages were searched."""

    @cached_property
    def _known(self) -> dict[str, type[Method]]:
        from proxskip.methods.built_in import BUILT_IN

        return {m.about.name: m for m in BUILT_IN}

    def _all(self) -> dict[str, type[Method]]:
        """Including those of installed packages, searched once."""
        if not self._looked:
            self._looked = True
            for point in entry_points(group=GROUP):
                try:
                    self.add(point.load())
                except (Exception, SystemExit) as error:  # a broken package only loses its own methods
                    why = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}."
                    warnings.warn(f"skipped the method {point.name} from {point.value}: {why}", stacklevel=1)
        return self._known

    def __getitem__(self, name: str) -> type[Method]:
        # built-in names cannot be taken, so entry points need not be loaded to find one
        return _built_in(name) or self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def add(self, kind: type[Method]) -> None:
        check(kind)
        for known in self._known.values():
            # the same class defined again (a file loaded twice, a notebook cell) replaces the old one
            again = (known.__qualname__, _origin(known)) == (kind.__qualname__, _origin(kind))
            if kind.about.name in (known.about.name, *known.about.other_names) and not again:
                raise InputError(
                    f'the name "{kind.about.name}" is taken by the method of {_origin(known)}; choose another name.'
                )
        self._known[kind.about.name] = kind


def _origin(kind: type[Method]) -> str:
    """The file that defines a method, or its module."""
    file = None if _is_ours(kind) else getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file or kind.__module__


def _is_ours(kind: type[Method]) -> bool:
    return kind.__module__.partition(".")[0] == "proxskip"


def _built_in(name: str) -> type[Method] | None:
    """A method of this package whose class has this name without hyphens; only its file is loaded."""
    for word in methods.__all__:
        if word.lower() == name.replace("-", ""):
            kind: type[Method] = vars(methods).get(word) or methods.__getattr__(word)
            return kind if kind.about.name == name else None
    return None


METHODS = Methods()
"""Every known method by name."""
PLUGINS: list[Path] = []
"""The files of ``load_plugin``, which processes that help this one load too."""


def register(kind: Kind) -> Kind:
    """Make a method known by its name; also as a decorator.

    Args:
        kind: the class of the method.

    >>> import proxskip as ps
    >>> ps.core.register(object)
    Traceback (most recent call last):
    ...
    proxskip.types.InputError: object is not a method; derive it from proxskip.core.Method.
    """
    METHODS.add(kind)
    return kind


def check(kind: type[Method]) -> None:
    """Refuse a class that could not be found by name, or that a message could not name."""
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        name = kind.__name__ if isinstance(kind, type) else type(kind).__name__
        raise InputError(f"{name} is not a method; derive it from proxskip.core.Method.")
    if not isinstance(vars(kind).get("about"), About):
        raise InputError(f'{kind.__name__} has no description; give it  about = About(name="...").')
    known = getattr(kind, "__dataclass_fields__", None)
    if known is None:
        raise InputError(f"{kind.__name__} is not a dataclass; put @dataclass(frozen=True) directly above it.")
    if "gamma" not in known:
        raise InputError(f"{kind.__name__} has no step size; give it a field gamma.")
    if not METHOD_NAME.fullmatch(kind.about.name):
        raise InputError(f'"{kind.about.name}" is not a valid method name; use lower-case letters, digits and hyphens.')
    if unknown := sorted(kind.about.handles - HANDLES.keys()):
        raise InputError(f'{kind.about.name} handles "{unknown[0]}"; use only {", ".join(sorted(HANDLES))}.')
    for half in client_halves(kind):
        if not HALF_NAME.fullmatch(half):
            raise InputError(
                f'the name of the client half "{half}" of {kind.about.name} does not fit into a message; use at most '
                "23 lower-case letters, digits and underscores."
            )


def client_halves(kind: type[Method]) -> list[str]:
    """The names of the client halves: public methods that take (self, client, memory, ...)."""
    functions = inspect.getmembers(kind, lambda v: inspect.isfunction(v) and not v.__name__.startswith("_"))
    return [name for name, f in functions if list(inspect.signature(f).parameters)[1:3] == ["client", "memory"]]


def bound_halves(method: Method) -> dict[str, Callable[..., object]]:
    """The client halves of this method by name."""
    return {name: getattr(method, name) for name in client_halves(type(method))}


def load_plugin(path: str | Path) -> list[type[Method]]:
    """Run a Python file and register the methods that it defines (or registers itself).

    Args:
        path: of the file.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}; a plugin is a Python file that defines methods.")
    # files of one name in different folders are different modules
    where = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"proxskip_plugin_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{where}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file; a plugin is one that defines methods.")
    module = importlib.util.module_from_spec(spec)
    before = list(METHODS.values())
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be loaded ({type(error).__name__}: {error}).") from error
    own = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Method) and v.__module__ == name]
    own = [kind for kind in own if "about" in vars(kind)]
    for kind in own:
        METHODS.add(kind)
    new = own + [kind for kind in METHODS.values() if kind not in (*before, *own)]
    if not new:
        raise InputError(f"{path} defines no method; derive one from proxskip.core.Method and give it an about.")
    if path.resolve() not in PLUGINS:
        PLUGINS.append(path.resolve())
    return new


def named(name: str) -> type[Method]:
    """The method of this name, in any case and with or without hyphens."""
    plain = name.lower().replace("_", "-").replace(" ", "-")
    if plain in METHODS:
        return METHODS[plain]
    for known, kind in METHODS.items():
        names = (known, *kind.about.other_names)
        if any(plain in (n, n.replace("-", "")) for n in names):
            return kind
    near = closest(plain, [known for known in METHODS if known[0] == plain[:1]])  # sgd is not gd
    if near:
        raise InputError(f'method "{name}" is not known; did you mean {near[0]}?')
    raise InputError(
        f'method "{name}" is not known. The methods are {", ".join(METHODS)}; one of your own becomes known by '
        "proxskip.core.register."
    )


def closest(word: str, words: Iterable[str]) -> list[str]:
    """The word that this one surely is, misspelt; none is better than a wrong one."""
    from difflib import get_close_matches  # here, since workers do without

    return get_close_matches(word, list(words), n=1, cutoff=0.78)


def title(name: str) -> str:
    """A method's title; the name itself if the method is unknown."""
    kind = METHODS.get(name)
    return name if kind is None else kind.about.title or name


def step_limits(method: str, L: float, **setting: Any) -> StepLimits:
    """The known step limits of a method.

    Args:
        method: its name.
        L: the smoothness constant.
        setting: K, p, eta_g, mu, n, cohort, lmax, sigma, as far as the step depends on them; see
            ``theory.step_sizes.Setting``.
    """
    kind = named(method)
    limits = kind.limits(Setting.of(L, **setting))
    if limits is None:
        raise InputError(f"no step limits are known for {kind.about.name}.")
    return limits
