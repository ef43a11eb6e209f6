"""How often the pairs that stopped box searches report are false.

Each run is cut at a random number of boxes; it is false at d0 when one of the pairs of its Pareto front with
delta <= d0 is. The seeds are fixed, so these tests give one verdict; the thresholds are exact binomial ones.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from certimap.certify.ledger import Ledger, pareto_front
from certimap.core.control import Control
from certimap.solvers.box_search.frontier import Frontier, Pace
from certimap.testing import TablePosterior

LEVELS = (0.01, 0.05, 0.1, 0.3)
N_RUNS = 2000


def hard_table(rng):
    """Many nearly equal points and one that stands out a little, under loose bounds: draws have to decide."""
    sizes = [[2] * 5, [3, 3, 4], [6, 6]][int(rng.integers(3))]
    n = int(np.prod(sizes))
    probs = rng.uniform(0.8, 1.0, n)
    if rng.random() < 0.5:
        probs[rng.random(n) < 0.4] *= 0.2
    mode = int(rng.integers(n))
    probs[mode] = rng.uniform(1.06, 1.6)
    return TablePosterior(sizes, probs, looseness=float(rng.uniform(0.0, 1.0)))


class Drawing(Frontier):
    """Expands one box at a time and draws a random number of times from what is open after each."""

    def _batch_size(self, state, ledger):
        return 1

    def _wants_draws(self, state, ledger):
        if not len(state.open):
            return False
        n = int(state.rng.integers(1, 30))
        state.draw_credit = 2.0 * (state.prober.work // 4) * (n + len(state.open))
        return True


def run_once(seed, solver_class):
    """Return (pairs, ln p*, ln of the best found, draws at R < 1) of one run that is cut half-way."""
    rng = np.random.default_rng([21, seed])
    posterior = hard_table(rng)
    ledger = Ledger(posterior, epsilon=float(rng.choice([0.0, 0.05])), delta=float(rng.choice([0.05, 0.1, 0.3])))
    solver = solver_class(
        exact_work=0,
        first_draws=int(rng.choice([0, 2, 20])),
        incumbent=bool(rng.random() < 0.3),
        pace=Pace(step_work=1, min_draws=1),
    )
    state = solver.init(posterior, Control(), rng)
    ledger.candidates(posterior.sample(1, rng))
    for _ in range(int(rng.integers(2, 25))):
        if state.done or ledger.satisfied:
            break
        state = solver.step(state, ledger)
    narrow = sum(count for log_r, _, count in ledger.draw_groups if log_r < 0.0)
    return pareto_front(ledger), float(np.log(posterior.probs.max())), ledger.best_log_prob, narrow


def false_counts(n_runs, solver_class=Drawing):
    counts, certain, narrow = dict.fromkeys(LEVELS, 0), 0, 0
    for seed in range(n_runs):
        pairs, log_best, log_found, drawn = run_once(seed, solver_class)
        narrow += drawn > 0
        false = [d for e, d in pairs if log_best > log_found - math.log1p(-e) + 1e-9]
        certain += any(d == 0.0 for d in false)
        for level in LEVELS:
            counts[level] += any(d <= level for d in false)
    return counts, certain, narrow


@pytest.mark.statistical
def test_no_level_is_exceeded():
    counts, certain, narrow = false_counts(N_RUNS)
    assert certain == 0
    assert narrow > N_RUNS / 3  # the rule at work: draws from less than the whole space
    assert counts[0.3] > 0  # and it can fail
    for level, count in counts.items():
        assert binomtest(count, N_RUNS, level, alternative="greater").pvalue > 1e-3, (level, count)


class SmallMass(Drawing):
    """Says that three quarters of the mass that it draws from were closed before: unsound."""

    def _draw(self, state, ledger):
        boxes = state.layout.public(state.open.boxes(slice(None)))
        log_mass = ledger.log_open_mass - math.log(4.0)
        ledger.close(-math.inf, math.log(3.0) + log_mass)
        ledger.draws(state.posterior.sample(40, state.rng, boxes=boxes), log_mass)


class OwnShare(Drawing):
    """Draws from some of the open boxes, those without the best point, as if from all of them: unsound."""

    def _draw(self, state, ledger):
        boxes = state.layout.public(state.open.boxes(slice(None)))
        best = state.posterior.points[np.argmax(state.posterior.probs)]
        own = ~boxes.mask[:, boxes.domain.offsets[:-1] + best].all(axis=1)
        if np.any(own):
            ledger.draws(state.posterior.sample(40, state.rng, boxes=boxes[own]), ledger.log_open_mass)


@pytest.mark.statistical
@pytest.mark.parametrize("broken", [SmallMass, OwnShare])
def test_a_broken_condition_shows(broken):
    n_runs = 600
    counts, certain, _ = false_counts(n_runs, broken)
    exceeded = [
        level for level in LEVELS if binomtest(counts[level], n_runs, level, alternative="greater").pvalue < 1e-3
    ]
    assert exceeded or certain
