"""Trees of regions whose numbers differ by more than doubles can: against 60 digits, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bucket_twin import inside
from wide_twin import build_wide, log_of, wide_case

from certimap.core.box import Boxes
from certimap.core.domain import Domain
from certimap.core.probing import answers_in
from certimap.core.query import make_query
from certimap.errors import ImpossibleEvidence
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.wide import Wide


def close(found, expected):
    """Equal within 1e-10 nats or 1e-12 relative; zeros exactly."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert np.array_equal(found == -np.inf, expected == -np.inf), (found, expected)
    finite = expected > -np.inf
    error = np.abs(found[finite] - expected[finite])
    assert np.all(error <= np.maximum(1e-10, 1e-12 * np.abs(expected[finite]))), (found, expected)


def possible(seed, n):
    for t in range(n):
        rng = np.random.default_rng([seed, t])
        case = wide_case(rng)
        total, joint = case.exact()
        if total:
            yield rng, case, total, joint
        else:
            with pytest.raises(ImpossibleEvidence):
                build_wide(case)


def test_points_masses_and_evidence_in_60_digits():
    for rng, case, total, joint in possible(1, 150):
        posterior = build_wide(case)
        points = case.points()
        close(posterior.log_evidence, log_of(total))
        exact = np.array([log_of(p / total) for p in joint])
        close(posterior.log_prob(points), exact)
        mask = rng.random((5, posterior.domain.total_states)) < 0.7
        boxes = Boxes(posterior.domain, mask)
        held = inside(posterior.domain, mask, points)
        masses = [sum((p for p, h in zip(joint, row, strict=True) if h), total * 0) for row in held]
        close(posterior.log_mass(boxes), [log_of(m / total) for m in masses])
        bounds = posterior.log_bound(boxes)
        for bound, row in zip(bounds, held, strict=True):
            largest = max((p for p, h in zip(joint, row, strict=True) if h), default=total * 0)
            assert bound >= log_of(largest / total)
            assert largest or bound == -np.inf


def test_each_in_60_digits():
    for rng, case, total, joint in possible(2, 60):
        posterior = build_wide(case)
        domain, points = posterior.domain, case.points()
        mask = rng.random((3, domain.total_states)) < 0.7
        boxes = Boxes(domain, mask)
        masses, bounds = posterior.log_mass_each(boxes), answers_in(posterior, boxes).each_bound
        for i in range(len(domain)):
            for state in range(int(domain.n_states[i])):
                changed = mask.copy()
                changed[:, domain.offsets[i] : domain.offsets[i + 1]] = False
                column = domain.offsets[i] + state
                changed[:, column] = True
                for row, held in enumerate(inside(domain, changed, points)):
                    values = [p for p, h in zip(joint, held, strict=True) if h]
                    close(masses[row, column], log_of(sum(values, total * 0) / total))
                    best = log_of(max(values, default=total * 0) / total)
                    assert bounds[row, column] >= best if mask[row, column] else bounds[row, column] == -np.inf


def naive_bayes(n_observed=1100, n_queried=1200):
    """Two classes; what is observed speaks for the first, the best of what is queried for the second."""
    n = n_observed + n_queried
    observed, queried = np.array([[1 / 3, 2 / 3], [2 / 3, 1 / 3]]), np.array([[0.5, 0.5], [0.01, 0.99]])
    emissions = [np.eye(2)] + [observed] * n_observed + [queried] * n_queried
    domain = Domain.of_sizes([2] * (n + 1))
    names = ["0", *(str(i) for i in range(1 + n_observed, n + 1))]
    query = make_query(domain, names, {str(i): 1 for i in range(1, n_observed + 1)})
    return BucketTreePosterior.from_tree(
        np.array([-1]), [np.ones((1, 1))], {0: np.array([0.5, 0.5])}, np.zeros(n + 1, np.int64), emissions, query
    )


def test_a_class_that_the_evidence_makes_e_to_the_minus_762():
    posterior = naive_bayes()
    points = np.ones((2, 1201), np.int16)
    points[0, 0] = 0
    log_odds = 1100 * math.log(2)
    expected = [1200 * math.log(0.5), 1200 * math.log(0.99) - log_odds]
    close(posterior.log_prob(points), expected)
    boxes = Boxes.of_points(posterior.domain, points)
    close(posterior.log_bound(boxes), expected)
    close(posterior.log_mass_each(boxes)[0, 1], expected[1])
    assert posterior.log_bound(Boxes.full(posterior.domain))[0] >= expected[1]


def test_draws_from_a_box_of_tiny_mass_follow_its_posterior():
    posterior = naive_bayes()
    mask = np.ones((1, posterior.domain.total_states), bool)
    mask[0, 0] = False
    points = posterior.sample(2000, np.random.default_rng(1), Boxes(posterior.domain, mask))
    assert np.all(points[:, 0] == 1)
    assert points[:, 1:].mean() == pytest.approx(0.99, abs=0.001)


def test_entries_of_one_table_that_differ_beyond_doubles():
    tables = [Wide.of_logs(np.array([[0.0, -2000.0], [-1500.0, 0.0]])), Wide.of_values(np.array([[1.0, 0.0]] * 2))]
    prior = Wide.of_logs(np.array([0.0, -3000.0]))
    posterior = BucketTreePosterior.from_tree(
        np.array([-1]),
        [np.ones((1, 1))],
        {0: prior},
        np.zeros(2, np.int64),
        tables,
        make_query(Domain.of_sizes([2, 2])),
    )
    points = np.array([[0, 0], [1, 0], [0, 1]], np.int16)
    close(posterior.log_prob(points), [0.0, -2000.0, -np.inf])


@pytest.mark.parametrize("values", [[0.0, 5e-324, 1e-300, 1.0, 1e308], [0.25]])
def test_wide_numbers_keep_doubles(values):
    wide = Wide.of_values(np.array(values))
    np.testing.assert_array_equal(wide.values(), values)
    assert np.all((wide.mantissa == 0.0) | ((wide.mantissa >= 0.5) & (wide.mantissa < 1.0)))
    logs = np.array([-np.inf, -1e6, -745.2, 0.0, 710.0])
    np.testing.assert_allclose(Wide.of_logs(logs).logs(), logs, rtol=2e-16)
    assert float(Wide.of_logs(np.array(-3.0)).logs()) == pytest.approx(-3.0, rel=1e-15)
    assert float(Wide.of_values(np.array(0.25)).values()) == 0.25
