"""A method from outside the package, the one of docs/authoring.md, works everywhere once it is known."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from conftest import code_of
from lockstep import drive
from proxskip import registry
from proxskip.cli import flags as cli_flags
from proxskip.links.cohorts import as_participation
from proxskip.protocol import Client, Server, Worker
from proxskip.report import method_styles, plots
from proxskip.report.figures import Panel, Series
from proxskip.results import description

pytestmark = pytest.mark.usefixtures("own_methods")

CODE = code_of("authoring.md", 0)
NAME, TITLE = "damped-scaffnew", "Damped Scaffnew"
EASY = ["--data", "digits", "--l2", "0.1", "--clients", "5", "--rounds", "8"]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The method in a file of its own."""
    path = tmp_path / "damped_scaffnew.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def kind(file: Path) -> Any:
    """The method, known."""
    return registry.load_plugin(file)[0]


def quadratics() -> ps.Problem:
    return ps.Problem(ps.random_quadratics(n=6, d=5, L=1.0, mu=0.1, seed=3))


def forget() -> None:
    registry.METHODS._known.pop(NAME)


def elsewhere() -> Any:
    """The method's class, of no file and not known."""
    names: dict[str, Any] = {"__name__": "elsewhere"}
    exec(compile(CODE, "elsewhere", "exec", dont_inherit=True), names)
    return names["DampedScaffnew"]


# -- three ways --------------------------------------------------------------------------------------------------------
def test_register_makes_it_known_and_returns_it() -> None:
    Mine = elsewhere()
    assert ps.authoring.register(Mine) is Mine
    assert ps.authoring.METHODS[NAME] is registry.named("Damped_Scaffnew") is Mine
    assert ps.authoring.register(Mine) is Mine  # a cell of a notebook that is run again
    with pytest.raises(ps.InputError, match=f"no step limits are known for {NAME}"):
        registry.step_limits(NAME, 1.0)


@pytest.mark.slow
def test_an_entry_point_makes_it_known(tmp_path: Path, file: Path) -> None:
    """Nothing but the installed package: the methods' list, a flag of its own, a run, its report."""
    info = tmp_path / "damped_scaffnew-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: damped-scaffnew\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{NAME} = damped_scaffnew:DampedScaffnew\n")
    found = python(tmp_path, "run", NAME, *EASY, "--damping", "0.5", "--json")
    assert (found.returncode, json.loads(found.stdout)["damping"]) == (0, 0.5), found.stderr
    assert NAME in python(tmp_path, "--help").stdout

    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nbroken = no_such_module:Thing\n")
    found = python(tmp_path, "run", "gd", *EASY, "--json")
    assert found.returncode == 0
    assert "skipped the method broken from no_such_module:Thing: Module" in found.stderr


def python(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(Path(ps.__file__).parents[1]), str(folder)))}
    return subprocess.run(
        [sys.executable, "-m", "proxskip", *argv], env=env, capture_output=True, text=True, check=False
    )


def test_a_file_makes_it_known_on_the_command_line(call: Call, file: Path) -> None:
    code, out, err = call("run", NAME, *EASY, "--damping", "0.5", "--K", "3", "--plugin", file)
    assert (code, "damping = 0.5" in out, "K = 3" in out) == (0, True, True), err
    for argv in (["--plugin", file, "--help"], ["run", "--help", "--plugin", file]):
        assert NAME in call(*argv)[1]
    text = call("compare", "--help", "--plugin", file)[1]
    assert re.search(rf"--damping DAMPING\s+parameter\s+of {NAME}", text)
    code, _, err = call("run", "gd", *EASY, "--damping", "0.5", "--plugin", file)
    assert (code, f"gd does not take --damping, which is for {NAME}." in err) == (2, True)


def test_a_file_may_register_what_it_imports(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import proxskip as ps\nfrom damped_scaffnew import DampedScaffnew\nps.authoring.register(DampedScaffnew)\n"
    )
    assert [kind.name for kind in registry.load_plugin(tmp_path / "mine.py")] == [NAME]


@pytest.mark.usefixtures("quiet_steps")
def test_it_can_be_tuned_without_being_known() -> None:
    kind, problem = elsewhere(), quadratics()
    for method, damping in ((kind, 1.0), (kind(0.1, damping=0.5), 0.5)):
        best: Any = ps.tune(method, problem, budget=100, powers=range(-3, 0), steps=[2, 4], progress=False).method
        assert type(best) is kind
        assert best.damping == damping
    assert NAME not in ps.authoring.METHODS


