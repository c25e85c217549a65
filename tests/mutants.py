"""Do the tests see the bugs that matter? Each mutant puts one back into a copy of the source; a named test must kill it.

    python tests/mutants.py            all of them, as a table; exit code 1 if one survives
    python tests/mutants.py NAME ...   some of them

The first seven are the faults of a ProxSkip run that give a finite, quiet and wrong answer: h of a client reset, a
download lost, an update applied twice, a division by n where only some were averaged, h updated with another vector than
the one sent, a graph in two parts, a NaN averaged. The others are wrong signs, sizes and times of the h update.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
PACKAGE = HOME / "src" / "proxskip"


@dataclass(frozen=True)
class Mutant:
    """One bug: texts that are replaced in files of the package, and the tests that must fail with it."""

    name: str
    fault: str
    edits: tuple[tuple[str, str, str], ...]
    killers: tuple[str, ...]


MUTANTS = (
    Mutant(
        "reset-h",
        "a worker restarts: h of client 0 is back to zero in round 2",
        (
            (
                "loop/metered_exchange.py",
                "        self.meter.participated[self.whom] += 1\n",
                "        self.meter.participated[self.whom] += 1\n"
                '        if round == 2 and "h" in getattr(self.engine, "kept", {}):\n'
                '            self.engine.kept["h"][0] = 0.0\n',
            ),
        ),
        ("test_cohorts.py::test_scaffnew_keeps_sum_h_zero_under_any_pattern",),
    ),
    Mutant(
        "lost-download",
        "the first client of a cohort of two or more never hears the outcome",
        (
            (
                "loop/metered_exchange.py",
                "        self.engine.tell(half, self.cohort, outcome)\n",
                "        self.engine.tell(half, self.cohort[1:] if len(self.cohort) > 1 else self.cohort, outcome)\n",
            ),
        ),
        (
            "test_cohorts.py::test_scaffnew_keeps_sum_h_zero_under_any_pattern",
            "test_laws.py::test_lyapunov_contracts_by_its_theorem[scaffnew-cohort]",
        ),
    ),
    Mutant(
        "applied-twice",
        "the outcome is settled twice",
        (
            (
                "loop/metered_exchange.py",
                "        self.engine.tell(half, self.cohort, outcome)\n",
                "        self.engine.tell(half, self.cohort, outcome)\n"
                "        self.engine.tell(half, self.cohort, outcome)\n",
            ),
        ),
        (
            "test_laws.py::test_lyapunov_contracts_by_its_theorem[scaffnew]",
            "test_cohorts.py::test_h_is_settled_once_a_round_by_exactly_the_cohort_with_that_rounds_x",
        ),
    ),
    Mutant(
        "divided-by-n",
        "a cohort's sum is divided by the weight of everybody",
        (
            (
                "loop/metered_exchange.py",
                "tuple(w / w.sum() for w in rows)",
                "tuple(w / weights.sum() for w in rows)",
            ),
        ),
        ("test_laws.py::test_solution_is_a_fixed_point[scaffnew-cohort-quadratic]",),
    ),
    Mutant(
        "unrounded-h",
        "vectors travel in single precision, and h is updated with the unrounded ones",
        (
            (
                "loop/metered_exchange.py",
                "sums(request.weights, work.up)",
                'sums(request.weights, [U.astype("float32").astype("float64") for U in work.up])',
            ),
        ),
        ("test_cohorts.py::test_scaffnew_keeps_sum_h_zero_under_any_pattern",),
    ),
    Mutant(
        "disconnected-W",
        "a graph in two parts is accepted",
        (
            ("links/graphs.py", "    if parts > 1:\n", "    if parts > 99:\n"),
            ("links/graphs.py", "        if self.delta < TOLERANCE:\n", "        if self.delta < -1:\n"),
        ),
        ("test_links.py::test_a_matrix_that_cannot_mix_is_refused_with_its_numbers",),
    ),
    Mutant(
        "nan-averaged",
        "nobody looks whether the iterate is finite",
        (("loop/loop.py", "        if self.line.finite and np.isfinite(self.x).all():\n", "        if True:\n"),),
        ("test_watch.py::test_a_value_that_is_no_number_ends_the_run",),
    ),
    Mutant(
        "sign-of-h",
        "h moves away from what was learnt",
        (("methods/scaffnew.py", 'return {"h": memory["h"] + (eta', 'return {"h": memory["h"] - (eta'),),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[scaffnew]",),
    ),
    Mutant(
        "half-of-h",
        "h moves half as far",
        (("methods/scaffnew.py", 'return {"h": memory["h"] + (eta', 'return {"h": memory["h"] + (0.5 * eta'),),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[scaffnew]",),
    ),
    Mutant(
        "no-chi",
        "on cohorts the update of h ignores chi",
        (("methods/scaffnew.py", "(1.0 if self.chi is None else self.chi)", "1.0"),),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[scaffnew-pairs]",),
    ),
    Mutant(
        "prox-form-on-cohorts",
        "the form that heals sum h with everybody is used on cohorts",
        (("methods/scaffnew.py", "self.local if exchange.everyone else self.local_in_cohort", "self.local"),),
        ("test_laws.py::test_solution_is_a_fixed_point[scaffnew-cohort-quadratic]",),
    ),
    Mutant(
        "printed-sign",
        "the sign of h in the paper's proof of the decentralized theorem",
        (
            (
                "methods/gossip_methods.py",
                '"h": memory["h"] + (self.p / self.gamma) * (x - memory["xhat"])',
                '"h": memory["h"] - (self.p / self.gamma) * (x - memory["xhat"])',
            ),
        ),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[decentralized]",),
    ),
    Mutant(
        "mask-ignored",
        "TAMUNA updates h where a client sent nothing",
        (("methods/tamuna.py", '(memory["q"] * (x - memory["xhat"]))', '(x - memory["xhat"])'),),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[tamuna-cohort]",),
    ),
    Mutant(
        "no-omega",
        "LoCoDL's u and v move as if nothing were compressed",
        (("methods/locodl.py", "(self.gamma * (1.0 + 2.0 * self.omega))", "self.gamma"),),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[locodl-rand]",),
    ),
    Mutant(
        "sign-of-u",
        "LoCoDL's u moves away from what was learnt",
        (("methods/locodl.py", 'memory["h"] + self.eta * (db', 'memory["h"] - self.eta * (db'),),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[locodl-rand]",),
    ),
    Mutant(
        "late-forgotten",
        "a resumed run forgets which outcomes were not yet delivered",
        (("loop/ledger.py", 'arrays["owed"].copy()', '0 * arrays["owed"]'),),
        ("test_resume.py::test_resume_is_bitwise_the_straight_run[scaffnew-cohort]",),
    ),
    Mutant(
        "weights-not-sampled",
        "a minibatch of weighted rows forgets the weights",
        (
            (
                "problems/glm.py",
                "        return 1.0 if np.ptp(self.s) == 0 else self.N * self.s\n",
                "        return 1.0\n",
            ),
        ),
        ("test_features.py::test_row_weights_and_minibatches_meet",),
    ),
    Mutant(
        "blind-audit",
        "the audit finds nothing",
        (("loop/audit.py", "        if rounds == 0:", "        if rounds >= 0:"),),
        ("test_audit.py::test_one_broken_update_is_reported[scaffnew-lost]",),
    ),
    Mutant(
        "sleeps-with-old-h",
        "a client of GradSkip that falls asleep keeps its old shift",
        (("methods/gradskip.py", 'memory["h"] + asleep * (', 'memory["h"] + 0.0 * asleep * ('),),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[gradskip]",),
    ),
    Mutant(
        "settles-from-old-h",
        "GradSkip's update starts from the shift before the steps",
        (("methods/gradskip.py", 'return {"h": memory["hhat"] +', 'return {"h": memory["h"] +'),),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[gradskip]",),
    ),
    Mutant(
        "other-rows-at-the-anchor",
        "the minibatch at the anchor of L-SVRG is not the one at the iterate",
        (
            (
                "engines/local.py",
                "self._sampled(z, rows) - self._sampled(w, rows) + gw",
                "self._sampled(z, rows) - self._sampled(w, (rows + 1) % self.rows) + gw",
            ),
        ),
        ("test_laws.py::test_lyapunov_of_variance_reduction_contracts_by_its_theorem[2]",),
    ),
    Mutant(
        "anchor-of-the-new-point",
        "the anchor moves to the point after the step, with the gradient before it",
        (("engines/local.py", "w, gw = z, full if", "w, gw = x, full if"),),
        ("test_laws.py::test_lyapunov_of_variance_reduction_contracts_by_its_theorem[2]",),
    ),
    Mutant(
        "biased-links",
        "x moves along what came as if nothing had been masked",
        (("methods/gossip_methods.py", "self.tau * (1.0 + self.omega)", "self.tau * (1.0 + 3.0 * self.omega)"),),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[random-gossip]",),
    ),
    Mutant(
        "sign-of-a-link",
        "h moves away along the links",
        (("methods/gossip_methods.py", 'memory["h"] + self.tau * m', 'memory["h"] - self.tau * m'),),
        ("test_laws.py::test_lyapunov_contracts_by_its_theorem[random-gossip]",),
    ),
    Mutant(
        "one-sided-link",
        "a link that is awake moves only one of its ends",
        (("links/gossip.py", "        np.subtract.at(mixed, self.j, moved)\n", ""),),
        ("test_laws.py::test_sum_of_h_stays_zero[random-gossip-quadratic]",),
    ),
)
SEVEN = MUTANTS[:7]


def mutated(mutant: Mutant) -> dict[str, str]:
    """The texts of the files that the mutant changes."""
    out: dict[str, str] = {}
    for name, old, new in mutant.edits:
        text = out.get(name) or (PACKAGE / name).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"mutant {mutant.name}: {old!r} is not once in {name}; renew the mutant.")
        out[name] = text.replace(old, new)
    return out


def copy_with(mutant: Mutant | None, folder: Path) -> None:
    """The package and the tests in a folder, with the mutant's edits; files keep their times for the compiled caches."""
    shutil.copytree(PACKAGE, folder / "src" / "proxskip")
    shutil.copytree(HOME / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(HOME / "pyproject.toml", folder / "pyproject.toml")
    if mutant is not None:
        for name, text in mutated(mutant).items():
            (folder / "src" / "proxskip" / name).write_text(text)


def fails(mutant: Mutant | None, killer: str) -> bool:
    """Whether this test fails in a copy of the source with this mutant; anything but pass or fail is an error."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        folder = Path(place)
        copy_with(mutant, folder)
        path = os.pathsep.join([str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        which = "import proxskip; print(proxskip.__file__)"
        found = subprocess.run([sys.executable, "-c", which], env=env, capture_output=True, text=True, check=True)
        if not Path(found.stdout.strip()).is_relative_to(folder.resolve()):
            raise SystemExit(f"the copy is not the package that is imported, but {found.stdout.strip()}.")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"tests/{killer}"]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        judged = done.returncode == 0 or re.search(r"E\s+(AssertionError|assert |Failed: DID NOT RAISE)", done.stdout)
        if done.returncode not in (0, 1) or not judged:
            raise SystemExit(f"{killer} could not run:\n{done.stdout}{done.stderr}")
        return done.returncode == 1


def kill(mutant: Mutant) -> list[str]:
    """The named tests that kill it."""
    return [killer for killer in mutant.killers if fails(mutant, killer)]


def main() -> int:
    """Print the table; 1 if a mutant survives one of its tests, or a test fails without a mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *(m.name for m in MUTANTS)], metavar="NAME")
    parser.add_argument("--part", nargs=2, type=int, default=(0, len(MUTANTS)), metavar=("FIRST", "COUNT"))
    o = parser.parse_args()
    first, count = o.part
    chosen = [m for m in MUTANTS[first : first + count] if not o.names or m.name in o.names]
    wrong = [killer for killer in sorted({k for m in chosen for k in m.killers}) if fails(None, killer)]
    for killer in wrong:
        print(f"fails without any mutant: {killer}")
    survivors = 0
    print(f"{'mutant':<22}{'seconds':>8}  {'killed by':<90}  fault")
    for mutant in chosen:
        begin = time.perf_counter()
        killers = kill(mutant)
        survivors += len(killers) < len(mutant.killers)
        shown = ", ".join(killers) or "NOBODY"
        print(f"{mutant.name:<22}{time.perf_counter() - begin:>8.1f}  {shown:<90}  {mutant.fault}", flush=True)
    print(json.dumps({"done": len(chosen), "wrong": survivors + len(wrong)}))  # as ``chaos.tell``, which imports this
    return int(bool(survivors or wrong))


if __name__ == "__main__":
    sys.exit(main())
