"""The parser of the command line: the flags of each command, and their help."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from proxskip.cli.flag_values import cohort, nonnegative, parameter, positive, probability, whole
from proxskip.experiments import FUNCTIONS
from proxskip.experiments.settings import own_flags
from proxskip.links.graphs import NAMES as GRAPHS
from proxskip.registry import METHODS
from proxskip.report.plots import X_AXES, Y_AXES
from proxskip.types import InputError

EXIT_CODES = """\
exit codes:
  0    success: all requested rounds, or the requested tolerance reached
  1    unexpected error: a full disk, or a bug
  2    bad input, explained in one sentence on stderr before any work
  3    the requested tolerance was not reached within the limits
  4    diverged
  5    stalled
  6    reproduce --strict: a claim failed
  130  interrupted (Ctrl-C or SIGTERM); a run with --out, or a reproduction, can be resumed
If a command makes several runs, the first of 130, 4, 5, 3, 0 that occurs is returned."""


def _top() -> str:
    return f"""\
examples:
  proxskip run scaffnew --data digits --clients 20 --split label --rounds 400 --out runs/a
  proxskip compare scaffnew scaffold fedlin local-gd --data digits --rounds 200
  proxskip plan --data digits --clients 20 --latency 0.05 --bandwidth 1e6
  proxskip theory --L 1 --mu 1e-4 --eps 1e-6 --n 20
  proxskip data list
  proxskip resume runs/a --rounds 800
  proxskip plot runs/a runs/b --x floats --out figure.png
  proxskip reproduce --data w8a --out report

methods: {", ".join(METHODS)}

{EXIT_CODES}"""


_RUN = """\
examples:
  with the parameters of the theorem (gamma = 1/max_i L_i, p = 1/sqrt(kappa)), for 400 communication rounds:
    proxskip run scaffnew --data digits --rounds 400 --out runs/a
  in the setting of the paper's figures:
    proxskip run scaffnew --data w8a --clients 20 --split label --L global --p 0.01 --rounds 400
  until the gradient is small, with ten seeds and JSON output:
    proxskip run scaffnew --data digits --tol 1e-8 --seeds 10 --json
  five of twenty clients per round; minibatches; a graph instead of a server; a regulariser:
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

"""


_REPRODUCE = f"""\
Runs are stored in the folder and shared between figures; the same command resumes an interrupted reproduction.
Claims of the paper are judged on its data, w8a, and only reported on other data; claims about theorems are always
judged.

experiments: {", ".join(FUNCTIONS)}

examples:
  everything on the embedded digits data with shorter runs, in less than three minutes on two cores:
    proxskip reproduce --quick --out demo
  as in the paper, on the CPU or on a GPU:
    proxskip reproduce --data w8a --out report
    proxskip reproduce --data w8a --out report-gpu --engine gpu
  one figure:
    proxskip reproduce fig1b --data w8a --out report

{EXIT_CODES}"""
_PLAN = """\
Measures the time of a gradient and of a prox (or, with clients, of an exchange over the network), runs a short pilot
of every candidate, and prints the time that each is expected to need. Writes no files.

examples:
  clients behind a network:
    proxskip plan --data digits --clients 20 --latency 0.05 --bandwidth 1e6
  one function with a prox, or with psi(D x) for an operator D:
    proxskip plan --data digits --clients 1 --psi l1:0.001 --eps 1e-8
    proxskip plan --data digits --psi l1:0.001 --D difference

"""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises its errors as InputError, with a full sentence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise the message as one sentence."""
        raise InputError(message.rstrip(".") + ".")

    def nearest(self, flag: str) -> str | None:
        """The flag of this command that is most similar to the given one."""
        near = difflib.get_close_matches(flag.split("=")[0], list(self._option_string_actions), n=1)
        return near[0] if near else None


