"""What the networks learn: the digits split among clients, and text with a grammar of its own for each client."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from proxskip.engines.cpu.minibatches import draw_rows, room_for
from proxskip.randomness import generator
from proxskip.types import Array, Indices, InputError

CLIENTS = 8
LETTERS = "abcdefghijklmnop ."
"""The alphabet of the made text."""
CONTEXT = 16
"""Characters that the language model sees."""


@dataclass(frozen=True, slots=True)
class ShuffledRows:
    """Rows for training, validation and test; which of the training rows belong to which client.

    Args:
        inputs: all rows, of all three parts.
        targets: a label for each row or, for text, the next character for each character of the row.
        clients: the training rows of each client, as many for each of them, so that no client weighs more.
    """

    inputs: Array
    targets: Indices
    clients: Indices
    validation: Indices
    test: Indices

    def batches(self, seed: int, round: int, step: int, b: int) -> Indices:
        """The rows of a minibatch for each client, (n, b); rows repeat where a client has fewer than b."""
        n, m = self.clients.shape
        rest = b % m
        drawn, (_, room) = np.empty((n, b + 3), dtype=np.uint32), room_for(rest, m)
        for i in range(n):
            draw_rows(seed, i, round, step, 0, m, rest, drawn[i], room)
        drawn[:, rest:b] = np.tile(np.arange(m), b // m)  # all rows, as often as they fit into b
        return np.take_along_axis(self.clients, drawn[:, :b].astype(np.int64), axis=1)


# -- digits ------------------------------------------------------------------------------------------------------------
def digits(split: str, seed: int) -> ShuffledRows:
    """scikit-learn's digits: 60 % for training, 20 % for validation, 20 % for the test.

    Args:
        split: "sorted" by label; "dirichlet-A", in which a client's shares of the labels are drawn from Dirichlet(A);
            or "iid".
    """
    from sklearn.datasets import load_digits

    inputs, targets = load_digits(return_X_y=True)
    rng = generator(seed)
    order = rng.permutation(len(targets))
    a, b = int(0.6 * len(order)), int(0.8 * len(order))
    # every client gets as many rows; what is left over of the division is not used
    train = order[:a][: a - a % CLIENTS]
    if split == "sorted":
        parts = np.split(train[np.argsort(targets[train], kind="stable")], CLIENTS)
    elif split == "iid":
        parts = np.split(train, CLIENTS)
    elif split.startswith("dirichlet-"):
        parts = _dirichlet(train, targets[train], float(split.partition("-")[2]), rng)
    else:
        raise InputError(f'split "{split}" is not known; use sorted, dirichlet-A or iid.')
    # pixels from 0 to 16 become numbers from -1 to 1
    return ShuffledRows((inputs - 8.0) / 8.0, targets, np.stack(parts), order[a:b], order[b:])


def _dirichlet(train: Indices, labels: Indices, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Equally large parts, each with label shares from Dirichlet(alpha), as far as there are rows left of a label."""
    left = [list(rng.permutation(train[labels == k])) for k in range(10)]
    m, parts = len(train) // CLIENTS, []
    for _ in range(CLIENTS):
        share = rng.dirichlet(np.full(10, alpha))
        mine: list[int] = []
        while len(mine) < m:
            # labels that are used up give their share to the others
            open_share = np.array([s + 1e-12 if rows else 0.0 for s, rows in zip(share, left, strict=True)])
            k = int(rng.choice(10, p=open_share / open_share.sum()))
            mine.append(left[k].pop())
        parts.append(np.array(mine))
    return parts


# -- text --------------------------------------------------------------------------------------------------------------
class Grammar:
    """A language with words and a word order of its own: adjective, noun and verb, each from a small dictionary."""

    ORDERS = ("ANV", "ANVAN", "VAN", "NVAN", "NAV", "VANAN", "NANV", "AVN")

    def __init__(self, number: int, rng: np.random.Generator) -> None:
        # words have neither spaces nor full stops
        letters = list(LETTERS[:-2])
        self.order = self.ORDERS[number % len(self.ORDERS)]
        self.words = {
            kind: ["".join(rng.choice(letters, size=int(rng.integers(2, 6)))) for _ in range(4)] for kind in "ANV"
        }
        # some words are used more often than others
        self.often = np.array([0.5, 0.25, 0.15, 0.1])

    def sentence(self, rng: np.random.Generator) -> str:
        """One sentence, with its full stop."""
        return " ".join(self.words[kind][int(rng.choice(4, p=self.often))] for kind in self.order) + ". "


def text(split: str, seed: int) -> ShuffledRows:
    """Windows of text: "grammars", in which each client writes its own language, or "mixed", in which all write all."""
    if split not in ("grammars", "mixed"):
        raise InputError(f'split "{split}" is not known; use grammars or mixed.')
    rng = generator(seed)
    grammars = [Grammar(i, rng) for i in range(CLIENTS)]
    train = [_windows([g], 200, rng) if split == "grammars" else _windows(grammars, 200, rng) for g in grammars]
    # every language has the same share in what is held out, whoever was trained on it: validation, then test
    held_out = [_windows([g], 24, rng) for g in grammars]
    held_out += [_windows([g], 24, rng) for g in grammars]
    rows = np.concatenate([*train, *held_out])
    sizes = np.cumsum([0, *(len(part) for part in (*train, *held_out))])
    spans = [np.arange(a, b) for a, b in pairwise(sizes)]
    validation, test = np.concatenate(spans[CLIENTS : 2 * CLIENTS]), np.concatenate(spans[2 * CLIENTS :])
    # each character of a window is to be predicted from those before it
    return ShuffledRows(rows[:, :-1].astype(np.float64), rows[:, 1:], np.stack(spans[:CLIENTS]), validation, test)


def _windows(grammars: list[Grammar], count: int, rng: np.random.Generator) -> Indices:
    """Windows of CONTEXT + 1 characters, each from a random place of sentences in one language."""
    out = []
    for _ in range(count):
        g = grammars[int(rng.integers(len(grammars)))]
        written = "".join(g.sentence(rng) for _ in range(4))
        at = int(rng.integers(len(written) - CONTEXT - 1))
        out.append([LETTERS.index(letter) for letter in written[at : at + CONTEXT + 1]])
    return np.array(out, dtype=np.int64)
