"""How often certificates of densities by draws are false, under a promise that holds and under one that does not.

Seeds are fixed, so these tests give one verdict; the thresholds are exact binomial ones.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

import certimap as cm
from certimap.certify.ledger import Ledger

EPSILON, DELTA, N_SEEDS = 0.3, 0.1, 1200
REACH = {1: 0.03, 2: 0.13, 3: 0.23}  # by dimension: balls of a few percent, for where few draws do, rounding shows
BITS = {n: -math.log2(1.0 - EPSILON) / reach for n, reach in REACH.items()}


def cone(n: int) -> tuple[cm.FunctionPosterior, float]:
    """A density on a cube of n dimensions: a cone around one point, flat from where it is too low to be an answer.

    log2 of it falls by exactly `BITS[n]` per unit up to a distance of `REACH[n]`; the good points are that ball.
    Returns the posterior and ln of the density at the mode.
    """
    mode = np.linspace(0.4, 0.6, n)

    def log_height(x):
        distance = np.linalg.norm(x - mode, axis=1)
        return np.where(distance < REACH[n], -BITS[n] * math.log(2.0) * distance, math.log(1.0 - EPSILON) - 1e-4)

    at = (np.arange(100.0) + 0.5) / 100.0 if n > 1 else (np.arange(1e5) + 0.5) / 1e5
    grid = np.stack(np.meshgrid(*[at] * n), axis=-1).reshape(-1, n)
    log_top = -math.log(float(np.exp(log_height(grid)).mean()))

    def sample(count, rng):
        found = np.empty((0, n))
        while len(found) < count:
            tried = rng.random((2 * count, n))
            found = np.concatenate([found, tried[np.log(rng.random(2 * count)) < log_height(tried)]])
        return found[:count]

    domain = cm.Domain([cm.Real(f"x{i}", 0.0, 1.0) for i in range(n)])
    return cm.FunctionPosterior(domain, sample, lambda x: log_top + log_height(np.asarray(x))), log_top


def n_false(n: int, bits: float, loosened: float = 1.0) -> int:
    """Count runs whose certified answer is not good; `loosened` is by how much evidence is counted too high."""
    posterior, log_best = cone(n)
    found = 0
    for seed in range(N_SEEDS):
        ledger = Ledger(posterior, epsilon=EPSILON, delta=DELTA ** (1.0 / loosened))
        ledger.assume_lipschitz(bits, 1.0)
        ledger.draws(posterior.sample(400, np.random.default_rng(seed)))
        assert ledger.satisfied
        found += ledger.best_log_prob < log_best + math.log1p(-EPSILON)
    return found


@pytest.mark.parametrize("n", [1, 2, 3])
def test_false_shares_are_what_the_rule_says(n):
    """The rule stops where no draw hit the ball with probability delta: the share is that, not only below it."""
    found = n_false(n, BITS[n])
    assert binomtest(found, N_SEEDS, DELTA, alternative="greater").pvalue > 1e-3
    assert found > 0.7 * DELTA * N_SEEDS


def test_evidence_counted_half_again_is_found_out():
    assert binomtest(n_false(2, BITS[2], loosened=1.5), N_SEEDS, DELTA, alternative="greater").pvalue < 1e-6


def test_a_false_promise_shows_in_the_certificates():
    assert binomtest(n_false(2, BITS[2] / 10.0), N_SEEDS, DELTA, alternative="greater").pvalue < 1e-6


def test_false_shares_through_the_whole_path():
    posterior, log_best = cone(2)
    false = 0
    for seed in range(300):
        result = cm.map_query(
            posterior,
            solver="smooth_pac",
            epsilon=EPSILON,
            delta=DELTA,
            lipschitz=BITS[2],
            radius=1.0,
            rng=seed,
            progress=False,
        )
        assert result.certificate.rule == "lipschitz"
        assert result.certificate.delta <= DELTA
        false += result.log_prob < log_best + math.log1p(-EPSILON)
    assert false > 0
    assert binomtest(false, 300, DELTA, alternative="greater").pvalue > 1e-3
