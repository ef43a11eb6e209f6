"""How often the pairs are false that merged ledgers report, of searches cut at random.

The space is split into boxes, each is searched with draws of its own, and what the ledgers prove together is
judged. The seeds are fixed, so these tests give one verdict; the thresholds are exact binomial ones.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from certimap.certify import draw_record
from certimap.certify.ledger import Ledger, pareto_front
from certimap.core.box import Boxes
from certimap.testing import TablePosterior

LEVELS = (0.01, 0.05, 0.1, 0.3)
N_RUNS = 1200


def parts_of(domain, rng):
    """Split on the states of a random variable."""
    v = int(rng.integers(len(domain)))
    start, stop = int(domain.offsets[v]), int(domain.offsets[v + 1])
    parts = []
    for column in range(start, stop):
        mask = np.ones((1, domain.total_states), np.bool_)
        mask[0, start:stop] = np.arange(start, stop) == column
        parts.append(Boxes(domain, mask))
    return parts


def merged_run(seed, *, whole):
    """Return (pairs, ln p*, ln of the best found) of some independent runs, each over all or over its own box."""
    rng = np.random.default_rng([22, seed])
    sizes = [[2] * 5, [3, 3, 4], [6, 6]][int(rng.integers(3))]
    probs = rng.uniform(0.8, 1.0, int(np.prod(sizes)))
    probs[int(rng.integers(len(probs)))] = rng.uniform(1.06, 1.6)
    posterior = TablePosterior(sizes, probs)
    boxes = [None] * int(rng.integers(2, 5)) if whole else parts_of(posterior.domain, rng)
    ledgers = []
    for box in boxes:
        ledger = Ledger(posterior, epsilon=0.0, delta=0.1, early_stop=False, boxes=box)
        for _ in range(int(rng.integers(1, 4))):
            ledger.draws(posterior.sample(int(rng.integers(1, 25)), rng, boxes=box))
        ledgers.append(ledger)
    merged = Ledger.merge(ledgers)
    return pareto_front(merged), float(np.log(posterior.probs.max())), merged.best_log_prob


def false_counts(n_runs, *, whole):
    counts, certain = dict.fromkeys(LEVELS, 0), 0
    for seed in range(n_runs):
        pairs, log_best, log_found = merged_run(seed, whole=whole)
        false = [d for e, d in pairs if log_best > log_found - math.log1p(-e) + 1e-9]
        certain += any(d == 0.0 for d in false)
        for level in LEVELS:
            counts[level] += any(d <= level for d in false)
    return counts, certain


@pytest.mark.statistical
@pytest.mark.parametrize("whole", [True, False])
def test_no_level_is_exceeded(whole):
    counts, certain = false_counts(N_RUNS, whole=whole)
    assert certain == 0
    assert counts[0.3] > 0  # it can fail
    for level, count in counts.items():
        assert binomtest(count, N_RUNS, level, alternative="greater").pvalue > 1e-3, (level, count)


@pytest.mark.statistical
def test_adding_up_the_evidence_of_disjoint_boxes_would_show(monkeypatch):
    monkeypatch.setattr(draw_record, "min", sum, raising=False)
    counts, _ = false_counts(400, whole=False)
    assert any(binomtest(counts[x], 400, x, alternative="greater").pvalue < 1e-3 for x in LEVELS), counts
