"""A half's arithmetic inside a launch: ``+ - * /`` are written down, and C++ is made of them when needed.

A round of Scaffnew has five such operations; a launch for each would cost more than the local steps of a small problem.
So they become part of the launch with the local steps (``whole``), or, where there are none, a launch of their own
(``compute``). An expression becomes a kernel in three steps:

1. The half runs on ``Term``s, which build a tree instead of computing.
2. ``Leaves`` lists the numbers and arrays at the ends of the trees. They are the kernel's first arguments, and what is
   left is the trees' form: two rounds of a method have the same form, so that one kernel is compiled for all of them,
   and for all step sizes.
3. ``Script`` writes the C++: one line that reads each leaf, then the tree as nested calls, for one client and column.

Nothing is contracted into fused multiply-adds: the bytes are those of numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip.engines.gpu import cuda
from proxskip.engines.gpu.launch import NOTHING, start
from proxskip.engines.written import Written

NUMBER, VECTOR, COLUMN, STACK, KEPT = "number", "vector", "column", "stack", "kept"
# the kinds of leaves: a number; (d,) for all clients; (n, 1) one number per client; (c, d) a row per member of the
# cohort; (n, d) a row per client, of which the members' are read
PLACE = {VECTOR: "{0} + k", COLUMN: "{0} + row", STACK: "{0} + t", KEPT: "{0} + row * d + k"}
"""Where client i of the cohort, ``row`` among all, finds its number of column k; t is i * d + k."""
LONGEST = 6
"""Operations one after another in a vector of the server's; what has more is stored with the next launch."""
# rounded to nearest after each operation; the compiler never fuses these
SIGNS = {"+": "__dadd_rn", "-": "__dsub_rn", "*": "__dmul_rn", "/": "__ddiv_rn", "natural": "natural"}


class Term(Written):
    """A leaf (a number, or an array on the card and how to read it) or an operation on two terms.

    A vector that the server adds to in every round and sends to nobody would be written down longer and longer, and
    every round would have a kernel of its own. So what is longer than LONGEST is entered into ``grown``, a list of the
    engine's that the terms made from its vectors have in common. ``flat`` says that a term is the same for all clients:
    a vector for all of them, or a number.
    """

    __array_priority__ = 1000.0
    __slots__ = ("depth", "flat", "grown", "kind", "left", "operator", "right", "value")

    def __init__(
        self, kind: str = "", value: Any = None, operator: str = "", left: Any = None, right: Any = None,
        grown: list[Term] | None = None,
    ) -> None:  # fmt: skip
        self.kind, self.value, self.operator, self.left, self.right = kind, value, operator, left, right
        if not operator:
            self.grown, self.depth, self.flat = grown, 0, kind in (NUMBER, VECTOR)
            return
        a, b = left.depth, right.depth  # max() would take longer than the rest
        self.depth = depth = (a if a > b else b) + 1
        self.flat = left.flat and right.flat
        self.grown = right.grown if left.grown is None else left.grown
        if depth > LONGEST and self.flat and self.grown is not None:
            self.grown.append(self)

    @staticmethod
    def of(v: Any) -> Term:
        """A term as it is; a number or an array on the card as a leaf."""
        if isinstance(v, Term):
            return v
        if isinstance(v, (float, int)) or np.ndim(v) == 0:
            return Term(NUMBER, float(v))
        return Term(VECTOR if v.ndim == 1 else COLUMN if v.shape[1] == 1 else STACK, v)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that it stands for, computed or not."""
        if self.operator:
            return max(self.left.shape, self.right.shape, key=len)
        return () if self.kind == NUMBER else tuple(self.value.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per number."""
        return 8

    def become(self, kind: str, value: Any) -> None:
        """Make it a leaf: it has been computed."""
        self.kind, self.value, self.operator, self.left, self.right = kind, value, "", None, None
        self.depth = 0

    def _with(self, sign: str, other: Any, swapped: bool = False) -> Term:
        a, b = (Term.of(other), self) if swapped else (self, Term.of(other))
        return Term(operator=sign, left=a, right=b)

    def __neg__(self) -> Term:
        return Term(operator="*", left=Term(NUMBER, -1.0), right=self)

    def __pos__(self) -> Term:
        return self


Output = tuple[Term, Any, bool]
"""A term and where it goes: row i of the cohort, or, if the last entry says so, the row of member i."""


