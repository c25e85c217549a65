"""Mistakes that were once made here: each of them gave a quietly wrong answer, lost a run, or ended in a traceback."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import scipy.sparse

import proxskip as ps
from proxskip.cli import main


def rows(N=40, d=4, seed=0):
    rng = np.random.Generator(np.random.Philox(seed))
    return rng.standard_normal((N, d)), rng.integers(0, 2, N).astype(float)


def small(**more):
    A, b = rows()
    return ps.split(ps.Logistic(A, b, l2=0.1), 4, "label", **more)


# -- answers -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_callers_matrix_is_left_alone(dtype):
    A = scipy.sparse.csr_matrix((np.array([1, 2, 3, 4]), np.array([2, 0, 1, 1]), np.array([0, 2, 4])), shape=(2, 3))
    before = A.toarray().copy(), A.indices.copy(), A.data.copy()
    ps.Logistic(A, [0, 1], dtype=dtype)
    for a, b in zip(before, (A.toarray(), A.indices, A.data), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("clients", [1, 3])
def test_split_keeps_row_weights(clients):
    A, b = rows(60)
    s = np.where(np.arange(60) < 10, 50.0, 1.0)
    model = ps.Logistic(A, b, l2=0.1, row_weights=s)
    problem = ps.split(model, clients, "iid")
    x = ps.run(ps.Scaffnew.theory(problem), problem, tol=1e-11, rounds=20_000).x
    assert np.allclose(x, ps.Problem([model]).solution.x, atol=1e-9)
    with pytest.raises(ps.InputError, match="equal row weights"):
        ps.split(model, 2, "iid", batch=3)
    with pytest.raises(ps.InputError, match="weight zero"):
        ps.split(ps.Logistic(A, b, row_weights=(np.arange(60) > 30).astype(float)), 4, "contiguous")


def test_minibatch_smoothness_does_not_need_the_solution():
    A, b = rows()
    known = ps.split(ps.Logistic(A, b, l2=0.1), 4, "label", batch=3)
    unknown = ps.split(ps.Logistic(A, b, l2=0.1), 4, "label", batch=3)
    unknown.__dict__["solution"] = None
    assert unknown.es_A == known.es_A
    assert np.isnan(unknown.es_C)


def test_rate_on_cohorts_with_minibatches_where_the_noise_ball_is_a_point():
    """Interpolation (C = 0): the sharp deterministic rate does not hold for stochastic gradients."""
    A = np.eye(20)
    problem = ps.Problem([ps.LeastSquares(A, np.ones(20)) for _ in range(6)], batch=1)
    assert problem.es_C == pytest.approx(0.0, abs=1e-20)
    method = ps.Scaffnew.theory(problem, cohort=2)
    ratios = []
    for seed in range(24):
        trace = ps.run(method, problem, rounds=40, seed=seed, cohort=2).trace
        ratios.append(trace["lyapunov"][-1] / trace["lyapunov_bound"][-1])
    assert np.mean(ratios) <= 1 + 3 * np.std(ratios) / np.sqrt(len(ratios))


def test_splitskip_takes_its_own_dual_and_nobody_elses():
    f = ps.Quadratic(np.array([1.0, 2.0, 4.0]), np.array([3.0, -1.0, 0.5]))
    problem = ps.Problem([f], psi=ps.prox.L1(0.3), D=np.eye(3))
    cold = ps.run(ps.SplitSkip.theory(problem), problem, tol=1e-12, rounds=5000)
    again = ps.run(ps.SplitSkip.theory(problem), problem, tol=1e-12, rounds=5000, warm=cold)
    assert again.rounds == 0
    other = ps.run(ps.Accelerated.theory(ps.Problem([f])), ps.Problem([f]), rounds=5)
    mixed = ps.run(ps.SplitSkip.theory(problem), problem, tol=1e-12, rounds=5000, warm=other)
    assert np.allclose(mixed.x, cold.x, atol=1e-10)
    with pytest.raises(ps.InputError, match="h = -D'y"):
        ps.run(ps.SplitSkip.theory(problem), problem, rounds=1, warm=cold, h0=np.ones((1, 3)))


def test_clients_must_agree_on_what_the_labels_mean():
    A, _ = rows(4, 2)
    with pytest.raises(ps.InputError, match=r"classes \(1, 2\)|classes \(1.0, 2.0\)"):
        ps.Problem([ps.Logistic(A, [0.0, 1.0, 0.0, 1.0]), ps.Logistic(A, [1.0, 2.0, 1.0, 2.0])])


class Shared:
    """An oracle with a buffer that all of them use: fine on one thread only."""

    L, mu = 2.0, 1.0
    buffer = np.empty(50)

    def __init__(self, center):
        self.center = center

    def value(self, x):
        return float(np.sum((x - self.center) ** 2))

    def gradient(self, x):
        np.subtract(x, self.center, out=self.buffer)
        for _ in range(20):
            np.sqrt(np.abs(self.buffer) + 1.0)
        return 2.0 * self.buffer


def test_oracles_of_unknown_make_do_not_run_at_the_same_time():
    problem = ps.Problem([Shared(np.full(50, float(i))) for i in range(8)], d=50)
    result = ps.run(ps.Scaffnew(0.3, 0.3), problem, rounds=60, threads=4)
    assert np.allclose(result.x, 3.5, atol=1e-6)


def test_oracles_cannot_change_x_and_must_return_vectors():
    class Greedy(Shared):
        def gradient(self, x):
            x -= self.center
            return x

    class Short(Shared):
        def gradient(self, x):
            return 1.0

    for kind, says in ((Greedy, "changes the x it is given"), (Short, r"has shape \(\)")):
        problem = ps.Problem([kind(np.zeros(50)), kind(np.ones(50))], d=50)
        for engine in ("cpu", "reference"):
            with pytest.raises(ps.InputError, match=says):
                ps.run(ps.Scaffnew(0.3, 0.3), problem, rounds=2, engine=engine)
    lists = ps.Problem(
        [type("Lists", (Shared,), {"gradient": lambda self, x: list(2 * (x - self.center))})(np.ones(50))], d=50
    )
    assert ps.run(ps.GD(0.5), lists, rounds=1).x.tolist() == [1.0] * 50


def test_resume_refuses_other_oracles_of_unknown_make(tmp_path):
    a, b = (ps.Problem([Shared(np.full(50, v)), Shared(np.zeros(50))], d=50) for v in (1.0, 2.0))
    ps.run(ps.Scaffnew(0.3, 0.3), a, rounds=3, out=tmp_path / "a")
    with pytest.raises(ps.InputError, match="fingerprint"):
        ps.resume(tmp_path / "a", b, rounds=5)
    assert ps.resume(tmp_path / "a", a, rounds=5).rounds == 5


# -- runs that must not be lost ----------------------------------------------------------------------------------------
def test_bad_input_with_force_keeps_the_old_run(tmp_path, capsys):
    good = [
        "run",
        "scaffnew",
        "--data",
        "digits",
        "--clients",
        "4",
        "--l2",
        "0.1",
        "--rounds",
        "2",
        "--out",
        str(tmp_path / "a"),
        "--quiet",
    ]
    assert main(good) == 0
    before = (tmp_path / "a" / "x.npy").read_bytes()
    for bad in (
        ["--batch", "5000"],
        ["--data", "nosuch"],
        ["--gamma", "-1"],
        ["--cohort", "9"],
        ["--engine", "abacus"],
    ):
        assert main([*good, "--force", *bad]) == 2
        assert (tmp_path / "a" / "x.npy").read_bytes() == before
    problem = small()
    ps.run(ps.Scaffnew.theory(problem), problem, rounds=2, out=tmp_path / "b")
    with pytest.raises(ps.InputError, match="x0"):
        ps.run(ps.Scaffnew.theory(problem), problem, rounds=2, out=tmp_path / "b", force=True, x0=[1.0])
    assert (tmp_path / "b" / "summary.json").exists()
    capsys.readouterr()


def test_large_graphs_and_many_own_steps_fit_a_checkpoint(tmp_path):
    n = 230
    problem = ps.Problem([ps.Quadratic([1.0, 0.5], [float(i), 1.0]) for i in range(n)])
    gossip = ps.DecentralizedScaffnew.theory(problem, graph="complete")
    straight = ps.run(gossip, problem, rounds=6)
    ps.run(gossip, problem, rounds=3, out=tmp_path / "a")
    assert ps.resume(tmp_path / "a", problem, rounds=6).x.tobytes() == straight.x.tobytes()
    own = ps.Scaffnew.theory(problem, own_steps=True)
    straight = ps.run(own, problem, rounds=6)
    ps.run(own, problem, rounds=3, out=tmp_path / "b")
    assert ps.resume(tmp_path / "b", problem, rounds=6).x.tobytes() == straight.x.tobytes()


def test_resume_with_a_users_own_psi(tmp_path):
    class Mine:
        def __call__(self, x):
            return float(np.abs(x).sum())

        def prox(self, x, t):
            return np.sign(x) * np.maximum(np.abs(x) - t, 0.0)

    f = ps.Quadratic([1.0, 2.0], [3.0, -1.0])
    ps.run(ps.ProxSkip(0.4, 0.5), ps.Problem([f], psi=Mine()), rounds=3, out=tmp_path / "a")
    assert ps.resume(tmp_path / "a", ps.Problem([f], psi=Mine()), rounds=6).rounds == 6
    assert "rounds = 6" in (tmp_path / "a" / "spec.toml").read_text()


# -- alarms and claims -------------------------------------------------------------------------------------------------
def test_single_precision_at_its_floor_is_not_stalled():
    A, b = ps.datasets.load("digits")
    problem = ps.split(ps.Logistic(A, b, l2=1e-1, l2_relative=True, dtype=np.float32), 5, "label")
    result = ps.run(ps.Scaffnew.theory(problem), problem, rounds=400)
    assert result.status is ps.Status.MAX_ROUNDS
    assert problem.solution is not None
    assert abs(result.summary()["gap"]) < 1e-6


def test_solution_with_an_intercept_and_none_without_a_minimiser():
    A, b = rows()
    problem = ps.split(ps.Logistic(A, b, l2=0.1, intercept=True), 4, "label")
    assert problem.mu is None
    assert np.linalg.norm(problem.gradient(problem.solution.x)) < 1e-10
    separable = ps.Problem([ps.Logistic(np.array([[1.0], [-1.0]]), [0, 1], l2=0.0)])
    assert separable.solution is None


def test_constants_that_make_no_sense_are_refused():
    class Odd(Shared):
        L, mu = 1.0, 2.0

    with pytest.raises(ps.InputError, match=r"mu = 2\.0 and L = 1\.0"):
        ps.Problem([Odd(np.zeros(50))], d=50)


def test_labels_may_be_words_or_truth_values():
    A, _ = rows(4, 2)
    f = ps.Logistic(A, ["ham", "spam", "ham", "spam"])
    assert f.classes == ("ham", "spam")
    assert f.b.tolist() == [-1, 1, -1, 1]
    assert f.accuracy(np.zeros(2), A, np.array(["ham", "ham", "spam", "spam"])) == 0.5
    assert ps.Logistic(A, [True, False, True, True]).b.tolist() == [1, -1, 1, 1]
    assert ps.Softmax(A, ["a", "b", "c", "a"]).classes == ("a", "b", "c")
    with pytest.raises(ps.InputError, match="not numbers"):
        ps.LeastSquares(A, ["a", "b", "c", "d"])


def test_the_claimed_rate_of_acceleration_needs_its_own_momentum():
    problem = ps.Problem(ps.random_quadratics(3, 4))
    right = ps.Accelerated.theory(problem)
    assert right.zeta(problem) is not None
    assert ps.Accelerated(right.gamma, 0.0).zeta(problem) is None
    with pytest.raises(ps.InputError, match=r"momentum 0\.99 diverges"):
        ps.run(ps.Accelerated(1.4 / problem.L_global, 0.99), problem, rounds=1)


def test_splitskip_claims_no_rate_without_the_range_condition():
    f = ps.Quadratic([1.0, 2.0, 3.0], [1.0, 0.0, 1.0])
    cycle = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.0, 1.0]])
    assert ps.SplitSkip(0.3, 0.5, 0.3).zeta(ps.Problem([f], psi=ps.prox.L1(0.1), D=cycle)) is None
    assert ps.SplitSkip(0.3, 0.5, 0.3).zeta(ps.Problem([f], psi=ps.prox.L1(0.1), D=cycle[:2])) is not None


def test_cohorts_that_never_meet_are_named():
    problem = small(weights="equal")
    with pytest.warns(ps.UnsafeStepWarning, match="0, 1; 2, 3 together"):
        result = ps.run(ps.Scaffnew(0.1, 0.5), problem, rounds=4, cohort=[[0, 1], [2, 3]])
    assert "never bring" in result.warnings[-1]
    assert result.summary()["zeta"] is None
    ps.run(ps.Scaffnew(0.1, 0.5), problem, rounds=4, cohort=[[0, 1], [2, 3], [1, 2]])


def test_iterations_alone_have_no_hidden_limit_on_rounds(monkeypatch):
    monkeypatch.setattr(sys.modules["proxskip.loop.stop"], "MAX_ROUNDS", 10)
    problem = small()
    assert ps.run(ps.GD.theory(problem), problem, iterations=25).rounds == 25
    unreachable = ps.run(ps.GD.theory(problem), problem, tol=1e-300)
    assert unreachable.rounds == 10
    assert "without reaching" in unreachable.message


def test_the_summary_of_a_run_that_blew_up_speaks_of_the_returned_x_and_of_all_its_costs():
    problem = ps.Problem(ps.random_quadratics(3, 4))
    with pytest.warns(ps.UnsafeStepWarning):
        result = ps.run(ps.GD(1e100), problem, rounds=2000, every=500, allow_unsafe_step=True)
    found = result.summary()
    assert result.status is ps.Status.DIVERGED
    assert len(result.trace) == 1  # no record but the first
    assert found["rounds"] == found["exchanges"] == found["iterations"] > 1
    with np.errstate(all="ignore"):
        value = problem.value(result.x)
    assert found["f"] == (value if np.isfinite(value) else None)
    assert found["f"] != result.trace["f"][0]


def test_warm_start_from_a_method_with_controls_to_one_without():
    problem = small()
    first = ps.run(ps.Scaffnew.theory(problem), problem, rounds=20)
    assert ps.run(ps.GD.theory(problem), problem, rounds=1, warm=first).trace["gap"][0] == first.trace["gap"][-1]


# -- one sentence instead of a traceback -------------------------------------------------------------------------------
def test_wrong_kinds_of_values_get_one_sentence():
    problem, f = small(), ps.Quadratic([1.0, 2.0], [1.0, 1.0])
    A, b = rows()
    scaffnew = ps.Scaffnew.theory(problem)
    calls = {
        "rounds = 2.5": lambda: ps.run(scaffnew, problem, rounds=2.5),
        "rounds = '3'": lambda: ps.run(scaffnew, problem, rounds="3"),
        "clients = '3'": lambda: ps.split(ps.Logistic(A, b), "3"),
        "clients = 2.5": lambda: ps.split(ps.Logistic(A, b), 2.5),
        "l2 = 'x'": lambda: ps.Logistic(A, b, l2="x"),
        r"cohort = \[0, 1\]": lambda: ps.run(scaffnew, problem, rounds=1, cohort=[0, 1]),
        "D has shape": lambda: ps.Problem([f], psi=ps.prox.L1(1.0), D=np.eye(3)),
        "p = 1e-300": lambda: ps.run(ps.Scaffnew(0.1, 1e-300), problem, rounds=1),
        "p = 'x'": lambda: ps.run(ps.Scaffnew(0.1, "x"), problem, rounds=1),
    }
    for says, call in calls.items():
        with pytest.raises(ps.InputError, match=says):
            call()
    ps.Problem([f], psi=ps.prox.L1(1.0), D=[[1.0, -1.0]])
    assert ps.run(ps.LocalGD(0.1, np.int64(3)), problem, rounds=2).summary()["iterations"] == 6


def test_own_steps_with_minibatches_from_the_command_line(capsys):
    flags = [
        "run",
        "scaffnew",
        "--data",
        "digits",
        "--clients",
        "5",
        "--own-steps",
        "--batch",
        "8",
        "--rounds",
        "2",
        "--json",
        "--quiet",
    ]
    assert main(flags) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["gamma"]) == 5
    assert found["warnings"] == []
