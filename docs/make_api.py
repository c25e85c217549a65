"""Write docs/api.md and docs/api/: every public name with its signature, its docstring and its examples.

Run it as ``python docs/make_api.py``. The same package gives the same files. ``docs/api.toml`` has the introduction and
the example of each page.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any, ForwardRef

import proxskip
from proxskip.methods.built_in import BUILT_IN

PAGE = Path(__file__).with_name("api.md")
FOLDER = Path(__file__).with_name("api")
INTRODUCTIONS = tomllib.loads(Path(__file__).with_name("api.toml").read_text("utf-8"))

SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Running",
        "proxskip",
        (
            "run",
            "resume",
            "sweep",
            "tune",
            "load",
            "plot",
            "reproduce",
            "Result",
            "RunResult",
            "Results",
            "Tuned",
            "Status",
            "Trace",
            "RayEngine",
            "EngineError",
        ),
    ),
    ("Minimizing", "proxskip", ("minimize", "Minimum", "plan", "Plan", "Network", "Spread")),
    (
        "Problems",
        "proxskip",
        (
            "Problem",
            "split",
            "Logistic",
            "LeastSquares",
            "Softmax",
            "Quadratic",
            "random_quadratics",
            "scafflix",
            "write_clients",
            "open_clients",
        ),
    ),
    ("Methods", "proxskip", (*(kind.__name__ for kind in BUILT_IN), "Decaying")),
    ("Errors and warnings", "proxskip", ("InputError", "NoTheoremWarning", "UnsafeStepWarning")),
)
OPTIONAL: tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...] = (
    ("proxskip.sklearn", (("proxskip.sklearn", ("FederatedClassifier", "ProxClassifier", "ProxRegressor")),)),
    (
        "proxskip.torch",
        (
            ("proxskip.torch", ("train", "resume", "recipe", "recipes", "split", "plot_split", "Trained")),
            ("proxskip.torch", ("Model", "Scaffnew", "SynchronizationError", "init_process_group")),
            ("proxskip.engines.torch.engine", ("TorchEngine",)),
        ),
    ),
    (
        "proxskip.flower",
        (
            (
                "proxskip.flower",
                ("Federated", "FederationResult", "client_app", "FederatedClient"),
            ),
            ("proxskip.flower", ("Noise", "from_arrays", "from_svmlight", "from_torch")),
        ),
    ),
)
"""Pages of packages that may not be installed; such a page is left as it is."""
MODULES = ("participation", "graphs", "codecs", "callbacks", "datasets", "prox", "theory", "authoring")
BEYOND = (
    ("proxskip.experiments.paper_table", ("table1", "Table1Row")),
    ("proxskip.loop.ledger", ("Ledger",)),
    ("proxskip.engines.cpu.engine", ("CpuEngine",)),
    ("proxskip.engines.reference", ("ReferenceEngine",)),
    ("proxskip.problems.solve", ("Solution",)),
    ("proxskip.data.files", ("read_svmlight", "Dataset")),
    ("proxskip.conformance", ("check", "scaffold", "ConformanceReport", "Law")),
    ("proxskip.flower", ("Server", "ServerState", "ClientNode", "ClientState", "Worker", "Counts")),
    ("proxskip.results.checkpoint", ("save", "load", "differences", "Checkpoint", "CheckpointError")),
)
NOTE = "<!-- Written by docs/make_api.py; do not edit. -->"
HEAD = f"""# API

{NOTE}

Signatures, parameters and examples of all public names, by subject. `import proxskip as ps` gives the names of the
first sections; the other pages name their module.