# -- groups of flags ---------------------------------------------------------------------------------------------------
def _problem_flags() -> Parser:
    parent = Parser(add_help=False)
    g = parent.add_argument_group("problem", "min_x  sum_i w_i f_i(x) + psi(x)")
    add = g.add_argument
    add(
        "--data",
        metavar="NAME|FILE",
        required=True,
        help="name of a data set (see `proxskip data list`), or an svmlight file",
    )
    add("--data-dir", metavar="DIR", help="folder with data sets; searched before $PROXSKIP_DATA and the cache")
    add("--loss", choices=("logistic", "squares", "softmax"), default="logistic", help="the loss; default: logistic")
    add(
        "--l2",
        metavar="LAMBDA",
        type=nonnegative("l2"),
        default=1e-4,
        help="weight of the regulariser lambda/2 |x|^2; default: 1e-4",
    )
    add(
        "--l2-relative",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="lambda = l2 times the smoothness of the average loss without regulariser, whatever --L is; default: yes",
    )
    add("--intercept", action="store_true", help="add an unpenalised intercept (mu is then unknown: give --p or --K)")
    add("--psi", metavar="PSI", help="a regulariser: l1:LAM, elastic-net:L1,L2, nonnegative, box:LO,HI")
    add("--D", choices=("difference", "identity"), help="D in psi(D x), for splitskip and pdhg; default: difference")
    add("--dtype", choices=("float64", "float32"), default="float64", help="floating-point type; default: float64")
    add("--clients", metavar="n", type=whole("clients"), help="default: 20, or one per group with --split group")
    add(
        "--split",
        choices=("label", "iid", "dirichlet", "contiguous", "group"),
        default="label",
        help="how rows are assigned to clients; label sorts them by label (the most heterogeneous); default: label",
    )
    add("--alpha", type=positive("alpha"), default=0.5, help="concentration of --split dirichlet; default: 0.5")
    add(
        "--split-seed",
        metavar="SEED",
        type=whole("split-seed", 0),
        default=0,
        help="seed of random splits and graphs; default: 0",
    )
    add("--weights", choices=("rows", "equal"), help="the weights w_i; default: rows, or equal for methods on a graph")
    add(
        "--L",
        choices=("max", "global"),
        default="max",
        help="L in the step sizes: max_i L_i as in the theorems, or L of the average as in the figures; default: max",
    )
    add("--batch", metavar="ROWS", type=whole("batch"), help="rows per client in a minibatch; default: full gradients")
    return parent


def _method_flags() -> Parser:
    parent = Parser(add_help=False)
    g = parent.add_argument_group(
        "method", "named as in the paper; parameters that are not given follow the method's theorem"
    )
    add = g.add_argument
    add(
        "--gamma",
        metavar="NUMBER|theory|figure",
        type=positive("gamma", "theory", "figure"),
        help="step size; figure: the constants of the paper's figures; default: theory",
    )
    add(
        "--p",
        metavar="NUMBER|theory",
        type=probability("p", "theory"),
        help="probability of communicating; default: theory",
    )
    add("--K", type=whole("K"), help="local steps per round; default: sqrt(kappa); for scaffnew a fixed K sets p = 1/K")
    add("--tau", type=positive("tau"), help="dual step size; default: p/(gamma lmax(I - W))")
    add("--q", type=probability("q"), help="probability that s-local-gd refreshes its anchor; default: 1")
    add("--eta-g", type=positive("eta_g"), help="global step size of scaffold; default: 1")
    add("--option", choices=("I", "II"), help="option of scaffold; default: II")
    add("--own-steps", action="store_true", default=None, help="step sizes gamma_i = 1/L_i for scaffnew")
    add(
        "--decay",
        metavar="NUMBER|figure",
        type=positive("decay", "figure"),
        help="the step size is 1/(1/gamma + decay k) in round k; figure: K lambda/2, as in the paper's Figure 2",
    )
    add(
        "--graph",
        metavar="NAME",
        help=f"graph of decentralized-scaffnew, diging, extra: {', '.join(GRAPHS)}; default: ring",
    )
    add(
        "--cohort",
        metavar="c",
        type=cohort,
        help="number of clients per round, or the probability c < 1 of each client; default: all clients",
    )
    add(
        "--allow-unsafe-step",
        action="store_true",
        help="accept step sizes of 2/L and above, which are refused otherwise",
    )
    for flag, name in own_flags().items():
        add(f"--{flag.replace('_', '-')}", dest=flag, type=parameter, help=f"of {name}")
    return parent


def _plugin_flag() -> Parser:
    """Read before everything else, since the methods of the file are part of the help."""
    parent = Parser(add_help=False)
    g = parent.add_argument_group("methods of your own")
    g.add_argument("--plugin", metavar="FILE", action="append", help="a Python file that defines methods")
    return parent


def plugins(argv: Sequence[str]) -> list[str]:
    """The files after --plugin."""
    found, _ = _plugin_flag().parse_known_args(argv)
    return list(found.plugin or ())


def _stopping_flags() -> Parser:
    parent = Parser(add_help=False)
    g = parent.add_argument_group(
        "stopping", "a run stops at the first limit, or when all tolerances hold; give at least one"
    )
    add = g.add_argument
    add("--rounds", metavar="R", type=whole("rounds", 0), help="communication rounds")
    add("--iterations", metavar="T", type=whole("iterations"), help="local steps of one client")
    add("--seconds", metavar="S", type=positive("seconds"), help="seconds, not counting evaluations")
    add("--tol", type=positive("tol"), help="gradient norm at the communicated x")
    add("--target", metavar="EPS", type=positive("target"), help="f(x) - f*")
    return parent


