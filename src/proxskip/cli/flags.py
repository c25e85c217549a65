"""The parser of the command line: the flags of each command, and their help."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NoReturn

from proxskip import theory
from proxskip.data.files import LABELS
from proxskip.experiments.catalog import PAPER
from proxskip.experiments.settings import DEFAULTS, LOSSES, own_flags
from proxskip.interfaces import flags as parameters_of
from proxskip.links import codecs
from proxskip.links.codecs import FORMS
from proxskip.links.graphs import NAMES as GRAPHS
from proxskip.links.network import Network
from proxskip.links.profiles import NAMED
from proxskip.prox.parse import forms as prox_forms
from proxskip.registry import METHODS
from proxskip.report.plots import X_AXES
from proxskip.types import InputError

EXIT_CODES = """\
exit codes:
  0    success: the tolerance was reached, or all rounds were run
  1    unexpected error, such as a full disk or a bug
  2    bad input, explained in one sentence on stderr before any work
  3    the tolerance was not reached within the limits, or rounding does not allow it
  4    diverged
  5    stalled
  6    a claim failed (reproduce --strict)
  7    corrupted: the control variates do not add up; an update was lost, repeated or changed
  130  interrupted (Ctrl-C or SIGTERM); a run with --out and a reproduction can be resumed
For several runs, the first of 130, 7, 4, 5, 3, 0 that occurs."""

_EXAMPLES = {
    "": """\
  proxskip demo
  proxskip run scaffnew --data digits --clients 20 --split label --rounds 400 --out runs/a
  proxskip compare scaffnew scaffold fedlin local-gd --data digits --rounds 200
  proxskip theory --L 1 --mu 1e-4 --eps 1e-6 --n 20
  proxskip reproduce --data w8a --out report
""",
    "run": """\
  400 rounds with the parameters of the theorem (gamma = 1/max_i L_i, p = 1/sqrt(kappa)):
    proxskip run scaffnew --data digits --rounds 400 --out runs/a
  the setting of the paper's figures:
    proxskip run scaffnew --data w8a --clients 20 --split label --L global --p 0.01 --rounds 400
  until the gradient is small, with ten seeds, as JSON:
    proxskip run scaffnew --data digits --tol 1e-8 --seeds 10 --json
  a graph instead of a server; a regularizer:
    proxskip run decentralized-scaffnew --data digits --rounds 400 --graph torus
    proxskip run proxskip --data digits --rounds 400 --psi l1:0.001
""",
    "compare": """\
  proxskip compare gd accelerated scaffnew --data digits --rounds 300
  proxskip compare scaffnew s-local-gd --q 0.1 --data digits --rounds 200 --seeds 5 --out runs/bands
  proxskip compare scaffnew gd 5gcs --data digits --tol 1e-4 --network mobile --x sim_seconds --out runs/mobile

