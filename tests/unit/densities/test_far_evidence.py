"""Observations so far out that logs of densities are rounding errors: a typed refusal, never made-up numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import certimap as cm
from certimap.errors import DataError

MEANS = (0.0, 1.0)


def network() -> cm.LinearGaussianNetwork:
    domain = cm.Domain([cm.Categorical("a", ["0", "1"])])
    discrete = cm.MarkovNetwork(domain, [cm.Factor([0], [0.5, 0.5])])
    y = cm.LinearGaussian("y", ["a"], [0.0, 5.0])
    return cm.LinearGaussianNetwork([cm.LinearGaussian("x", ["a"], MEANS), y], discrete)


def circuit() -> cm.Circuit:
    builder = cm.CircuitBuilder(cm.Domain([cm.Categorical("a", ["0", "1"]), cm.Real("x"), cm.Real("y")]))
    parts = [(builder.gaussian(1, m, 1.0), builder.gaussian(2, 5.0 * i, 1.0)) for i, m in enumerate(MEANS)]
    builder.sum([builder.product([builder.indicator(0, i), *p]) for i, p in enumerate(parts)], weights=[0.5, 0.5])
    return builder.build()


def mixture() -> cm.GaussianMixture:
    return cm.GaussianMixture([0.5, 0.5], [[m, 5.0 * i] for i, m in enumerate(MEANS)], [np.eye(2)] * 2, ["x", "y"])


def log_odds(x: float) -> float:
    """Return ln p(a = 1 | x) / p(a = 0 | x), exactly up to one rounding."""
    return float((Fraction(x) ** 2 - (Fraction(x) - 1) ** 2) / 2)


@pytest.mark.parametrize("x", [1e9, -1e16, 1e20, 1e130, 1e200])
@pytest.mark.parametrize("make", [network, circuit])
def test_marginals_samples_and_answers_refuse_what_rounding_hides(make, x: float) -> None:
    model = make()
    for ask in (cm.marginals, cm.map_query):
        with pytest.raises(cm.QueryError, match=r"too far (from the model|out)"):
            ask(model, ["a"], {"x": x})
    with pytest.raises(cm.QueryError, match=r"too far (from the model|out)"):
        cm.sample(model, 3, {"x": x}, ["a"])
    with pytest.raises(cm.QueryError, match=r"too far (from the model|out)"):
        cm.log_evidence(model, {"x": x})


@pytest.mark.parametrize("make", [network, circuit])
def test_what_rounding_leaves_is_told(make) -> None:
    for x in (0.5, -3.0, 30.0):
        odds = 1.0 / (1.0 + np.exp(-log_odds(x)))
        assert list(cm.marginals(make(), ["a"], {"x": x})["a"].values())[1] == pytest.approx(odds, rel=1e-9)


@pytest.mark.parametrize("x", [1e9, 1e16, 1e20, 1e200])
def test_the_mode_of_a_mixture_is_not_certified_by_rounding(x: float) -> None:
    for model in (mixture(), network()):  # y = 5 for x > 0, where equal logs gave 1.9e-5, "certified"
        with pytest.raises(cm.QueryError, match=r"too far (from the model|out)"):
            cm.map_query(model, ["y"], {"x": x}, time_limit=2.0)


def test_rounding_of_evidence_counts_as_slack() -> None:
    near, far = (cm.condition(mixture(), ["y"], {"x": x}).facts.log_slack for x in (1.0, 1e4))
    assert near < 1e-12 < 1e-9 < far < 1e-2
    # A component that is negligible under the evidence does not count.
    wide = cm.GaussianMixture([0.5, 0.5], np.zeros((2, 2)), [np.eye(2), np.diag([1e-8, 1.0])], ["x", "y"])
    assert cm.condition(wide, ["y"], {"x": 3.0}).facts.log_slack < 1e-12


def test_means_that_cancel_are_known_up_to_rounding() -> None:
    y = cm.LinearGaussian("y", ["x"], -1e17, [1.0])
    model = cm.LinearGaussianNetwork([cm.LinearGaussian("x", (), 1e17), y])
    assert cm.condition(model, ["y"]).facts.log_slack > 1.0


def test_weights_far_apart_are_kept() -> None:
    domain = cm.Domain(
        [cm.Categorical("a", ["0", "1"]), cm.Categorical("b", ["0", "1"]), cm.Categorical("c", "01")]
    )
    table = cm.Factor([0, 1, 2], [[[1e-300, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    factors = [table, cm.Factor([1], [1e-300, 1.0]), cm.Factor([2], [1e-300, 1.0])]
    model = cm.LinearGaussianNetwork(
        [cm.LinearGaussian("x", ["a"], [0.0, 80.0])], cm.MarkovNetwork(domain, factors)
    )
    # 900 ln 10 = 2072 nats against 80^2 / 2 = 3200
    assert cm.map_query(model, ["a"], {"x": 0.0}).assignment == {"a": "0"}
    assert cm.marginals(model, ["a"])["a"]["1"] == 1.0


@pytest.mark.parametrize("make", [mixture, circuit])
def test_likelihoods_of_rows_are_numbers_or_a_refusal(make) -> None:
    names = make().domain.names
    rows = {name: [{"a": "0", "x": 1e60, "y": 0.0}[name]] * 2 for name in names}
    assert cm.log_likelihood(make(), rows) == pytest.approx([-5e119] * 2)
    rows["x"] = [0.0, 1e160]
    with pytest.raises(DataError, match="row 1 lies so far from the model"):
        cm.log_likelihood(make(), rows)
