"""The parser of the command line: the flags of each command, and their help."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from proxskip.cli.flag_values import (
    codec,
    cohort,
    names,
    network,
    nonnegative,
    parameter,
    positive,
    probability,
    whole,
)
from proxskip.data.tables import LABELS
from proxskip.experiments import FUNCTIONS
from proxskip.experiments.settings import DEFAULTS, LOSSES, own_flags
from proxskip.links.codecs import FORMS
from proxskip.links.graphs import NAMES as GRAPHS
from proxskip.links.profiles import NAMED
from proxskip.prox.parse import forms as prox_forms
from proxskip.registry import METHODS
from proxskip.report.plots import X_AXES
from proxskip.types import InputError

EXIT_CODES = """\
exit codes:
  0    success: all requested rounds, or the requested tolerance reached
  1    unexpected error: a full disk, or a bug
  2    bad input, explained in one sentence on stderr before any work
  3    the requested tolerance was not reached within the limits, or is below what rounding allows
  4    diverged
  5    stalled
  6    reproduce --strict: a claim failed
  7    corrupted: the control variates do not add up, so an update was lost, applied twice or changed
  130  interrupted (Ctrl-C or SIGTERM); a run with --out, or a reproduction, can be resumed
If a command makes several runs, the first of 130, 7, 4, 5, 3, 0 that occurs is returned."""


def _top() -> str:
    return f"""\
examples:
  proxskip demo
  proxskip run scaffnew --data digits --clients 20 --split label --rounds 400 --out runs/a
  proxskip compare scaffnew scaffold fedlin local-gd --data digits --rounds 200
  proxskip plan --data digits --clients 20 --latency 0.05 --bandwidth 1e6
  proxskip theory --L 1 --mu 1e-4 --eps 1e-6 --n 20
  proxskip data list
  proxskip resume runs/a --rounds 800
  proxskip plot runs/a runs/b --x floats --out figure.png
  proxskip reproduce --data w8a --out report
  proxskip doctor

{textwrap.fill("methods: " + ", ".join(METHODS), 100, subsequent_indent="  ", break_on_hyphens=False)}

{EXIT_CODES}"""


_MEANINGS = {
    "theta": "accuracy at which a client of 5gcs ends its local steps; default: theory without --K, otherwise none",
    "c": "5gcs takes gamma = c/sqrt(mu L); default: 1.05 by the theorem, 1 with --K or --gamma",
    "sigma": "gamma sum_m w_m tau_m of 5gcs, at most 1; default: 0.85 by the theorem, 1 with --K or --gamma",
    "p_e": "probability that a link wakes in random-gossip; default: theory",
    "k": "coordinates that a link carries in random-gossip; default: all",
}
"""Of parameters that only one method of the package has."""


_RUN = """\
examples:
  with the parameters of the theorem (gamma = 1/max_i L_i, p = 1/sqrt(kappa)), for 400 communication rounds:
    proxskip run scaffnew --data digits --rounds 400 --out runs/a
  in the setting of the paper's figures:
    proxskip run scaffnew --data w8a --clients 20 --split label --L global --p 0.01 --rounds 400
  until the gradient is small, with ten seeds and JSON output:
    proxskip run scaffnew --data digits --tol 1e-8 --seeds 10 --json
  five of twenty clients per round; minibatches; a graph instead of a server; a regularizer:
    proxskip run scaffnew --data digits --rounds 400 --cohort 5
    proxskip run scaffnew --data digits --rounds 400 --batch 16
    proxskip run decentralized-scaffnew --data digits --rounds 400 --graph torus
    proxskip run proxskip --data digits --rounds 400 --psi l1:0.001

"""

_COMPARE = """\
All methods run on the same problem; parameters that are not given follow each method's theorem. A flag of a method
(--K, --q, ...) is passed to the methods that have it; at least one of them must.

