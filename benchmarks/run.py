"""``make bench``: run the benchmarks that this machine can run, and write their tables into RESULTS.md.

    python benchmarks/run.py                        all parts, about an hour on two cores
    python benchmarks/run.py --only engine gpu      some of them
    python benchmarks/run.py --quick --out DIR      small sizes, to see that it works

RESULTS.md has a section for each machine and a part for each benchmark. A run replaces the parts that it measured in
the section of its own machine and leaves everything else as it is.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PARTS: dict[str, tuple[str, ...]] = {
    "engine": ("cpu.py",),
    "million": ("million.py",),
    "minimize": ("auto.py", "--virtual"),
    "split": ("auto.py", "--virtual", "--split"),
    "peers": ("peers.py", "--limit", "30"),
    "distributed": ("distributed.py",),
    "gpu": ("gpu.py",),
    "torch": ("torch_engine.py",),
    "exact": ("exact.py",),
    "unknowns": ("unknowns.py", "--only", "methods"),
    "plan": ("unknowns.py", "--only", "plan", "--seed", "71"),
}
"""The command of each part; what it prints is the part."""
NEEDS = {"distributed": "ray", "gpu": "cupy", "torch": "torch", "peers": "pyproximal", "exact": "statsmodels"}
"""Packages without which a part is left out."""
QUICK = {"engine", "million", "distributed", "gpu", "exact", "unknowns", "plan"}
"""Parts that have a --quick of their own; a quick run leaves out the others."""


def machine() -> str:
    """What a section is called by: the processor, the cores and, if there is one, the GPU."""
    names = []
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = f"{platform.machine()}, {names[0] if names else platform.system()}, {cores} cores"
    card = subprocess.run(
        ["sh", "-c", "nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1"], capture_output=True, text=True
    ).stdout.strip()
    return f"{name}, {card}" if card else name


def sections_of(page: str) -> dict[str, dict[str, str]]:
    """The parts of a page, by machine and name."""
    pieces = re.split(r"^<!-- (.+?): (\w+) -->\n", page, flags=re.MULTILINE)[1:]
    sections: dict[str, dict[str, str]] = {}
    for where, name, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        # the heading of the next machine belongs to no part
        sections.setdefault(where, {})[name] = re.split(r"^## ", text, flags=re.MULTILINE)[0].strip()
    return sections


def page_of(sections: dict[str, dict[str, str]]) -> str:
    """The page with these parts."""
    head = (
        "Written by `make bench`: a section for each machine, a part for each benchmark. Times of rivals are taken in "
        "turns, BLAS on one thread. Machines are shared and noisy: only the ratios within a table mean anything."
    )
    lines = ["# Measurements", "", head, ""]
    for where, parts in sections.items():
        lines += [f"## {where}", ""]
        for name in [*(k for k in PARTS if k in parts), *(k for k in parts if k not in PARTS)]:
            lines += [f"<!-- {where}: {name} -->", parts[name], ""]
    return "\n".join(lines)


def put(page: Path, where: str, name: str, part: str) -> None:
    """Replace one part of one machine's section; everything else stays."""
    sections = sections_of(page.read_text(encoding="utf-8")) if page.is_file() else {}
    sections.setdefault(where, {})[name] = part.strip()
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(page_of(sections), encoding="utf-8")


def measured(name: str, quick: bool) -> str:
    """The part as Markdown: what its command prints, and how it was made."""
    script, *arguments = PARTS[name]
    arguments += ["--quick"] if quick else []
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    if not done.stdout.strip():
        raise SystemExit(f"{script} ended with status {done.returncode} and printed nothing.")
    text = re.sub("^#", "##", done.stdout.strip(), flags=re.MULTILINE)  # below the heading of the machine
    made = f"`python benchmarks/{' '.join([script, *arguments])}`"
    import numpy

    import proxskip

    versions = f"proxskip {proxskip.__version__}, Python {platform.python_version()}, numpy {numpy.__version__}"
    return f"{text}\n\n{made}, {time.perf_counter() - start:.0f} seconds; {versions}."


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="small sizes")
    options.add_argument("--out", type=Path, default=HERE, help="the folder of RESULTS.md")
    options.add_argument("--only", nargs="*", choices=tuple(PARTS), help="these parts")
    o = options.parse_args()
    page, here = o.out / "RESULTS.md", machine()
    for name in o.only or [name for name in PARTS if not o.quick or name in QUICK]:
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            print(f"{name}: needs {NEEDS[name]}, which is not installed.", file=sys.stderr)
            continue
        part = measured(name, o.quick)
        print(part, flush=True)
        put(page, here, name, part)


if __name__ == "__main__":
    main()
