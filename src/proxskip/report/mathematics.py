"""Formulas in plain letters, as docstrings and pages write them, as MathML, which browsers typeset by themselves."""

from __future__ import annotations

import html
import re

SYMBOLS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eps": "ε", "zeta": "ζ", "eta": "η", "theta": "θ",
    "kappa": "κ", "lam": "λ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ",
    "tau": "τ", "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Psi": "Ψ", "Phi": "Φ", "grad": "∇", "dist": "dist",
}  # fmt: skip
ACCENTS = {"hat": "^", "bar": "¯", "tilde": "~"}
FUNCTIONS = ("log", "exp", "min", "max", "prox", "mean", "Geom", "argmin", "ceil", "clip", "sign", "diag")
BIG = {"sum": "∑"}
RELATIONS = {"<-": "←", "<=": "≤", ">=": "≥", "->": "→", "=": "=", "~": "∼", "<": "<", ">": ">", "!=": "≠"}
OPERATORS = {"-": "\N{MINUS SIGN}", "*": "\N{DOT OPERATOR}", "in": "∈", "|": "|", "...": "…"}
POSTFIX = {"+": "+", "*": "⋆", "'": "⊤"}
BEHIND = frozenset(")],;}.:|>(_^+*'")
"""After one of these signs ``x+`` is the next x, and not a sum."""
NAMES = {
    "lmax": "<msub><mi>λ</mi><mi>max</mi></msub>",
    "lmin": "<msub><mi>λ</mi><mi>min</mi></msub>",
    "es": "<mi>es</mi>",
    "db": "<mover><mi>d</mi><mo>¯</mo></mover>",
    "cb": "<mover><mi>c</mi><mo>¯</mo></mover>",
    "DD": "<mi>D</mi><mi>D</mi>",
    "dx": "<mi>Δ</mi><mi>x</mi>",
    "dc": "<mi>Δ</mi><mi>c</mi>",
    "ij": "<mi>i</mi><mi>j</mi>",
    "gw": "<mi>g</mi><mi>w</mi>",
    "norm": "<mi>norm</mi>",
}
"""What is not one letter and no Greek one."""
# the first alternative that fits is taken: signs of several characters stand before single ones
_TOKEN = re.compile(r"\s+|\d+(?:\.\d+)?(?:e-?\d+)?|[A-Za-z]+|<-|<=|>=|->|!=|\.\.\.|\S")
_RELATION = re.compile(r"\s(<-|<=|>=|->|=|~)\s")


def inline(plain: str) -> str | None:
    """One formula, or None if something in it is not mathematics (a word, code)."""
    # options, assignments and keyword arguments, signs without letters, shapes, names such as x0: all of these are code
    code = r"--|[+*/-]=|^[\s+*/-]+$|^\(d,\)|=\S|\S=|(?<![\w.])[A-Za-z]\d"
    if re.search(code, plain.replace("<=", "").replace(">=", "")):
        return None
    body = _Row(plain, words=False).read()
    return None if body is None else f'<math class="inline">{body}</math>'


def display(lines: list[str]) -> str | None:
    """Several lines, aligned at their first relation; two spaces or more separate a remark from a formula."""
    rows = []
    for line in lines:
        found = _RELATION.search(line)
        left, right = (line[: found.start()], line[found.start() :]) if found else ("", line)
        # what stands before the relation is the left column, so that lines are aligned there
        cells = [_Row(left.strip(), words=True).read(), _remarks(right)]
        if None in cells:
            return None
        rows.append("<mtr>" + "".join(f"<mtd>{cell}</mtd>" for cell in cells) + "</mtr>")
    return f'<math display="block"><mtable class="aligned">{"".join(rows)}</mtable></math>'


# in running text only what can be nothing but a formula: words such as "in" and "max" must stay words
_GREEK = "(?:alpha|gamma|delta|kappa|zeta|lambda|sigma|mu|eps|Psi|Phi)"
_LETTER = f"(?:{_GREEK}|[A-Za-z])(?:_[a-z])?"
_RATIO = rf"(?:\d+|{_LETTER})/(?:sqrt\([\w /]+\)|\([\w /.]+\)|max_i L_i|{_LETTER})"
_SIDE = (
    rf"(?:{_RATIO}|sqrt\([\w /]+\)|max L_i|(?:\d+ )?{_LETTER}(?: {_LETTER})?(?:\*\^2)?"
    r"|-?\d[\d./]*(?:e-?\d+)?(?<![./]))(?![\w(])"
)
_NORM = r"\|[hx] - [hx]\*\|(?:\^2)?(?:/\|[hx]\*\|(?:\^2)?)?|\|[hx]\*\|"
_PROSE = re.compile(
    rf"(?<![\w.&/-])(?:f(?:\(x\))? [-\u2212] f\*|{_NORM}|grad f_i\(x\*\)|"
    rf"(?:{_RATIO}|sqrt\([\w /]+\)|{_LETTER}(?: L)?) (?:=|&[lg]t;=?) {_SIDE}|"
    rf"{_RATIO}|sqrt\([\w /]+\)|{_GREEK}(?: L)?|[A-Za-z]_[a-z])(?![\w/-])"
)


