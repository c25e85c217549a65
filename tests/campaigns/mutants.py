"""Do the tests see the bugs that matter? Each mutant puts one back into a copy of the source; a named test must kill it.

    python tests/campaigns/mutants.py            all of them, as a table; exit code 1 if one survives
    python tests/campaigns/mutants.py NAME ...   some of them

The first seven are the faults of a ProxSkip run that give a finite, quiet and wrong answer: h of a client reset, a
download lost, an update applied twice, a division by n where only some were averaged, h updated with another vector than
the one sent, a graph in two parts, a NaN averaged. The others are wrong signs, sizes and times of the h update.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
PACKAGE = HOME / "src" / "proxskip"


class Mutant:
    """One bug: the tests that must fail with it, and edits, each a file of the package, a text of it and its substitute."""

    def __init__(self, name: str, fault: str, killers: str | tuple[str, ...], *edits: tuple[str, str, str]) -> None:
        self.name, self.fault, self.edits = name, fault, edits
        self.killers = (killers,) if isinstance(killers, str) else killers


CONTRACTS = "methods/test_laws.py::test_lyapunov_contracts_by_its_theorem"
REDUCED = "methods/test_laws.py::test_lyapunov_of_variance_reduction_contracts_by_its_theorem[2]"
STAYS = "methods/test_laws.py::test_solution_is_a_fixed_point[scaffnew-cohort-quadratic]"
PATTERN = "methods/test_cohorts.py::test_scaffnew_keeps_sum_h_zero_under_any_pattern"
EXCHANGE, SCAFFNEW, GOSSIP = "running/metered_exchange.py", "methods/scaffnew.py", "methods/gossip_methods.py"
TELL, H = "self.engine.tell(half, self.cohort, outcome)", 'return {"h": memory["h"] + (eta'
MUTANTS = (
    Mutant("reset-h", "a worker restarts: h of client 0 is back to zero in round 2", PATTERN, (
        EXCHANGE, "        self.meter.begin(self.whom)\n",
        "        self.meter.begin(self.whom)\n"
        '        if round == 2 and "h" in getattr(self.engine, "kept", {}):\n'
        '            self.engine.kept["h"][0] = 0.0\n')),
    Mutant("lost-download", "the first client of a cohort of two or more never hears the outcome",
           (PATTERN, f"{CONTRACTS}[scaffnew-cohort]"),
           (EXCHANGE, TELL, TELL.replace("self.cohort", "self.cohort[len(self.cohort) > 1 :]"))),
    Mutant("applied-twice", "the outcome is settled twice",
           (f"{CONTRACTS}[scaffnew]",
            "methods/test_cohorts.py::test_h_is_settled_once_a_round_by_exactly_the_cohort_with_that_rounds_x"),
           (EXCHANGE, TELL, f"{TELL}, {TELL}")),
    Mutant("divided-by-n", "a cohort's sum is divided by the weight of everybody", STAYS,
           (EXCHANGE, "tuple(w / w.sum() for w in rows)", "tuple(w / weights.sum() for w in rows)")),
    Mutant("unrounded-h", "vectors travel in single precision, and h is updated with the unrounded ones", PATTERN,
           (EXCHANGE, "sums(self._shares(weights), work.up)",
            'sums(self._shares(weights), [U.astype("float32").astype("float64") for U in work.up])')),
    Mutant("disconnected-W", "a graph in two parts is accepted",
           "communication/test_links.py::test_a_matrix_that_cannot_mix_is_refused_with_its_numbers",
           ("graphs.py", "    if parts > 1:\n", "    if parts > 99:\n"),
           ("graphs.py", "        if self.delta < TOLERANCE:\n", "        if self.delta < -1:\n")),
    Mutant("nan-averaged", "nobody looks whether the iterate is finite",
           "running/test_watch.py::test_a_value_that_is_no_number_ends_the_run",
           ("running/loop.py", "        if not self.exchange.finite or not np.isfinite(x).all():\n", "        if False:\n")),
    Mutant("sign-of-h", "h moves away from what was learnt", f"{CONTRACTS}[scaffnew]",
           (SCAFFNEW, H, H.replace("+", "-"))),
    Mutant("half-of-h", "h moves half as far", f"{CONTRACTS}[scaffnew]", (SCAFFNEW, H, H.replace("(", "(0.5 * "))),
    Mutant("no-chi", "on cohorts the update of h ignores chi", f"{CONTRACTS}[scaffnew-pairs]",
           (SCAFFNEW, "(1.0 if self.chi is None else self.chi)", "1.0")),
    Mutant("prox-form-on-cohorts", "the form that heals sum h with everybody is used on cohorts", STAYS,
           (SCAFFNEW, "self.local if exchange.everyone else self.local_in_cohort", "self.local")),
    Mutant("printed-sign", "the sign of h in the paper's proof of the decentralized theorem",
           f"{CONTRACTS}[decentralized]",
           (GOSSIP, '"h": memory["h"] + (self.p / self.gamma)', '"h": memory["h"] - (self.p / self.gamma)')),
    Mutant("mask-ignored", "TAMUNA updates h where a client sent nothing", f"{CONTRACTS}[tamuna-cohort]",
           ("methods/tamuna.py", '(memory["q"] * (x - memory["xhat"]))', '(x - memory["xhat"])')),
    Mutant("no-omega", "LoCoDL's u and v move as if nothing were compressed", f"{CONTRACTS}[locodl-rand]",
           ("methods/locodl.py", "(self.gamma * (1.0 + 2.0 * self.omega))", "self.gamma")),
    Mutant("sign-of-u", "LoCoDL's u moves away from what was learnt", f"{CONTRACTS}[locodl-rand]",
           ("methods/locodl.py", 'memory["h"] + self.eta * (db', 'memory["h"] - self.eta * (db')),
    Mutant("late-forgotten", "a resumed run forgets which outcomes were not yet delivered",
           "running/test_resume.py::test_resume_is_bitwise_the_straight_run[scaffnew-cohort]",
           ("running/ledger.py", 'arrays["owed"].copy()', '0 * arrays["owed"]')),
    Mutant("weights-not-sampled", "a minibatch of weighted rows forgets the weights",
           "methods/test_features.py::test_row_weights_and_minibatches_meet",
           ("problems/linear_model.py", "return 1.0 if np.ptp(self.s) == 0 else self.N * self.s\n", "return 1.0\n")),
    Mutant("blind-audit", "the audit finds nothing", "running/test_audit.py::test_one_broken_update_is_reported[scaffnew-lost]",
           ("running/audit.py", "math.inf if round == 0 else", "math.inf if round >= 0 else")),
    Mutant("sleeps-with-old-h", "a client of GradSkip that falls asleep keeps its old shift", f"{CONTRACTS}[gradskip]",
           ("methods/gradskip.py", 'memory["h"] + asleep * (', 'memory["h"] + 0.0 * asleep * (')),
    Mutant("settles-from-old-h", "GradSkip's update starts from the shift before the steps", f"{CONTRACTS}[gradskip]",
           ("methods/gradskip.py", 'return {"h": memory["hhat"] +', 'return {"h": memory["h"] +')),
    Mutant("other-rows-at-the-anchor", "the minibatch at the anchor of L-SVRG is not the one at the iterate", REDUCED,
           ("engines/local.py", "- self._sampled(w, rows) + gw", "- self._sampled(w, (rows + 1) % self.rows) + gw")),
    Mutant("anchor-of-the-new-point", "the anchor moves to the point after the step, with the gradient before it",
           REDUCED, ("engines/local.py", "w, gw = z, full if", "w, gw = x, full if")),
    Mutant("biased-links", "x moves along what came as if nothing had been masked", f"{CONTRACTS}[random-gossip]",
           (GOSSIP, "self.tau * (1.0 + self.omega)", "self.tau * (1.0 + 3.0 * self.omega)")),
    Mutant("sign-of-a-link", "h moves away along the links", f"{CONTRACTS}[random-gossip]",
           (GOSSIP, 'memory["h"] + self.tau * m', 'memory["h"] - self.tau * m')),
    Mutant("one-sided-link", "a link that is awake moves only one of its ends",
           "methods/test_laws.py::test_sum_of_h_stays_zero[random-gossip-quadratic]",
           ("core/gossip.py", "        np.subtract.at(mixed, self.j, moved)\n", "")),
)  # fmt: skip


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
    o = parser.parse_args()
    chosen = [m for m in MUTANTS if not o.names or m.name in o.names]
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
