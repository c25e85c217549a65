"""The flags of a run: one table, from which the parser, its help, the defaults and completion are made.

A flag may belong to every method, to methods that handle something, such as cohorts, or be a parameter of some methods.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from proxskip import codecs, theory
from proxskip.core.method import Method
from proxskip.core.method import flags as parameters_of
from proxskip.datasets.files import LABELS
from proxskip.graphs import NAMES as GRAPHS
from proxskip.methods.registry import METHODS
from proxskip.networks import NAMED, Network
from proxskip.problems.glm import MODELS
from proxskip.running.run import run
from proxskip.running.tune import POWERS, tune
from proxskip.types import InputError


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
def counts(text: str) -> list[int]:
    """Whole numbers separated by commas."""
    return [theory.whole("steps", _number(part, convert=int)) for part in text.split(",")]


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
@dataclass(frozen=True)
class Flag:
    """A flag of the command line.

    Args:
        name: where its value is kept, such as ``split_seed``.
        help: one line, without its default; the choices if not given.
        type: makes the value from text.
        metavar: what stands for the value in the help.
        default: None, unless the value is needed where nothing was given; the help says it.
        choices: the words that it takes, if it takes nothing else.
        switch: whether it has no value.
        needs: what a method must handle for this flag, such as "cohort"; empty if every method takes it.
        spelling: of the flag, where that is not its name.
        required: whether it must be given.
        values: how many values it has, if that is not one; each has its own metavar.
    """

    name: str
    help: str = ""
    type: Callable[[str], Any] | None = None
    metavar: str | tuple[str, ...] | None = None
    default: Any = None
    choices: tuple[str, ...] | None = None
    switch: bool = False
    needs: str = ""
    spelling: str = ""
    required: bool = False
    values: int | None = None

    @property
    def flag(self) -> str:
        """As it is written."""
        return self.spelling or "--" + self.name.replace("_", "-")

    @property
    def text(self) -> str:
        """Its help, with its default."""
        if not self.help:
            return ", ".join(f"{word} (default)" if word == self.default else word for word in self.choices or ())
        if self.default in (None, "") or self.switch:
            return self.help
        default = f"{self.default:g}" if isinstance(self.default, float) else str(self.default)
        return f"{self.help}; default: {default.replace('e-0', 'e-')}"

    def add_to(self, parser: Any) -> None:
        """Add the flag to a parser or to a group of it."""
        options: dict[str, Any] = {"dest": self.name, "help": self.text, "default": self.default}
        if self.switch:
            options["action"] = "store_true"
        else:
            options |= {"type": self.type, "metavar": self.metavar, "choices": self.choices, "required": self.required}
            options |= {"nargs": self.values}
        parser.add_argument(self.flag, **options)


def default_of(function: Callable[..., Any], parameter: str) -> Any:
    """The default of a parameter of a Python function, which is that of its flag too."""
    return inspect.signature(function).parameters[parameter].default


DATA_DIR = Flag("data_dir", "folder searched before $PROXSKIP_DATA and the cache", metavar="DIR")
NETWORKS = f"{', '.join(NAMED)}, or NAME:deadline=30"
SPLITS = ("label", "iid", "dirichlet", "contiguous", "group")
PROBLEM = (
    Flag("data", "a data set's name, or an svmlight, .csv or .npz file", metavar="NAME|FILE", required=True),
    Flag("label", f"label column; default: {', '.join(LABELS)}", metavar="COLUMN"),
    Flag("columns", "feature columns of a table; default: all others", names, "A,B,..."),
    Flag("group", "group column of a table, for --split group", metavar="COLUMN", needs="clients"),
    Flag("standardize", "give features mean zero and mean square one", default=False, switch=True),
    DATA_DIR,
    Flag("loss", "", None, "LOSS", "logistic", tuple(MODELS)),
    Flag("l2", "lambda of the regularizer lambda/2 |x|^2", nonnegative("l2"), "LAMBDA"),
    Flag("l2_relative", "lambda / smoothness of the average loss; default: 1e-4", nonnegative("l2-relative"),
         "SHARE"),
    Flag("intercept", "unpenalized intercept; mu is unknown: give --p or --K", default=False, switch=True),
    Flag("psi", "regularizer psi(x), such as l1:0.01", metavar="PSI", needs="psi"),
    Flag("D", "D in psi(D x): difference (default) or identity", None, "D", None,
         ("difference", "identity"), needs="D"),
    Flag("dtype", "float64 or float32", None, "TYPE", "float64", ("float64", "float32")),
    Flag("clients", "default: 20, or one per group with --split group", whole("clients"), "n", needs="clients"),
    Flag("split", "", None, "HOW", "label", SPLITS, needs="clients"),
    Flag("alpha", "concentration of --split dirichlet", positive("alpha"), default=0.5, needs="clients"),
    Flag("split_seed", "seed of random splits and graphs", whole("split-seed", 0), "SEED", default=0,
         needs="clients"),
    Flag("weights", "w_i: rows, or equal (default for tamuna and graphs)", None, "HOW", None,
         ("rows", "equal"), needs="clients"),
    Flag("smoothness", "L: max, or average (paper's figures)", None, "HOW", "max", ("max", "average")),
    Flag("personal", "share of the common model; the rest is a client's own", probability("personal"), "ALPHA",
         needs="clients"),
    Flag("batch", "rows per minibatch; default: full gradients", whole("batch"), "ROWS", needs="batch"),
    Flag("no_minimum", "leave out f*, which may take long to compute", default=False, switch=True),
)  # fmt: skip
"""min_x  sum_i w_i f_i(x) + psi(x)."""
PARAMETERS = (
    Flag("gamma", "step size; figure: the paper's; default: theory", positive("gamma", "theory", "figure"),
         "GAMMA"),
    Flag("p", "probability of communicating; default: theory", probability("p", "theory"), "P"),
    Flag("K", "local steps per round; default: sqrt(kappa)", whole("K")),
    Flag("tau", "dual step size; default: its bound", positive("tau")),
    Flag("q", "probability that an anchor moves; default: theory", probability("q")),
    Flag("eta_g", "global step size; default: 1", positive("eta_g")),
    Flag("option", "I or II; default: II", None, "OPTION", None, ("I", "II")),
    # None, since a default would be given to every method
    Flag("own_steps", "step sizes gamma_i = 1/L_i", switch=True),
    Flag("graph", f"{', '.join(GRAPHS)}, or NAME,failing:P; default: ring", metavar="NAME"),
    Flag("s", "clients that send a coordinate; default: max(2, c/d)", whole("s", 2)),
    Flag("chi", "factor in the update of h; default: its bound", positive("chi")),
    Flag("codec", "how clients encode, as by float32, natural or rand-4", _value(codecs.parse), "NAME"),
    Flag("theta", "accuracy of local steps; default: theory, off with --K", parameter),
    Flag("c", "gamma = c/sqrt(mu L); default: 1, by the theorem 1.05", parameter),
    Flag("sigma", "gamma sum_m w_m tau_m; default: 1, by the theorem 0.85", parameter),
    Flag("beta", "momentum; a bound on it for fista; default: theory", parameter),
    Flag("mu", "strong convexity that is used; default: the problem's", parameter),
    Flag("mu_g", "strong convexity of what all know; default: mu/2", parameter),
    Flag("p_e", "probability that a link is active; default: theory", parameter),
    Flag("k", "coordinates that a link carries; default: all", parameter),
)  # fmt: skip
"""Parameters of methods, named as in the paper; those that are not given follow the method's theorem."""
TUNED = ("gamma", "p", "K")
"""The parameters that ``tune`` searches."""
NOT_OF_TUNE = (*TUNED, "own_steps", "decay", "allow_unsafe_step")
"""The flags of a method that ``tune`` does not take."""
STEPPING = (
    Flag("cohort", "clients per round, or their probability; default: all", cohort, "c", needs="cohort"),
    Flag("decay", "step size 1/(1/gamma + DECAY k), or figure: Figure 2's", positive("decay", "figure"), "DECAY"),
    Flag("allow_unsafe_step", "accept step sizes that may diverge", default=False, switch=True),
)  # fmt: skip
"""What most methods can do, whatever their parameters."""
STOPPING = (
    Flag("rounds", "communication rounds", whole("rounds", 0), "R"),
    Flag("iterations", "local steps per client", whole("iterations"), "T"),
    Flag("seconds", "seconds without evaluations", positive("seconds"), "S"),
    Flag("tol", "tolerance: the gradient norm", positive("tol")),
    Flag("target", "tolerance: f(x) - f*", positive("target"), "EPS"),
)
"""A run stops at the first limit, or when all tolerances hold."""
THREADS = Flag("threads", "threads; default: one per core", whole("threads"), "N")
SEED = Flag("seed", "random seed", whole("seed", 0), default=0)
JSON = Flag("json", "print JSON only", default=False, switch=True)
QUIET = Flag("quiet", "print warnings and errors only", default=False, switch=True)
RAY = (
    Flag("address", "Ray cluster HOST:PORT, or auto; default: start Ray", metavar="ADDRESS"),
    Flag("actors", "actors of --engine ray; default: one per machine", whole("actors"), "N"),
)
LOCAL_ENGINES = ("cpu", "gpu", "reference")
"""Those of commands that make many short runs on this machine."""
ENGINES = ("cpu", "gpu", "ray", "reference", "torch")
RUNNING = (
    Flag("engine", "", None, "ENGINE", "cpu", ENGINES),
    *RAY,
    SEED,
    Flag("seeds", "N runs, seeds from --seed on; one if nothing is drawn", whole("seeds"), "N"),
    Flag("network", f"simulate {', '.join(NAMED)}", network, "NAME"),
    THREADS,
)
OUTPUT = (
    Flag("out", "folder for the run, or for the folders of several runs", metavar="DIR"),
    Flag("force", "overwrite the runs in the folder", default=False, switch=True),
    Flag("go_on", "resume the runs in the folder, make the missing ones", default=False, switch=True,
         spelling="--continue"),
    Flag("every", "record every R rounds; default: at growing intervals", whole("every"), "R"),
    Flag("checkpoint_every", "checkpoint every R rounds; default: every 30 s", whole("checkpoint-every"), "R"),
    JSON,
    QUIET,
)  # fmt: skip

