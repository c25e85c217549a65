"""The parser of the command line: the flags of each command, and their help."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from proxskip.core.method import Method
from proxskip.experiments import flags as table
from proxskip.experiments.figures import PAPER
from proxskip.experiments.flags import (
    DATA_DIR,
    JSON,
    LOCAL_ENGINES,
    NETWORKS,
    NOT_OF_TUNE,
    PROBLEM,
    QUIET,
    RAY,
    SEED,
    STOPPING,
    THREADS,
    TUNING,
    Flag,
    default_of,
    network,
    nonnegative,
    positive,
    probability,
    whole,
)
from proxskip.experiments.settings import CLIENTS
from proxskip.methods.registry import METHODS, named
from proxskip.report.plots import X_AXES
from proxskip.running.plan import plan as plan_function
from proxskip.types import InputError

EXIT_CODES = """\
exit codes:
  0    success: the tolerance was reached, or all rounds were run
  1    unexpected error, such as a full disk or a bug
  2    bad input, explained in one sentence on stderr before any work
  3    the tolerance was not reached within the limits, rounding does not allow it, or it proves nothing
  4    diverged
  5    stalled
  6    a claim failed (reproduce --strict)
  7    corrupted: the control variates do not add up; an update was lost, repeated or changed
  130  interrupted (Ctrl-C or SIGTERM); a run with --out and a reproduction can be resumed
For several runs, the first of 130, 7, 4, 5, 3, 0 that occurs."""

EXAMPLES = {
    "": """\
  proxskip demo
  proxskip run scaffnew --data digits --clients 20 --split label --rounds 400 --out runs/a
  proxskip sweep scaffnew scaffold fedlin local-gd --data digits --rounds 200
  proxskip tune scaffnew --data digits
  proxskip theory --L 1 --mu 1e-4 --eps 1e-6 --n 20
  proxskip reproduce --data w8a --out report
""",
    "run": """\
  400 rounds with the parameters of the theorem (gamma = 1/max_i L_i, p = 1/sqrt(kappa)):
    proxskip run scaffnew --data digits --rounds 400 --out runs/a
  the setting of the paper's figures:
    proxskip run scaffnew --data w8a --clients 20 --split label --smoothness average --p 0.01 --rounds 400
  until the gradient is small, with ten seeds, as JSON:
    proxskip run scaffnew --data digits --tol 1e-8 --seeds 10 --json
  a graph instead of a server; a regularizer:
    proxskip run decentralized-scaffnew --data digits --rounds 400 --graph torus
    proxskip run proxskip --data digits --rounds 400 --psi l1:0.001
""",
    "sweep": """\
  proxskip sweep gd accelerated scaffnew --data digits --rounds 300
  proxskip sweep scaffnew s-local-gd --q 0.1 --data digits --rounds 200 --seeds 5 --out runs/bands
  proxskip sweep scaffnew gd 5gcs --data digits --tol 1e-4 --network mobile --x sim_seconds --out runs/mobile

All methods run on the same problem. A parameter of a method, such as --K, goes to the methods that take it.
""",
    "tune": """\
  proxskip tune scaffnew --data digits
  proxskip tune local-gd --data digits --steps 1,10,100 --powers -2 4 --target 1e-3 --out tuned

Finds the step size and the number of local steps by successive halving, and prints a heat map of the two. Every
candidate runs at first; in each of the next rungs about one in three goes on, for three times as many rounds.
""",
    "resume": "  proxskip resume runs/a --rounds 800\n",
    "plan": """\
  proxskip plan --data digits --clients 20 --latency 0.05 --bandwidth 1e6
  proxskip plan --data digits --clients 20 --network mobile

Measures the time of a gradient, runs every candidate over the network, and lists the seconds that each took, fastest
first. Writes no files.
""",
    "theory": "  proxskip theory --L 1 --mu 1e-4 --eps 1e-6 --n 20 --d 300\n",
    "plot": """\
  proxskip plot runs/a
  proxskip plot runs/a runs/b --x floats --y gap --out figure.png
""",
    "reproduce": f"""\
  everything on the built-in digits with shorter runs, in about three minutes on two cores:
    proxskip reproduce --quick --out demo
  as in the paper; on a GPU; one figure:
    proxskip reproduce --data w8a --out report
    proxskip reproduce --data w8a --out report-gpu --engine gpu
    proxskip reproduce fig1b --data w8a --out report
  all methods against each other:
    proxskip reproduce --family --quick --out family

experiments: {", ".join(PAPER)}, or a Python file with figures
The same command resumes an interrupted reproduction. Claims about theorems are judged on all data, those of the paper's
experiments on its data, w8a; elsewhere their numbers are reported.
""",
    "completion": """\
  in ~/.bashrc:                   eval "$(proxskip completion bash)"
  in ~/.zshrc:                    eval "$(proxskip completion zsh)"
  in ~/.config/fish/config.fish:  proxskip completion fish | source