class Leaves:
    """The leaves of some terms, each once, and the terms' form, which two rounds of a method have in common.

    ``form`` lists the operators and the leaves' numbers from left to right, operators first, which determines the
    trees. With the kinds of the leaves it is the ``key`` of the compiled kernel.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        # a loop over local names and not a recursion: this is a good part of what the host does in a round
        leaves: list[Term] = []
        form: list[Any] = []
        places: dict[int, int] = {}
        ahead = list(reversed(terms))
        while ahead:
            term = ahead.pop()
            if term.operator:
                form.append(term.operator)
                ahead.append(term.right)
                ahead.append(term.left)
                continue
            # an array that occurs twice is one argument; numbers are told apart by term, since equal ones may differ in
            # the next round
            which = id(term) if term.kind == NUMBER else id(term.value)
            at = places.get(which)
            if at is None:
                at = places[which] = len(leaves)
                leaves.append(term)
            form.append(at)
        self.all, self.form, self.places = leaves, form, places
        self.key = (*form, *[leaf.kind for leaf in leaves])

    def __getitem__(self, term: Term) -> int:
        return self.places[id(term if term.kind == NUMBER else term.value)]

    @property
    def values(self) -> list[Any]:
        """The kernel's arguments for them."""
        return [np.float64(v.value) if v.kind == NUMBER else v.value for v in self.all]


class Script:
    """Writes C++ over leaves, which are the first arguments of a kernel; ``more`` are the types of further ones.

    Leaf j is argument ``l{j}`` if it is a number; an array is argument ``p{j}``, and is read into ``l{j}``. Further
    arguments are ``o0``, ``o1``, ...
    """

    def __init__(self, leaves: Leaves) -> None:
        self.leaves = leaves
        self.more: list[str] = []

    def of(self, *terms: Term) -> tuple[str, list[str]]:
        """The code that reads the terms' leaves, and an expression for each term."""
        used: dict[int, str] = {}
        texts = [self._text(term, used) for term in terms]
        places = {j: PLACE[kind].format(f"p{j}") for j, kind in used.items() if kind != NUMBER}
        return "".join(f"const double l{j} = *({place}); " for j, place in places.items()), texts

    def _text(self, term: Term, used: dict[int, str]) -> str:
        if term.operator:
            return f"{SIGNS[term.operator]}({self._text(term.left, used)}, {self._text(term.right, used)})"
        used[self.leaves[term]] = term.kind
        return f"l{self.leaves[term]}"

    def value(self, term: Term) -> str:
        """The term as one expression, in which its leaves are read."""
        reads, (text,) = self.of(term)
        return f"[&] {{ {reads}return {text}; }}()"

    def store(self, outputs: Sequence[Output]) -> list[str]:
        """Compute all outputs, then store them: a leaf may be an array that is overwritten."""
        reads, texts = self.of(*(term for term, _, _ in outputs))
        return [f"double v[{len(texts)}];", *self.set(reads, texts), *self.keep(outputs)]

    @staticmethod
    def set(reads: str, texts: Sequence[str]) -> list[str]:
        """Code that reads the leaves and sets v[0], v[1], ... to the expressions."""
        return [reads, *(f"v[{j}] = {text};" for j, text in enumerate(texts))]

    def keep(self, outputs: Sequence[Output]) -> list[str]:
        """Code that stores v[0], v[1], ... in their arrays; a vector for all clients is stored by the first client."""
        lines = []
        for j, (_, array, kept) in enumerate(outputs):
            place = PLACE[VECTOR if array.ndim == 1 else KEPT if kept else STACK].format(self.give("double*"))
            lines.append(f"{'if (i == 0) ' if array.ndim == 1 else ''}*({place}) = v[{j}];")
        return lines

    def give(self, kind: str) -> str:
        """Add an argument of this type; its name."""
        self.more.append(kind)
        return f"o{len(self.more) - 1}"

    @property
    def declared(self) -> str:
        """The arguments as the kernel declares them."""
        leaves = (f"double l{j}" if v.kind == NUMBER else f"const double* p{j}" for j, v in enumerate(self.leaves.all))
        return ", ".join([*leaves, *(f"{kind} o{j}" for j, kind in enumerate(self.more))])


def _form(outputs: Sequence[Output]) -> tuple[Any, ...]:
    """What the code that stores them depends on."""
    return tuple((array.ndim, kept) for _, array, kept in outputs)


# -- a launch of its own -----------------------------------------------------------------------------------------------
# by form: kernels of ``compute``, and the C++ of whole rounds
COMPILED: dict[Any, Any] = {}
ROUNDS: dict[Any, cuda.Round] = {}


