"""The command line's words: what each command takes, with help that teaches."""

from __future__ import annotations

import argparse
import difflib
from typing import Any, NoReturn

from proxskip.cli.flag_values import cohort, nonnegative, positive, probability, whole
from proxskip.experiments import FUNCTIONS
from proxskip.links.graphs import NAMES as GRAPHS
from proxskip.methods import METHODS
from proxskip.report.plots import X_AXES, Y_AXES
from proxskip.types import InputError

EXIT_CODES = """\
exit codes:
  0    did what was asked: the rounds asked for, or the tolerance asked for and reached
  1    unexpected error: a full disk, or a bug
  2    bad input: one sentence on stderr, before any work
  3    a tolerance was asked for and not reached within the limits
  4    diverged
  5    stalled
  6    reproduce --strict: a claim failed
  130  interrupted (Ctrl-C or SIGTERM); a run with --out can be resumed, and so can a reproduction
Where a command makes several runs, the worst of them counts: 130, then 4, 5, 3, 0."""

_TOP = f"""\
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
  the theorem's parameters (gamma = 1/max_i L_i, p = 1/sqrt(kappa)), 400 communication rounds:
    proxskip run scaffnew --data digits --rounds 400 --out runs/a
  the setting of the paper's figures:
    proxskip run scaffnew --data w8a --clients 20 --split label --L global --p 0.01 --rounds 400
  until the gradient is small, ten seeds, everything as JSON:
    proxskip run scaffnew --data digits --tol 1e-8 --seeds 10 --json
  five of twenty clients a round; minibatches; a graph instead of a server; a regulariser:
    proxskip run scaffnew --data digits --rounds 400 --cohort 5
    proxskip run scaffnew --data digits --rounds 400 --batch 16
    proxskip run decentralized-scaffnew --data digits --rounds 400 --graph torus
    proxskip run proxskip --data digits --rounds 400 --psi l1:0.001

"""

_COMPARE = """\
Every method runs on the same problem with its theoretical parameters unless given. A method's flag (--K, --q, ...)
goes to the methods that take it, and must be taken by one of them at least.

examples:
  proxskip compare gd accelerated scaffnew --data digits --rounds 300
  proxskip compare scaffnew scaffold fedlin local-gd --gamma figure --data digits --rounds 300 --out runs/figure
  proxskip compare scaffnew s-local-gd --q 0.1 --data digits --rounds 200 --seeds 5 --out runs/bands

"""


_REPRODUCE = f"""\
Runs are kept in the folder and shared between figures; the same command again goes on where it was. Claims are judged
on the paper's data, w8a, and reported on other data; claims about theorems are judged everywhere.

experiments: {", ".join(FUNCTIONS)}

examples:
  everything on the embedded digits, from shorter runs, in under three minutes on two cores:
    proxskip reproduce --quick --out demo
  as in the paper, on a GPU where there is one:
    proxskip reproduce --data w8a --out report
    proxskip reproduce --data w8a --out report-gpu --engine gpu
  one figure:
    proxskip reproduce fig1b --data w8a --out report

{EXIT_CODES}"""
_PLAN = """\
The seconds of a gradient and of a prox (with clients, of an exchange over the network) are measured, every candidate
runs a short pilot, and the table shows what each is expected to need. Nothing is written.

examples:
  clients behind a network:
    proxskip plan --data digits --clients 20 --latency 0.05 --bandwidth 1e6
  one function and its prox; with an operator, psi(D x):
    proxskip plan --data digits --clients 1 --psi l1:0.001 --eps 1e-8
    proxskip plan --data digits --psi l1:0.001 --D difference

"""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are sentences and exceptions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """One sentence."""
        raise InputError(message.rstrip(".") + ".")

    def nearest(self, flag: str) -> str | None:
        """The flag of this command that looks most like the given one."""
        near = difflib.get_close_matches(flag.split("=")[0], list(self._option_string_actions), n=1)
        return near[0] if near else None


