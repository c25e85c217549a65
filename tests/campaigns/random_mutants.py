"""How much of what the source does do the tests hold? Random mutants, each run against the tests that touch its line.

    python tests/campaigns/random_mutants.py coverage            which tests touch which lines: once, the whole suite, slowly
    python tests/campaigns/random_mutants.py 100 --seed 0        draw, run, and print the share that is caught
    python tests/campaigns/random_mutants.py 100 --tree OTHER    the same in another checkout of the project

A mutant flips one operator, changes one constant or drops one statement of a line that some test runs. It is caught if
a test that touches the line fails or does not end. Kernels that numba compiles are not traced, so they are not drawn:
``tests/campaigns/mutants.py`` has faults of theirs. Needs coverage and pytest-cov.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[2]
SECONDS = 300.0
"""A mutant's tests may take this long; one that hangs them is caught."""
TESTS = "not (slow or long or ray or flower or browser or torch or gpu)"
"""The tests that have to catch a mutant: those of ``make quick``."""
MOST_TESTS = 60
"""The tests of a mutant: those that touch the fewest lines first."""
SWAPS: dict[type[ast.AST], type[Any]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
DROPPED = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Return)


def places(tree: ast.Module) -> Iterator[tuple[int, str, int]]:
    """Line, kind and number (in the order of ``ast.walk``) of everything that can be changed."""
    for number, node in enumerate(ast.walk(tree)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
            yield line, "operator", number
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield line, "comparison", number
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            yield line, "constant", number
        elif isinstance(node, DROPPED) and not isinstance(getattr(node, "value", None), ast.Constant):
            yield line, "statement", number


def mutated(tree: ast.Module, kind: str, number: int) -> str:
    """The source with this one change."""
    changed = copy.deepcopy(tree)
    node: Any = list(ast.walk(changed))[number]
    if kind == "operator":
        node.op = SWAPS[type(node.op)]()
    elif kind == "comparison":
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif kind == "constant":
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    else:
        for parent in ast.walk(changed):
            for body in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
                if isinstance(body, list) and node in body:
                    body[body.index(node)] = ast.copy_location(ast.Pass(), node)
    return ast.unparse(ast.fix_missing_locations(changed))


def measure_coverage(tree: Path, out: Path, jobs: int) -> None:
    """Run the suite, and write which tests touch which lines."""
    words = f"-m pytest -n {jobs} -q --cov=proxskip --cov-context=test --cov-report= -o cache_dir={out / 'cache'}"
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "COVERAGE_FILE": str(out / "coverage")}
    subprocess.run([sys.executable, *words.split(), "-m", TESTS], cwd=tree, env=environment)
    # a test that fails without a mutant, for want of a package for example, would catch every mutant
    failed = out / "cache/v/cache/lastfailed"
    failing = set(json.loads(failed.read_text())) if failed.is_file() else set()
    import coverage

    data = coverage.CoverageData(str(out / "coverage"))
    data.read()
    touched: dict[str, dict[int, list[str]]] = {}
    for file in data.measured_files():
        lines = data.contexts_by_lineno(file)
        tests = {line: sorted({t.split("|")[0] for t in found if t} - failing) for line, found in lines.items()}
        touched[str(Path(file).relative_to(tree / "src"))] = {line: found for line, found in tests.items() if found}
    (out / "touched.json").write_text(json.dumps(touched))
    report = [sys.executable, "-m", "coverage", "report", "--format=total", "--precision=2"]
    share = subprocess.run(report, cwd=tree, env=environment, capture_output=True, text=True).stdout.strip()
    print(f"{share} % of the lines are covered")


def draw(
    tree: Path, touched: dict[str, dict[str, list[str]]], count: int, seed: int
) -> list[tuple[str, int, str, str]]:
    """File, line, kind and new source of each mutant; every place of a touched line is as likely."""
    every = []
    for file in sorted(touched):
        parsed = ast.parse((tree / "src" / file).read_text(encoding="utf-8"))
        every += [(file, line, kind, number) for line, kind, number in places(parsed) if str(line) in touched[file]]
    chosen = random.Random(seed).sample(every, count)
    parse = {file: ast.parse((tree / "src" / file).read_text(encoding="utf-8")) for file, *_ in chosen}
    return [(file, line, kind, mutated(parse[file], kind, number)) for file, line, kind, number in chosen]


def caught(tree: Path, file: str, source: str, tests: list[str]) -> bool:
    """Whether a test fails, or does not end, with this source."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copied = Path(folder) / "src"
        shutil.copytree(tree / "src", copied)
        (copied / file).write_text(source, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {"PYTHONPATH": str(copied)}
        try:
            done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return True
        return done.returncode not in (0, 5)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("count", help='how many mutants, or "coverage"')
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--tree", type=Path, default=HOME)
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--out", type=Path, default=Path("mutants"), help="the folder of the coverage")
    o = options.parse_args()
    tree, out = o.tree.resolve(), o.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if o.count == "coverage":
        measure_coverage(tree, out, o.jobs)
        return
    touched = json.loads((out / "touched.json").read_text())
    lines_of: dict[str, int] = {}
    for lines in touched.values():
        for tests in lines.values():
            for test in tests:
                lines_of[test] = lines_of.get(test, 0) + 1
    mutants = draw(tree, touched, int(o.count), o.seed)

    def judge(mutant: tuple[str, int, str, str]) -> bool:
        file, line, kind, source = mutant
        tests = sorted(touched[file][str(line)], key=lambda test: lines_of[test])[:MOST_TESTS]
        dead = caught(tree, file, source, tests)
        print(f"{'caught  ' if dead else 'SURVIVED'} {file}:{line} {kind}, {len(tests)} tests", flush=True)
        return dead

    with ThreadPoolExecutor(o.jobs) as pool:
        dead = list(pool.map(judge, mutants))
    print(f"{sum(dead)} of {len(dead)} caught")


if __name__ == "__main__":
    main()