def _running_flags() -> Parser:
    parent = Parser(add_help=False)
    g = parent.add_argument_group("running")
    add = g.add_argument
    add(
        "--engine",
        choices=("cpu", "gpu", "ray", "reference"),
        default="cpu",
        help="default: cpu; gpu needs CuPy and a CUDA device, ray needs Ray",
    )
    _ray_flags(g)
    add("--seed", type=whole("seed", 0), default=0, help="random seed; default: 0")
    add("--seeds", metavar="N", type=whole("seeds"), help="make N runs, with the seeds seed, ..., seed + N - 1")
    add("--threads", metavar="N", type=whole("threads"), help="default: one per core; the results do not depend on it")
    return parent


def _ray_flags(to: Any) -> None:
    to.add_argument(
        "--address",
        metavar="HOST:PORT|auto",
        help="the Ray cluster for --engine ray; auto: the cluster of this machine; default: start Ray on this machine",
    )
    to.add_argument("--actors", metavar="N", type=whole("actors"), help="actors of --engine ray; default: one per CPU")


def _output_flags(out: str | None = None) -> Parser:
    parent = Parser(add_help=False)
    g = parent.add_argument_group("output")
    add = g.add_argument
    if out is not None:
        add("--out", metavar="DIR", help=out)
        add("--force", action="store_true", help="overwrite the runs in the folder")
        add(
            "--continue",
            dest="go_on",
            action="store_true",
            help="continue an interrupted command: resume the runs in the folder, and make those that are missing",
        )
        add("--every", metavar="R", type=whole("every"), help="record every R rounds; default: at growing intervals")
        add(
            "--checkpoint-every",
            metavar="R",
            type=whole("checkpoint-every"),
            help="rounds between checkpoints; default: about every 30 s",
        )
    add("--json", action="store_true", help="print the result as JSON, and nothing else, on stdout")
    add("--quiet", action="store_true", help="print warnings and errors only")
    return parent


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
    problem, method, stop, running = _problem_flags(), _method_flags(), _stopping_flags(), _running_flags()
    made: dict[str, Parser] = {}

    def command(name: str, help: str, epilog: str = "", parents: tuple[Parser, ...] = ()) -> Parser:
        ends = EXIT_CODES if parents else ""
        all_parents = [*parents, _plugin_flag()]
        made[name] = sub.add_parser(name, help=help, description=help, epilog=epilog + ends, parents=all_parents)
        return made[name]

    everything = (problem, method, stop, running)
    one = _output_flags("a run folder: spec.toml, summary.json, trace.csv, x.npy, checkpoint")
    run = command("run", "run one method", _RUN, (*everything, one))
    run.add_argument("method", metavar="METHOD", help=f"one of {', '.join(METHODS)}")
    many = _output_flags("a run folder for each method, compare.json, compare.png and compare.pdf")
    compare = command("compare", "run several methods on one problem", _COMPARE, (*everything, many))
    compare.add_argument("methods", metavar="METHOD", nargs="+", help=f"some of {', '.join(METHODS)}")
    resume = command(
        "resume",
        "resume a run from the checkpoint in its folder",
        "example:\n  proxskip resume runs/a --rounds 800\n\n",
        (stop, _output_flags()),
    )
    resume.add_argument("folder", metavar="DIR", help="the run folder")
    resume.add_argument("--threads", metavar="N", type=whole("threads"), help="default: one per core")
    _ray_flags(resume)
    resume.add_argument("--data-dir", metavar="DIR", help="folder with data sets, if they were moved")
    _plan(command("plan", "choose a method and p by short pilots on the problem", _PLAN, (problem,)))
    _theory(
        command(
            "theory",
            "print the paper's Table 1 with numbers",
            "example:\n  proxskip theory --L 1 --mu 1e-4 --eps 1e-6 --n 20 --d 300\n",
        )
    )
    _data(command("data", "list data sets, or download one"))
    _plot(
        command(
            "plot",
            "plot run folders, or redraw the figures of a reproduction against another axis",
            "examples:\n  proxskip plot runs/a runs/b --x floats --y gap --out figure.png\n"
            "  proxskip plot report --x floats\n",
        )
    )
    _reproduce(command("reproduce", "reproduce the paper's figures and tables, and check its claims", _REPRODUCE))
    return top, made