All methods run on the same problem. A parameter of a method, such as --K, goes to the methods that take it.
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
_USAGE = {
    "run": "METHOD --data NAME|FILE (--rounds R | --tol TOL | ...)",
    "compare": "METHOD METHOD ... --data NAME|FILE (--rounds R | --tol TOL | ...)",
    "resume": "DIR",
    "plan": "--data NAME|FILE --network NAME",
}
"""Commands with more flags than their usage can show."""
_MEANINGS = {
    "theta": "5gcs: accuracy at which a client ends its local steps; default: theory, none with --K",
    "c": "5gcs: gamma = c/sqrt(mu L); default: 1.05 (theory), 1 with --K or --gamma",
    "sigma": "5gcs: gamma sum_m w_m tau_m, at most 1; default: 0.85 (theory), 1 with --K or --gamma",
    "beta": "accelerated: momentum; fista: a bound on it; default: by kappa, and 1",
    "mu": "5gcs, pdhg: strong convexity that is used; default: the problem's",
    "mu_g": "locodl: strong convexity of the part that everybody knows; default: mu/2",
    "p_e": "random-gossip: probability that a link is active; default: theory",
    "k": "random-gossip: coordinates that a link carries; default: all",
}
"""The help of parameters without a flag of their own above."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises its errors as InputError, with a full sentence."""

    def __init__(self, **kwargs: Any) -> None:
        # an abbreviation would change its meaning when a flag is added
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise the message; argparse would print the usage and exit."""
        raise InputError(message.rstrip(".") + ".")

    def flags(self) -> list[str]:
        """The flags of this command."""
        return list(self._option_string_actions)


# -- values of flags ---------------------------------------------------------------------------------------------------
def _value(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A converter whose InputError becomes the one exception whose message argparse passes on."""

    def parse(text: str) -> Any:
        try:
            return convert(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None

    return parse


def _number(text: str, words: Sequence[str] = (), convert: Callable[[str], Any] = float) -> Any:
    """The text as a number; an error names the words that are accepted as well."""
    try:
        return convert(text)
    except ValueError:
        what = f"neither a number nor {' nor '.join(words)}" if words else "not a number"
        raise InputError(f"{text!r} is {what if convert is float else 'not a whole number'}") from None


def _within(check: Callable[[str, Any], Any], name: str, *words: str) -> Callable[[str], Any]:
    """A number that passes the check, or one of the words; "theory" becomes None."""

    @_value
    def convert(text: str) -> Any:
        if text in words:
            return None if text == "theory" else text
        return check(name, _number(text, words))

    return convert


positive, probability, nonnegative = (
    partial(_within, check) for check in (theory.positive, theory.probability, theory.nonnegative)
)


def whole(name: str, least: int = 1) -> Callable[[str], Any]:
    """A whole number of at least ``least``."""
    return _value(lambda text: theory.whole(name, _number(text, convert=int), least))


@_value
def parameter(text: str) -> int | float | bool | str:
    """A parameter of a plugin's method: a number, yes or no, or a word."""
    if text in ("yes", "no", "true", "false"):
        return text in ("yes", "true")
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return text


@_value
def names(text: str) -> list[str]:
    """Names separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InputError(f"{text!r} has an empty name; write A,B,C")
    return parts


@_value
def network(text: str) -> Network:
    """A named network, perhaps with other numbers: ``mobile``, ``mobile:deadline=30,gradient=0.01``."""
    name, _, more = text.partition(":")
    changes = {}
    for part in filter(None, more.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{part!r} is not of the form key=value; write NAME:deadline=30,gradient=0.01")
        changes[key.strip()] = _number(value, convert=int) if key == "patience" else _number(value)
    known = [field.name for field in fields(Network)]
    for key in changes:
        if key not in known:
            raise InputError(f"a network has no number {key!r}; its numbers are {', '.join(known)}")
    return Network.named(name, **changes)


@_value
def cohort(text: str) -> int | float | tuple[float, ...]:
    """A number of clients, a probability below one, or one for each client."""
    if "," in text:
        return tuple(theory.probability("cohort", _number(part)) for part in text.split(","))
    if text.isdigit():
        return theory.whole("cohort", int(text))
    value: float = _number(text)
    if not 0 < value < 1:
        raise InputError(f"cohort = {text} is neither a whole number of clients nor a probability below 1")
    return value


# -- the table of flags ------------------------------------------------------------------------------------------------
Flag = tuple[str, dict[str, Any]]
SWITCH = "switch"


def _flag(name: str, help: str, type: Any = None, metavar: str | None = None, **options: Any) -> Flag:
    """A flag, its help and the options of ``add_argument``; a ``SWITCH`` has no value."""
    more = {"action": "store_true"} if type == SWITCH else {"type": type, "metavar": metavar}
    return name, {"help": help} | {k: v for k, v in more.items() if v is not None} | options


def _add(to: Any, *flags: Flag) -> None:
    for name, options in flags:
        to.add_argument(name, **options)


def _group(title: str, about: str | None, *flags: Flag) -> Parser:
    """A parser with one group of flags, which several commands share."""
    parent = Parser(add_help=False)
    _add(parent.add_argument_group(title, about), *flags)
    return parent


_DATA_DIR = _flag("--data-dir", "folder with data sets, searched before $PROXSKIP_DATA and the cache", metavar="DIR")
_THREADS = _flag(
    "--threads", "threads; the results do not depend on them; default: one per core", whole("threads"), "N"
)
_SEED = _flag("--seed", "random seed; default: 0", whole("seed", 0), default=0)
_JSON = _flag("--json", "print JSON only", SWITCH)
_QUIET = _flag("--quiet", "print warnings and errors only", SWITCH)
_RAY = (
    _flag("--address", "Ray cluster; auto: the one of this machine; default: start Ray", metavar="HOST:PORT|auto"),
    _flag("--actors", "actors of --engine ray; default: one per machine", whole("actors"), "N"),
)
_NETWORK = f"{', '.join(NAMED)}; NAME:deadline=30,gradient=0.01 changes some of its numbers"


def _problem_flags() -> Parser:
    parent = _group(
        "problem", "min_x  sum_i w_i f_i(x) + psi(x)",
        _flag("--data", "a data set (see `proxskip data list`), or a file: svmlight, .csv, .npz",
              metavar="NAME|FILE", required=True),
        _flag("--label", f"label column of a table; default: the first of {', '.join(LABELS)}", metavar="COLUMN"),
        _flag("--columns", "feature columns of a table; default: all others", names, "A,B,..."),
        _flag("--group", "group column of a table, for --split group; default: none", metavar="COLUMN"),
        _DATA_DIR,
        _flag("--loss", "default: logistic", choices=tuple(LOSSES)),
        _flag("--l2", "weight of the regularizer lambda/2 |x|^2; default: 1e-4", nonnegative("l2"), "LAMBDA"),
        _flag("--l2-relative", "lambda = l2 times the smoothness of the average loss; default: yes",
              action=argparse.BooleanOptionalAction),
        _flag("--intercept", "add an unpenalized intercept (mu is then unknown: give --p or --K)", SWITCH),
        _flag("--psi", f"regularizer: {prox_forms()}", metavar="PSI"),
        _flag("--D", "D in psi(D x), for splitskip and pdhg; default: difference", choices=("difference", "identity")),
        _flag("--dtype", "floating-point type; default: float64", choices=("float64", "float32")),
        _flag("--clients", "clients; default: 20, or one per group with --split group", whole("clients"), "n"),
        _flag("--split", "how clients get their rows; label: sorted by label, the most heterogeneous; default: label",
              choices=("label", "iid", "dirichlet", "contiguous", "group")),
        _flag("--alpha", "concentration of --split dirichlet; default: 0.5", positive("alpha")),
        _flag("--split-seed", "seed of random splits and graphs; default: 0", whole("split-seed", 0), "SEED"),
        _flag("--weights", "weights w_i; default: rows; equal for tamuna and graphs", choices=("rows", "equal")),
        _flag("--L", "L in step sizes: max_i L_i as in the theorems, or L of the average as in the paper's figures; "
              "default: max", choices=("max", "global")),
        _flag("--personal", "clients use ALPHA times the common model plus 1 - ALPHA times their own; default: 1",
              probability("personal"), "ALPHA"),
        _flag("--batch", "rows per minibatch; default: full gradients", whole("batch"), "ROWS"),
    )  # fmt: skip
    parent.set_defaults(**{a.dest: DEFAULTS.get(a.dest) for a in parent._actions})
    return parent


def _other_flags() -> set[str]:
    """The names of the flags of a run that are no parameters of methods."""
    return {action.dest for group in (_problem_flags(), _STOPPING, _RUNNING) for action in group._actions}


def check_parameters() -> None:
    """Refuse a method with a parameter that has the name of another flag."""
    taken = _other_flags()
    for name, kind in METHODS.items():
        if clash := [flag for flag in parameters_of(kind) if flag in taken]:
            raise InputError(f"the parameter {clash[0]} of {name} has the name of another flag; rename it.")


def _method_flags() -> Parser:
    taken = _other_flags()
    return _group(
        "method", "parameters, named as in the paper; the defaults follow the method's theorem",
        _flag("--gamma", "step size; figure: the constants of the paper's figures; default: theory",
              positive("gamma", "theory", "figure"), "NUMBER|theory|figure"),
        _flag("--p", "probability of communicating; default: theory", probability("p", "theory"), "NUMBER|theory"),
        _flag("--K", "local steps per round; default: sqrt(kappa); fixed for scaffnew, with p = 1/K", whole("K")),
        _flag("--tau", "dual step size; default: p/(gamma lmax(I - W)); theory for 5gcs", positive("tau")),
        _flag("--q", "probability that an anchor (s-local-gd, scaffnew-vr) moves; default: theory", probability("q")),
        _flag("--eta-g", "scaffold: global step size; default: 1", positive("eta_g")),
        _flag("--option", "scaffold: I or II; default: II", choices=("I", "II")),
        # None, since check_flags refuses any other value for other methods
        _flag("--own-steps", "scaffnew: step sizes gamma_i = 1/L_i", SWITCH, default=None),
        _flag("--decay", "step size 1/(1/gamma + decay k) in round k; figure: K lambda/2, as in Figure 2",
              positive("decay", "figure"), "NUMBER|figure"),
        _flag("--graph", f"graph of methods without a server: {', '.join(GRAPHS)}; with failing links: NAME,failing:P; "
              "default: ring", metavar="NAME"),
        _flag("--s", "tamuna: clients that send each coordinate; default: 2, or c/d if that is larger", whole("s", 2)),
        _flag("--chi", "tamuna, scaffnew: factor in the update of h on cohorts; default: its bound n(s-1)/(s(n-1))",
              positive("chi")),
        _flag("--codec", f"locodl and scaffnew: how clients encode vectors: {FORMS}", _value(codecs.parse), "NAME"),
        _flag("--cohort", "clients per round; or the probability c < 1 of each client, for 5gcs also one per client, "
              "separated by commas; default: all clients", cohort, "c"),
        _flag("--allow-unsafe-step", "accept step sizes that may diverge", SWITCH),
        # all other parameters of methods, also of plugins
        *(
            _flag(f"--{flag.replace('_', '-')}", _MEANINGS.get(flag, f"parameter of {name}"), parameter, dest=flag)
            for flag, name in own_flags().items()
            if flag not in taken
        ),
    )  # fmt: skip


_PLUGIN = _group(
    "your own methods", None,
    _flag("--plugin", "Python file that defines methods", metavar="FILE", action="append"),
)  # fmt: skip


def plugins(argv: Sequence[str]) -> list[str]:
    """The files after --plugin."""
    known, _ = _PLUGIN.parse_known_args(argv)
    return list(known.plugin or ())


_STOPPING = _group(
    "stopping", "at the first limit, or when all tolerances hold; give at least one",
    _flag("--rounds", "communication rounds", whole("rounds", 0), "R"),
    _flag("--iterations", "local steps per client", whole("iterations"), "T"),
    _flag("--seconds", "seconds without evaluations", positive("seconds"), "S"),
    _flag("--tol", "tolerance: the gradient norm", positive("tol")),
    _flag("--target", "tolerance: f(x) - f*", positive("target"), "EPS"),
)  # fmt: skip
_RUNNING = _group(
    "running", None,
    _flag("--engine", "gpu needs CuPy and a CUDA device, ray needs Ray, torch needs PyTorch; default: cpu",
          choices=("cpu", "gpu", "ray", "reference", "torch"), default="cpu"),
    *_RAY,
    _SEED,
    _flag("--seeds", "make N runs, with seeds from --seed on", whole("seeds"), "N"),
    _flag("--network", f"simulate a network with its delays and losses: {_NETWORK}", network, "NAME"),
    _THREADS,
)  # fmt: skip


def _folder_flags(out: str) -> Parser:
    return _group(
        "output", None,
        _flag("--out", out, metavar="DIR"),
        _flag("--force", "overwrite the runs in the folder", SWITCH),
        _flag("--continue", "continue an interrupted command: resume its runs, and make the missing ones", SWITCH,
              dest="go_on"),
        _flag("--every", "record every R rounds; default: at growing intervals", whole("every"), "R"),
        _flag("--checkpoint-every", "checkpoint every R rounds; default: every 30 s", whole("checkpoint-every"), "R"),
        _JSON,
        _QUIET,
    )  # fmt: skip


# -- commands ----------------------------------------------------------------------------------------------------------
def parser(version: str) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of its commands by name."""
    methods = textwrap.fill("methods: " + ", ".join(METHODS), 100, subsequent_indent="  ", break_on_hyphens=False)
    top = Parser(
        prog="proxskip",
        description="Optimization with few communication rounds: run a method on a problem, record a trace, plot it.",
        epilog=f"examples:\n{_EXAMPLES['']}\n{methods}\n\n{EXIT_CODES}",
        parents=[_PLUGIN],
    )
    top.add_argument("--version", action="version", version=f"proxskip {version}")
    sub = top.add_subparsers(dest="command", metavar="command", required=True)
    problem = _problem_flags()
    of_a_run = (problem, _method_flags(), _STOPPING, _RUNNING)
    commands: dict[str, Parser] = {}

    def command(name: str, help: str, parents: tuple[Parser, ...], *flags: Flag) -> Parser:
        epilog = f"examples:\n{_EXAMPLES[name]}" if name in _EXAMPLES else ""
        epilog += f"\n{EXIT_CODES}" if parents or name == "reproduce" else ""
        usage = f"proxskip {name} {_USAGE[name]} [flags]" if name in _USAGE else None
        everything = [*parents, _PLUGIN]
        p = sub.add_parser(name, help=help, description=help, epilog=epilog, usage=usage, parents=everything)
        _add(p, *flags)
        commands[name] = p
        return p

    command(
        "run", "run one method",
        (*of_a_run, _folder_flags("a run folder: spec.toml, summary.json, trace.csv, x.npy, checkpoint")),
        _flag("method", f"one of {', '.join(METHODS)}", metavar="METHOD"),
    )  # fmt: skip
    command(
        "compare", "run several methods on one problem",
        (*of_a_run, _folder_flags("a run folder for each method, compare.json, compare.png and compare.pdf")),
        _flag("methods", f"some of {', '.join(METHODS)}", metavar="METHOD", nargs="+"),
        _flag("--x", "x axis of the figure; default: one panel for rounds, one for floats", choices=tuple(X_AXES)),
    )  # fmt: skip
    command(
        "resume", "resume a run from its folder", (_STOPPING,),
        _flag("folder", "the run folder", metavar="DIR"), _JSON, _QUIET, _THREADS, *_RAY,
        _flag("--data-dir", "folder with data sets, if they have moved", metavar="DIR"),
    )  # fmt: skip
    command(
        "plan", "run the methods over a network, and choose the fastest", (problem,),
        _flag("--network", f"{_NETWORK}; the flags below change it too", network, "NAME"),
        _flag("--latency", "seconds one way; default: 0.05", nonnegative("latency"), "S"),
        _flag("--bandwidth", "bytes per second, down; default: 1e6", positive("bandwidth"), "B"),
        _flag("--bandwidth-up", "bytes per second, up; default: --bandwidth", positive("bandwidth-up"), "B"),
        _flag("--client-speed", "a client's speed relative to this machine; default: 1", positive("client-speed"), "V"),
        _flag("--gradient-seconds", "seconds per local gradient; default: that of --network, or measured",
              nonnegative("gradient-seconds"), "S"),
        _flag("--tol", "gradient norm to reach; default: 1e-6", positive("tol"), default=1e-6),
        _flag("--seconds", "for all runs together, on this machine; default: 60", positive("seconds"), "S",
              default=60.0),
        _SEED, _THREADS, _JSON, _QUIET,
    )  # fmt: skip
    command(
        "theory", "print the paper's Table 1 with numbers", (),
        _flag("--L", "smoothness", positive("L"), required=True),
        _flag("--mu", "strong convexity", positive("mu"), required=True),
        _flag("--eps", "accuracy, between 0 and 1; default: 1e-6", positive("eps"), default=1e-6),
        _flag("--n", "clients; default: 20", whole("n"), default=20),
        _flag("--cohort", "clients per round: print the least number of rounds for such cohorts", whole("cohort"), "c"),
        _flag("--d", "unknowns; needed for the floats", whole("d")),
        _flag("--G2", "(1/n) sum_i |grad f_i(x*)|^2; needed for the rounds of LocalGD", nonnegative("G2")),
        _flag("--K", "local steps; default: sqrt(kappa)", whole("K")),
        _flag("--p", "add a row for Scaffnew with this p", probability("p")),
        _flag("--q", "probability that S-Local-GD refreshes its anchor; default: 1", probability("q")),
        _JSON,
    )  # fmt: skip
    data = command("data", "list data sets, or download one", ())
    acts = data.add_subparsers(dest="act", metavar="list|fetch", required=True)
    folder = _flag("--data-dir", "folder; default: $PROXSKIP_CACHE or ~/.cache/proxskip", metavar="DIR")
    about = {
        "list": "list all data sets, and where they are",
        "fetch": "download and check a data set",
    }
    for act, help in about.items():
        _add(
            acts.add_parser(act, help=help, description=help),
            *([_flag("name", "its name", metavar="NAME")] if act == "fetch" else []), folder, _JSON, _QUIET,
        )  # fmt: skip
    command(
        "plot", "plot run folders", (),
        _flag("folders", "run folders, or folders that contain run folders", metavar="DIR", nargs="+"),
        _flag("--x", "default: rounds", choices=tuple(X_AXES), default="rounds"),
        _flag("--y", "a column of the trace; default: gap, which is f(x) - f*", metavar="COLUMN", default="gap"),
        _flag("--title", "title of the figure", default=""),
        _flag("--out", "a .png or .pdf file (both are written); default for one folder: Y-X.png in it", metavar="FILE"),
        _JSON, _QUIET,
    )  # fmt: skip
    command(
        "reproduce", "reproduce the paper's figures and tables, and check its claims", (),
        _flag("experiments", "names below or Python files; default: all of the paper's",
              metavar="EXPERIMENT", nargs="*"),
        _flag("--data", "data set or file; default: digits; w8a with --family", metavar="NAME|FILE"),
        _DATA_DIR,
        _flag("--out", "folder for index.html, results.json, figures and runs; default: report",
              metavar="DIR", default="report"),
        _flag("--quick", "shorter runs (digits: three minutes on two cores)", SWITCH),
        _flag("--family", "compare the methods with each other instead, in rounds, gradients and bits", SWITCH),
        _flag("--jobs", "processes; default: one per core", whole("jobs"), "N"),
        _flag("--strict", "exit with 6 if a claim fails", SWITCH),
        _flag("--engine", "default: cpu", choices=("cpu", "gpu", "reference"), default="cpu"),
        _THREADS, _JSON, _QUIET,
    )  # fmt: skip
    command(
        "demo", "show four methods race (seconds), then reproduce the paper (minutes)", (),
        _flag("--race", "only the race", SWITCH),
        _flag("--out", "folder of the report; default: demo", metavar="DIR", default="demo"),
    )  # fmt: skip
    command("doctor", "check what is installed and works on this machine", (), _JSON)
    command(
        "completion", "print a completion script for a shell", (),
        _flag("shell", "bash, zsh or fish", metavar="SHELL", choices=("bash", "zsh", "fish")),
    )  # fmt: skip
    return top, commands