examples:
  proxskip compare gd accelerated scaffnew --data digits --rounds 300
  proxskip compare scaffnew scaffold fedlin local-gd --gamma figure --data digits --rounds 300 --out runs/figure
  proxskip compare scaffnew s-local-gd --q 0.1 --data digits --rounds 200 --seeds 5 --out runs/bands
  which is fastest over a mobile network:
    proxskip compare scaffnew gd 5gcs --data digits --tol 1e-4 --network mobile --x sim_seconds --out runs/mobile

"""


_REPRODUCE = f"""\
Runs are stored in the folder and shared between figures; the same command resumes an interrupted reproduction.
Claims of the paper are judged on its data, w8a, and only reported on other data; claims about theorems are always
judged.

experiments: {", ".join(FUNCTIONS)}

examples:
  everything on the embedded digits data with shorter runs, in about three minutes on two quiet cores:
    proxskip reproduce --quick --out demo
  as in the paper, on the CPU or on a GPU:
    proxskip reproduce --data w8a --out report
    proxskip reproduce --data w8a --out report-gpu --engine gpu
  one figure:
    proxskip reproduce fig1b --data w8a --out report
  the methods of the family against each other (on digits in a minute, on w8a without --quick):
    proxskip reproduce --family --quick --out family
  control variates on networks (in two minutes with --quick; needs PyTorch):
    proxskip reproduce --networks --quick --out networks

{EXIT_CODES}"""
_PLAN = """\
Measures the time of a gradient, runs a short pilot of every candidate over the network, and prints the time that each
is expected to need. Writes no files.

examples:
  clients behind a network:
    proxskip plan --data digits --clients 20 --latency 0.05 --bandwidth 1e6
    proxskip plan --data digits --clients 20 --network mobile

"""
_RESUME = "example:\n  proxskip resume runs/a --rounds 800\n\n"
_THEORY = "example:\n  proxskip theory --L 1 --mu 1e-4 --eps 1e-6 --n 20 --d 300\n"
_PLOT = """\
examples:
  proxskip plot runs/a
  proxskip plot runs/a runs/b --x floats --y gap --out figure.png
  proxskip plot report --x floats
"""
_COMPLETION = """\
examples:
  bash:  eval "$(proxskip completion bash)"        in ~/.bashrc
  zsh:   eval "$(proxskip completion zsh)"         in ~/.zshrc
  fish:  proxskip completion fish | source         in ~/.config/fish/config.fish
"""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises its errors as InputError, with a full sentence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # an abbreviation would change its meaning when a flag is added
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise the message as one sentence."""
        # argparse would print the usage and exit; here every error takes the way of main()
        raise InputError(message.rstrip(".") + ".")

    def nearest(self, flag: str) -> str | None:
        """The flag of this command that is most similar to the given one."""
        near = difflib.get_close_matches(flag.split("=")[0], list(self._option_string_actions), n=1)
        return near[0] if near else None


# -- the table of flags ------------------------------------------------------------------------------------------------
Flag = tuple[str, dict[str, Any]]


def _flag(name: str, help: str, type: Any = None, metavar: str | None = None, **options: Any) -> Flag:
    """A flag with its help and what else ``add_argument`` takes."""
    # argparse accepts neither a type nor a metavar for a switch, not even None
    options |= {k: v for k, v in (("type", type), ("metavar", metavar)) if v is not None}
    return name, {"help": help} | options


def _switch(name: str, help: str, **options: Any) -> Flag:
    return _flag(name, help, action="store_true", **options)


def _add(to: Any, *flags: Flag) -> None:
    """Add flags to a parser or a group."""
    for name, options in flags:
        to.add_argument(name, **options)


def _group(title: str, about: str | None, *flags: Flag) -> Parser:
    """A parser with one group of flags, which commands share."""
    parent = Parser(add_help=False)
    _add(parent.add_argument_group(title, about), *flags)
    return parent


