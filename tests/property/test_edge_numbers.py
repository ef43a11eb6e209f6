"""Where floats end: near ties, weights from denormal to 1e300, ln p near -30000, thousands of evidence factors.

The truth is in rational numbers or sixty digits, from the floats that the model holds.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

import certimap as cm
from certimap.networks import BayesianNetwork, Factor, MarkovNetwork
from certimap.testing import TablePosterior

SOLVERS = ("exhaustive", "frontier", "set_elimination", "hbfs", "auto")


def joint_of(factors, sizes):
    """Return the weight of every joint state as a rational number."""
    weights = {}
    for point in np.ndindex(*sizes):
        weight = Fraction(1)
        for factor in factors:
            weight *= Fraction(float(factor.table[tuple(point[v] for v in factor.scope)]))
        weights[point] = weight
    return weights


def require_true(result, weights):
    """Require that what is claimed of the best point holds for these weights."""
    best = max(weights.values())
    answer = weights[tuple(result.assignment.values())]
    certificate = result.certificate
    allowed = 1 + Fraction(certificate.tolerance)
    if certificate.kind == "exact":
        assert best <= answer * allowed
    elif certificate.kind == "epsilon":
        assert best * (1 - Fraction(certificate.epsilon)) <= answer * allowed
    with localcontext() as context:
        context.prec = 60
        log_best = (Decimal(best.numerator) / Decimal(best.denominator)).ln()
        assert Decimal(result.log_joint_upper_bound) >= log_best * (1 - Decimal("1e-15")) - Decimal("1e-14")
    return certificate.kind


@pytest.mark.parametrize("gap", [1e-12, 1e-11, 1e-10, 5e-10, 1e-9, 2e-9])
@pytest.mark.parametrize("tolerance", [1e-9, 1e-12])
def test_near_ties_are_claimed_exact_only_within_the_tolerance(gap, tolerance):
    rng = np.random.default_rng(4)
    for solver in SOLVERS:
        tables = [rng.random((2, 2)) + 0.5 for _ in range(3)]
        tables[0][1] = tables[0][0] * (1.0 + gap)  # one variable whose states differ by the gap alone
        factors = [Factor((i, i + 1), table) for i, table in enumerate(tables)]
        model = MarkovNetwork(cm.Domain.of_sizes([2] * 4), factors)
        result = cm.map_query(model, solver=solver, epsilon=0.1, delta=0.0, tolerance=tolerance, rng=0)
        assert require_true(result, joint_of(factors, [2] * 4)) in ("exact", "epsilon")


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-200, 1e300])
def test_weights_from_denormals_to_the_largest(scale):
    for seed, solver in enumerate(SOLVERS):
        rng = np.random.default_rng(seed)
        tables = [np.ceil(rng.random((2, 3)) * 1000) * scale / (1000 if scale > 1 else 1) for _ in range(3)]
        tables[1][0, 0] = 0.0
        factors = [Factor(scope, table) for scope, table in zip(((0, 1), (2, 1), (0, 3)), tables, strict=True)]
        factors.append(Factor((2,), np.array([1.0, 1e-300])))
        model = MarkovNetwork(cm.Domain.of_sizes([2, 3, 2, 3]), factors)
        result = cm.map_query(model, solver=solver, epsilon=0.0, delta=0.0, rng=0)
        assert require_true(result, joint_of(factors, [2, 3, 2, 3])) == "exact"


@pytest.mark.parametrize("near", [0.5, 1e-10])
def test_a_chain_whose_best_path_has_probability_e_to_the_minus_30000(near):
    """Both states lead on alike, up to `near`; the best path is found step by step in sixty digits."""
    n, fifth = 20_000, 0.2
    domain = cm.Domain.of_sizes([5] * n)
    rows = np.full((5, 5), 0.2)
    rows[:, 0] += 0.02 * near
    rows /= rows.sum(axis=1, keepdims=True)
    model = BayesianNetwork(
        domain, [Factor((0,), np.full(5, 0.2)), *(Factor((i - 1, i), rows) for i in range(1, n))]
    )
    result = cm.map_query(model, epsilon=0.01, delta=0.0, rng=0)
    assert result.certificate.kind in ("exact", "epsilon")
    with localcontext() as context:
        context.prec = 60
        largest = max(Decimal(float(x)) for x in rows[0])
        log_best = Decimal(fifth).ln() + (n - 1) * largest.ln()
        steps = Counter(float(rows[a, b]) for a, b in itertools.pairwise(result.assignment.values()))
        log_answer = Decimal(fifth).ln() + sum(count * Decimal(x).ln() for x, count in steps.items())
        epsilon = result.certificate.epsilon if result.certificate.kind == "epsilon" else 0.0
        assert log_answer >= log_best + Decimal(math.log1p(-epsilon)) - Decimal("1.0001e-9")
        assert Decimal(result.log_joint_upper_bound) >= log_best
        assert abs(Decimal(result.log_joint) - log_answer) < Decimal("1e-7")


@pytest.mark.parametrize("gap", [1e-6, 1e-9, 1e-12])
def test_thousands_of_evidence_factors_that_nearly_balance(gap):
    """The classes differ by `gap` after three thousand factors of each kind."""
    n = 3000
    domain = cm.Domain.of_sizes([2] * (2 * n + 1))
    one = np.array([[0.3, 0.7], [0.6, 0.4]])
    other = np.array([[0.6, 0.4], [0.3, 0.7]])
    prior = np.array([0.5, 0.5 * (1.0 - gap)])
    prior /= prior.sum()
    factors = [Factor((0,), prior)]
    factors += [Factor((0, i), one if i <= n else other) for i in range(1, 2 * n + 1)]
    evidence = dict.fromkeys(domain.names[1:], 0)
    for solver in ("exhaustive", "frontier", "auto"):
        result = cm.map_query(BayesianNetwork(domain, factors), ["0"], evidence, solver=solver, epsilon=0.1, rng=0)
        # Both classes have the likelihood (.3 * .6)^n: the prior alone decides.
        ratio = Fraction(float(prior[1])) / Fraction(float(prior[0]))
        lost = 0 if result.assignment["0"] == 0 else 1 - ratio
        certificate = result.certificate
        assert certificate.kind in ("exact", "epsilon")
        assert lost <= Fraction(certificate.epsilon) + 2 * Fraction(certificate.tolerance)
        assert result.log_prob == pytest.approx(math.log(0.5), abs=1e-5)


class Rough(TablePosterior):
    """A table whose oracle is off by as much as it says that it may be, in favour of the second best."""

    def __init__(self, probs, log_slack):
        super().__init__([len(probs)], probs)
        self.log_slack = log_slack

    @property
    def facts(self):
        return cm.Facts.of(self.domain, log_evidence=0.0, log_slack=self.log_slack)

    def log_prob(self, points):
        return super().log_prob(points) + np.where(self.rows(points) == 1, self.log_slack, -self.log_slack)

    def log_bound(self, boxes):
        return super().log_bound(boxes) - self.log_slack


@pytest.mark.parametrize("log_slack", [1e-12, 1e-10])
def test_an_oracle_that_is_off_within_the_tolerance_is_never_believed_beyond_it(log_slack):
    probs = np.array([0.3 * (1.0 + log_slack), 0.3, 0.25, 0.15])
    for solver in ("exhaustive", "frontier", "pac"):
        result = cm.map_query(
            Rough(probs, log_slack), solver=solver, epsilon=0.0, delta=0.0, rng=0, max_samples=200
        )
        lost = 1.0 - probs[result.assignment["0"]] / probs[0]
        assert lost <= 1e-9
        assert result.log_upper_bound >= math.log(0.3) - 1e-15


@pytest.mark.parametrize("log_slack", [1e-9, 1e-8, 1e-5])
@pytest.mark.parametrize("solver", ["exhaustive", "frontier", "pac", "auto"])
def test_an_oracle_that_is_off_by_more_than_the_tolerance_gets_no_exact(solver, log_slack):
    """The second best is the answer, and what is lost by it is claimed as an epsilon."""
    probs = np.array([0.3 * (1.0 + log_slack), 0.3, 0.25, 0.15])
    result = cm.map_query(Rough(probs, log_slack), solver=solver, epsilon=0.1, delta=0.0, rng=0, max_samples=200)
    assert result.certificate.kind == "epsilon"
    lost = 1.0 - probs[result.assignment["0"]] / probs.max()
    assert lost > 0.5 * log_slack
    assert lost <= result.certificate.epsilon <= 10.0 * log_slack
    strict = cm.map_query(Rough(probs, log_slack), solver=solver, epsilon=0.0, delta=0.0, rng=0, max_samples=200)
    assert not strict.certified