| section | names |
|---|---|
"""


def render() -> dict[Path, str]:
    """Every page by its path."""
    named = {name for _, _, names in SECTIONS for name in names} | set(MODULES)
    missing = set(proxskip.__all__) ^ named
    if missing:
        raise SystemExit(f"docs/make_api.py and proxskip.__all__ differ in {sorted(missing)}.")
    pages, rows = {}, []
    for title, things in sections():
        slug = re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
        page = FOLDER / f"{slug}.md"
        pages[page] = section(title, slug, things) if all(v is not None for _, v in things) else page.read_text("utf-8")
        names = ", ".join(f"[`{name}`](api/{slug}.md#{anchor(name)})" for name, _ in things if name)
        rows.append(f"| [{title}](api/{slug}.md) | {names} |\n")
    return pages | {PAGE: HEAD + "".join(rows)}


def sections() -> list[tuple[str, list[tuple[str, Any]]]]:
    """Title and entries of each page; an entry without a name is a module, whose entries follow."""
    found: list[tuple[str, list[tuple[str, Any]]]] = []
    for title, module, names in SECTIONS:
        found.append((title, [(name, getattr(importlib.import_module(module), name)) for name in names]))
    for name in MODULES:
        found.append((f"proxskip.{name}", [(f"{name}.{k}", v) for k, v in own(getattr(proxskip, name))]))
    beyond: list[tuple[str, Any]] = []
    for path, names in BEYOND:
        module = importlib.import_module(path)
        beyond += [("", module), *((k, getattr(module, k)) for k in names)]
    for title, parts in OPTIONAL:
        found.append((title, [(name, optional(path, name)) for path, names in parts for name in names]))
    return [*found, ("Extending", beyond)]


def optional(path: str, name: str) -> Any:
    """A name of a module, or None if what the module needs is not installed."""
    try:
        return getattr(importlib.import_module(path), name)
    except ImportError:
        return None


def section(title: str, slug: str, things: list[tuple[str, Any]]) -> str:
    """One page."""
    given = INTRODUCTIONS.get(slug, {})
    parts = [f"# {title}\n\n{NOTE}\n"]
    if "text" in given:
        parts.append(given["text"].strip() + "\n")
    if "example" in given:
        parts.append(f"```python\n{given['example'].strip()}\n```\n")
    for name, thing in things:
        text = entry(name, thing) if name else ""
        # one level deeper where modules are the headings
        parts.append(
            (f"#{text}" if slug == "extending" else text) if name else f"## {thing.__name__}\n\n{first_line(thing)}\n"
        )
    return "\n".join(parts).rstrip() + "\n"


def anchor(name: str) -> str:
    """The anchor that GitHub gives to the heading of a name."""
    return re.sub(r"[^\w-]", "", name.lower())


def own(module: Any) -> list[tuple[str, Any]]:
    """A module's public functions and classes (a package's from all its files), in the order of the source."""
    found = [
        (k, v)
        for k, v in ((k, getattr(module, k)) for k in dir(module))
        if not k.startswith("_")
        and (inspect.isfunction(v) or inspect.isclass(v))
        and (k in getattr(module, "__all__", ()) or f"{v.__module__}.".startswith(f"{module.__name__}."))
    ]
    return sorted(found, key=lambda item: (item[1].__module__, inspect.getsourcelines(item[1])[1]))


def entry(name: str, thing: Any) -> str:
    """One name: its signature, its docstring, and for a class its public methods and properties."""
    head = f"## {name}\n"
    if isinstance(thing, dict):
        return f"{head}\nA mapping with the names {', '.join(f'`{k}`' for k in thing)}.\n"
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        values = ", ".join(f"`{member}`" for member in thing.__members__)
        return f"{head}\n{docstring(thing)}\n\nMembers: {values}.\n"
    bare = inspect.isclass(thing) and (issubclass(thing, Exception) or getattr(thing, "_is_protocol", False))
    call = f"```py\n{wrapped(name, '' if bare else signature(thing))}\n```\n"
    lines = [head, call, docstring(thing) + "\n"] if not bare else [head, docstring(thing) + "\n"]
    inside = members(thing) if inspect.isclass(thing) else []
    return "\n".join(lines) + ("\n" + "\n".join(f"- {line}" for line in inside) + "\n" if inside else "")


def wrapped(name: str, call: str, width: int = 96) -> str:
    """A signature on several lines if it is long, one parameter per line."""
    if len(name + call) <= width:
        return name + call
    inside, _, result = call[1:].rpartition(")")
    words, depth, start = [], 0, 0
    for at, sign in enumerate(inside):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            words.append(inside[start : at + 1].strip())
            start = at + 1
    words.append(inside[start:].strip())
    return "\n".join([f"{name}(", *(f"    {word}" for word in words), f"){result}"])


def docstring(thing: Any) -> str:
    """A docstring as Markdown: parameters become a table, formulas indented blocks, examples what a session shows."""
    if not first_line(thing):
        return ""
    out = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(thing.__doc__).replace("``", "`")):
        lines = part.split("\n")
        if lines[0].startswith(">>>"):
            out.append("```pycon\n" + part + "\n```")
        elif lines[0].rstrip() in ("Args:", "Attributes:"):
            out.append(parameter_table(thing, described(lines[1:])))
        elif lines[0].rstrip() in ("Returns:", "Raises:"):
            out.append(lines[0].rstrip() + "\n\n" + listed(lines[1:]))
        elif len(lines) > 1 and all(map(is_formula, filter(str.strip, lines))):
            out.append(textwrap.indent(textwrap.dedent(part), "    "))
        else:
            out.append(part)
    return "\n\n".join(out)


def is_formula(line: str) -> bool:
    """Whether a line of a docstring is one of a formula: an assignment, or columns."""
    return bool(re.search(r"\S\s{2,}\S| <- | = ", line))


def described(lines: list[str]) -> dict[str, str]:
    """``name: text`` lines, with their continuations, by name; ``a, b: text`` describes both."""
    text = inspect.cleandoc("\n" + "\n".join(lines))
    items = re.findall(r"^([\w, *]+):\s+(.*(?:\n[ ]+.*)*)", text, flags=re.MULTILINE)
    return {name.strip(" *"): " ".join(about.split()) for names, about in items for name in names.split(",")}


def arguments(thing: Any) -> dict[str, str]:
    """What a docstring says of each parameter."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(thing.__doc__ or "").replace("``", "`"))
    return {k: v for part in parts if part.startswith("Args:") for k, v in described(part.split("\n")[1:]).items()}


def parameter_table(thing: Any, about: dict[str, str]) -> str:
    """The parameters of a function or a class, with their types, their defaults and what their docstring says."""
    try:
        known = dict(inspect.signature(thing).parameters)
    except (ValueError, TypeError):
        known = {}
    # what a reader wants first stands first, where a phone shows it without scrolling
    rows = ["| parameter | meaning | type | default |", "|---|---|---|---|"]
    if not about:
        rows = ["| parameter | type | default |", "|---|---|---|"]
    for name in (*(k for k in known if k in about or inspect.isclass(thing)), *(k for k in about if k not in known)):
        parameter = known.get(name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY))
        kind, value = annotation(parameter.annotation)[2:], default(parameter).removeprefix("=").removeprefix(" = ")
        meaning = (about.get(name, ""),) if about else ()
        cells = (f"`{name}`", *meaning, f"`{kind}`" if kind else "", f"`{value}`" if value else "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def listed(lines: list[str]) -> str:
    """``name: text`` lines, with their continuations, as a list."""
    text = inspect.cleandoc("\n" + "\n".join(lines))
    return re.sub(r"^([\w, *]+):\s", lambda found: f"- `{found[1]}`: ", text, flags=re.MULTILINE).replace(
        "\n    ", "\n  "
    )


def members(cls: type) -> list[str]:
    """Public methods and properties with a docstring; of a method only its ways to make one."""
    seen: dict[str, Any] = {}
    inherits = issubclass(cls, proxskip.authoring.Method) and cls is not proxskip.authoring.Method
    for ancestor in (cls,) if inherits else cls.__mro__:
        if ancestor.__module__.startswith("proxskip"):
            for k, v in vars(ancestor).items():
                seen.setdefault(k, v)
    out = []
    for k, v in seen.items():
        plain = v.__func__ if isinstance(v, classmethod | staticmethod) else v
        if k.startswith("_") or (inherits and not isinstance(v, classmethod)):
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
    if isinstance(value, frozenset) and value:  # whose own order differs from one process to the next
        shown = f"frozenset({{{', '.join(map(repr, sorted(value)))}}})"
    between = "=" if parameter.annotation is inspect.Parameter.empty else " = "
    return between + ("..." if shown.startswith("<") else shown)


def first_line(thing: Any) -> str:
    """The first paragraph's first line of a docstring that was written here; nothing for a generated one."""
    text = inspect.cleandoc(thing.__doc__ or "").split("\n")[0]
    generated = re.match(r"^\w+\(.*\)$", text) and not text.endswith(".")
    return "" if generated else text


def stale() -> list[str]:
    """Files that are missing, left over, or not what the package says now."""
    wanted = render()
    left = [path.name for path in FOLDER.glob("*.md") if path not in wanted]
    return left + [p.name for p, text in wanted.items() if not p.is_file() or p.read_text("utf-8") != text]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    made = render()
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