TUNING = (
    Flag("budget", "rounds over all candidates, for each seed", whole("budget"), "R", default_of(tune, "budget")),
    Flag(
        "powers",
        f"step sizes gamma = 2^k/L for k from A to B; default: {POWERS[0]} {POWERS[-1]}",
        int,
        ("A", "B"),
        values=2,
    ),
    Flag("steps", "numbers of local steps; default: a quarter, one and four times the theorem's", counts, "K,K,.."),
    Flag("seeds", "runs of each candidate, which is judged by their median; default: 1", whole("seeds"), "N"),
    Flag("target", "f - f*: the fewest rounds to it win; default: the smallest f - f* wins", positive("target"), "EPS"),
    Flag("engine", "", None, "ENGINE", "cpu", LOCAL_ENGINES),
    THREADS,
    Flag("jobs", "processes", whole("jobs"), "N", default_of(tune, "jobs")),
    Flag("out", "folder for all runs and the heat map", metavar="DIR"),
    JSON,
    QUIET,
)


# -- the flags of methods ----------------------------------------------------------------------------------------------
def own_parameters() -> tuple[Flag, ...]:
    """Parameters that only methods of plugins and of packages have."""
    known = {flag.name for flag in PARAMETERS}
    owners: dict[str, list[str]] = {}
    for name, kind in METHODS.items():
        for parameter_name in parameters_of(kind):
            if parameter_name not in known:
                owners.setdefault(parameter_name, []).append(name)
    taken = {flag.name for group in (PROBLEM, STEPPING, STOPPING, RUNNING, OUTPUT) for flag in group}
    for name, of in owners.items():
        if name in taken:
            raise InputError(
                f"the parameter {name} of {of[0]} clashes with a flag of the command line; rename it, or leave it out "
                "of about.parameters."
            )
    return tuple(Flag(name, f"parameter of {', '.join(of)}", parameter) for name, of in owners.items())