_DATA_DIR = _flag("--data-dir", "folder with data sets; searched before $PROXSKIP_DATA and the cache", metavar="DIR")
_THREADS = _flag("--threads", "default: one per core; the results do not depend on it", whole("threads"), "N")
_SEED = _flag("--seed", "random seed; default: 0", whole("seed", 0), default=0)
_RAY = (
    _flag("--address", "the Ray cluster; auto: that of this machine; default: start Ray", metavar="HOST:PORT|auto"),
    _flag("--actors", "actors of --engine ray; default: one per CPU", whole("actors"), "N"),
)
_CHANGED = "NAME:deadline=30,gradient=0.01 changes some of its numbers"


def _printing(json: str, quiet: str = "print warnings and errors only") -> tuple[Flag, Flag]:
    return _switch("--json", json), _switch("--quiet", quiet)


def _problem_flags() -> Parser:
    data = "name of a data set (see `proxskip data list`), or a file: svmlight, or .csv, .npz, .parquet"
    relative = "lambda = l2 times the smoothness of the average loss without regularizer, whatever --L is; default: yes"
    split = "how rows are assigned to clients; label sorts them by label (the most heterogeneous); default: label"
    L = "L in the step sizes: max_i L_i as in the theorems, or L of the average as in the figures; default: max"
    mixed = "every client uses ALPHA times the common model plus 1 - ALPHA times its own minimizer; default: 1"
    parent = _group(
        "problem", "min_x  sum_i w_i f_i(x) + psi(x)",
        _flag("--data", data, metavar="NAME|FILE", required=True),
        _flag("--label", f"column of the labels in a table; default: {', '.join(LABELS)}", metavar="COLUMN"),
        _flag("--columns", "columns of the features in a table; default: all others", names, "A,B,..."),
        _flag("--group", "column of the groups in a table, for --split group; default: none", metavar="COLUMN"),
        _DATA_DIR,
        _flag("--loss", "the loss; default: logistic", choices=tuple(LOSSES)),
        _flag("--l2", "weight of the regularizer lambda/2 |x|^2; default: 1e-4", nonnegative("l2"), "LAMBDA"),
        _flag("--l2-relative", relative, action=argparse.BooleanOptionalAction),
        _switch("--intercept", "add an unpenalized intercept (mu is then unknown: give --p or --K)"),
        _flag("--psi", f"a regularizer: {prox_forms()}", metavar="PSI"),
        _flag("--D", "D in psi(D x), for splitskip and pdhg; default: difference", choices=("difference", "identity")),
        _flag("--dtype", "floating-point type; default: float64", choices=("float64", "float32")),
        _flag("--clients", "default: 20, or one per group with --split group", whole("clients"), "n"),
        _flag("--split", split, choices=("label", "iid", "dirichlet", "contiguous", "group")),
        _flag("--alpha", "concentration of --split dirichlet; default: 0.5", positive("alpha")),
        _flag("--split-seed", "seed of random splits and graphs; default: 0", whole("split-seed", 0), "SEED"),
        _flag("--weights", "the weights w_i; default: rows; equal for tamuna and graphs", choices=("rows", "equal")),
        _flag("--L", L, choices=("max", "global")),
        _flag("--personal", mixed, probability("personal"), "ALPHA"),
        _flag("--batch", "rows per client in a minibatch; default: full gradients", whole("batch"), "ROWS"),
    )  # fmt: skip
    # the defaults are those of the library, and of a run folder that leaves a flag out
    parent.set_defaults(**{a.dest: DEFAULTS.get(a.dest) for a in parent._actions})
    return parent


