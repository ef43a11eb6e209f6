"""Solvers that claim more than they did: what the ledger refuses, and what it calls an assumption."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

import certimap as cm
from certimap.core.result import CertificateKind, Rule
from certimap.testing import TablePosterior


class Claiming(cm.Solver):
    """Evaluates one point, then says whatever `claim` says."""

    name = "claiming"

    def __init__(self, claim):
        self.claim = claim

    def init(self, posterior, control, rng, boxes=None):
        return SimpleNamespace(posterior=posterior, done=False)

    def step(self, state, ledger):
        ledger.candidates(np.zeros((1, len(ledger.domain)), ledger.domain.point_dtype))
        self.claim(ledger)
        state.done = True
        return state


FALSE_CLAIMS = {
    "nothing is open": lambda ledger: ledger.frontier(-math.inf, -math.inf),
    "what is open is no better": lambda ledger: ledger.frontier(0.0, ledger.best_log_prob),
    "everything else is closed": lambda ledger: (
        ledger.close(ledger.best_log_prob, 0.0),
        ledger.frontier(-math.inf, -math.inf),
    ),
    "draws came from a small rest": lambda ledger: ledger.draws(
        np.zeros((50, len(ledger.domain)), np.int16), ledger.best_log_prob
    ),
}


@pytest.mark.parametrize("claim", FALSE_CLAIMS.values(), ids=FALSE_CLAIMS)
def test_a_search_that_did_not_happen_earns_nothing(claim, examples):
    alarm = cm.read(examples / "alarm.bif")
    with pytest.raises(cm.UnbalancedBooks):
        cm.map_query(alarm, solver=Claiming(claim), epsilon=0.01, delta=0.01)


def test_a_bound_from_a_user_is_an_assumption(examples):
    alarm = cm.read(examples / "alarm.bif")
    solver = Claiming(lambda ledger: ledger.upper_bound(ledger.best_log_prob, "frontier"))
    certificate = cm.map_query(alarm, solver=solver).certificate
    assert certificate.rule is Rule.EXTERNAL
    assert certificate.assumptions == ("the upper bound from frontier holds",)


def test_where_books_cannot_be_kept_the_solver_is_named():
    normal = cm.FunctionPosterior(
        cm.Domain([cm.Real("x")]), lambda n, rng: rng.normal(size=(n, 1)), lambda x: -0.5 * x[:, 0] ** 2
    )
    solver = Claiming(lambda ledger: ledger.frontier(None, ledger.best_log_prob))
    certificate = cm.map_query(normal, solver=solver).certificate
    assert certificate.kind is CertificateKind.EXACT
    assert certificate.assumptions == ("the boxes that solver 'claiming' reported cover the whole space",)


def test_an_honest_search_by_a_stranger_needs_no_assumption():
    posterior = TablePosterior([3], [0.5, 0.3, 0.2])

    def search(ledger):
        ledger.settle(np.zeros((1, 1), np.int16))
        ledger.close(math.log(0.3), math.log(0.5))
        ledger.frontier(-math.inf, -math.inf)

    certificate = cm.map_query(posterior, solver=Claiming(search), epsilon=0.0, delta=0.0).certificate
    assert (certificate.kind, certificate.assumptions) == (CertificateKind.EXACT, ())


@pytest.mark.parametrize("solver", ["auto", "exhaustive"])
def test_a_posterior_without_a_possible_assignment_is_refused(solver):
    def draws(n, rng):
        return rng.integers(0, 3, (n, 2))

    nothing = cm.FunctionPosterior([3, 3], draws, lambda points: np.full(len(points), -np.inf), normalised=False)
    with pytest.raises(cm.ImpossibleEvidence, match="no assignment of the query variables is possible"):
        cm.map_query(nothing, solver=solver, rng=0)
