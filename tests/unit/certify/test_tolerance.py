"""What `tolerance` does: an answer within it counts as exact, and the certificate says which one was used."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.testing import TablePosterior


def near_tie(gap):
    """Two points of which the second is better by a factor of 1 + gap, and small ones."""
    probs = np.array([1.0, 1.0 + gap, 0.3, 0.2, 0.1, 0.1])
    return TablePosterior([2, 3], probs)


@pytest.mark.parametrize(("gap", "tolerance", "is_exact"), [(1e-6, 1e-4, True), (1e-3, 1e-4, False)])
def test_exact_means_within_the_tolerance(gap, tolerance, is_exact):
    posterior = near_tie(gap)
    bound = float(np.log(posterior.probs.max()))
    from certimap.certify.ledger import Ledger, issue

    ledger = Ledger(posterior, epsilon=0.0, tolerance=tolerance)
    ledger.candidates(posterior.points[:1])
    ledger.settle(posterior.points[:1])
    rest = 1.0 - float(posterior.probs[0])
    ledger.frontier(math.log(rest), bound)
    certificate = issue(ledger)
    assert (certificate.kind == "exact") is is_exact
    assert certificate.tolerance == tolerance


def test_it_reaches_the_ledger_from_map_query():
    posterior = near_tie(1e-6)
    loose = cm.map_query(posterior, solver="frontier", epsilon=0.0, delta=0.0, tolerance=1e-3, rng=0)
    tight = cm.map_query(posterior, solver="frontier", epsilon=0.0, delta=0.0, rng=0)
    assert (loose.certificate.kind, loose.certificate.tolerance) == ("exact", 1e-3)
    assert tight.certificate.tolerance == 1e-9
    assert tight.assignment == {"0": 0, "1": 1}
    assert loose.log_prob >= tight.log_prob - 1e-3