# -- groups of flags ---------------------------------------------------------------------------------------------------
def _problem_flags() -> Parser:
    parent = Parser(add_help=False)
    g = parent.add_argument_group("problem", "min_x  sum_i w_i f_i(x) + psi(x)")
    add = g.add_argument
    add("--data", metavar="NAME|FILE", required=True, help="a data set (see `proxskip data list`) or an svmlight file")
    add("--data-dir", metavar="DIR", help="where data sets lie; looked in before $PROXSKIP_DATA and the cache")
    add("--loss", choices=("logistic", "squares", "softmax"), default="logistic", help="default: logistic")
    add("--l2", metavar="LAMBDA", type=nonnegative("l2"), default=1e-4, help="of lambda/2 |x|^2; default: 1e-4")
    add(
        "--l2-relative",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="lambda = l2 times the smoothness of the whole loss without regulariser, whatever --L says; default: yes",
    )
    add("--intercept", action="store_true", help="an unpenalised constant (then mu is unknown: give --p or --K)")
    add("--psi", metavar="PSI", help="a regulariser: l1:LAM, elastic-net:L1,L2, nonnegative, box:LO,HI")
    add("--D", choices=("difference", "identity"), help="psi(D x), for splitskip; default there: difference")
    add("--dtype", choices=("float64", "float32"), default="float64", help="default: float64")
    add("--clients", metavar="n", type=whole("clients"), help="default: 20; one a group with --split group")
    add(
        "--split",
        choices=("label", "iid", "dirichlet", "contiguous", "group"),
        default="label",
        help="how rows are dealt to clients; label sorts by label (the most heterogeneous); default: label",
    )
    add("--alpha", type=positive("alpha"), default=0.5, help="of --split dirichlet; default: 0.5")
    add(
        "--split-seed",
        metavar="SEED",
        type=whole("split-seed", 0),
        default=0,
        help="of random splits and graphs; default: 0",
    )
    add("--weights", choices=("rows", "equal"), help="w_i; default: rows, and equal for decentralized-scaffnew")
    add(
        "--L",
        choices=("max", "global"),
        default="max",
        help="behind step sizes: max_i L_i as in the theorems, or L of the average as in the figures; default: max",
    )
    add(
        "--batch",
        metavar="ROWS",
        type=whole("batch"),
        help="minibatches of so many rows a client; default: full gradients",
    )
    return parent


def _method_flags() -> Parser:
    parent = Parser(add_help=False)
    g = parent.add_argument_group("method", "the paper's letters; what is not given follows the method's theorem")
    add = g.add_argument
    add(
        "--gamma",
        metavar="NUMBER|theory|figure",
        type=positive("gamma", "theory", "figure"),
        help="step size; figure: the constants behind the paper's figures; default: theory",
    )
    add(
        "--p",
        metavar="NUMBER|theory",
        type=probability("p", "theory"),
        help="probability of communicating; default: theory",
    )
    add("--K", type=whole("K"), help="local steps a round; default: sqrt(kappa); a fixed K for scaffnew means p = 1/K")
    add("--tau", type=positive("tau"), help="dual step size; default: p/(gamma lmax(I - W))")
    add("--q", type=probability("q"), help="probability that s-local-gd refreshes its anchor; default: 1")
    add("--eta-g", type=positive("eta_g"), help="global step size of scaffold; default: 1")
    add("--option", choices=("I", "II"), help="of scaffold; default: II")
    add("--own-steps", action="store_true", default=None, help="gamma_i = 1/L_i for scaffnew")
    add(
        "--decay",
        metavar="NUMBER|figure",
        type=positive("decay", "figure"),
        help="gamma falls like 1/(1/gamma + decay k) with the round k; figure: K lambda/2, as in the paper's Figure 2",
    )
    add(
        "--graph", metavar="NAME", help=f"for decentralized-scaffnew, diging, extra: {', '.join(GRAPHS)}; default: ring"
    )
    add(
        "--cohort",
        metavar="c",
        type=cohort,
        help="so many clients a round, or each with probability c < 1; default: everybody",
    )
    add("--allow-unsafe-step", action="store_true", help="run with steps from 2/L on, which are refused otherwise")
    return parent


