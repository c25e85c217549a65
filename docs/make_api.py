"""Write docs/api.md: every public name with its signature and the first line of its docstring.

Run it as ``python docs/make_api.py``. The same package gives the same file.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from pathlib import Path
from typing import Any, ForwardRef

import proxskip
from proxskip.methods import BUILT_IN

PAGE = Path(__file__).with_name("api.md")

SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Running", "proxskip", ("run", "resume", "sweep", "Result", "Status", "Trace", "RayEngine", "EngineError")),
    ("Minimizing", "proxskip", ("minimize", "Minimum", "End", "plan", "Plan", "Network")),
    (
        "Problems",
        "proxskip",
        ("Problem", "split", "Logistic", "LeastSquares", "Softmax", "Quadratic", "random_quadratics", "scafflix"),
    ),
    ("Methods", "proxskip", (*(kind.__name__ for kind in BUILT_IN), "Decaying", "METHODS")),
    ("Writing a method", "proxskip", ("Method", "About", "Claims", "Style", "register")),
    ("Cohorts", "proxskip", ("Uniform", "Bernoulli", "Given")),
    ("Graphs", "proxskip", ("Graph", "graph", "from_matrix")),
    ("Errors and warnings", "proxskip", ("InputError", "NoTheoremWarning", "UnsafeStepWarning")),
)
MODULES = ("codecs", "datasets", "prox", "theory")
BEYOND = (
    ("proxskip.theory.table1", ("table1", "Table1Row")),
    ("proxskip.theory.steps", ("StepLimits", "Setting", "check_limits")),
    ("proxskip.registry", ("named", "step_limits", "load_plugin")),
    ("proxskip.types", ("Oracle", "Prox")),
    ("proxskip.seam", ("Client", "Exchange", "Engine", "Request", "Work")),
    ("proxskip.engines.near", ("NearEngine",)),
    ("proxskip.loop.line", ("Ledger",)),
    ("proxskip.engines.cpu.engine", ("CpuEngine",)),
    ("proxskip.engines.reference", ("ReferenceEngine",)),
    ("proxskip.loop.loop", ("Callback",)),
    ("proxskip.links.graphs", ("mixing_matrix", "as_graph")),
    ("proxskip.links.sums", ("weighted_sum",)),
    ("proxskip.problems.solve", ("Solution",)),
    ("proxskip.data.svmlight", ("read_svmlight", "Dataset", "DataError")),
    ("proxskip.conformance", ("check", "scaffold", "ConformanceReport", "Law")),
    ("proxskip.protocol", ("Server", "ServerState", "Client", "ClientState", "Worker", "Counts")),
    ("proxskip.results.checkpoint", ("save", "load", "differences", "Checkpoint", "CheckpointError")),
)
HEAD = """# API