# -- and then it works -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize("cohort", [None, 3])
def test_it_runs_and_sweeps(kind: Any, cohort: int | None, batch: int | None) -> None:
    A, b = ps.datasets.load("digits")
    problem = ps.split(ps.Logistic(A, b, l2=0.1, l2_relative=True), clients=5, by="label").with_batch(batch)
    method = kind.theory(problem)
    given: dict[str, Any] = {"rounds": 8, "cohort": cohort}
    a, b = (ps.run(method, problem, engine=engine, **given) for engine in ("cpu", "reference"))
    assert np.allclose(a.x, b.x, rtol=1e-10, atol=1e-12)
    assert np.allclose(a.h, b.h, rtol=1e-10, atol=1e-12)
    assert a.summary()["vectors_up"] == b.summary()["vectors_up"] == 8 * (cohort or 5)
    (swept,) = ps.sweep([method], problem, **given)
    assert swept.x.tobytes() == a.x.tobytes()
    assert ps.run(ps.Decaying(method, 0.1), problem, **given).summary()["decay"] == 0.1
    if cohort is None:  # undamped it is Scaffnew
        scaffnew = ps.run(ps.Scaffnew(method.gamma, 1 / method.K, K=method.K), problem, **given)
        assert np.allclose(a.x, scaffnew.x, rtol=1e-10, atol=1e-12)
        assert np.allclose(a.h, scaffnew.h, rtol=1e-10, atol=1e-12)


def test_python_resumes_it_once_it_is_known(kind: Any, tmp_path: Path) -> None:
    problem, out = quadratics(), tmp_path / "run"
    method = kind(gamma=0.1, K=3, damping=0.5)
    ps.run(method, problem, rounds=5, out=out)
    forget()
    with pytest.raises(ps.InputError, match=r"is not known.*proxskip\.authoring\.register"):
        ps.resume(out, problem, rounds=9)
    ps.authoring.register(kind)
    resumed = ps.resume(out, problem, rounds=9)
    assert resumed.x.tobytes() == ps.run(method, problem, rounds=9).x.tobytes()
    assert resumed.summary()["damping"] == 0.5


@pytest.mark.slow
def test_compare_and_plot(call: Call, file: Path, tmp_path: Path) -> None:
    out, figure = tmp_path / "runs", tmp_path / "figure.png"
    plugin = ["--plugin", file]
    code, text, _ = call("compare", NAME, "scaffnew", *EASY, "--damping", "0.5", "--out", out, *plugin)
    assert (code, NAME in text) == (0, True)
    found = json.loads((out / "compare.json").read_text())
    assert [(s["method"], s.get("damping")) for s in found] == [(NAME, 0.5), ("scaffnew", None)]
    assert call("plot", out, "--out", figure, *plugin)[0] == 0
    assert figure.is_file()
    (curve,) = plots.curves_of(out / NAME)
    assert (curve.label, method_styles.style(curve.method)) == (TITLE, ps.authoring.Style("#123456", "--", "X"))
    forget()
    assert plots.curves_of(out / NAME)[0].label == NAME  # a folder can be drawn without its method
    assert call("plot", out, "--out", figure)[0] == 0


def test_reports_take_any_colour_and_dashes(kind: Any) -> None:
    series = [Series(m, {"rounds": [0.0, 1.0]}, [1.0, 0.1], m) for m in (NAME, "scaffnew", "gd")]
    panel = Panel("a", "three", series, "rounds", {"rounds": "rounds"}, "gap")
    assert len({s.color for s in plots.curve_styles(series, plots.methods_in([panel]))}) == 3
    assert (method_styles.title(NAME), registry.title(NAME)) == (TITLE, TITLE)


def test_a_summary_keeps_its_own_fields(tmp_path: Path) -> None:
    """A parameter that has the name of a field of the summary does not hide it."""
    Odd = make_dataclass("Odd", [("gamma", float), ("L_kind", str, "mine"), ("decay", float, 0.25)], bases=(ps.GD,),
                         frozen=True, namespace={"about": ps.authoring.About(name="odd", parameters=("gamma",))})  # fmt: skip
    ps.authoring.register(Odd)
    problem = quadratics()
    made = ps.run(Odd(0.5), problem, rounds=3, out=tmp_path / "odd")
    assert (made.summary()["L_kind"], made.summary()["decay"]) == ("max", 0.25)
    assert ps.resume(tmp_path / "odd", problem, rounds=6).rounds == 6