def compute(outputs: Sequence[Output], c: int, d: int, members: Any) -> None:
    """Compute each term into its array, in a launch of its own."""
    leaves = Leaves([term for term, _, _ in outputs])
    key = leaves.key, _form(outputs)
    if key not in COMPILED:
        import cupy  # type: ignore[import-not-found]

        script = Script(leaves)
        code = "\n    ".join(script.store(outputs))
        COMPILED[key] = cuda.steady(cupy.RawKernel(source(script.declared, code), "fused", backend="nvrtc"))
    at = NOTHING if members is None else members
    arguments = (np.int32(c), np.int32(d), at, *leaves.values, *(array for _, array, _ in outputs))
    start(COMPILED[key], (-(-c * d // 256),), (256,), arguments)


def source(declared: str, code: str) -> str:
    """A kernel with one thread per client and column."""
    return f"""{cuda.NATURAL}
extern "C" __global__ void fused(int c, int d, const int* at, {declared}) {{
    const long long t = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= (long long)c * d) return;
    const int i = (int)(t / d), k = (int)(t % d);
    const long long row = at ? at[i] : i;
    {code}
}}
"""


# -- a whole round in the launch with its local steps ------------------------------------------------------------------
@dataclass
class Link:
    """What the clients send up (``up``), averaged with weights ``w`` or mixed along a graph's lists, into ``out``."""

    up: Term
    out: Any
    w: Any = None
    lists: tuple[Any, Any, Any] | None = None
    parts: Any = None  # room for the sums of blocks of clients, where there are several


def whole(
    x: Term, h: Term, gamma: Term, links: Sequence[Link] = (), outputs: Sequence[Output] = ()
) -> tuple[cuda.Round, list[Any]]:
    """The C++ of a round, and its arguments: local steps from x with h and gamma, then the links, then the outputs."""
    begin = {"x": x, "h": h, "gamma": gamma}
    leaves = Leaves([*begin.values(), *(link.up for link in links), *(term for term, _, _ in outputs)])
    key = leaves.key, tuple(link.lists is None for link in links), _form(outputs)
    if key not in ROUNDS:
        script = Script(leaves)
        code = {name: script.value(term) for name, term in begin.items()}
        ends = _ends(script, links, outputs) if links or outputs else ""
        ROUNDS[key] = cuda.Round(given=script.declared, ends=ends, **code)
    # in the order in which ``_ends`` declares them
    more = [v for link in links for v in (link.out, *(link.lists or (link.w, link.parts)))]
    return ROUNDS[key], [*leaves.values, *more, *(array for _, array, _ in outputs)]


def _ends(script: Script, links: Sequence[Link], outputs: Sequence[Output]) -> str:
    """The functions that ``cuda.SOURCE`` calls when the local steps are done.

    ``average`` sums what comes up over clients first .. last-1, into ``out`` or, with s >= 0, into part s; ``total``
    adds the parts; ``mix`` adds a client's neighbours; ``read`` computes the outputs and ``keep`` stores them.
    """
    client = "const i64 row = members ? members[i] : i, t = (i64)i * d + k;"
    ups, average, total, mix = [], [], [], []
    for m, link in enumerate(links):
        # what client i sends up in column k is computed where it is needed, never stored
        reads, (text,) = script.of(link.up)
        ups.append(f"    auto up{m} = [&](int i, int k) -> double {{ {client} {reads}return {text}; }};")
        out = script.give("double*")
        if link.lists is None:
            w, parts = script.give("const double*"), script.give("double*")
            average.append(f"v = in_order(stage, {w}, first, last, k0, columns, up{m});")
            average.append(f"if (tid < columns) (s < 0 ? {out} : {parts} + (i64)s * d)[k0 + tid] = v;")
            total.append("v = 0;")
            total.append(f"for (int s = 0; s < sums; ++s) v = __dadd_rn(v, {parts}[(i64)s * d + k]);")
            total.append(f"{out}[k] = v;")
        else:
            first, who, share = (script.give(f"const {kind}*") for kind in ("i64", "i64", "double"))
            mix.append("v = 0;")
            mix.append(f"for (i64 e = {first}[i]; e < {first}[i + 1]; ++e)")
            mix.append(f"    v = __dadd_rn(v, __dmul_rn({share}[e], up{m}((int){who}[e], k)));")
            mix.append(f"{out}[(i64)i * d + k] = v;")
    bodies = {
        "average = [&](int first, int last, int k0, int columns, int s)": ["double v;", *average] if average else [],
        "total = [&](int sums, int k)": ["double v;", *total] if total else [],
        "mix = [&](int i, int k)": ["double v;", *mix] if mix else [],
        "read = [&](int i, int k, double* v)": [client, *script.set(*script.of(*(term for term, _, _ in outputs)))],
        "keep = [&](int i, int k, const double* v)": [client, *script.keep(outputs)],
    }
    keeps = f"    enum {{ KEEPS = {max(1, len(outputs))} }};"
    return "\n".join([*ups, keeps, *("    auto " + _block(head, lines) for head, lines in bodies.items())])


def _block(head: str, lines: Sequence[str]) -> str:
    """A C++ lambda of these lines."""
    return "\n        ".join([head + " {", *lines]) + "\n    };"
