"""How often certificates by draws are false under constraints: draws outside count, and are no answers."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binomtest

import certimap as cm
from certimap.certify.ledger import Ledger
from certimap.core.constrained import ConstrainedPosterior
from certimap.core.rules import Rules
from certimap.testing import TablePosterior
from certimap.testing.models import random_domain, random_table

EPSILON = DELTA = 0.05


def question():
    """A table whose best answer has .03, five others just too little, and all others together .828."""
    domain = cm.Domain([cm.Categorical("flag", ["no", "yes"]), cm.Categorical("x", range(200))])
    probs = np.full((2, 200), 0.0)
    probs[0, 0], probs[0, 1:6] = 0.03, 0.0284
    probs[0, 6:], probs[1, 0], probs[1, 1:] = 0.2 / 194, 0.3, (0.828 - 0.5) / 199
    return TablePosterior(domain, probs), [cm.Never(flag="yes")]


def false_share(n_runs, loosened=1.0):
    """Return how many runs certify another answer than the best."""
    posterior, constraints = question()
    view, n_false = ConstrainedPosterior(posterior, Rules.of(posterior.domain, constraints)), 0
    for seed in range(n_runs):
        ledger = Ledger(view, epsilon=EPSILON, delta=DELTA ** (1.0 / loosened), checks_draws=True)
        ledger.draws(posterior.sample(200, np.random.default_rng(seed)))
        assert ledger.satisfied
        n_false += math.exp(ledger.best_log_prob) < 0.95 * 0.03
    return n_false


def test_false_share_is_what_the_rule_says():
    """A run is false when 99 draws miss the best answer, whatever else they hit: .97 ** 99 = 4.90 %."""
    assert binomtest(false_share(3000), 3000, 0.97**99).pvalue > 1e-3


def test_a_rule_forty_percent_too_loose_is_found_out():
    n_false = false_share(3000, loosened=1.4)
    assert binomtest(n_false, 3000, DELTA, alternative="greater").pvalue < 1e-6


def test_false_share_through_the_whole_path():
    posterior, constraints = question()
    n_false = 0
    for seed in range(600):
        asked = {"solver": "pac", "epsilon": EPSILON, "delta": DELTA, "rng": seed, "progress": False}
        result = cm.map_query(posterior, constraints=constraints, **asked)
        assert result.certificate.kind is cm.CertificateKind.PAC
        assert result.assignment["flag"] == "no"
        n_false += result.log_prob < math.log(0.95 * 0.03)
    assert binomtest(int(n_false), 600, 0.97**99).pvalue > 1e-3


def test_random_constraints_on_random_tables():
    """Each run draws until the certificate of the three best is earned, and counts what it missed."""
    delta, n_false, n_runs = 0.1, 0, 0
    for seed in range(1500):
        rng = np.random.default_rng(seed)
        table = random_table(rng, random_domain(rng, max_variables=4, max_states=4))
        rows = table.points[rng.random(len(table.points)) < 0.6]
        if not len(rows):
            continue
        view = ConstrainedPosterior(table, Rules.of(table.domain, [cm.Allowed(table.domain.names, rows.tolist())]))
        truth = np.sort(view.log_prob(table.points))[::-1]
        ledger = Ledger(view, epsilon=0.0, delta=delta, top_k=int(rng.choice([1, 3])), checks_draws=True)
        while not ledger.satisfied and ledger.n_draws < 500:
            ledger.draws(table.sample(20, rng))
        if ledger.satisfied:
            n_runs += 1
            n_false += ledger.log_kth_best < truth[ledger.top_k - 1] - 1e-8
    assert n_runs > 500
    assert binomtest(n_false, n_runs, delta, alternative="greater").pvalue > 1e-3