# -- the protocol and Flower -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cohort", [None, 3])
def test_the_protocol_carries_it(kind: Any, cohort: int | None) -> None:
    problem = quadratics()
    closing = "everyone" if cohort is None else "deadline"
    server = Server(kind.theory(problem), problem, 8, closing=closing, cohort=as_participation(cohort), seed=4)
    clients = [Client(server.method, Worker(f, i, 4, None)) for i, f in enumerate(problem.clients)]
    state, memories = drive(server, clients)
    judge = ps.run(kind.theory(problem), problem, rounds=8, seed=4, cohort=cohort)
    assert np.array_equal(state.vectors["x"], judge.x)
    never = {"h": np.zeros(problem.d)}  # of a client that took part in no round
    assert np.array_equal([(m.memory or never)["h"] for m in memories], judge.memory["h"])


def test_a_node_makes_it_again_from_its_description(kind: Any) -> None:
    """What a Flower node does with the words of a message."""
    method = kind(gamma=0.1, K=3, damping=0.5)
    words = json.loads(json.dumps({"method": method.name, "parameters": description.parameters(method)}))
    assert description.revive({**words, "cohort": {"everyone": None}})[0] == method
    words["parameters"]["sigma"] = 1.0
    with pytest.raises(ps.InputError, match="has no parameter sigma"):
        description.revive({**words, "cohort": {"everyone": None}})


# -- refusals ----------------------------------------------------------------------------------------------------------
def method(about: Any = None, base: Any = ps.authoring.Method, **members: Any) -> Any:
    """A method's class with this about and these members."""
    given = members if about is None else members | {"about": about}
    return make_dataclass("Mine", [("gamma", float)], bases=(base,), frozen=True, namespace=given)


def half(self: Any, client: Any, memory: Any, K: int, x: Any) -> Any:
    return (x,), {}


@dataclass(frozen=True)
class Old:
    """A method as version 0.1 had them."""

    gamma: float = 0.1
    name = "old"
    handles = frozenset({"clients"})
    remembers = ()


def with_field(name: str) -> Any:
    bare = {"about": ps.authoring.About(name="mine")}
    return make_dataclass(
        "Mine", [("gamma", float), (name, float)], bases=(ps.authoring.Method,), frozen=True, namespace=bare
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Old, "Old is not a method; derive it from proxskip.authoring.Method."),
        (lambda: ps.GD(0.1), "GD is not a method; derive it from proxskip.authoring.Method."),
        (lambda: method(), "Mine has no description"),
        (lambda: method({"name": "mine"}), "Mine has no description"),
        (lambda: method(base=ps.GD), "Mine has no description"),
        (lambda: type("Bare", (ps.authoring.Method,), {"about": ps.authoring.About(name="bare")}), "Bare is not a dataclass"),
        (lambda: make_dataclass("Still", ["x"], bases=(ps.authoring.Method,), namespace={"about": ps.authoring.About(name="still")}),
         "Still has no step size"),
        (lambda: method(ps.authoring.About(name="My Method")), '"My Method" is not a valid method name'),
        (lambda: method(ps.authoring.About(name="")), '"" is not a valid method name'),
        (lambda: method(ps.authoring.About(name="gd")), 'the name "gd" is taken'),
        (lambda: method(ps.authoring.About(name="fedavg")), 'the name "fedavg" is taken'),
        (lambda: method(ps.authoring.About(name="mine", handles=frozenset({"clients", "colours"}))), 'handles "colours"'),
        (lambda: method(ps.authoring.About(name="mine"), Local=half), 'the name of the client half "Local" of mine'),
        (lambda: method(ps.authoring.About(name="mine"), a_half_whose_name_is_too_long=half), "use at most 23 lower-case letters"),
        (lambda: with_field("alpha"), "the parameter alpha of mine clashes with an option of the command line; rename it"),
        (lambda: with_field("split_seed"), "split_seed of mine clashes"),
    ],
)  # fmt: skip
def test_what_cannot_be_known_by_its_name_is_refused(wrong: Any, says: str) -> None:
    before = dict(ps.authoring.METHODS)
    with pytest.raises(ps.InputError, match=re.escape(says)) as refused:
        ps.authoring.register(wrong())
    assert str(refused.value).count(". ") == 0
    assert dict(ps.authoring.METHODS) == before