def prose(escaped: str) -> str:
    """Escaped text whose formulas (``gamma = 1/L``, ``f - f*``, ``sqrt(kappa)``) are typeset."""
    return _PROSE.sub(lambda found: inline(html.unescape(found[0])) or found[0], escaped)


# -- labels in figures -------------------------------------------------------------------------------------------------
_LABEL = re.compile(rf"(?<![\w'-])({_GREEK}|lmax|[fhpqtxIKLMWαγδκζλσμεΨΦ])(?![\w'-])([*⋆]?)")


def pieces(label: str) -> list[tuple[str, str]]:
    """A label in pieces: ``("", text)``, ``("m", letter)`` in italics, ``("sup", sign)`` and ``("sub", word)``."""
    out, end = list[tuple[str, str]](), 0
    for found in _LABEL.finditer(label):
        letter = "λ" if found[1] == "lmax" else SYMBOLS.get(found[1], found[1])
        out += [("", label[end : found.start()]), ("m", letter)]
        out += [("sub", "max")] if found[1] == "lmax" else []
        out += [("sup", "⋆")] if found[2] else []
        end = found.end()
    return [piece for piece in [*out, ("", label[end:])] if piece[1]]


def mathtext(label: str) -> str:
    """A label as matplotlib typesets it; one with a dollar sign stays as it is."""
    if "$" in label:
        return label
    signs = {"": "{}", "m": "${}$", "sup": "$^\\star$", "sub": "$_\\mathrm{{{}}}$"}
    return "".join(signs[kind].format(word) for kind, word in pieces(label)).replace("$$", "")


def _remarks(text: str) -> str | None:
    parts = [_Row(part, words=True).read() for part in re.split(r"\s{2,}", text.strip())]
    return None if None in parts else '<mspace width="1.2em"/>'.join(p for p in parts if p)


def _is_symbol(word: str) -> bool:
    hat = any(word.endswith(accent) and len(word) == len(accent) + 1 for accent in ACCENTS)
    return hat or word in SYMBOLS or word in NAMES or word in FUNCTIONS or word in BIG or word in ("in", "sqrt")


