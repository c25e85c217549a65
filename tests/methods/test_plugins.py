"""A method from outside the package, the one of docs/authoring.md, works everywhere once it is known."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.methods import registry
from proxskip.report import plots
from support.comparing import close
from support.machine import Machine
from support.pages import code_of
from support.problems import quadratics

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("own_methods")]

CODE = code_of("authoring.md", 0)
NAME, TITLE = "damped-scaffnew", "Damped Scaffnew"
EASY = ["--data", "digits", "--l2-relative", "0.1", "--clients", "5", "--rounds", "8"]
PROBLEM = ps.Problem(quadratics(6, 5))
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
    assert ps.core.register(Mine) is Mine
    assert ps.core.METHODS[NAME] is registry.named("Damped_Scaffnew") is Mine
    assert ps.core.register(Mine) is Mine  # a cell of a notebook that is run again
    with pytest.raises(ps.InputError, match=f"no step limits are known for {NAME}"):
        registry.step_limits(NAME, 1.0)


@pytest.mark.slow
def test_an_entry_point_makes_it_known(tmp_path: Path, file: Path) -> None:
    info = tmp_path / "damped_scaffnew-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: damped-scaffnew\nVersion: 1.0\n")
    points = f"[{registry.GROUP}]\n{NAME} = damped_scaffnew:DampedScaffnew\nbroken = no_such_module:Thing\n"
    (info / "entry_points.txt").write_text(points)
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(Path(ps.__file__).parents[1]), str(tmp_path)))}
    command = [sys.executable, "-m", "proxskip", "run", NAME, *EASY, "--damping", "0.5", "--json"]
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (found.returncode, json.loads(found.stdout)["damping"]) == (0, 0.5), found.stderr
    assert "skipped the method broken from no_such_module:Thing: Module" in found.stderr


def test_a_file_makes_it_known_on_the_command_line(call: Call, file: Path) -> None:
    code, out, err = call("run", NAME, *EASY, "--damping", "0.5", "--K", "3", "--plugin", file)
    assert (code, "damping = 0.5" in out, "K = 3" in out) == (0, True, True), err
    for argv in (["--plugin", file, "--help"], ["run", "--help", "--plugin", file]):
        assert NAME in call(*argv)[1]
    text = call("sweep", "--help", "--plugin", file)[1]
    assert re.search(rf"--damping DAMPING\s+parameter\s+of {NAME}", text)
    code, _, err = call("run", "gd", *EASY, "--damping", "0.5", "--plugin", file)
    assert (code, f"gd does not take --damping, which is for {NAME}." in err) == (2, True)


def test_a_parameter_with_the_name_of_a_flag_is_refused(call: Call, file: Path) -> None:
    file.write_text(CODE.replace("damping", "alpha"))
    try:
        code, _, err = call("run", NAME, *EASY, "--plugin", file)
    finally:
        forget()
    assert code == 2
    assert f"the parameter alpha of {NAME} clashes with a flag of the command line; rename it" in err


@pytest.mark.usefixtures("quiet_steps")
def test_it_obeys_the_laws_of_a_row_of_the_table() -> None:
    """As in the METHODS table: (x*, h*) is a fixed point, sum_i w_i h_i stays zero, it converges."""
    kind = elsewhere()
    weighted = ps.Problem(quadratics(4), [1.0, 2.0, 3.0, 4.0])
    machine = Machine(kind.theory(weighted), weighted)
    machine.put_solution()
    for r in range(3):
        machine.round(r)
    s = weighted.solution
    assert close(machine.x, np.tile(s.x, (4, 1)), 1e-12)
    assert close(machine.memory["h"], s.h, 1e-11)
    for cohort in (None, 3):
        result = ps.run(kind(damping=0.9), PROBLEM, tol=1e-8, cohort=cohort)
        assert result.success
        assert result.trace["sum_h"].max() <= 1e-12


def test_it_can_be_tuned_without_being_known() -> None:
    kind = elsewhere()
    for method, damping in ((kind, 1.0), (kind(0.1, damping=0.5), 0.5)):
        best: Any = ps.tune(method, PROBLEM, budget=100, powers=range(-3, 0), steps=[2, 4], progress=False).method
        assert type(best) is kind
        assert best.damping == damping
    assert NAME not in ps.core.METHODS


@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize("cohort", [None, 3])
def test_it_runs_and_sweeps(kind: Any, cohort: int | None, batch: int | None) -> None:
    A, b = ps.datasets.load("digits")
    problem = ps.split(ps.Logistic(A, b, l2_relative=0.1), clients=5, by="label").with_batch(batch)
    method = kind.theory(problem)
    given: dict[str, Any] = {"rounds": 8, "cohort": cohort}
    a, b = (ps.run(method, problem, engine=engine, **given) for engine in ("cpu", "reference"))
    assert np.allclose(a.x, b.x, rtol=1e-10, atol=1e-12)
    assert np.allclose(a.h, b.h, rtol=1e-10, atol=1e-12)
    assert a.summary["vectors_up"] == b.summary["vectors_up"] == 8 * (cohort or 5)
    (swept,) = ps.sweep([method], problem, **given)
    assert swept.x.tobytes() == a.x.tobytes()
    assert ps.run(ps.Decaying(method, 0.1), problem, **given).summary["decay"] == 0.1
    if cohort is None:  # undamped it is Scaffnew
        scaffnew = ps.run(ps.Scaffnew(method.gamma, 1 / method.K, K=method.K), problem, **given)
        assert np.allclose(a.x, scaffnew.x, rtol=1e-10, atol=1e-12)
        assert np.allclose(a.h, scaffnew.h, rtol=1e-10, atol=1e-12)


def test_python_resumes_it_once_it_is_known(kind: Any, tmp_path: Path) -> None:
    out, method = tmp_path / "run", kind(gamma=0.1, K=3, damping=0.5)
    ps.run(method, PROBLEM, rounds=5, out=out)
    forget()
    with pytest.raises(ps.InputError, match=r"is not known.*proxskip\.core\.register"):
        ps.resume(out, PROBLEM, rounds=9)
    ps.core.register(kind)
    resumed = ps.resume(out, PROBLEM, rounds=9)
    assert resumed.x.tobytes() == ps.run(method, PROBLEM, rounds=9).x.tobytes()
    assert resumed.summary["damping"] == 0.5


def test_a_folder_is_drawn_with_its_methods_style_or_without_its_method(kind: Any, tmp_path: Path) -> None:
    ps.run(kind.theory(PROBLEM), PROBLEM, rounds=2, out=tmp_path / "run")
    groups = plots.groups_of(tmp_path / "run")
    assert list(groups) == [TITLE]
    (curve,) = plots.curve_panels(groups, ["rounds"])[0].series
    assert plots.style(curve.method) == ps.core.Style("#123456", "--", "X")
    forget()
    assert list(plots.groups_of(tmp_path / "run")) == [NAME]


def test_a_summary_keeps_its_own_fields(tmp_path: Path) -> None:
    """A parameter that has the name of a field of the summary does not hide it."""
    Odd = make_dataclass("Odd", [("gamma", float), ("rounds", str, "mine"), ("decay", float, 0.25)], bases=(ps.GD,),
                         frozen=True, namespace={"about": ps.core.About(name="odd")})  # fmt: skip
    ps.core.register(Odd)
    made = ps.run(Odd(0.5), PROBLEM, rounds=3, out=tmp_path / "odd")
    assert (made.summary["rounds"], made.summary["decay"]) == (3, 0.25)
    assert ps.resume(tmp_path / "odd", PROBLEM, rounds=6).rounds == 6


# -- refusals ----------------------------------------------------------------------------------------------------------
def method(about: Any = None, base: Any = ps.core.Method, fields: tuple[str, ...] = ("gamma",), **members: Any) -> Any:
    """A method's class with this about, these parameters and these members."""
    given = members if about is None else members | {"about": about}
    return make_dataclass("Mine", [(name, float) for name in fields], bases=(base,), frozen=True, namespace=given)