def _stopping_flags() -> Parser:
    parent = Parser(add_help=False)
    g = parent.add_argument_group(
        "stopping", "the first limit that is reached, or all tolerances together; give one at least"
    )
    add = g.add_argument
    add("--rounds", metavar="R", type=whole("rounds", 0), help="communication rounds")
    add("--iterations", metavar="T", type=whole("iterations"), help="local steps of a client")
    add("--seconds", metavar="S", type=positive("seconds"), help="seconds, without evaluation")
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
        help="default: cpu; gpu needs CuPy and a CUDA card, ray needs Ray",
    )
    _ray_flags(g)
    add("--seed", type=whole("seed", 0), default=0, help="default: 0")
    add("--seeds", metavar="N", type=whole("seeds"), help="N runs, with seeds seed to seed + N - 1")
    add("--threads", metavar="N", type=whole("threads"), help="default: one a core; the numbers do not depend on it")
    return parent


def _ray_flags(to: Any) -> None:
    to.add_argument(
        "--address",
        metavar="HOST:PORT|auto",
        help="the Ray cluster for --engine ray; auto: the one this machine belongs to; default: Ray on this machine",
    )
    to.add_argument("--actors", metavar="N", type=whole("actors"), help="of --engine ray; default: one a CPU")


def _output_flags(out: str | None = None) -> Parser:
    parent = Parser(add_help=False)
    g = parent.add_argument_group("output")
    add = g.add_argument
    if out is not None:
        add("--out", metavar="DIR", help=out)
        add("--force", action="store_true", help="overwrite the runs that the folder holds")
        add("--every", metavar="R", type=whole("every"), help="record every R rounds; default: ever more rarely")
        add("--checkpoint-every", metavar="R", type=whole("checkpoint-every"), help="rounds; default: about every 30 s")
    add("--json", action="store_true", help="the result as JSON on stdout, and nothing else there")
    add("--quiet", action="store_true", help="no progress and no report; warnings and errors only")
    return parent


