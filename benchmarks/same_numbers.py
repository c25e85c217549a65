"""Did two trees reproduce the same figures? Every number and every verdict of two results.json are compared.

    proxskip reproduce --quick --out old        in one tree
    proxskip reproduce --quick --out new        in the other
    python benchmarks/same_numbers.py old new

What was measured by a clock is left out. The exit status is 1 if anything differs or is missing.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RTOL = 1e-9
ATOL = 1e-15
"""Gaps below this are rounding."""
OF_THE_CLOCK = ("seconds", "jobs")
NAMES = ("id", "label")
"""What tells the items of a list apart, so that one more of them moves no other."""
SHOWN = 20


def values(content: Any, place: str = "") -> Iterator[tuple[str, float | str | None]]:
    """Every number, nothing and verdict, with its place."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key == "verdict":
                yield f"{place}/verdict", value
            elif key not in OF_THE_CLOCK:
                yield from values(value, f"{place}/{key}")
    elif isinstance(content, list):
        names = [_name(value) for value in content]
        for k, value in enumerate(content):
            name = names[k] if names.count(names[k]) == 1 else None
            yield from values(value, f"{place}/{k if name is None else name}")
    elif content is None or isinstance(content, int | float):
        yield place, content


def _name(item: Any) -> str | None:
    """Of an item of a list; None without one."""
    return next((str(item[key]) for key in NAMES if key in item), None) if isinstance(item, dict) else None


def differences(old: Any, new: Any, rtol: float = RTOL, atol: float = ATOL) -> list[str]:
    """A sentence for each value that differs, or that one of the two lacks."""
    before, after = dict(values(old)), dict(values(new))
    found = [f"{place} is missing." for place in before if place not in after]
    found += [f"{place} is new." for place in after if place not in before]
    for place in before:
        if place in after and not _same(before[place], after[place], rtol, atol):
            found.append(f"{place} was {before[place]}, and is {after[place]}.")
    return found


def _same(old: float | str | None, new: float | str | None, rtol: float, atol: float) -> bool:
    if isinstance(old, int | float) and isinstance(new, int | float):
        return math.isclose(old, new, rel_tol=rtol, abs_tol=atol) or (math.isnan(old) and math.isnan(new))
    return old == new


def main(argv: list[str] | None = None) -> int:
    """Compare two files, or those of two folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a results.json, or the folder that holds it")
    parser.add_argument("new", type=Path, help="the other one")
    parser.add_argument("--rtol", type=float, default=RTOL, help=f"relative tolerance (default: {RTOL:g})")
    given = parser.parse_args(argv)
    files = [path / "results.json" if path.is_dir() else path for path in (given.old, given.new)]
    old, new = (json.loads(file.read_text("utf-8")) for file in files)
    found = differences(old, new, given.rtol)
    for sentence in found[:SHOWN]:
        print(sentence)
    if len(found) > SHOWN:
        print(f"... and {len(found) - SHOWN} more.")
    compared = [value for _, value in values(old)]
    verdicts = sum(isinstance(value, str) for value in compared)
    print(f"{len(compared) - verdicts} numbers and {verdicts} verdicts, of which {len(found)} differ.")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
