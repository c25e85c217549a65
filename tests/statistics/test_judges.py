"""The table of sites that share no rows is the one that statsmodels and lifelines compute from all rows together.

Equal means to eight digits: coefficients beside the larger of themselves and their errors, errors beside themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import proxskip as ps
from proxskip.results.inference import Inference
from proxskip.types import Array
from support.tiers import needs

pytestmark = [pytest.mark.stats, needs("statsmodels"), needs("lifelines")]
DIGITS = 1e-8
TO_THE_END = {"precision": 1e-20, "r_precision": 1e-20}


class Data(NamedTuple):
    """Covariates in named columns, what they explain, and the site of each row."""

    X: Any
    y: Any
    site: Array
    event: Any = None
    offset: Any = None


def columns(A: Any, *, scale: Any = 1.0) -> Any:
    import pandas

    return pandas.DataFrame(A * scale, columns=[f"c{j}" for j in range(np.shape(A)[1])])


def dealt(rows: int, sites: int, seed: int) -> Array:
    """Sites of random rows."""
    return np.random.default_rng(seed).integers(0, sites, rows)


def sorted_by(column: Any, sites: int) -> Array:
    """Sites that differ in a column as much as they can."""
    place = np.argsort(np.argsort(np.asarray(column), kind="stable"), kind="stable")
    return place * sites // len(place)


def of_statsmodels(name: str, y: str, drop: tuple[str, ...] = (), sites: int = 3, by: str | None = None) -> Data:
    import statsmodels.api

    frame = getattr(statsmodels.api.datasets, name).load_pandas().data.astype(float)
    X = frame.drop(columns=[y, *drop])
    return Data(X, frame[y], dealt(len(X), sites, 1) if by is None else sorted_by(X[by], sites))


def of_lifelines(
    name: str, time: str, event: str, drop: tuple[str, ...] = (), sites: int = 5, by: str | None = None
) -> Data:
    import lifelines.datasets
    import pandas

    frame = getattr(lifelines.datasets, f"load_{name}")().dropna()
    X = pandas.get_dummies(frame.drop(columns=[time, event, *drop]), drop_first=True).astype(float)
    return Data(X, frame[time], dealt(len(X), sites, 2) if by is None else sorted_by(X[by], sites), frame[event])


def of_sksurv(name: str, drop: tuple[str, ...] = (), sites: int = 4) -> Data:
    pytest.importorskip("sksurv", reason="scikit-survival is not installed")
    import pandas
    import sksurv.datasets

    frame, y = getattr(sksurv.datasets, f"load_{name}")()
    event, time = y.dtype.names
    X = pandas.get_dummies(frame.drop(columns=list(drop)), drop_first=True).astype(float)
    return Data(X, y[time], dealt(len(X), sites, 3), y[event].astype(int))


def affairs() -> Data:
    data = of_statsmodels("fair", "affairs", sites=6, by="age")
    return data._replace(y=(data.y > 0).astype(int))


def cancer() -> Data:
    """Deaths by county, with the logarithm of the population as offset."""
    data = of_statsmodels("cancer", "cancer", sites=4)
    return Data(np.log(data.X), data.y, data.site, offset=np.log(data.X["population"]))


def random_classes(seed: int, rows: int, d: int, sites: int, scale: Any = 1.0) -> Data:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, d))
    y = (A @ rng.standard_normal(d) / d**0.5 + rng.logistic(size=rows) > 0).astype(int)
    return Data(columns(A, scale=scale), y, sorted_by(A[:, 0], sites))


def random_counts(seed: int, level: float, scale: Any = 1.0, offsets: bool = False) -> Data:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((500, 4))
    offset = np.log(rng.uniform(0.1, 1000, 500)) if offsets else np.zeros(500)
    y = rng.poisson(np.exp(level + A @ [0.5, -0.4, 0.0, 0.2] + offset))
    return Data(columns(A, scale=scale), y, sorted_by(A[:, 1], 7), offset=offset if offsets else None)


def random_times(seed: int, ties: int, censored: float, sites: int, scale: Any = 1.0) -> Data:
    """Times in so many values, so that most events are tied."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((600, 5))
    time = rng.exponential(np.exp(-A @ [0.7, -0.3, 0.0, 0.1, 0.2]))
    time = np.ceil(ties * time / time.max() + 1e-9)
    return Data(columns(A, scale=scale), time, dealt(600, sites, seed), (rng.random(600) > censored).astype(int))