def _method_flags() -> Parser:
    gamma = "step size; figure: the constants of the paper's figures; default: theory"
    K = "local steps per round; default: sqrt(kappa); for scaffnew a fixed K sets p = 1/K"
    decay = "the step size is 1/(1/gamma + decay k) in round k; figure: K lambda/2, as in the paper's Figure 2"
    graphs = f"graph of decentralized-scaffnew, diging, extra: {', '.join(GRAPHS)}; default: ring"
    clients = (
        "number of clients per round, the probability c < 1 of each client, or for 5gcs one probability per client, "
        "separated by commas; default: all clients"
    )
    return _group(
        "method", "named as in the paper; parameters that are not given follow the method's theorem",
        _flag("--gamma", gamma, positive("gamma", "theory", "figure"), "NUMBER|theory|figure"),
        _flag("--p", "probability of communicating; default: theory", probability("p", "theory"), "NUMBER|theory"),
        _flag("--K", K, whole("K")),
        _flag("--tau", "dual step size; default: p/(gamma lmax(I - W)), and 5gcs's theorem", positive("tau")),
        _flag("--q", "probability that an anchor (s-local-gd, scaffnew-vr) moves; default: theory", probability("q")),
        _flag("--eta-g", "global step size of scaffold; default: 1", positive("eta_g")),
        _flag("--option", "option of scaffold; default: II", choices=("I", "II")),
        # None and not False, since check_flags takes everything else for given
        _switch("--own-steps", "step sizes gamma_i = 1/L_i for scaffnew", default=None),
        _flag("--decay", decay, positive("decay", "figure"), "NUMBER|figure"),
        _flag("--graph", graphs, metavar="NAME"),
        _flag("--s", "clients that send each coordinate in tamuna; default: 2", whole("s", 2)),
        _flag("--chi", "factor in tamuna's update of h; default: its bound n(s-1)/(s(n-1))", positive("chi")),
        _flag("--codec", f"how vectors travel up in locodl and scaffnew: {FORMS}", codec, "NAME"),
        _flag("--cohort", clients, cohort, "c"),
        _switch("--allow-unsafe-step", "accept step sizes of 2/L and above, which are refused otherwise"),
        # all other parameters of methods, also of those from outside the package
        *(
            _flag(f"--{flag.replace('_', '-')}", _MEANINGS.get(flag, f"parameter of {name}"), parameter, dest=flag)
            for flag, name in own_flags().items()
        ),
    )  # fmt: skip


def _plugin_flag() -> Parser:
    """Read before everything else, since the methods of the file are part of the help."""
    about = "a Python file that defines methods"
    return _group("methods of your own", None, _flag("--plugin", about, metavar="FILE", action="append"))


def plugins(argv: Sequence[str]) -> list[str]:
    """The files after --plugin."""
    known, _ = _plugin_flag().parse_known_args(argv)
    return list(known.plugin or ())


def _stopping_flags() -> Parser:
    return _group(
        "stopping", "a run stops at the first limit, or when all tolerances hold; give at least one",
        _flag("--rounds", "communication rounds", whole("rounds", 0), "R"),
        _flag("--iterations", "local steps of one client", whole("iterations"), "T"),
        _flag("--seconds", "seconds, not counting evaluations", positive("seconds"), "S"),
        _flag("--tol", "gradient norm at the communicated x", positive("tol")),
        _flag("--target", "f(x) - f*", positive("target"), "EPS"),
    )  # fmt: skip


def _running_flags() -> Parser:
    engine = "default: cpu; gpu needs CuPy and a CUDA device, ray needs Ray, torch needs PyTorch"
    over = f"simulate the time over a network, and the clients that it delays or loses: {', '.join(NAMED)}"
    return _group(
        "running", None,
        _flag("--engine", engine, choices=("cpu", "gpu", "ray", "reference", "torch"), default="cpu"),
        *_RAY,
        _SEED,
        _flag("--seeds", "make N runs, with the seeds seed, ..., seed + N - 1", whole("seeds"), "N"),
        _flag("--network", f"{over}; default: none; {_CHANGED}", network, "NAME"),
        _THREADS,
    )  # fmt: skip


def _output_flags(out: str | None = None) -> Parser:
    go_on = "continue an interrupted command: resume the runs in the folder, and make those that are missing"
    often = "rounds between checkpoints; default: about every 30 s"
    files = (
        _flag("--out", out or "", metavar="DIR"),
        _switch("--force", "overwrite the runs in the folder"),
        _switch("--continue", go_on, dest="go_on"),
        _flag("--every", "record every R rounds; default: at growing intervals", whole("every"), "R"),
        _flag("--checkpoint-every", often, whole("checkpoint-every"), "R"),
    )
    printing = _printing("print the result as JSON, and nothing else, on stdout")
    return _group("output", None, *(files if out is not None else ()), *printing)