@pytest.mark.parametrize("other", ["there/damped_scaffnew.py", "there/other.py"])
def test_a_class_of_the_same_name_in_another_file_is_refused(tmp_path: Path, file: Path, other: str) -> None:
    """The same file twice is fine; another one does not take its place without a word."""
    (first,) = registry.load_plugin(file)
    (tmp_path / "there").mkdir()
    (tmp_path / other).write_text(CODE.replace("1.0 / (K * problem.L)", "9.0"))
    with pytest.raises(ps.InputError, match=f"is taken by the method of {re.escape(str(file))}; choose another name"):
        registry.load_plugin(tmp_path / other)
    assert ps.authoring.METHODS[NAME] is first
    (again,) = registry.load_plugin(file)
    assert ps.authoring.METHODS[NAME] is again


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("self.K * self.gamma", "2 * self.K * self.gamma", True),
        ("@dataclass(frozen=True, slots=True)", "@dataclass(frozen=True)", True),
        ("@dataclass(frozen=True, slots=True)", "x = K = 3\n\n\n@dataclass(frozen=True, slots=True)", False),
    ],
)
def test_resume_refuses_a_method_whose_code_was_edited(
    tmp_path: Path, file: Path, call: Call, old: str, new: str, changed: bool
) -> None:
    out = tmp_path / "run"
    assert call("run", NAME, *EASY, "--plugin", file, "--out", out)[0] == 0
    before = {f.name: f.read_bytes() for f in out.iterdir()}
    assert CODE.count(old) == 1
    file.write_text(CODE.replace(old, new))
    status, _, err = call("resume", out, "--rounds", "12", "--plugin", file)
    assert status == (2 if changed else 0), err
    if changed:
        assert f"the code of {NAME} has changed since this run began; restore it, or start a new run." in err
        assert {f.name: f.read_bytes() for f in out.iterdir()} == before
        file.write_text(CODE)
        assert call("resume", out, "--rounds", "12", "--plugin", file)[0] == 0


def test_folders_that_do_not_know_their_methods_code_are_resumed(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 0.2, and of classes without a file; nor does it matter if the code has no file now."""
    problem = quadratics()
    assert registry.source_digest(kind) is not None
    for method in (ps.GD(0.1), ps.Decaying(ps.GD(0.1), 0.1)):
        assert "source" not in description.config(method, problem, {}, 0, "cpu", as_participation(None), {})
    for saved, now in ((None, "a"), ("a", None)):
        monkeypatch.setattr(registry, "source_digest", lambda kind, found=saved: found)
        ps.run(kind.theory(problem), problem, rounds=4, out=tmp_path / str(saved))
        assert ("source" in (tmp_path / str(saved) / "spec.toml").read_text()) == (saved is not None)
        monkeypatch.setattr(registry, "source_digest", lambda kind, found=now: found)
        assert ps.resume(tmp_path / str(saved), problem, rounds=6).rounds == 6


def test_a_plugin_whose_method_ends_the_program_is_an_error(call: Call, file: Path) -> None:
    file.write_text(CODE.replace("        (x,) = exchange", "        raise SystemExit(0)\n        (x,) = exchange"))
    status, _, err = call("run", NAME, *EASY, "--plugin", file)
    assert status not in (0, 2)
    assert "the code of a method ended the program (SystemExit: 0)." in err


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1", "defines no method"),
        ("def", "cannot be loaded (SyntaxError"),
        ("1/0", "cannot be loaded (ZeroDivisionError: division by zero)"),
        ("raise SystemExit(0)", "cannot be loaded (SystemExit"),
        ("import sys\nsys.exit()", "cannot be loaded (SystemExit"),
        (CODE.replace(NAME, "gd"), 'the name "gd" is taken'),
        (None, "there is no file"),
    ],
)
def test_a_file_that_cannot_be_read_gets_one_sentence(call: Call, tmp_path: Path, code: str | None, says: str) -> None:
    path = tmp_path / "mine.py"
    if code is not None:
        path.write_text(code)
    status, out, err = call("run", "gd", *EASY, "--plugin", path)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert says in err


def test_methods_of_version_0_1_get_a_sentence() -> None:
    for run in (ps.run, lambda m, *a, **k: ps.sweep([m], *a, **k)):
        with pytest.raises(ps.InputError, match=r"Old is not a method; derive it from proxskip\.authoring\.Method"):
            run(Old(), quadratics(), rounds=3)


def test_the_names_that_flags_have_are_those_of_the_parser() -> None:
    """TAKEN is every flag of the commands that run a method, but for those that are a method's own."""
    _, commands = cli_flags.parser(ps.__version__)
    flags = {action.dest for name in ("run", "compare", "resume") for action in commands[name]._actions}
    theirs = {flag for m in ps.authoring.METHODS.values() for flag in m.flags()}
    assert flags - theirs == registry.TAKEN