EXTREME = np.array([1e-8, 1e6, 1.0, 1e-3, 1e4])
SQUARES: dict[str, Callable[[], Data]] = {
    "stackloss": lambda: of_statsmodels("stackloss", "STACKLOSS"),
    "statecrime": lambda: of_statsmodels("statecrime", "murder", by="poverty"),
    "copper": lambda: of_statsmodels("copper", "WORLDCONSUMPTION", ("TIME",)),
    "scotland": lambda: of_statsmodels("scotland", "YES", by="GDP"),
    "ccard": lambda: of_statsmodels("ccard", "AVGEXP"),
    "engel": lambda: of_statsmodels("engel", "foodexp", by="income"),
    "extreme scales": lambda: random_classes(4, 300, 5, 6, EXTREME),
}
CLASSES: dict[str, Callable[[], Data]] = {
    "spector": lambda: of_statsmodels("spector", "GRADE"),
    "affairs by age": affairs,
    "anes96": lambda: of_statsmodels("anes96", "vote", ("popul", "PID", "selfLR"), by="income"),
    "random by a covariate": lambda: random_classes(1, 2000, 12, 8),
    "extreme scales": lambda: random_classes(2, 400, 5, 6, EXTREME),
    "a site for every other row": lambda: random_classes(3, 600, 4, 300),
}
COUNTS: dict[str, Callable[[], Data]] = {
    "randhie": lambda: of_statsmodels("randhie", "mdvis", sites=10, by="lncoins"),
    "cpunish": lambda: of_statsmodels("cpunish", "EXECUTIONS"),
    "committee": lambda: of_statsmodels("committee", "BILLS104"),
    "cancer with populations": cancer,
    "random with exposures": lambda: random_counts(1, -1.0, offsets=True),
    "random large counts": lambda: random_counts(2, 9.0),
    "extreme scales": lambda: random_counts(3, 0.0, scale=EXTREME[:4]),
}
TIMES: dict[str, Callable[[], Data]] = {
    "rossi": lambda: of_lifelines("rossi", "week", "arrest"),
    "rossi by age": lambda: of_lifelines("rossi", "week", "arrest", by="age"),
    "gbsg2": lambda: of_lifelines("gbsg2", "time", "cens"),
    "gbsg2 by age": lambda: of_lifelines("gbsg2", "time", "cens", by="age"),
    "larynx": lambda: of_lifelines("larynx", "time", "death", sites=2),
    "kidney transplant": lambda: of_lifelines("kidney_transplant", "time", "death", by="age"),
    "lung by institution": lambda: of_lifelines("lung", "time", "status", ("inst",), by="age"),
    "waltons": lambda: of_lifelines("waltons", "T", "E", sites=3),
    "leukemia": lambda: of_lifelines("leukemia", "t", "status", sites=2),
    "whas500": lambda: of_sksurv("whas500"),
    "veterans": lambda: of_sksurv("veterans_lung_cancer"),
    "aids": lambda: of_sksurv("aids", ("karnof", "raceth", "txgrp", "strat2", "ivdrug")),
    "random with ties": lambda: random_times(1, 12, 0.3, 6),
    "random, mostly censored": lambda: random_times(2, 10_000, 0.8, 10),
    "extreme scales": lambda: random_times(3, 40, 0.4, 4, EXTREME),
}


def fitted(model: Any, data: Data) -> Inference:
    problem = ps.split(model, by="group", groups=data.site)
    result = ps.run(
        ps.Newton(),
        problem,
        tol=1e-12 * max(1.0, problem.residual(np.zeros(problem.d), 1.0)),
        rounds=60,
        progress=False,
    )
    return result.inference(problem)


def check(found: Inference, estimate: Any, error: Any, p: Any = None, interval: Any = None) -> None:
    estimate, error = np.asarray(estimate), np.asarray(error)
    size = np.maximum(np.abs(estimate), error)
    assert np.max(np.abs(found.estimate - estimate) / size) < DIGITS
    np.testing.assert_allclose(found.standard_error, error, rtol=DIGITS)
    if p is not None:  # a p-value far out has fewer digits than its z
        np.testing.assert_allclose(found.p, p, rtol=1e-5, atol=1e-300)
    if interval is not None:
        ends = np.stack([found.low, found.high], axis=1)
        assert np.max(np.abs(ends - np.asarray(interval)) / size[:, None]) < 3 * DIGITS