""",
}
"""The end of each command's help."""
USAGE = {
    "run": "METHOD --data NAME|FILE (--rounds R | --tol TOL | ...)",
    "sweep": "METHOD METHOD ... --data NAME|FILE (--rounds R | --tol TOL | ...)",
    "tune": "METHOD --data NAME|FILE",
    "resume": "DIR",
    "plan": "--data NAME|FILE --network NAME",
}
"""Commands with more flags than their usage can show."""
OF_METHODS = ("run", "sweep", "tune")
"""The commands that have the flags of the methods that are named."""
HEADINGS = {
    "method": "method, whose parameters follow its theorem if not given",
    "problem": "problem, min_x sum_i w_i f_i(x) + psi(x)",
    "stopping": "stopping, at the first limit or when all tolerances hold; give at least one",
}
"""The titles of groups in the help."""


# -- the flags of other commands ---------------------------------------------------------------------------------------
X_AXIS = Flag("x", "x axis of the figure; default: one panel for rounds, one for floats", choices=tuple(X_AXES))
PLAN = (
    Flag("network", f"{NETWORKS}; the flags below change it too", network, "NAME"),
    Flag("latency", "seconds one way; default: 0.05", nonnegative("latency"), "S"),
    Flag("bandwidth", "bytes per second, down; default: 1e6", positive("bandwidth"), "B"),
    Flag("up", "bytes per second, up; default: --bandwidth", positive("up"), "B"),
    Flag("speed", "a client's speed relative to this machine; default: 1", positive("speed"), "V"),
    Flag("gradient", "seconds per local gradient; default: that of --network, or measured", nonnegative("gradient"),
         "S"),
    Flag("tol", "gradient norm to reach", positive("tol"), default=default_of(plan_function, "tol")),
    Flag("seconds", "for all runs together, on this machine", positive("seconds"), "S",
         default=default_of(plan_function, "seconds")),
)  # fmt: skip
THEORY = (
    Flag("L", "smoothness", positive("L"), required=True),
    Flag("mu", "strong convexity", positive("mu"), required=True),
    Flag("eps", "accuracy, between 0 and 1", positive("eps"), default=1e-6),
    Flag("n", "clients", whole("n"), default=CLIENTS),
    Flag("cohort", "clients per round: print the least number of rounds for such cohorts", whole("cohort"), "c"),
    Flag("d", "unknowns; needed for the floats", whole("d")),
    Flag("G2", "(1/n) sum_i |grad f_i(x*)|^2; needed for the rounds of LocalGD", nonnegative("G2")),
    Flag("K", "local steps; default: sqrt(kappa)", whole("K")),
    Flag("p", "add a row for Scaffnew with this p", probability("p")),
    Flag("q", "probability that S-Local-GD refreshes its anchor; default: 1", probability("q")),
)
CACHE = Flag("data_dir", "folder; default: $PROXSKIP_CACHE or ~/.cache/proxskip", metavar="DIR")
PLOT = (
    Flag("x", "the x axis", choices=tuple(X_AXES), default="rounds"),
    Flag("y", "a column of the trace; gap is f(x) - f*", metavar="COLUMN", default="gap"),
    Flag("title", "title of the figure", default=""),
    Flag("out", "a .png or .pdf file (both are written); default for one folder: Y-X.png in it", metavar="FILE"),
)
REPRODUCE = (
    Flag("data", "data set or file; default: digits; w8a with --family", metavar="NAME|FILE"),
    DATA_DIR,
    Flag("out", "folder for index.html, results.json, figures and runs", metavar="DIR",
         default="report"),
    Flag("quick", "shorter runs (digits: three minutes on two cores)", default=False, switch=True),
    Flag("family", "compare the methods with each other instead, in rounds, gradients and bits", default=False,
         switch=True),
    Flag("jobs", "processes; default: one per core", whole("jobs"), "N"),
    Flag("strict", "exit with 6 if a claim fails", default=False, switch=True),
    Flag("engine", choices=LOCAL_ENGINES, default="cpu"),
    THREADS, JSON, QUIET,
)  # fmt: skip
DEMO = (
    Flag("race", "only the race", default=False, switch=True),
    Flag("out", "folder of the report", metavar="DIR", default="demo"),
)


# -- the parser --------------------------------------------------------------------------------------------------------
class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises its errors as InputError, with a full sentence."""

    def __init__(self, **kwargs: Any) -> None:
        # an abbreviation would change its meaning when a flag is added
        super().__init__(formatter_class=_Help, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise the message; argparse would print the usage and exit."""
        words = re.match(r"argument command: invalid choice: ('.*?')", message)
        if words:
            raise InputError(f"there is no command {words[1]}; see `proxskip --help`.")
        raise InputError(message.rstrip(".") + ".")

    def flags(self) -> list[str]:
        """The flags of this command."""
        return list(self._option_string_actions)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help with a narrow column of flags, so that most of them take one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)


def _add_plugin(to: Any) -> None:
    to.add_argument("--plugin", action="append", metavar="FILE", help="Python file that defines methods")


def plugins(argv: Sequence[str]) -> list[str]:
    """The files after --plugin."""
    alone = Parser(add_help=False)
    _add_plugin(alone)
    known, _ = alone.parse_known_args(argv)
    return list(known.plugin or ())