def all_parameters() -> tuple[Flag, ...]:
    """The parameters of all known methods."""
    return (*PARAMETERS, *own_parameters())


def takes(kind: type[Method], flag: Flag) -> bool:
    """Whether a method takes this flag of a problem or of the steps."""
    return not flag.needs or flag.needs in kind.about.handles


def of_methods(kinds: Iterable[type[Method]]) -> dict[str, list[Flag]]:
    """The flags that one of these methods takes, by their group in the help."""
    chosen = list(kinds)
    parameters = {name for kind in chosen for name in parameters_of(kind)}
    return {
        "method": [flag for flag in all_parameters() if flag.name in parameters]
        + [flag for flag in STEPPING if any(takes(kind, flag) for kind in chosen)],
        "problem": [flag for flag in PROBLEM if any(takes(kind, flag) for kind in chosen)],
        "stopping": list(STOPPING),
        "running and output": [*RUNNING, *OUTPUT],
    }


def passed_on() -> list[str]:
    """The names of the flags that ``run`` takes as they are."""
    flags = (*STEPPING, *STOPPING, *RUNNING, *OUTPUT)
    taken = inspect.signature(run).parameters.keys() - {"seed", "engine", "out"}  # each run of a sweep has its own
    return [flag.name for flag in flags if flag.name in taken]


def defaults() -> dict[str, Any]:
    """The values of all flags of a run that were not given."""
    groups = (PROBLEM, all_parameters(), STEPPING, STOPPING, RUNNING, OUTPUT)
    return {flag.name: flag.default for group in groups for flag in group if flag.name != "data"}
