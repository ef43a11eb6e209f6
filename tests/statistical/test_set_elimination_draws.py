"""How often set elimination's probabilistic certificates are false when it is stopped half-way."""

from __future__ import annotations

import numpy as np
import pytest
from bucket_twin import build, random_latent_tree
from scipy.stats import binomtest

from certimap.ask.api import map_query
from certimap.errors import ModelError
from certimap.solvers.elimination import set_elimination
from certimap.solvers.elimination.one_pass import SetPass
from certimap.solvers.elimination.set_elimination import Search, SetElimination
from certimap.trees.bucket_tree import BucketTreePosterior

LEVELS = (0.01, 0.05, 0.1, 0.3)
N_RUNS = 600
LOOSER = 1.0  # nats added to every bound, so that boxes stay open


def spoil(monkeypatch):
    """Leave all finding to the draws: eliminations decode nothing of use, and their bounds are loose."""
    advance, threshold, candidates = SetPass.advance, SetPass.threshold, Search._candidates

    def worst_rows(self, rows, n_variables):
        states = self.geometry.tree.arrays.own_states
        by_variable = dict(zip(self.geometry.tree.variable.tolist(), states.tolist(), strict=True))
        return np.array([[by_variable[v] - 1 for v in range(n_variables)]], np.int16)

    def looser_advance(self):
        work = advance(self)
        if self.outcome is not None:
            self.outcome.log_states[:] += LOOSER
            self.n_merged += 1
        return work

    def looser_candidates(self, elimination, outcome):
        return candidates(self, elimination, outcome) + LOOSER

    monkeypatch.setattr(SetPass, "decode", worst_rows)
    monkeypatch.setattr(SetPass, "advance", looser_advance)
    monkeypatch.setattr(  # two bits lower
        SetPass, "threshold", lambda self, top, *how: threshold(self, top + 2, *how)
    )
    monkeypatch.setattr(Search, "_candidates", looser_candidates)
    monkeypatch.setattr(set_elimination, "START_WORK", 0)  # no climbs
    monkeypatch.setattr(set_elimination, "DRAW_ROWS", 3)
    monkeypatch.setattr(set_elimination, "STEP_WORK", 0)


def smallest_false_delta(t):
    """Run a random case to a random limit; return the smallest delta of a false pair (or 1), and the draws."""
    rng = np.random.default_rng([21, t])
    while True:
        case = random_latent_tree(rng)
        log_evidence, probs = case.brute_force()
        if log_evidence > -np.inf and len(probs) >= 8 and 0.01 < probs.max() < 0.4:
            break
    posterior = build(case, rng)
    solver = SetElimination(
        limits=(1,), split_limit=1, n_starts=1, n_first_draws=int(rng.integers(1, 4)), draw_share=0.9
    )
    result = map_query(
        posterior,
        solver=solver,
        epsilon=float(rng.choice([0.0, 0.2])),
        delta=1e-300,
        rng=t,
        max_nodes=int(rng.integers(2, 12)),
        max_samples=int(rng.integers(3, 120)),
        progress=False,
    )
    assert np.exp(result.log_upper_bound) >= probs.max() * (1 - 1e-12)
    p = np.exp(result.log_prob)
    false = [d for e, d in result.pareto if p < (1 - e) * probs.max() * (1 - 3e-9)]
    assert 0.0 not in false
    return min(false, default=1.0), result.n_draws


@pytest.mark.statistical
def test_pairs_of_runs_stopped_half_way_are_false_no_more_often_than_they_say(monkeypatch):
    spoil(monkeypatch)
    smallest, draws = zip(*(smallest_false_delta(t) for t in range(N_RUNS)), strict=True)
    assert np.mean(np.array(draws) > 5) > 0.8
    for level in LEVELS:
        n_false = sum(d <= level for d in smallest)
        assert binomtest(n_false, N_RUNS, level, alternative="greater").pvalue > 1e-3
    assert sum(d <= 0.3 for d in smallest) > 8  # the runs are hard enough for the test to have power


@pytest.mark.statistical
def test_draws_that_avoid_the_mode_are_found_out(monkeypatch):
    spoil(monkeypatch)
    sample = BucketTreePosterior.sample

    def biased(self, n, rng, boxes=None):
        points = sample(self, 5 * n, rng, boxes)
        return points[np.argsort(self.log_prob(points), kind="stable")[:n]]

    monkeypatch.setattr(BucketTreePosterior, "sample", biased)
    n_found = 0  # by a false claim, or by the run itself, which compares frequencies with probabilities
    for t in range(N_RUNS // 3):
        try:
            n_found += smallest_false_delta(t)[0] <= 0.1
        except ModelError:
            n_found += 1
    assert binomtest(n_found, N_RUNS // 3, 0.1, alternative="greater").pvalue < 1e-3
