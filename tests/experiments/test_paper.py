"""The paper's own setting: w8a, 20 clients sorted by label, full gradients, gamma = 1/L with the global L, p = 1/100."""

from pathlib import Path

import pytest

import proxskip as ps

pytestmark = [pytest.mark.paper, pytest.mark.xdist_group("paper")]


@pytest.fixture(scope="module")
def problem(proxskip_data: Path) -> ps.Problem:
    A, b = ps.datasets.load("w8a", data_dir=proxskip_data)
    return ps.split(ps.Logistic(A, b, l2_relative=1e-4), 20, "label", smoothness="average")


@pytest.mark.slow
def test_constants(problem: ps.Problem) -> None:
    assert pytest.approx(0.6611993844944691, rel=1e-10) == problem.whole.L0
    assert problem.l2 == pytest.approx(1e-4 * problem.whole.L0, rel=1e-12)
    assert problem.L_max == pytest.approx(1.1975, abs=1e-4)
    assert problem.solution.f == pytest.approx(0.137417763410536, abs=1e-11)
    assert problem.solution.certificate < 1e-15
    equal = ps.split(problem.whole, 20, "label", weights="equal")
    assert equal.solution.f == pytest.approx(0.13741196, abs=1e-8)


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.release
def test_scaffnew_goes_on_to_the_end_of_double_precision(problem: ps.Problem) -> None:
    with pytest.warns(ps.UnsafeStepWarning, match=r"\(1\.81/L\)"):
        result = ps.run(ps.Scaffnew(gamma=1 / problem.L, p=0.01), problem, target=2e-13, rounds=2000)
    trace = result.trace
    gap = dict(zip(trace["round"].astype(int), trace["gap"], strict=True))
    assert gap[200] < 2e-5
    assert gap[400] < 2e-7
    assert result.success
    assert result.summary["gap"] < 2e-13  # known up to 6e-14
    assert result.summary["sum_h"] < 1e-12