def methods_in(argv: Sequence[str]) -> list[type[Method]]:
    """The methods that a command line names."""
    found = []
    for word in argv:
        try:
            found.append(named(word))
        except InputError:
            continue  # a flag or its value, or a mistake that is refused later
    return found


def parser(version: str, argv: Sequence[str] = ()) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of its commands by name.

    Args:
        version: to print.
        argv: if these words name methods, ``run`` and ``sweep`` have the flags of these methods alone.
    """
    kinds = methods_in(argv)
    known = textwrap.fill("methods: " + ", ".join(METHODS), 100, subsequent_indent="  ", break_on_hyphens=False)
    top = Parser(
        prog="proxskip",
        description="Optimization with few communication rounds: run a method on a problem, record a trace, plot it.",
        epilog=f"examples:\n{EXAMPLES['']}\n{known}\n\n{EXIT_CODES}",
    )
    _add_plugin(top)
    top.add_argument("--version", action="version", version=f"proxskip {version}")
    sub = top.add_subparsers(dest="command", metavar="command", required=True)
    commands: dict[str, Parser] = {}

    def command(name: str, help: str, *flags: Flag) -> Parser:
        epilog = f"examples:\n{EXAMPLES[name]}" if name in EXAMPLES else ""
        if name in ("run", "sweep", "resume", "reproduce"):
            epilog += f"\n{EXIT_CODES}"
        usage = f"proxskip {name} {USAGE[name]} [flags]" if name in USAGE else None
        commands[name] = sub.add_parser(name, help=help, description=help, epilog=epilog, usage=usage, add_help=False)
        commands[name].add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
        _add(commands[name], flags)
        return commands[name]

    run = command("run", "run one method")
    one_of = f"one of {', '.join(METHODS)}; `proxskip run METHOD --help` shows its flags alone"
    run.add_argument("method", metavar="METHOD", help=argparse.SUPPRESS if kinds else one_of)
    sweep = command("sweep", "run several methods on one problem", X_AXIS)
    sweep.add_argument("methods", metavar="METHOD", nargs="+", help="their names; --help after them shows their flags")
    for p in (run, sweep):
        _add_run_flags(p, kinds)
    tune = command("tune", "find the best step size and local steps of a method", *TUNING)
    tune.add_argument("method", metavar="METHOD", help="its name; --help after it shows its flags")
    of_methods = table.of_methods(kinds or METHODS.values())
    for title in ("method", "problem"):
        _add(tune.add_argument_group(HEADINGS[title]), [f for f in of_methods[title] if f.name not in NOT_OF_TUNE])
    resume = command("resume", "resume a run from its folder", *STOPPING, JSON, QUIET, THREADS, *RAY, DATA_DIR)
    resume.add_argument("folder", metavar="DIR", help="the run folder")
    plan = command("plan", "run the methods over a network, and choose the fastest", *PLAN, SEED, THREADS, JSON, QUIET)
    _add(plan.add_argument_group(HEADINGS["problem"]), PROBLEM)
    command("theory", "print the paper's Table 1 with numbers", *THEORY, JSON)
    acts = command("data", "list data sets, or download one").add_subparsers(
        dest="act", metavar="list|fetch", required=True
    )
    for act, help in (("list", "list all data sets, and where they are"), ("fetch", "download and check a data set")):
        p = acts.add_parser(act, help=help, description=help)
        if act == "fetch":
            p.add_argument("name", metavar="NAME", help="its name")
        _add(p, [CACHE, JSON, QUIET])
    plot = command("plot", "plot run folders", *PLOT, JSON, QUIET)
    plot.add_argument("folders", metavar="DIR", nargs="+", help="run folders, or folders that contain run folders")
    reproduce = command("reproduce", "reproduce the paper's figures and tables, and check its claims", *REPRODUCE)
    reproduce.add_argument(
        "experiments", metavar="EXPERIMENT", nargs="*", help="names below or Python files; default: all of the paper's"
    )
    command("demo", "show four methods race (seconds), then reproduce the paper (minutes)", *DEMO)
    command("doctor", "check what is installed and works on this machine", JSON)
    completion = command("completion", "print a completion script for a shell")
    completion.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    for name, p in commands.items():
        if name not in ("run", "sweep"):  # they have it among their flags
            _add_plugin(p)
    return top, commands


def _add_run_flags(parser: Parser, kinds: Sequence[type[Method]]) -> None:
    """The flags of a run; only those of these methods, if there are any."""
    for title, flags in table.of_methods(kinds or METHODS.values()).items():
        group = parser.add_argument_group(HEADINGS.get(title, title))
        _add(group, flags)
        if title == "running and output":
            _add_plugin(group)
    if len(kinds) == 1:
        parser.description = None
        parser.epilog = None
        parser.usage = f"proxskip run {kinds[0].about.name} --data NAME|FILE (--rounds R | --tol TOL | ...) [flags]"


def _add(to: Any, flags: Iterable[Flag]) -> None:
    for flag in flags:
        flag.add_to(to)
