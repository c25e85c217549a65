"""A figure is a Python function that runs curves, and yields panels, tables and claims.

    from proxskip.experiments import claims, curve, figure, panel

    @figure("Local steps on the digits", shows="Scaffnew needs fewer rounds.", quick={"rounds": 50})
    def mine(bench, rounds=300):
        runs = bench.run(["gd", curve("scaffnew", p=0.1)], rounds=rounds, l2_relative=1e-2)
        yield panel("theory", "steps by theory", runs)
        halved = claims.ratio(runs["scaffnew"], runs["gd"], eps=1e-2, at_most=0.5)
        yield claims.claim("fewer", "Scaffnew needs at most half the rounds of gradient descent.", halved)

The keyword parameters of the function are the figure's values: ``quick`` replaces some of them for ``--quick``, and the
page shows them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxskip.experiments.claims import Asserted, with_findings
from proxskip.report.figures import Claim, Experiment, Panel, Table
from proxskip.types import InputError

if TYPE_CHECKING:
    from proxskip.experiments.bench import Bench

PAPER = {
    "fig1a": "figure1",
    "fig1b": "figure1",
    "fig1c": "figure1",
    "fig2a": "figure2",
    "fig2b": "figure2",
    "fig2c": "figure2",
    "table1": "table1",
    "lyapunov": "lyapunov",
    "decentralized": "decentralized",
    "skipping": "prox_skipping",
}
"""The paper's figures and tables, with the modules that define them."""
FAMILY = dict.fromkeys(("family", "bits", "sleeping", "minibatches"), "family")
"""Experiments that compare the methods with each other, for ``reproduce --family``."""
ALL = PAPER | FAMILY

Parts = Iterable[Panel | Table | Asserted | Mapping[str, Any]]
"""What a figure yields; a mapping has constants for the page."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure: the function that makes it, and what the page says about it.

    Args:
        share: of the work of a report, in a full and in a quick run.
    """

    function: Callable[..., Parts]
    title: str
    shows: str = ""
    notes: tuple[str, ...] = ()
    quick: Mapping[str, Any] = field(default_factory=dict)
    share: tuple[float, float] = (1.0, 1.0)

    @property
    def file(self) -> str | None:
        """The user's file that defines it; None for an experiment of this package."""
        return None if self.function.__module__.startswith("proxskip.") else self.function.__code__.co_filename

    @property
    def id(self) -> str:
        return self.function.__name__.replace("_", "-")

    def values(self, quick: bool) -> dict[str, Any]:
        """The values of its parameters."""
        _, *parameters = inspect.signature(self.function).parameters.values()
        values = {p.name: p.default for p in parameters}
        return values | dict(self.quick) if quick else values

    def make(self, bench: Bench, **changed: Any) -> tuple[Experiment, list[Claim]]:
        """Run it and judge its claims."""
        try:
            return self._made(bench, self.values(bench.quick) | changed)
        except Exception as error:
            if self.file is None:
                raise
            raise in_a_sentence(self.file, error) from error

    def rehearse(self, bench: Bench) -> None:
        """Show the mistakes of a user's figure, by making it without running anything."""
        if self.file is not None:
            self.make(bench.rehearsal())

    def _made(self, bench: Bench, values: Mapping[str, Any]) -> tuple[Experiment, list[Claim]]:
        panels, tables, asserted, constants = list[Panel](), list[Table](), list[Asserted](), dict[str, Any]()
        for part in self.function(bench, **values):
            if isinstance(part, Panel):
                panels.append(part)
            elif isinstance(part, Table):
                tables.append(part)
            elif isinstance(part, Asserted):
                asserted.append(part)
            elif isinstance(part, Mapping):
                constants.update(part)
            else:
                raise InputError(f"{self.id} yields {type(part).__name__}; yield panels, tables and claims.")
        ids = [claim.id for claim in asserted]
        if repeated := [id for k, id in enumerate(ids) if id in ids[:k]]:
            raise InputError(f'two claims of {self.id} have the id "{repeated[0]}"; give each its own.')
        experiment = Experiment(
            self.id, self.title, self.shows, {**constants, **values}, "", panels, tables, list(self.notes)
        )
        return with_findings(experiment, [claim.judged(self.id, bench.data) for claim in asserted])


def figure(
    title: str,
    shows: str = "",
    notes: str = "",
    quick: Mapping[str, Any] | None = None,
    share: tuple[float, float] = (1.0, 1.0),
) -> Callable[[Callable[..., Parts]], Figure]:
    """Make a function a figure.

    Args:
        title: of the figure.
        shows: the sentence of the page if all claims hold.
        notes: remarks for the page, as paragraphs.
        quick: values that replace the function's own for ``--quick``.
        share: of the work of a report, in a full and in a quick run.
    """

    def made(function: Callable[..., Parts]) -> Figure:
        name = function.__name__
        bench, *_ = [*inspect.signature(function).parameters.values(), None]
        if bench is None or bench.default is not inspect.Parameter.empty:
            raise InputError(f"the first parameter of {name} is the bench, and has no default: def {name}(bench, ...).")
        if not inspect.isgeneratorfunction(function):
            raise InputError(f"{name} yields nothing; write yield before each of its panels, tables and claims.")
        remarks = [one_line(paragraph) for paragraph in notes.split("\n\n")]
        new = Figure(function, title, one_line(shows), tuple(filter(None, remarks)), quick or {}, share)
        known = new.values(quick=False)
        if unknown := [key for key in new.quick if key not in known]:
            raise InputError(f"{unknown[0]} of quick is no parameter of {name}, which has {', '.join(known)}.")
        if missing := [key for key, value in known.items() if value is inspect.Parameter.empty]:
            raise InputError(f"the parameter {missing[0]} of {name} has no value; give it a default.")
        return new

    return made


def one_line(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


# -- by name -----------------------------------------------------------------------------------------------------------
def experiment(name: str) -> Figure:
    """The experiment of this name."""
    module = importlib.import_module(f"proxskip.experiments.{ALL[name]}")
    found: Figure = vars(module)[name]
    return found


# -- a file of one's own -----------------------------------------------------------------------------------------------
def figures_in(path: str) -> list[Figure]:
    """The figures that a Python file defines."""
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}.")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise in_a_sentence(path, error) from error
    found = [v for v in vars(module).values() if isinstance(v, Figure) and v.function.__module__ == module.__name__]
    if not found:
        raise InputError(f"{path} defines no figure; put @figure(...) above a function of bench.")
    return found


def in_a_sentence(path: str, error: Exception) -> InputError:
    """An error in a user's file, with the line."""
    words = str(error) or type(error).__name__
    line = None
    if isinstance(error, SyntaxError):
        line, words = error.lineno, error.msg
    for place in traceback.extract_tb(error.__traceback__):
        if Path(place.filename).resolve() == Path(path).resolve():
            line = place.lineno
    kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    where = path if line is None else f"{path}, line {line}"
    return InputError(f"{where}: {kind}{words.rstrip('.')}.")
