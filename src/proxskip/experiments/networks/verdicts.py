"""The claims about networks, from the chosen runs alone, and when control variates do not help."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

from proxskip.experiments import claims
from proxskip.experiments.networks.chosen import ChosenRun, words
from proxskip.experiments.networks.forms import BY_NAME, FORMS, WITH_H, WITHOUT_H
from proxskip.report.figures import Claim

Runs = Mapping[str, Mapping[str, ChosenRun]]
ADAM = ("local-adamw", "diloco-adamw")
UNITS = {"rounds": 1.0, "bytes": 1e6, "gradients": 1e3}
NAMED = {"rounds": "rounds", "bytes": "bytes (in megabytes)", "gradients": "gradients (in thousands)"}


def title(name: str) -> str:
    """A method as the page prints it."""
    return BY_NAME[name].title


def best(found: Mapping[str, ChosenRun], names: Sequence[str], axis: str) -> ChosenRun:
    """The method with the least cost."""
    return min((found[name] for name in names), key=lambda r: r.cost(axis))


def gain(with_h: ChosenRun, without: ChosenRun, axis: str) -> str:
    """How many times less it costs with h."""
    mine, theirs = with_h.cost(axis), without.cost(axis)
    if not math.isfinite(mine):
        return "neither reaches it" if not math.isfinite(theirs) else "only without h"
    return f"{theirs / mine:.2f}" if math.isfinite(theirs) else "only with h"


def measured(found: Mapping[str, ChosenRun], names: Sequence[str], axis: str) -> str:
    """The costs in words, the least first."""
    order = sorted(names, key=lambda name: found[name].cost(axis))
    return ", ".join(f"{title(name)} {words(found[name].costs(axis), UNITS[axis])}" for name in order)


def numbers(found: Mapping[str, ChosenRun], names: Sequence[str], axis: str) -> dict[str, float | None]:
    """The same for results.json."""
    return {name: v if math.isfinite(v := found[name].cost(axis)) else None for name in names}


# -- claims ------------------------------------------------------------------------------------------------------------
def judged(model: str, runs: Runs, asserted: bool) -> list[Claim]:
    """All claims of one experiment, on the splits that it has."""
    # the two ends of the range: clients that differ most, and clients that do not differ
    unlike, alike = ("grammars", "mixed") if model == "text" else ("sorted", "iid")
    made = [make(model, runs[unlike], where(unlike), asserted) for make in ON_UNLIKE]
    if alike in runs:
        made.append(no_help(model, runs[alike], where(alike), asserted))
    if model != "text" and len(runs) > 2:
        made.append(falling(model, runs, asserted))
    return made


def where(split: str) -> str:
    """A split as a claim begins."""
    return {
        "sorted": "On label-sorted digits",
        "iid": "On iid digits",
        "grammars": "With a grammar for each client",
        "mixed": "With all grammars on every client",
    }[split]


def fails(model: str, found: Mapping[str, ChosenRun], at: str, asserted: bool) -> Claim:
    """AdamW with local steps does not arrive without h, and does with it."""
    hits = {name: sum(map(math.isfinite, found[name].costs("rounds"))) for name in (*ADAM, "adamw-h")}
    seeds = len(found["adamw-h"].test)
    ok = not hits["local-adamw"] and not hits["diloco-adamw"] and hits["adamw-h"] == seeds
    said = "Seeds that reach the target: " + ", ".join(f"{title(k)} {v} of {seeds}" for k, v in hits.items())
    ends = ", ".join(f"{title(k)} {found[k].final().mean():.3f}" for k in hits)
    text = f"{at}, AdamW with local steps reaches the target in no seed without h and in every seed with h."
    return claims.claim(f"{model}-adamw", text, ok, f"{said}; at the end: {ends}.", dict(hits), asserted)


def first(model: str, found: Mapping[str, ChosenRun], at: str, asserted: bool, axis: str) -> Claim:
    """AdamW + h costs the least of all."""
    names = [form.name for form in FORMS]
    others = best(found, [n for n in names if n != "adamw-h"], axis)
    mine, theirs = found["adamw-h"].cost(axis), others.cost(axis)
    ok = mine < theirs if math.isfinite(min(mine, theirs)) else None
    text = f"{at}, AdamW + h needs the fewest {axis} of all methods."
    leading = sorted(names, key=lambda name: found[name].cost(axis))[:4]
    shown = leading if "adamw-h" in leading else [*leading[:3], "adamw-h"]
    said = f"Fewest {NAMED[axis]} to the target: {measured(found, shown, axis)}."
    return claims.claim(
        f"{model}-{axis}", text, ok, said, numbers(found, names, axis), asserted, undecided="nobody reaches the target"
    )


def fewer(model: str, found: Mapping[str, ChosenRun], at: str, asserted: bool, a: str, b: str) -> Claim:
    """a needs fewer rounds than b."""
    mine, theirs = found[a].cost("rounds"), found[b].cost("rounds")
    # where neither arrives there is nothing to compare
    ok = mine < theirs if math.isfinite(min(mine, theirs)) else None
    text = f"{at}, {title(a)} needs fewer rounds than {title(b)}."
    pair = (a, b)
    return claims.claim(
        f"{model}-{a}-{b}", text, ok, f"Rounds: {measured(found, pair, 'rounds')}.", numbers(found, pair, "rounds"),
        asserted, undecided="neither reaches the target",
    )  # fmt: skip


def no_help(model: str, found: Mapping[str, ChosenRun], at: str, asserted: bool) -> Claim:
    """Where clients are alike, the best method without h needs no more rounds and no more bytes."""
    pairs = {axis: (best(found, WITHOUT_H, axis), best(found, WITH_H, axis)) for axis in ("rounds", "bytes")}
    arrived = all(math.isfinite(min(a.cost(axis), b.cost(axis))) for axis, (a, b) in pairs.items())
    ok = all(a.cost(axis) <= b.cost(axis) for axis, (a, b) in pairs.items()) if arrived else None
    said = "; ".join(
        f"{NAMED[axis]}: {a.form.title} {words(a.costs(axis), UNITS[axis])} without h, {b.form.title} "
        f"{words(b.costs(axis), UNITS[axis])} with h"
        for axis, (a, b) in pairs.items()
    )
    text = f"{at}, control variates do not help: the best method without h needs no more rounds and no more bytes."
    return claims.claim(
        f"{model}-alike",
        text,
        ok,
        f"Needed to reach the target, {said}.",
        {},
        asserted,
        undecided="nobody reaches the target",
    )


def falling(model: str, runs: Runs, asserted: bool) -> Claim:
    """The gain of h with AdamW falls as the clients become alike."""
    ratios = {}
    for split, found in runs.items():
        mine, theirs = found["adamw-h"].cost("rounds"), best(found, ADAM, "rounds").cost("rounds")
        # infinite if only h arrives; if even h does not, there is no ratio and the claim is undecided
        ratios[split] = theirs / mine if math.isfinite(mine) else math.nan
    values = list(ratios.values())
    ok = None if any(map(math.isnan, values)) else all(a >= b for a, b in pairwise(values))
    said = ", ".join(f"{k} {v:.2f}" if math.isfinite(v) else f"{k}: only with h" for k, v in ratios.items())
    text = "The more alike the clients, the less h gains with AdamW: the ratio of rounds without to with h never grows."
    plain = {k: v if math.isfinite(v) else None for k, v in ratios.items()}
    return claims.claim(f"{model}-falling", text, ok, f"Rounds without h over rounds with it: {said}.", plain, asserted)


ON_UNLIKE: tuple[Callable[[str, Mapping[str, ChosenRun], str, bool], Claim], ...] = (
    fails,
    partial(first, axis="rounds"),
    partial(first, axis="bytes"),
    partial(first, axis="gradients"),
    partial(fewer, a="scaffnew", b="local-sgd"),
    partial(fewer, a="scaffnew-outer", b="diloco-sgd"),
    partial(fewer, a="scaffnew", b="scaffnew-drawn"),
    partial(fewer, a="scaffnew", b="fedlin"),
)
"""Claims about clients that differ most."""


# -- when they do not help ---------------------------------------------------------------------------------------------
def when_not(runs: Runs) -> list[str]:
    """One sentence for every cost: where the best method without h is as good as the best with it."""
    out = []
    for axis in UNITS:
        pairs = {split: (best(found, WITHOUT_H, axis), best(found, WITH_H, axis)) for split, found in runs.items()}
        # level only if both arrive: a tie of two infinities says nothing
        level = [split for split, (a, b) in pairs.items() if a.cost(axis) <= b.cost(axis) < math.inf]
        better = [split for split, (a, b) in pairs.items() if b.cost(axis) < a.cost(axis)]
        told = [f"help on {', '.join(better)}"] if better else []
        told += [f"do not help on {', '.join(level)}"] if level else []
        out.append(
            f"Counted in {axis}, control variates {'; they '.join(told) or 'decide nothing: no method arrives'}."
        )
    return out