def half(self: Any, client: Any, memory: Any, K: int, x: Any) -> Any:
    return (x,), {}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: ps.GD(0.1), "GD is not a method; derive it from proxskip.core.Method."),
        (lambda: method(), "Mine has no description"),
        (lambda: method(base=ps.GD), "Mine has no description"),
        (lambda: type("Bare", (ps.core.Method,), {"about": ps.core.About(name="bare")}), "Bare is not a dataclass"),
        (lambda: method(ps.core.About(name="mine"), fields=("x",)), "Mine has no step size"),
        (lambda: method(ps.core.About(name="My Method")), '"My Method" is not a valid method name'),
        (lambda: method(ps.core.About(name="gd")), 'the name "gd" is taken'),
        (lambda: method(ps.core.About(name="mine", handles=frozenset({"clients", "colours"}))), 'handles "colours"'),
        (lambda: method(ps.core.About(name="mine"), Local=half), 'the name of the client half "Local" of mine'),
        (lambda: method(ps.core.About(name="mine"), a_half_whose_name_is_too_long=half), "use at most 23 lower-case letters"),
    ],
)  # fmt: skip
def test_what_cannot_be_known_by_its_name_is_refused(wrong: Any, says: str) -> None:
    before = dict(ps.core.METHODS)
    with pytest.raises(ps.InputError, match=re.escape(says)) as refused:
        ps.core.register(wrong())
    assert str(refused.value).count(". ") == 0
    assert dict(ps.core.METHODS) == before


@pytest.mark.parametrize("other", ["there/damped_scaffnew.py", "there/other.py"])
def test_a_class_of_the_same_name_in_another_file_is_refused(tmp_path: Path, file: Path, other: str) -> None:
    """The same file twice is fine; another one does not take its place without a word."""
    (first,) = registry.load_plugin(file)
    (tmp_path / "there").mkdir()
    (tmp_path / other).write_text(CODE.replace("1.0 / (K * problem.L)", "9.0"))
    with pytest.raises(ps.InputError, match=f"is taken by the method of {re.escape(str(file))}; choose another name"):
        registry.load_plugin(tmp_path / other)
    assert ps.core.METHODS[NAME] is first
    (again,) = registry.load_plugin(file)
    assert ps.core.METHODS[NAME] is again


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
        ("raise SystemExit(0)", "cannot be loaded (SystemExit"),
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