Written by `docs/make_api.py`; do not edit. Signatures, and the first line of each docstring.
Full docstrings are in the source and in `help()`.
"""


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    named = {name for _, _, names in SECTIONS for name in names} | set(MODULES)
    missing = set(proxskip.__all__) ^ named
    if missing:
        raise SystemExit(f"docs/make_api.py and proxskip.__all__ differ in {sorted(missing)}.")
    for title, module, names in SECTIONS:
        parts.append(f"## {title}\n")
        parts += [entry(name, getattr(importlib.import_module(module), name)) for name in names]
    for name in MODULES:
        module_object = getattr(proxskip, name)
        parts.append(f"## proxskip.{name}\n\n{first_line(module_object)}\n")
        parts += [entry(f"{name}.{k}", v) for k, v in own(module_object)]
    parts.append("## Beyond the top level\n\nFor those who extend the library or read its files.\n")
    for path, names in BEYOND:
        module_object = importlib.import_module(path)
        parts.append(f"### {path}\n\n{first_line(module_object)}\n")
        parts += [entry(k, getattr(module_object, k)) for k in names]
    return "\n".join(parts).rstrip() + "\n"


def own(module: Any) -> list[tuple[str, Any]]:
    """A module's own public functions and classes (a package's from all its files), in the order of the source."""
    found = [
        (k, v)
        for k, v in vars(module).items()
        if not k.startswith("_")
        and (inspect.isfunction(v) or inspect.isclass(v))
        and f"{v.__module__}.".startswith(f"{module.__name__}.")
    ]
    return sorted(found, key=lambda item: (item[1].__module__, inspect.getsourcelines(item[1])[1]))


def entry(name: str, thing: Any) -> str:
    """One name: its signature, its line, and for a class its public methods and properties."""
    if isinstance(thing, dict):
        return f"- **`{name}`**: {', '.join(f'`{k}`' for k in thing)}\n"
    if not inspect.isclass(thing):
        return f"- **`{name}{signature(thing)}`**\n  {first_line(thing)}\n"
    if issubclass(thing, enum.Enum):
        return f"- **`{name}`**: {', '.join(f'`{member}`' for member in thing.__members__)}\n  {first_line(thing)}\n"
    bare = issubclass(thing, Exception) or getattr(thing, "_is_protocol", False)
    lines = [f"- **`{name}{'' if bare else signature(thing)}`**\n  {first_line(thing)}"]
    return "\n".join(lines + [f"  - {line}" for line in members(thing)]) + "\n"


def members(cls: type) -> list[str]:
    """Public methods and properties with a docstring, also those of its ancestors within the package."""
    seen: dict[str, Any] = {}
    for ancestor in cls.__mro__:
        if ancestor.__module__.startswith("proxskip"):
            for k, v in vars(ancestor).items():
                seen.setdefault(k, v)
    out = []
    for k, v in seen.items():
        plain = v.__func__ if isinstance(v, classmethod | staticmethod) else v
        if k.startswith("_"):
            continue
        if isinstance(plain, property) or type(plain).__name__ == "cached_property":
            line = first_line(plain.fget if isinstance(plain, property) else plain)
            out.append(f"`.{k}`" + (f": {line}" if line else ""))
        elif inspect.isfunction(plain) and (plain.__doc__ or not issubclass(cls, tuple)):
            line = first_line(plain)
            out.append(
                f"`.{k}{signature(plain, skip_self=not isinstance(v, staticmethod))}`" + (f": {line}" if line else "")
            )
    return out


def signature(thing: Any, skip_self: bool = False) -> str:
    """The call as the source writes it."""
    try:
        call = inspect.signature(thing)
    except (ValueError, TypeError):
        return ""
    words, starred = [], False
    for parameter in list(call.parameters.values())[1 if skip_self else 0 :]:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        starred = starred or star == "*"
        words.append(star + parameter.name + annotation(parameter.annotation) + default(parameter))
    result = annotation(call.return_annotation).removeprefix(": ")
    return f"({', '.join(words)})" + (f" -> {result}" if result and not inspect.isclass(thing) else "")


def annotation(given: Any) -> str:
    """``: type``, or nothing."""
    if given is inspect.Parameter.empty:
        return ""
    text = given.__forward_arg__ if isinstance(given, ForwardRef) else given
    text = text if isinstance(text, str) else getattr(text, "__name__", repr(text))
    return ": " + text.strip("'\"")


def default(parameter: inspect.Parameter) -> str:
    """`` = value``, or nothing."""
    value = parameter.default
    if value is inspect.Parameter.empty:
        return ""
    shown = value.__name__ if inspect.isclass(value) else repr(value)
    return " = " + ("..." if shown.startswith("<") else shown)


def first_line(thing: Any) -> str:
    """The first paragraph's first line of a docstring that was written here; nothing for a generated one."""
    text = inspect.cleandoc(thing.__doc__ or "").split("\n")[0]
    generated = re.match(r"^\w+\(.*\)$", text) and not text.endswith(".")
    return "" if generated else text


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
