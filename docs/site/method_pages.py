"""One page per method: its section of ``docs/methods.md``, a table of its parameters, and an example with its curve.

A section is what stands below a heading ``## Name`` or ``## Name and Name``. The examples are run while the site is
built.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import gallery

from proxskip.registry import METHODS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import make_api

SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)
CODE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CLIENTS = (
    'A, b = ps.datasets.load("digits")\n'
    "model = ps.Logistic(A, b, l2=1e-2, l2_relative=True)\n"
    'problem = ps.split(model, clients=20, by="label", weights="equal")'
)
UNEQUAL = (
    "base = ps.random_quadratics(n=8, d=4, mu=0.5)\n"
    "problem = ps.Problem([ps.Quadratic(2.0**i * f.H, 2.0**i * f.b) for i, f in enumerate(base)])"
)
ROWS = (
    'A, b = ps.datasets.load("breast-cancer")\n'
    "model = ps.Logistic(A, b, l2=0.1, l2_relative=True)\n"
    'problem = ps.split(model, clients={clients}, by="label").with_batch(8)'
)
FUNCTION = "f = ps.Quadratic(np.geomspace(0.01, 1, 20), np.ones(20))\n"
PSI = FUNCTION + "problem = ps.Problem([f]).with_psi(ps.prox.L1(0.1))"
FUSED = FUNCTION + "D = np.diff(np.eye(20), axis=0)\nproblem = ps.Problem([f]).with_psi(ps.prox.L1(0.1), D)"
EXAMPLES: dict[str, tuple[str, str, str, int]] = {
    "gd": (CLIENTS, "ps.GD", "", 400),
    "proxgd": (PSI, "ps.ProxGD", "", 300),
    "accelerated": (CLIENTS, "ps.Accelerated", "ps.GD", 200),
    "fista": (PSI, "ps.Fista", "ps.ProxGD", 300),
    "local-gd": (CLIENTS, "ps.LocalGD", "ps.GD", 200),
    "scaffold": (CLIENTS, "ps.Scaffold", "ps.GD", 200),
    "fedlin": (CLIENTS, "ps.FedLin", "ps.GD", 200),
    "s-local-gd": (CLIENTS, "ps.SLocalGD", "ps.GD", 200),
    "proxskip": (PSI, "ps.ProxSkip", "ps.ProxGD", 150),
    "sproxskip": (ROWS.format(clients=1), "ps.SProxSkip", "", 300),
    "apda": (PSI, "ps.APDA", "ps.ProxGD", 100),
    "scaffnew": (CLIENTS, "ps.Scaffnew", "ps.GD", 100),
    "5gcs": (CLIENTS, "ps.FiveGCS", "ps.Accelerated", 100),
    "scaffnew-vr": (ROWS.format(clients=4), "ps.ScaffnewVR", "ps.Scaffnew", 400),
    "proxskip-vr": (ROWS.format(clients=1), "ps.ProxSkipVR", "ps.SProxSkip", 400),
    "gradskip": (UNEQUAL, "ps.GradSkip", "ps.Scaffnew", 300),
    "tamuna": (CLIENTS, "ps.Tamuna", "ps.GD", 400),
    "locodl": (CLIENTS, "ps.LoCoDL", "ps.Scaffnew", 600),
    "decentralized-scaffnew": (CLIENTS, "ps.DecentralizedScaffnew", "ps.EXTRA", 300),
    "random-gossip": (CLIENTS, "ps.RandomGossip", "ps.DecentralizedScaffnew", 600),
    "diging": (CLIENTS, "ps.DIGing", "ps.EXTRA", 400),
    "extra": (CLIENTS, "ps.EXTRA", "ps.DecentralizedScaffnew", 400),
    "splitskip": (FUSED, "ps.SplitSkip", "ps.PDHG", 150),
    "pdhg": (FUSED, "ps.PDHG", "ps.SplitSkip", 300),
}
"""Of each method: the problem of its example, its class, the method beside it in the figure, and its rounds at most."""
AXES = {
    "tamuna": "bits-up",
    "locodl": "bits-up",
    "gradskip": "local-steps",
    "scaffnew-vr": "passes",
    "proxskip-vr": "passes",
}
"""What the figure of a method counts, where that is not rounds."""
WHEN = {
    "gd": "Use it as the baseline without local steps, or where the clients are well conditioned.",
    "proxgd": "Use it where a prox is as cheap as a gradient, and as the baseline of every method that skips proxes.",
    "accelerated": "Use it where local gradients are expensive, the condition number is large and mu is known.",
    "fista": "Use it for one function with a cheap prox, above all where mu is not known.",
    "local-gd": "Use it as the baseline with local steps (FedAvg), or where all clients have the same solution.",
    "scaffold": "Use it to compare: control variates with a fixed K; Scaffnew needs fewer rounds.",
    "fedlin": "Use it where each client takes its own number of local steps, and may talk twice per round.",
    "s-local-gd": "Use it to compare: it has Scaffnew's random number of local steps without its acceleration.",
    "proxskip": "Use it for one function whose prox costs many gradients.",
    "sproxskip": "Use it for one function with an expensive prox and more data than a full gradient should read.",
    "apda": "Use it for one function with an expensive prox where mu, or the best p of ProxSkip, is not known.",
    "scaffnew": "Use it first: few rounds with unlike clients, minibatches, partial participation or a regularizer.",
    "5gcs": "Use it where both rounds and gradients are expensive, on ill-conditioned problems.",
    "scaffnew-vr": "Use it with minibatches where the noise of Scaffnew's gradients is too large.",
    "proxskip-vr": "Use it with minibatches, for one function, where the noise of SProxSkip's gradients is too large.",
    "gradskip": "Use it where some clients are much better conditioned than others, and gradients are expensive.",
    "tamuna": "Use it with many clients of which few take part in a round, and where the uplink is slow.",
    "locodl": "Use it with full participation where bits sent by the clients are what costs.",
    "decentralized-scaffnew": "Use it where there is no server and clients talk to neighbors on a graph.",
    "random-gossip": "Use it without a server where links are awake at random, or fail often.",
    "diging": "Use it as a baseline without a server.",
    "extra": "Use it as a baseline without a server, or where the condition number is small.",
    "splitskip": "Use it for one function with psi(D x), above all where D is an exchange over a network.",
    "pdhg": "Use it as the baseline for psi(D x), or where the conditions of SplitSkip's theorem do not hold.",
}
"""When to use each method."""
IN_THE_API = "All its members are in [the API](api/methods.md#{anchor})."


def pages(text: str, out: Path, draw: bool) -> dict[str, str]:
    """The pages by their paths, as if they stood in docs/: the page on all methods, and one for each section."""
    head, *parts = SECTION.split(text.replace("](#", "](methods.md#"))
    made, earlier, rest = {}, list[ast.stmt](), [head.rstrip()]
    out.mkdir(parents=True)
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        section = CODE.sub(lambda block: f"```python\n{with_definitions(block[1], earlier)}\n```", body)
        section = section.replace("\n### ", "\n## ")
        methods = [name for part in heading.split(" and ") if (name := named(part))]
        if not methods:
            rest.append(f"## {heading}\n{body.rstrip()}")
            continue
        examples = [example(name, out, draw) for name in methods]
        titles = [f"**{part}:** " if len(methods) > 1 else "" for part in heading.split(" and ")]
        when = "\n\n".join(title + WHEN[name] for title, name in zip(titles, methods, strict=True))
        made[f"methods/{anchor(heading)}.md"] = "\n\n".join([f"# {heading}", when, section.strip(), *examples]) + "\n"
    tree = "\n".join(path.removesuffix(".md") for path in made)
    return {"methods.md": "\n\n".join(rest) + f"\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"} | made


def anchor(heading: str) -> str:
    """The anchor of a heading, and the name of its page."""
    return re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))


def named(heading: str) -> str:
    """The name of the method that a heading means, or nothing."""
    plain = re.sub(r"[^a-z0-9]", "", heading.lower())
    return next((name for name in METHODS if name.replace("-", "") == plain), "")


def with_definitions(code: str, earlier: list[ast.stmt]) -> str:
    """Code of a page whose blocks build on one another, with what it needs of the blocks before it."""
    body = ast.parse(code).body
    needed, kept = loaded(body), list[ast.stmt]()
    for statement in reversed(earlier):
        if (names := bound(statement)) & needed:
            kept.insert(0, statement)
            needed = (needed - names) | loaded([statement])
    earlier += body
    imports = [ast.unparse(s) for s in kept if isinstance(s, ast.Import)]
    rest = [ast.unparse(s) for s in kept if not isinstance(s, ast.Import)]
    return "\n".join([*imports, *([""] if imports else []), *rest, code.rstrip()])


def loaded(statements: list[ast.stmt]) -> set[str]:
    """The names that some statements read."""
    nodes = [node for s in statements for node in ast.walk(s) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, ast.Load)} - {n for s in statements for n in bound(s)}


def bound(statement: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    if isinstance(statement, ast.Import):
        return {alias.asname or alias.name for alias in statement.names}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def example(name: str, out: Path, draw: bool) -> str:
    """The parameters of a method, and a script with what it prints and draws."""
    kind = METHODS[name]
    call = kind.__name__
    parameters = make_api.parameter_table(kind, make_api.arguments(kind))
    cell = gallery.Cell("code", script(name))
    if draw:
        gallery.execute([cell], out, name)
    shown = [f"```python\n{cell.source}\n```"]
    if draw:
        shown += [f"```text\n{cell.printed.rstrip()}\n```"]
        shown += [f"![the curve of {kind.about.title}](methods/{picture})" for picture in cell.pictures]
    return "\n\n".join([
        f"## Parameters of `{call}`", parameters,
        f"`ps.{call}.theory(problem)` sets them by the theorem. {IN_THE_API.format(call=call, anchor=call.lower())}",
        f"## Example of `{call}`", *shown,
    ])  # fmt: skip


def script(name: str) -> str:
    """The example of a method."""
    problem, call, beside, rounds = EXAMPLES[name]
    axis = f', x="{AXES[name]}"' if name in AXES else ""
    numpy = "import numpy as np\n" if "np." in problem else ""
    kinds = f"({beside}, {call})" if beside else f"[{call}]"
    return (
        f"import matplotlib.pyplot as plt\n{numpy}\nimport proxskip as ps\n\n{problem}\n"
        f'stop = {{"target": 1e-12, "rounds": {rounds}}}\n'
        f"results = [ps.run(kind.theory(problem), problem, **stop) for kind in {kinds}]\n"
        "last = results[-1]\nprint(f\"{last.rounds} rounds, f(x) - f* = {last.trace['gap'][-1]:.1e}\")\n"
        f"ps.plot(results{axis})\nplt.show()"
    )