# -- commands ----------------------------------------------------------------------------------------------------------
def parser(version: str) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of its commands by name."""
    top = Parser(
        prog="proxskip",
        description="Communication-accelerated optimization: run a method on a problem, get a trace, plot it.",
        epilog=_TOP,
    )
    top.add_argument("--version", action="version", version=f"proxskip {version}")
    sub = top.add_subparsers(dest="command", metavar="command", required=True)
    problem, method, stop, running = _problem_flags(), _method_flags(), _stopping_flags(), _running_flags()
    made: dict[str, Parser] = {}

    def command(name: str, help: str, epilog: str = "", parents: tuple[Parser, ...] = ()) -> Parser:
        ends = EXIT_CODES if parents else ""
        made[name] = sub.add_parser(name, help=help, description=help, epilog=epilog + ends, parents=list(parents))
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
        "go on where a run folder's checkpoint stands",
        "example:\n  proxskip resume runs/a --rounds 800\n\n",
        (stop, _output_flags()),
    )
    resume.add_argument("folder", metavar="DIR", help="the run folder")
    resume.add_argument("--threads", metavar="N", type=whole("threads"))
    _ray_flags(resume)
    resume.add_argument("--data-dir", metavar="DIR", help="where data sets lie now")
    _plan(command("plan", "which method and which p: short pilots on this problem", _PLAN, (problem,)))
    _theory(
        command(
            "theory",
            "the paper's Table 1 with numbers",
            "example:\n  proxskip theory --L 1 --mu 1e-4 --eps 1e-6 --n 20 --d 300\n",
        )
    )
    _data(command("data", "data sets: list them, fetch one"))
    _plot(
        command(
            "plot",
            "draw run folders, or the figures of a reproduction against another axis",
            "examples:\n  proxskip plot runs/a runs/b --x floats --y gap --out figure.png\n"
            "  proxskip plot report --x floats\n",
        )
    )
    _reproduce(command("reproduce", "the paper's figures and tables, claim by claim", _REPRODUCE))
    return top, made


def _plan(p: Parser) -> None:
    g = p.add_argument_group("network", "where the clients will be")
    g.add_argument("--latency", metavar="S", type=nonnegative("latency"), help="seconds each way; default: 0.05")
    g.add_argument("--bandwidth", metavar="B", type=positive("bandwidth"), help="bytes a second; default: 1e6")
    g.add_argument("--bandwidth-up", metavar="B", type=positive("bandwidth-up"), help="default: --bandwidth")
    g.add_argument(
        "--client-speed", metavar="V", type=positive("client-speed"), help="with this machine as one; default: 1"
    )
    add = p.add_argument
    add("--eps", type=positive("eps"), default=1e-6, help="the certificate (gradient norm) to reach; default: 1e-6")
    add("--pilot", metavar="T", type=whole("pilot"), default=300, help="gradients of a first pilot; default: 300")
    add("--seed", type=whole("seed", 0), default=0, help="default: 0")
    add("--threads", metavar="N", type=whole("threads"), help="default: one a core")
    add("--json", action="store_true", help="the plan as JSON on stdout, and nothing else there")
    add("--quiet", action="store_true", help="no table; errors only")


def _theory(p: Parser) -> None:
    add = p.add_argument
    add("--L", type=positive("L"), required=True, help="smoothness")
    add("--mu", type=positive("mu"), required=True, help="strong convexity")
    add("--eps", type=positive("eps"), default=1e-6, help="accuracy, between 0 and 1; default: 1e-6")
    add("--n", type=whole("n"), default=20, help="clients; default: 20")
    add("--d", type=whole("d"), help="unknowns: then floats are counted")
    add("--G2", type=nonnegative("G2"), help="(1/n) sum_i |grad f_i(x*)|^2: then LocalGD's row has a number")
    add("--K", type=whole("K"), help="local steps; default: sqrt(kappa)")
    add("--p", type=probability("p"), help="a row for Scaffnew with this p")
    add("--q", type=probability("q"), help="of S-Local-GD; default: 1 is counted")
    add("--json", action="store_true", help="the rows as JSON")


def _data(p: Parser) -> None:
    acts = p.add_subparsers(dest="act", metavar="list|fetch", required=True)
    listing = acts.add_parser("list", help="every data set with a name, and whether it is here")
    fetch = acts.add_parser(
        "fetch",
        help="download a data set, check it, keep it",
        description="Download a data set, check it, keep it.",
    )
    fetch.add_argument("name", metavar="NAME")
    for q in (listing, fetch):
        q.add_argument("--data-dir", metavar="DIR", help="default: $PROXSKIP_CACHE or ~/.cache/proxskip")
        q.add_argument("--json", action="store_true", help="as JSON")
        q.add_argument("--quiet", action="store_true", help="no progress")


def _reproduce(p: Parser) -> None:
    add = p.add_argument
    add("experiments", metavar="EXPERIMENT", nargs="*", help="default: all of them")
    add("--data", metavar="NAME|FILE", default="digits", help="a data set or an svmlight file; default: digits")
    add("--data-dir", metavar="DIR", help="where data sets lie; looked in before $PROXSKIP_DATA and the cache")
    add("--out", metavar="DIR", default="report", help="index.html, results.json, figures and runs; default: report")
    add("--quick", action="store_true", help="the same report from shorter runs (on digits under three minutes)")
    add("--strict", action="store_true", help="exit with 6 if a claim fails")
    add("--engine", choices=("cpu", "gpu", "reference"), default="cpu", help="default: cpu")
    add("--threads", metavar="N", type=whole("threads"), help="default: one a core")
    add("--json", action="store_true", help="results.json on stdout, and nothing else there")
    add("--quiet", action="store_true", help="no progress and no table; warnings and errors only")


def _plot(p: Parser) -> None:
    p.add_argument(
        "folders", metavar="DIR", nargs="+", help="run folders, folders that hold run folders, or a reproduction"
    )
    p.add_argument("--x", choices=tuple(X_AXES), default="rounds", help="default: rounds")
    p.add_argument("--y", choices=tuple(Y_AXES), default="gap", help="default: gap, which is f(x) - f*")
    p.add_argument("--title", default="")
    p.add_argument(
        "--out", metavar="FILE", help="a .png (a .pdf is written beside it) or .pdf; of a reproduction: a folder"
    )
    p.add_argument("--json", action="store_true", help="the written files as JSON")
    p.add_argument("--quiet", action="store_true")
