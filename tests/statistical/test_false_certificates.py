"""How often certificates are false, and that breaking a condition of the rules shows.

Seeds are fixed, so these tests give one verdict; the thresholds are exact binomial ones.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

import certimap as cm
from certimap.certify.ledger import Ledger
from certimap.testing import TablePosterior

N_SEEDS = 5000
LEVELS = (0.01, 0.05, 0.1, 0.3)


def false_share_of_36(loosened: float = 1.0) -> float:
    """The share of runs whose answer is not .05-optimal, on one atom of .03 and 35 of .97/35."""
    probs = np.full(36, 0.97 / 35)
    probs[17] = 0.03
    posterior = TablePosterior([36], probs)
    n_false = 0
    for seed in range(N_SEEDS):
        # delta ** (1 / 1.2) asks for 1/1.2 of the evidence: a rule 20 % too loose.
        ledger = Ledger(posterior, epsilon=0.05, delta=0.05 ** (1 / loosened))
        ledger.draws(posterior.sample(128, np.random.default_rng(seed)))
        assert ledger.satisfied
        n_false += math.exp(ledger.best_log_prob) < 0.95 * 0.03
    return n_false / N_SEEDS


def test_false_share_is_what_the_sharp_rule_says():
    """A run is false when 102 draws miss the atom of .03: .97 ** 102 = 4.47 %."""
    assert 0.035 <= false_share_of_36() <= 0.05


def test_a_rule_twenty_percent_too_loose_is_found_out():
    assert not 0.035 <= false_share_of_36(loosened=1.2) <= 0.05


def test_false_share_through_the_whole_path():
    probs = np.full(36, 0.97 / 35)
    probs[17] = 0.03
    posterior = TablePosterior([36], probs)
    n_false = 0
    for seed in range(1000):
        result = cm.map_query(posterior, solver="pac", epsilon=0.05, delta=0.05, rng=seed, progress=False)
        assert result.certificate.delta <= 0.05
        missed = result.log_prob < math.log(0.95 * 0.03)
        assert result.n_draws == 102 or not missed
        n_false += missed
    assert binomtest(int(n_false), 1000, 0.97**102).pvalue > 1e-3


@pytest.mark.parametrize("trusted_bits", [1.0, 0.1])
def test_lipschitz_certificates_are_as_true_as_their_assumption(trusted_bits):
    """Eight binary variables; log2 p falls by exactly one bit per changed variable around the mode."""
    domain = cm.Domain.of_sizes([2] * 8)
    near = TablePosterior(domain, np.ones(256)).points.sum(axis=1)
    probs = np.where(near == 0, 0.012, np.where(near == 1, 0.006, 0.94 / 247))
    posterior = TablePosterior(domain, probs)
    n_false = n_lipschitz = 0
    for seed in range(1500):
        ledger = Ledger(posterior, epsilon=0.5, delta=0.1)
        ledger.assume_lipschitz(trusted_bits, 4)
        ledger.draws(posterior.sample(512, np.random.default_rng(seed)))
        assert ledger.satisfied
        n_lipschitz += ledger.log_delta(0.5) > math.log(0.1)
        n_false += math.exp(ledger.best_log_prob) < 0.5 * posterior.probs.max() * (1 - 1e-9)
    assert n_lipschitz > 1000
    p_value = binomtest(n_false, 1500, 0.1, alternative="greater").pvalue
    # Ten times smoother than the truth is a false promise, and the certificates show it.
    assert p_value > 1e-3 if trusted_bits == 1.0 else p_value < 1e-6


def test_top_k_certificates_cover_every_answer():
    probs = np.full(40, 0.9 / 37)
    probs[:3] = 0.1 / 3
    posterior = TablePosterior([40], probs)
    n_false = 0
    for seed in range(2000):
        ledger = Ledger(posterior, epsilon=0.0, delta=0.1, top_k=3)
        ledger.draws(posterior.sample(600, np.random.default_rng(seed)))
        assert ledger.satisfied
        n_false += math.exp(ledger.log_kth_best) < 0.1 / 3 - 1e-9
    assert n_false > 0
    assert binomtest(n_false, 2000, 0.1, alternative="greater").pvalue > 1e-3


class Search:
    """A search that draws from open states and closes states at random, and may break a condition.

    One variable; a box is one state. `broken` names the condition that is violated:

    - "late_mass": draws are reported at the mass left after closing what they found;
    - "own_share": draws come from half of the open states, but count at the whole open mass;
    - "unevaluated": draws that hit some states, never closed, are counted but not evaluated;
    - "hidden_bound": boxes close without their bounds being told;
    - "dropped_draws": draws that hit some states, never closed, are neither counted nor evaluated.
    """

    def __init__(self, seed: int, broken: str | None) -> None:
        self.rng = np.random.default_rng(seed)
        self.broken = broken
        n = int(self.rng.integers(16, 30))
        probs = np.full(n, 1.0)
        self.mode = int(self.rng.integers(n))
        probs[self.mode] = self.rng.uniform(1.2, 2.5)
        probs *= self.rng.uniform(0.8, 1.0, n)
        self.posterior = TablePosterior([n], probs)
        self.probs = self.posterior.probs
        self.log_best = float(np.log(self.probs[self.mode]))
        epsilon = float(self.rng.choice([0.0, 0.6]))
        self.ledger = Ledger(self.posterior, epsilon=epsilon, delta=0.0, early_stop=False)
        self.open = np.ones(n, np.bool_)
        self.blind = np.arange(n) % 3 == self.mode % 3
        self.lowest = 0.0

    def run(self) -> float:
        """Return the smallest ln(delta) that was ever reported for a pair that was false."""
        start = self.rng.choice(np.flatnonzero(np.arange(len(self.open)) != self.mode), 2, replace=False)
        self.ledger.candidates(start[:, None].astype(np.int16))
        for _ in range(int(self.rng.integers(4, 14))):
            self.draw()
            self.close_some()
            if not self.open.any() or self.ledger.best_log_prob >= self.log_best - 1e-12:
                break
            # The largest epsilon at which the answer is false: delta is smallest there.
            worst = -math.expm1(self.ledger.best_log_prob - self.log_best) - 1e-9
            if worst > 0.0:
                self.lowest = min(self.lowest, self.ledger.log_delta(worst))
        return self.lowest

    def log_open_mass(self) -> float:
        return min(float(np.log(self.probs[self.open].sum())), 0.0)

    def draw(self) -> None:
        states = np.flatnonzero(self.open)
        log_r = self.log_open_mass()
        if self.broken == "own_share":
            states = states[: max(1, len(states) // 2)]
        weights = self.probs[states] / self.probs[states].sum()
        n = int(self.rng.integers(2, 10)) if self.broken != "late_mass" else int(self.rng.integers(10, 30))
        drawn = self.rng.choice(states, n, p=weights)
        if self.broken == "dropped_draws":
            drawn = drawn[~self.blind[drawn]]
        if self.broken == "unevaluated":
            drawn = np.where(self.blind[drawn], self.known()[0], drawn)
        if self.broken == "late_mass":
            self.open[drawn] = False
            if not self.open.any():
                return
            self.ledger.close(-math.inf, np.log(self.probs[np.unique(drawn)]))
            log_r = self.log_open_mass()
        self.ledger.draws(drawn[:, None].astype(np.int16), log_r)

    def known(self) -> np.ndarray:
        return self.ledger.atoms.points(slice(None))[:, 0]

    def close_some(self) -> None:
        """Close some evaluated states, and some whose bound is within the threshold."""
        evaluated = np.zeros(len(self.open), np.bool_)
        evaluated[self.known()] = True
        low = np.log(self.probs) <= self.ledger.log_threshold
        closing = self.open & (evaluated | low) & (self.rng.random(len(self.open)) < self.rng.choice([0.2, 0.9]))
        bounds = np.where(evaluated, -np.inf, np.log(self.probs))[closing]
        if self.broken == "hidden_bound":
            bounds = np.full(len(bounds), -np.inf)
        self.ledger.close(bounds, np.log(self.probs[closing]))
        self.open &= ~closing


def worst_p_value(broken: str | None, n_runs: int) -> float:
    """The smallest p-value, over the levels, of "false pairs are no more frequent than they admit"."""
    lowest = np.array([Search(seed, broken).run() for seed in range(n_runs)])
    return min(
        binomtest(int(np.sum(lowest <= math.log(level))), n_runs, level, alternative="greater").pvalue
        for level in LEVELS
    )


def test_no_pair_of_a_random_search_is_false_more_often_than_it_admits():
    lowest = np.array([Search(seed, None).run() for seed in range(4000)])
    for level in LEVELS:
        n_false = int(np.sum(lowest <= math.log(level)))
        assert binomtest(n_false, len(lowest), level, alternative="greater").pvalue > 1e-3, (level, n_false)
    assert np.sum(lowest <= math.log(0.3)) > 0.02 * len(lowest)  # the test has something to count
    assert not np.any(lowest == -np.inf)  # nothing false for certain


@pytest.mark.parametrize("broken", ["late_mass", "own_share", "unevaluated", "hidden_bound", "dropped_draws"])
def test_each_broken_condition_is_found_out(broken):
    assert worst_p_value(broken, 1500) < 1e-6
