"""The exact oracles of hostile models against enumeration in mpmath."""

from __future__ import annotations

import math
from decimal import Decimal

import hostile_twin as twin
import mpmath
import numpy as np
import pytest

from certimap.core.query import make_query
from certimap_lab.hostile import FAMILIES, edges, exact, make_case
from certimap_lab.hostile.densities import densities

SLOW = ("naive_bayes", "mixture", "hmm")  # few of these are small
MODELS = [
    name for name in FAMILIES if name not in ("function", "round_trip", "text", "densities", "ends", "frames")
]


def small_cases(family, n):
    """Cases of a family that enumeration in mpmath can do, with the seeds that make them."""
    seed = list(FAMILIES).index(family)
    while n:
        case = make_case(seed)
        model = case.model
        size = (
            math.prod(case.truth.sizes)
            if hasattr(model, "child_ptr")
            else math.prod(model.domain.n_states.tolist())
        )
        work = size * (model.n_nodes if hasattr(model, "child_ptr") else len(model.domain))
        if work <= 4000:
            n -= 1
            yield seed, case
        seed += len(FAMILIES)


def log_of(value):
    return float(mpmath.log(value)) if value else -math.inf


@pytest.mark.parametrize("family", MODELS)
def test_oracles_agree_with_enumeration(family):
    with mpmath.workdps(twin.DIGITS), exact.arithmetic():
        for seed, case in small_cases(family, 2 if family in SLOW else 6):
            query = make_query(case.model.domain, case.query, case.evidence)
            totals = twin.marginal(case.model, query)
            best = max(totals.values())
            said = case.truth.value(case.truth.best_point)
            assert exact.log_of(said) == pytest.approx(log_of(best), rel=1e-12, abs=1e-12), seed
            for point, value in totals.items():
                # Likelihoods pass through the logs of the query there: 1e-12 is all that can be asked for.
                assert exact.log_of(case.truth.value(point)) == pytest.approx(log_of(value), rel=1e-12, abs=1e-12)
            ordered = sorted(totals.values(), reverse=True)
            for k in (1, min(2, len(ordered)), len(ordered)):
                assert exact.log_of(case.truth.kth(k)) == pytest.approx(
                    log_of(ordered[k - 1]), rel=1e-12, abs=1e-12
                )
            masks = [np.arange(k) % 2 == 0 for k in case.truth.sizes]
            inside = [v for point, v in totals.items() if all(m[s] for m, s in zip(masks, point, strict=True))]
            mass, largest = case.truth.box(masks)
            assert exact.log_of(mass) == pytest.approx(log_of(mpmath.fsum(inside)), rel=1e-12, abs=1e-12)
            assert exact.log_of(largest) == pytest.approx(log_of(max(inside)), rel=1e-12, abs=1e-12)


def test_elimination_agrees_with_tables():
    """Large spaces are maximised one variable at a time; on small ones that must come to the same."""
    from certimap_lab.hostile.truth import EliminationTruth, table_of

    rng = np.random.default_rng(0)
    with exact.arithmetic():
        for _ in range(20):
            sizes = rng.integers(1, 4, 6).tolist()
            scopes = [tuple(rng.permutation(6)[: int(rng.integers(1, 4))].tolist()) for _ in range(7)]
            factors = [(s, exact.from_logs(rng.uniform(-900.0, 0.0, [sizes[v] for v in s]))) for s in scopes]
            query = rng.permutation(6)[:3].tolist()
            slow, quick = table_of(sizes, factors, query), EliminationTruth(sizes, factors, query)
            assert abs(slow.total / quick.total - 1) < exact.Decimal("1e-50")
            assert abs(slow.kth(1) / quick.kth(1) - 1) < exact.Decimal("1e-50")
            masks = [np.ones(k, bool) for k in slow.sizes]
            masks[0] = np.arange(slow.sizes[0]) == 0
            for a, b in zip(slow.box(masks), quick.box(masks), strict=True):
                assert abs(a / b - 1) < exact.Decimal("1e-50")


@pytest.mark.parametrize("number", range(6))
def test_densities_agree_with_mpmath(number):
    """Points and p(e), whose factors are masses of intervals, densities of observed values, and states."""
    with mpmath.workdps(twin.DIGITS), exact.arithmetic():
        case = densities(np.random.default_rng([number, 7]))
        truth, domain = case.truth, case.model.domain
        points = truth.candidates(np.random.default_rng(0))[:5]
        for point in ({}, *points):
            given = {**case.evidence, **point}
            total = mpmath.mpf(0)
            for part in truth.parts:
                factor = mpmath.exp(part.log_weight)
                for v, table in enumerate(part.tables):
                    state = given.get(domain.names[v])
                    entries = [mpmath.exp(x) if x > -math.inf else mpmath.mpf(0) for x in table.tolist()]
                    factor *= mpmath.fsum(entries) if state is None else entries[state]
                for i, (mean, sd) in enumerate(zip(part.means, part.sds, strict=True)):
                    value = given.get(f"x{i}", (-math.inf, math.inf))
                    mean, sd = mpmath.mpf(mean), mpmath.mpf(sd)
                    factor *= (
                        twin.interval(*value, mean, sd)
                        if isinstance(value, tuple)
                        else mpmath.npdf(value, mean, sd)
                    )
                total += factor
            said = truth.value(point) if point else truth.total
            assert exact.log_of(said) == pytest.approx(log_of(total), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("ends", [(0.0, math.inf), (5.9, 6.1), (50.0, 50.000001), (-3.0, 2.0), (-math.inf, -38.0)])
def test_normal_masses(ends):
    with mpmath.workdps(twin.DIGITS):
        said = exact.interval_mass(*ends, 0.5, 1.5)
        true = twin.interval(*ends, mpmath.mpf(0.5), mpmath.mpf(1.5))
        assert abs(mpmath.mpf(str(said)) / true - 1) < mpmath.mpf("1e-50")
        assert abs(mpmath.mpf(str(exact.density(3.25, 0.5, 1.5))) / mpmath.npdf(3.25, 0.5, 1.5) - 1) < 1e-50


@pytest.mark.parametrize("rate", [1e-3, 1.0, 40.0])
@pytest.mark.parametrize("ends", [(0.0, 1e-300), (-1.0, 1e-15), (3.0, 3.0 + 1e-9), (0.5, 2.0), (1.0, math.inf)])
def test_exponential_masses(rate, ends):
    low, high = (mpmath.mpf(max(x, 0.0)) for x in ends)
    with mpmath.workdps(400), exact.arithmetic():
        true = mpmath.exp(-rate * low) - mpmath.exp(-rate * high)
        assert mpmath.mpf(str(edges._seen("exponential", (rate,), ends))) / true == pytest.approx(1.0, rel=1e-40)


def test_a_bound_is_judged_by_its_last_digit():
    value = exact.exp_of(-700.25)
    assert not exact.falls_below(-700.25, value)
    assert exact.falls_below(math.nextafter(-700.25, -math.inf), value)
    assert exact.falls_below(-math.inf, value)
    assert exact.falls_below(math.nan, value)
    assert not exact.falls_below(-math.inf, exact.ZERO)
    with exact.arithmetic():
        assert not exact.falls_below(0.0, exact.ONE + Decimal("1e-59"))
        assert exact.falls_below(0.0, exact.ONE + Decimal("1e-40"))