def check_statsmodels(found: Inference, theirs: Any) -> None:
    assert found.names[-1] == "intercept"
    check(found, theirs.params, theirs.bse, theirs.pvalues, theirs.conf_int())


def with_constant(X: Any) -> Any:
    return X.assign(constant=1.0)


@pytest.mark.parametrize("name", SQUARES)
def test_least_squares(name: str) -> None:
    import statsmodels.api as sm

    data = SQUARES[name]()
    theirs = sm.OLS(data.y, with_constant(data.X)).fit()
    found = fitted(ps.LeastSquares(data.X, data.y, intercept=True), data)
    assert found.degrees == theirs.df_resid
    check_statsmodels(found, theirs)


@pytest.mark.parametrize("name", CLASSES)
def test_logistic(name: str) -> None:
    import statsmodels.api as sm

    data = CLASSES[name]()
    theirs = sm.GLM(data.y, with_constant(data.X), family=sm.families.Binomial()).fit(tol=1e-15, maxiter=100)
    check_statsmodels(fitted(ps.Logistic(data.X, data.y, intercept=True), data), theirs)


@pytest.mark.parametrize("name", COUNTS)
def test_poisson(name: str) -> None:
    import statsmodels.api as sm

    data = COUNTS[name]()
    family = sm.families.Poisson()
    theirs = sm.GLM(data.y, with_constant(data.X), family=family, offset=data.offset).fit(tol=1e-15, maxiter=100)
    check_statsmodels(fitted(ps.Poisson(data.X, data.y, offset=data.offset, intercept=True), data), theirs)


@pytest.mark.parametrize("name", TIMES)
def test_cox(name: str) -> None:
    """Every site is a stratum. By itself lifelines stops earlier."""
    from lifelines import CoxPHFitter

    data = TIMES[name]()
    frame = data.X.assign(time_=np.asarray(data.y), event_=np.asarray(data.event), site_=data.site)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = CoxPHFitter().fit(frame, "time_", "event_", strata=["site_"], fit_options=TO_THE_END)
    interval = theirs.confidence_intervals_.to_numpy()
    found = fitted(ps.Cox(data.X, data.y, data.event), data)
    assert found.names == tuple(data.X.columns)
    check(found, theirs.params_, theirs.standard_errors_, interval=interval)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("name", ["rossi", "random with ties", "waltons"])
def test_cox_with_either_treatment_of_ties(name: str, ties: Any) -> None:
    """statsmodels has both, and its errors; it stops earlier than we do."""
    import statsmodels.api as sm

    data = TIMES[name]()
    theirs = sm.PHReg(data.y, data.X, status=data.event, strata=data.site, ties=ties).fit(disp=0)
    found = fitted(ps.Cox(data.X, data.y, data.event, ties=ties), data)
    np.testing.assert_allclose(found.estimate, theirs.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.standard_error, theirs.bse, rtol=1e-5)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("name", ["whas500", "veterans", "gbsg2"])
def test_the_coefficients_of_one_site_are_those_of_scikit_survival(name: str, ties: Any) -> None:
    linear_model = pytest.importorskip("sksurv.linear_model", reason="scikit-survival is not installed")
    data = TIMES[name]()
    y = np.array(list(zip(data.event.astype(bool), data.y, strict=True)), dtype=[("event", "?"), ("time", "f8")])
    theirs = linear_model.CoxPHSurvivalAnalysis(ties=ties, tol=1e-15, n_iter=200).fit(data.X, y)
    found = fitted(ps.Cox(data.X, data.y, data.event, ties=ties), data._replace(site=np.zeros(len(y), dtype=int)))
    assert np.max(np.abs(found.estimate - theirs.coef_) / found.standard_error) < 1e-7


def test_robust_errors_are_those_of_statsmodels_with_a_cluster_for_each_site() -> None:
    import statsmodels.api as sm

    data = CLASSES["a site for every other row"]()
    clusters = {"groups": data.site, "use_correction": False}
    family = sm.families.Binomial()
    theirs = sm.GLM(data.y, data.X, family=family).fit(tol=1e-15, cov_type="cluster", cov_kwds=clusters)
    problem = ps.split(ps.Logistic(data.X, data.y), by="group", groups=data.site)
    result = ps.run(ps.Newton(), problem, tol=1e-12, rounds=60, progress=False)
    found = result.inference(problem, robust=True)
    np.testing.assert_allclose(found.standard_error, theirs.bse, rtol=DIGITS)