class _Row:
    """Reads tokens from left to right; ``words``: a word that is no symbol is set as text."""

    def __init__(self, plain: str, words: bool):
        self.tokens = _TOKEN.findall(plain)
        self.at, self.words, self.failed = 0, words, False

    def read(self) -> str | None:
        """All tokens as MathML."""
        out = []
        while self.at < len(self.tokens) and not self.failed:
            out.append(self.atom())
        return None if self.failed else "".join(out)

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else ""

    def atom(self) -> str:
        """One symbol with its subscript and superscripts, or a group in brackets."""
        token = self.take()
        if token.isspace():
            return ""
        # the root covers what is in the brackets, and the brackets themselves go
        if token == "sqrt" and self.peek() == "(":
            self.take()
            return f"<msqrt>{self.group(')')}</msqrt>"
        if token in ("(", "["):
            inside = self.group(")" if token == "(" else "]")
            closing = ")" if token == "(" else "]"
            body = f'<mrow><mo stretchy="false">{token}</mo>{inside}<mo stretchy="false">{closing}</mo></mrow>'
            return self.scripts(body)
        if token == "{":
            return f"<mrow>{self.group('}')}</mrow>"
        if re.fullmatch(r"[A-Za-z]+", token):
            return self.scripts(self.name(token), token)
        if token[0].isdigit():
            return self.scripts(f"<mn>{token}</mn>")
        return self.operator(token)

    def group(self, end: str) -> str:
        """Everything up to the bracket that closes."""
        out = []
        while self.at < len(self.tokens) and self.peek() != end:
            out.append(self.atom())
        if self.take() != end:
            self.failed = True
        return "".join(out)

    def name(self, token: str) -> str:
        if token in NAMES:
            return NAMES[token]
        if token in SYMBOLS:
            return f"<mi>{SYMBOLS[token]}</mi>"
        if token in BIG:
            return f"<mo>{BIG[token]}</mo>"
        if token in FUNCTIONS or len(token) == 1:
            argument = token in FUNCTIONS and self.peek().isspace() and self.peek(1).isalpha()
            return f"<mi>{token}</mi>" + ('<mspace width="0.17em"/>' if argument else "")
        if token == "in":
            return f"<mo>{OPERATORS[token]}</mo>"
        for accent, sign in ACCENTS.items():
            if token.endswith(accent) and len(token) == len(accent) + 1:
                return f'<mover accent="true"><mi>{token[0]}</mi><mo stretchy="false">{sign}</mo></mover>'
        if self.words:
            # MathML leaves out spaces at the ends of a text
            return f"<mtext>&nbsp;{' '.join([token, *self.more_words()])}&nbsp;</mtext>"
        self.failed = True
        return ""

    def more_words(self) -> list[str]:
        """The words that follow, up to the next symbol."""
        out = []
        while self.peek().isspace() and len(word := self.peek(1)) > 1 and word.isalpha() and not _is_symbol(word):
            out.append(word)
            self.at += 2
        return out

    def scripts(self, body: str, token: str = "") -> str:
        """``_i``, ``_{...}``, ``^2``, and what stands right behind: ``+`` (the next one), ``*`` (optimal), ``'``."""
        below = above = ""
        if self.peek() == "_":
            self.take()
            below = self.script()
        while (sign := self.peek()) in ("^", "+", "*", "'", "~"):
            follows = self.peek(1)
            if sign == "^":
                self.take()
                above += self.script()
            # W~ is the name of a matrix; behind anything else ~ is a relation
            elif sign == "~" and token == "W":
                self.take()
                above += "<mo>~</mo>"
            # "x+" and "x*" are names, "x + y" and "a*b" are not: what follows the sign decides
            elif sign == "'" or (sign in "+*" and (not follows or follows.isspace() or follows in BEHIND)):
                self.take()
                above += f"<mo>{POSTFIX[sign]}</mo>"
            else:
                break
        big = token in BIG
        if below and above:
            tag = "munderover" if big else "msubsup"
            return f"<{tag}>{body}<mrow>{below}</mrow><mrow>{above}</mrow></{tag}>"
        if below:
            tag = "munder" if big else "msub"
            return f"<{tag}>{body}<mrow>{below}</mrow></{tag}>"
        return f"<msup>{body}<mrow>{above}</mrow></msup>" if above else body

    def script(self) -> str:
        token = self.take()
        if token == "{":
            return self.group("}")
        if token == "(":
            return f'<mo stretchy="false">(</mo>{self.group(")")}<mo stretchy="false">)</mo>'
        if token == "-":
            return f"<mo>{OPERATORS['-']}</mo>{self.script()}"
        if token[:1].isdigit():
            return f"<mn>{token}</mn>"
        # a few letters are several indices, as in W_ij
        if re.fullmatch(r"[A-Za-z]{1,3}", token) and token not in SYMBOLS:
            return "".join(f"<mi>{c}</mi>" for c in token) if token not in ("min", "max") else f"<mi>{token}</mi>"
        return self.name(token) if token.isalpha() else self.fail()

    def operator(self, token: str) -> str:
        # "<x, y>" is a scalar product: no space after the bracket, and a comma soon
        if token == "<" and "," in self.tokens[self.at : self.at + 12] and not self.peek().isspace():
            inside = self.group(">")
            return self.scripts(f'<mo stretchy="false">⟨</mo>{inside}<mo stretchy="false">⟩</mo>')
        if token == "|":
            # a norm ends where its exponent may stand
            return self.scripts('<mo stretchy="false">|</mo>')
        if token in RELATIONS:
            return f"<mo>{html.escape(RELATIONS[token])}</mo>"
        if token == "*":
            return f"<mo>{OPERATORS['*']}</mo>"
        if token == "...":
            return "<mo>…</mo>"
        if token == "/":
            return '<mo lspace="0" rspace="0">/</mo>'
        if token in "+-,;:.%":
            return f"<mo>{OPERATORS.get(token, token)}</mo>"
        return self.fail()

    def fail(self) -> str:
        self.failed = True
        return ""