def _plan(p: Parser) -> None:
    g = p.add_argument_group("network", "between the server and the clients")
    g.add_argument(
        "--latency", metavar="S", type=nonnegative("latency"), help="seconds in each direction; default: 0.05"
    )
    g.add_argument(
        "--bandwidth", metavar="B", type=positive("bandwidth"), help="bytes per second to a client; default: 1e6"
    )
    g.add_argument(
        "--bandwidth-up",
        metavar="B",
        type=positive("bandwidth-up"),
        help="bytes per second from a client; default: --bandwidth",
    )
    g.add_argument(
        "--client-speed",
        metavar="V",
        type=positive("client-speed"),
        help="speed of a client relative to this machine; default: 1",
    )
    add = p.add_argument
    add("--eps", type=positive("eps"), default=1e-6, help="accuracy to reach, as a gradient norm; default: 1e-6")
    add("--pilot", metavar="T", type=whole("pilot"), default=300, help="gradients in the first pilot; default: 300")
    add("--seed", type=whole("seed", 0), default=0, help="default: 0")
    add("--threads", metavar="N", type=whole("threads"), help="default: one per core")
    add("--json", action="store_true", help="print the plan as JSON, and nothing else, on stdout")
    add("--quiet", action="store_true", help="print errors only")


def _theory(p: Parser) -> None:
    add = p.add_argument
    add("--L", type=positive("L"), required=True, help="smoothness")
    add("--mu", type=positive("mu"), required=True, help="strong convexity")
    add("--eps", type=positive("eps"), default=1e-6, help="accuracy, between 0 and 1; default: 1e-6")
    add("--n", type=whole("n"), default=20, help="clients; default: 20")
    add("--d", type=whole("d"), help="number of unknowns; needed for the floats")
    add("--G2", type=nonnegative("G2"), help="(1/n) sum_i |grad f_i(x*)|^2; needed for the rounds of LocalGD")
    add("--K", type=whole("K"), help="local steps; default: sqrt(kappa)")
    add("--p", type=probability("p"), help="add a row for Scaffnew with this p")
    add("--q", type=probability("q"), help="probability that S-Local-GD refreshes its anchor; default: 1")
    add("--json", action="store_true", help="print the rows as JSON")


def _data(p: Parser) -> None:
    acts = p.add_subparsers(dest="act", metavar="list|fetch", required=True)
    listing = acts.add_parser("list", help="list all data sets, and whether they are on this machine")
    about = "download and check a data set"
    fetch = acts.add_parser("fetch", help=about, description=about)
    fetch.add_argument("name", metavar="NAME")
    for q in (listing, fetch):
        q.add_argument("--data-dir", metavar="DIR", help="default: $PROXSKIP_CACHE or ~/.cache/proxskip")
        q.add_argument("--json", action="store_true", help="print JSON")
        q.add_argument("--quiet", action="store_true", help="show no progress")


def _reproduce(p: Parser) -> None:
    add = p.add_argument
    add("experiments", metavar="EXPERIMENT", nargs="*", help="default: all experiments")
    add("--data", metavar="NAME|FILE", default="digits", help="a data set or an svmlight file; default: digits")
    add("--data-dir", metavar="DIR", help="folder with data sets; searched before $PROXSKIP_DATA and the cache")
    add(
        "--out",
        metavar="DIR",
        default="report",
        help="folder for index.html, results.json, figures and runs; default: report",
    )
    add("--quick", action="store_true", help="the same report from shorter runs (less than three minutes on digits)")
    add("--strict", action="store_true", help="exit with 6 if a claim fails")
    add("--engine", choices=("cpu", "gpu", "reference"), default="cpu", help="default: cpu")
    add("--threads", metavar="N", type=whole("threads"), help="default: one per core")
    add("--json", action="store_true", help="print results.json, and nothing else, on stdout")
    add("--quiet", action="store_true", help="print warnings and errors only")


def _plot(p: Parser) -> None:
    p.add_argument(
        "folders", metavar="DIR", nargs="+", help="run folders, folders that contain run folders, or a reproduction"
    )
    p.add_argument("--x", choices=tuple(X_AXES), default="rounds", help="default: rounds")
    p.add_argument("--y", choices=tuple(Y_AXES), default="gap", help="default: gap, which is f(x) - f*")
    p.add_argument("--title", default="", help="title of the figure")
    p.add_argument("--out", metavar="FILE", help="a .png or .pdf file (both are written); for a reproduction, a folder")
    p.add_argument("--json", action="store_true", help="print the written files as JSON")
    p.add_argument("--quiet", action="store_true", help="print errors only")
