"""The checker's densities in far tails of Gaussians, and of many counts, against numbers of many digits."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from certimap.checker.leaves import POISSON, TRUNCATED, log_density


def true_log_density(mean: float, sd: float, low: float, high: float, x: float) -> mpmath.mpf:
    """Return the log density from Mills' ratio as a continued fraction, for means some deviations outside."""
    near = low if mean < low else high
    alpha, s, width = (abs(mpmath.mpf(a) - mpmath.mpf(b)) / sd for a, b in ((near, mean), (x, near), (high, low)))

    def mills(t: mpmath.mpf) -> mpmath.mpf:
        found = t
        for j in range(400, 0, -1):
            found = t + j / found
        return 1 / found

    beyond = mpmath.exp(-alpha * width - width**2 / 2) * mills(alpha + width) if math.isfinite(high - low) else 0
    return -alpha * s - s**2 / 2 - mpmath.log(sd) - mpmath.log(mills(alpha) - beyond)


@pytest.mark.parametrize("seed", range(40))
def test_densities_in_far_tails_lie_between_both_sides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(10):
        sd, low = float(10.0 ** rng.uniform(-9, 6)), float(rng.choice([0.0, -3.0, 1e-8, 1e6]))
        high = low + sd * float(rng.choice([10.0 ** rng.uniform(-8, 8), math.inf]))
        away = sd * float(10.0 ** rng.uniform(1.5, 9))
        mean = low - away if math.isinf(high) or rng.random() < 0.5 else high + away
        if not low < high:
            continue
        share = float(rng.choice([0.0, 1.0, rng.random(), 1e-6]))
        x = min(low + share * (high - low if math.isfinite(high) else 10.0 * sd), high)
        p = (mean, sd, low, high)
        with mpmath.workdps(80):
            true = true_log_density(*p, x)
            assert log_density(TRUNCATED, p, x, -1) <= true <= log_density(TRUNCATED, p, x, 1)


@pytest.mark.parametrize("alpha", [400.0, 1e4, 3e6, 1e8, 1e62, 9e89])
def test_densities_in_far_tails_are_right_to_ten_digits(alpha: float) -> None:
    for p in ((-0.3 * alpha, 0.3, 0.0, 1000.0), (2.0 + alpha, 1.0, -math.inf, 2.0)):
        x = 0.0 if p[0] < 0.0 else 2.0
        assert log_density(TRUNCATED, p, x, 1) - log_density(TRUNCATED, p, x, -1) < 3e-10


@pytest.mark.parametrize("mean", [1000.0, 1003.7, 5e4, 1e6, 123456789.25, 1e12])
@pytest.mark.parametrize("away", [0.0, 1e-6, 1e-3, 0.03, 0.0999])
def test_probabilities_of_many_counts(mean: float, away: float) -> None:
    for sign in (-1.0, 1.0):
        x = float(max(round(mean * (1.0 + sign * away)), 1000))
        with mpmath.workdps(60):
            true = x * mpmath.log(mpmath.mpf(mean)) - mpmath.mpf(mean) - mpmath.loggamma(mpmath.mpf(x) + 1)
            sides = [log_density(POISSON, (mean,), x, side) for side in (-1, 1)]
            assert sides[0] <= true <= sides[1]
            assert sides[1] - sides[0] < 1e-11 + 4e-15 * abs(true)


@pytest.mark.parametrize("alpha", [38.5, 100.0, 258.0, 292.0])
def test_densities_in_tails_whose_mass_underflows(alpha: float) -> None:
    p = (-alpha, 1.0, 0.0, 40.0)
    sides = [log_density(TRUNCATED, p, 0.0, side) for side in (-1, 1)]
    assert sides[0] <= true_log_density(*p, 0.0) <= sides[1]
    assert sides[1] - sides[0] < 1e-13 + 5.0 / alpha**4