# -- commands ----------------------------------------------------------------------------------------------------------
def parser(version: str) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of its commands by name."""
    top = Parser(
        prog="proxskip",
        description="Communication-accelerated optimization: run a method on a problem, record a trace, plot it.",
        epilog=_top(),
        parents=[_plugin_flag()],
    )
    top.add_argument("--version", action="version", version=f"proxskip {version}")
    sub = top.add_subparsers(dest="command", metavar="command", required=True)
    # groups are shared: each of them is built once and added to several commands
    problem, method, stop, running = _problem_flags(), _method_flags(), _stopping_flags(), _running_flags()
    commands: dict[str, Parser] = {}

    def command(name: str, help: str, epilog: str, parents: tuple[Parser, ...], *flags: Flag) -> Parser:
        # only commands that run something have exit codes to explain
        epilog += EXIT_CODES if parents else ""
        p = sub.add_parser(name, help=help, description=help, epilog=epilog, parents=[*parents, _plugin_flag()])
        _add(p, *flags)
        commands[name] = p
        return p

    everything = (problem, method, stop, running)
    one = _output_flags("a run folder: spec.toml, summary.json, trace.csv, x.npy, checkpoint")
    many = _output_flags("a run folder for each method, compare.json, compare.png and compare.pdf")
    axis = "x axis of the figure; default: rounds and floats"
    out = "a .png or .pdf file (both are written), by default Y-X.png in DIR; for a reproduction, a folder"
    command(
        "run", "run one method", _RUN, (*everything, one),
        _flag("method", f"one of {', '.join(METHODS)}", metavar="METHOD"),
    )  # fmt: skip
    command(
        "compare", "run several methods on one problem", _COMPARE, (*everything, many),
        _flag("methods", f"some of {', '.join(METHODS)}", metavar="METHOD", nargs="+"),
        _flag("--x", axis, choices=tuple(X_AXES)),
    )  # fmt: skip
    command(
        "resume", "resume a run from the checkpoint in its folder", _RESUME, (stop, _output_flags()),
        _flag("folder", "the run folder", metavar="DIR"), _THREADS, *_RAY,
        _flag("--data-dir", "folder with data sets, if they were moved", metavar="DIR"),
    )  # fmt: skip
    _plan(command("plan", "choose a method and p by short pilots on the problem", _PLAN, (problem,)))
    command("theory", "print the paper's Table 1 with numbers", _THEORY, (), *_theory_flags())
    _data(command("data", "list data sets, or download one", "", ()))
    command(
        "plot", "plot run folders, or redraw the figures of a reproduction against another axis", _PLOT, (),
        _flag("folders", "run folders, folders that contain run folders, or a reproduction", metavar="DIR", nargs="+"),
        _flag("--x", "default: rounds", choices=tuple(X_AXES), default="rounds"),
        _flag("--y", "a column of the trace; default: gap, which is f(x) - f*", metavar="COLUMN", default="gap"),
        _flag("--title", "title of the figure", default=""),
        _flag("--out", out, metavar="FILE"),
        *_printing("print the written files as JSON"),
    )  # fmt: skip
    about = "reproduce the paper's figures and tables, and check its claims"
    command("reproduce", about, _REPRODUCE, (), *_reproduce_flags())
    command(
        "demo", "show the race of Figure 1b at once, then make the whole report", "", (),
        _switch("--race", "the race alone"),
        _flag("--out", "folder of the report; default: demo", metavar="DIR", default="demo"),
    )  # fmt: skip
    about = "say what is installed, and what works on this machine"
    command("doctor", about, "", (), _switch("--json", "print the findings as JSON"))
    command(
        "completion", "print the completion script of a shell", _COMPLETION, (),
        _flag("shell", "bash, zsh or fish", metavar="SHELL", choices=("bash", "zsh", "fish")),
    )  # fmt: skip
    return top, commands


def _plan(p: Parser) -> None:
    seconds = "seconds of one local gradient; default: that of --network, or measured here"
    _add(
        p.add_argument_group("network", "between the server and the clients"),
        _flag("--network", f"a named one: {', '.join(NAMED)}; the flags below change it; {_CHANGED}", network, "NAME"),
        _flag("--latency", "seconds in each direction; default: 0.05", nonnegative("latency"), "S"),
        _flag("--bandwidth", "bytes per second to a client; default: 1e6", positive("bandwidth"), "B"),
        _flag("--bandwidth-up", "bytes per second from a client; default: --bandwidth", positive("bandwidth-up"), "B"),
        _flag("--client-speed", "speed relative to this machine; default: 1", positive("client-speed"), "V"),
        _flag("--gradient-seconds", seconds, nonnegative("gradient-seconds"), "S"),
    )  # fmt: skip
    _add(
        p,
        _flag("--eps", "accuracy to reach, as a gradient norm; default: 1e-6", positive("eps"), default=1e-6),
        _flag("--pilot", "gradients in the first pilot; default: 300", whole("pilot"), "T", default=300),
        _SEED,
        _THREADS,
        *_printing("print the plan as JSON, and nothing else, on stdout", "print errors only"),
    )


def _theory_flags() -> tuple[Flag, ...]:
    return (
        _flag("--L", "smoothness", positive("L"), required=True),
        _flag("--mu", "strong convexity", positive("mu"), required=True),
        _flag("--eps", "accuracy, between 0 and 1; default: 1e-6", positive("eps"), default=1e-6),
        _flag("--n", "clients; default: 20", whole("n"), default=20),
        _flag("--cohort", "clients per round: say how many rounds such cohorts need at least", whole("cohort"), "c"),
        _flag("--d", "number of unknowns; needed for the floats", whole("d")),
        _flag("--G2", "(1/n) sum_i |grad f_i(x*)|^2; needed for the rounds of LocalGD", nonnegative("G2")),
        _flag("--K", "local steps; default: sqrt(kappa)", whole("K")),
        _flag("--p", "add a row for Scaffnew with this p", probability("p")),
        _flag("--q", "probability that S-Local-GD refreshes its anchor; default: 1", probability("q")),
        _switch("--json", "print the rows as JSON"),
    )


def _data(p: Parser) -> None:
    acts = p.add_subparsers(dest="act", metavar="list|fetch", required=True)
    listing = acts.add_parser("list", help="list all data sets, and whether they are on this machine")
    about = "download and check a data set"
    fetch = acts.add_parser("fetch", help=about, description=about)
    fetch.add_argument("name", metavar="NAME")
    folder = _flag("--data-dir", "default: $PROXSKIP_CACHE or ~/.cache/proxskip", metavar="DIR")
    for parser in (listing, fetch):
        _add(parser, folder, *_printing("print JSON", "show no progress"))


def _reproduce_flags() -> tuple[Flag, ...]:
    data = "a data set or an svmlight file; default: digits, and w8a with --family"
    out = "folder for index.html, results.json, figures and runs; default: report"
    quick = "the same report from shorter runs (digits: about three minutes on two quiet cores)"
    jobs = "processes that share the work; default: one per core, and 1 for networks on a GPU"
    networks = "networks instead: control variates for AdamW and SGD on the digits and on made text; needs PyTorch"
    return (
        _flag("experiments", "default: all experiments", metavar="EXPERIMENT", nargs="*"),
        _flag("--data", data, metavar="NAME|FILE"),
        _DATA_DIR,
        _flag("--out", out, metavar="DIR", default="report"),
        _switch("--quick", quick),
        _switch("--family", "compare the methods with each other instead: rounds, gradients, bits"),
        _flag("--jobs", jobs, whole("jobs"), "N"),
        _switch("--networks", networks),
        _switch("--strict", "exit with 6 if a claim fails"),
        _flag("--engine", "default: cpu", choices=("cpu", "gpu", "reference"), default="cpu"),
        _THREADS,
        *_printing("print results.json, and nothing else, on stdout"),
    )
