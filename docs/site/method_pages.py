"""One page per method: its section of ``docs/methods.md``, its parameters, and a cell that draws its curve.

A section is what stands below the heading ``## Name``.
"""

from __future__ import annotations

import re
from pathlib import Path

from proxskip.methods.registry import METHODS

NOTEBOOK = """---
file_format: mystnb
kernelspec:
  name: python3
  display_name: Python 3
  language: python
---

"""
"""The head of a page whose code cells run while the site is built."""
SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)
CLIENTS = (
    'A, b = ps.datasets.load("digits")\n'
    "model = ps.Logistic(A, b, l2_relative=1e-2)\n"
    'problem = ps.split(model, clients=20, by="label", weights="equal")'
)
UNEQUAL = (
    "base = ps.random_quadratics(n=8, d=4, mu=0.5)\n"
    "problem = ps.Problem([ps.Quadratic(2.0**i * f.H, 2.0**i * f.b) for i, f in enumerate(base)])"
)
ROWS = (
    'A, b = ps.datasets.load("breast-cancer")\n'
    "model = ps.Logistic(A, b, l2_relative=0.1)\n"
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
    "newton": (CLIENTS, "ps.Newton", "ps.Accelerated", 20),
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
    "tamuna": "bits_up",
    "locodl": "bits_up",
    "gradskip": "local_steps",
    "scaffnew-vr": "passes",
    "proxskip-vr": "passes",
}
"""What the figure of a method counts, where that is not rounds."""


def pages(text: str) -> dict[str, str]:
    """The pages by their paths, as if they stood in docs/: the page on all methods, and one for each section.

    Args:
        text: of docs/methods.md.
    """
    head, *parts = SECTION.split(text.replace("](#", "](methods.md#"))
    made, rest = {}, [head.rstrip()]
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        if name := named(heading):
            before, _, rules = body.strip().replace("\n### ", "\n## ").partition("**Parameters.** ")
            rules, use, after = rules.partition("\n\n**When to use it.**")
            page = [f"# {heading}", before + use.strip() + after, parameters(name, rules), curve(name)]
            made[f"methods/{anchor(heading)}.md"] = NOTEBOOK + "\n\n".join(page) + "\n"
        else:
            rest.append(f"## {heading}\n{body.rstrip()}")
    tree = "\n".join(path.removesuffix(".md") for path in made)
    return {"methods.md": "\n\n".join(rest) + f"\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"} | made


def anchors(made: dict[str, str]) -> dict[str, str]:
    """Where an anchor of docs/methods.md is: a page, or a section of one."""
    below = {anchor(name): f"{path}#{anchor(name)}" for path, text in made.items() for name in SECTION.findall(text)}
    return below | {Path(path).stem: path for path in made if path != "methods.md"}


def anchor(heading: str) -> str:
    """The anchor of a heading, and the name of its page."""
    return re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))


def named(heading: str) -> str:
    """The name of the method that a heading means, or nothing."""
    plain = re.sub(r"[^a-z0-9]", "", heading.lower())
    return next((name for name in METHODS if name.replace("-", "") == plain), "")


def parameters(name: str, rules: str) -> str:
    """The parameters of a method: what docs/methods.md says of them, and what its class says."""
    call = METHODS[name].__name__
    about = f"The fields of `ps.{call}`. Those that are not given are chosen by its theorem."
    entry = f"```{{eval-rst}}\n.. autoclass:: proxskip.{call}\n   :members:\n   :no-index:\n```"
    return f"## Parameters\n\n{about}\n\n{rules}\n\n{entry}"


def curve(name: str) -> str:
    """A cell that draws the curve of a method."""
    return f"## Its curve\n\n```{{code-cell}} python\n{script(name)}\n```"


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
