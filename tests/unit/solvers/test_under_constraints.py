"""What solvers, the ledger and results say of constraints on a posterior that is no network."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import certimap as cm
from certimap.ask.constrained import wants_under
from certimap.certify.ledger import Ledger
from certimap.conversions.circuit_to_tree import network_of_circuit
from certimap.core.box import Boxes
from certimap.core.constrained import ConstrainedPosterior
from certimap.core.control import Control
from certimap.core.posterior import Decodes, Draws, Masses, Probes, Regions
from certimap.core.query import make_query
from certimap.core.rules import Rules
from certimap.errors import NoAnswer, QueryError, SolverError
from certimap.networks.constrained import ConstrainedNetwork, constrained
from certimap.testing import TablePosterior
from certimap.testing.models import random_circuit

NAMES = ("a", "b", "c")
DOMAIN = cm.Domain([cm.Categorical(name, ["no", "yes"]) for name in NAMES])
TABLE = TablePosterior(DOMAIN, [0.02, 0.08, 0.05, 0.15, 0.1, 0.1, 0.1, 0.4])  # by a, b, c; yes is 1
ONE = [cm.AtMost(1, NAMES, "yes")]


def view(constraints=ONE, posterior=TABLE):
    return ConstrainedPosterior(posterior, Rules.of(DOMAIN, constraints))


def test_points_outside_count_with_their_mass_and_are_no_answers():
    ledger = Ledger(view(), top_k=2)
    ledger.candidates(TABLE.points[[7, 3]])
    assert ledger.best == []
    assert ledger.best_log_prob == -math.inf
    assert math.exp(ledger.log_residual) == pytest.approx(0.45)
    ledger.candidates(TABLE.points[[4, 0]])
    assert [math.exp(value) for value, _ in ledger.best] == pytest.approx([0.1, 0.02])
    assert math.exp(ledger.log_residual) == pytest.approx(0.33)
    ledger.candidates(TABLE.points[[1, 2]])
    with pytest.raises(SolverError, match="not the whole space"):
        Ledger(view()).enumerated()
    ledger.enumerated()  # all four answers, though not all eight points
    assert ledger.satisfied


def test_the_books_balance_with_the_mass_of_what_is_no_answer():
    settled, closed = Ledger(view()), Ledger(view())
    settled.settle(TABLE.points)
    closed.settle(TABLE.points[view().rules.satisfied(TABLE.points)])
    closed.close(-math.inf, math.log(0.75))
    for ledger in (settled, closed):
        ledger.frontier(-math.inf, -math.inf)
        assert ledger.satisfied
        assert ledger.log_frontier_bound == -math.inf


def test_merged_parts_keep_the_mass_of_points_that_are_no_answers():
    part = np.ones((2, 6), np.bool_)
    part[0, 0] = part[1, 1] = False
    ledgers = [Ledger(view(), boxes=Boxes(DOMAIN, mask[None])) for mask in part]
    for ledger in ledgers:
        ledger.candidates(TABLE.points[[7, 4, 1]])
    copies = [pickle.loads(pickle.dumps(ledger)) for ledger in ledgers]
    merged = Ledger.merge(copies)
    assert math.exp(merged.log_residual) == pytest.approx(0.42)
    assert math.exp(merged.best_log_prob) == pytest.approx(0.1)


def test_the_parts_of_an_executor_give_the_answer_of_one_process():
    whole = cm.map_query(TABLE, constraints=ONE, solver="frontier", delta=0.0, top_k=4, rng=0, progress=False)
    parts = cm.map_query(
        TABLE, constraints=ONE, solver="frontier", delta=0.0, top_k=4, rng=0, n_jobs=1, progress=False
    )
    assert [math.exp(p) for _, p in whole.top] == pytest.approx([0.1, 0.08, 0.05, 0.02])
    assert [p for _, p in parts.top] == pytest.approx([p for _, p in whole.top])


def test_capabilities_are_those_that_allow_for_constraints():
    found = view()
    assert all(isinstance(found, kind) for kind in (Draws, Masses, Probes))
    assert not any(isinstance(found, kind) for kind in (Regions, Decodes))
    function = view(posterior=cm.FunctionPosterior(DOMAIN, TABLE.sample, TABLE.log_prob))
    assert isinstance(function, Draws)
    assert not any(isinstance(function, kind) for kind in (Masses, Probes))
    with pytest.raises(AttributeError, match="has no attribute 'prober'"):
        function.prober()


@pytest.mark.parametrize(
    ("solver", "options", "said"),
    [
        ("set_elimination", {}, "solver 'set_elimination' knows no constraints on a TablePosterior; use solver="),
        ("hbfs", {}, "solver 'hbfs' knows no constraints on a TablePosterior; use solver="),
        ("cells", {}, "solver 'cells' knows no constraints on a TablePosterior; use solver="),
        ("exhaustive", {"max_states": 3}, "more than max_states=3 joint states under the constraints"),
        ("smooth_pac", {"lipschitz": 1.0}, "a Lipschitz constant is of all assignments near a mode"),
    ],
)
def test_solvers_that_know_no_constraints_say_so(solver, options, said):
    with pytest.raises(SolverError, match=said):
        cm.map_query(TABLE, constraints=ONE, solver=solver, progress=False, **options)


def test_the_form_of_a_model_under_constraints():
    circuit = random_circuit(np.random.default_rng(0), DOMAIN)
    asked = make_query(DOMAIN, constraints=ONE)
    assert wants_under(circuit, asked, None) == (Masses, Probes)
    assert wants_under(circuit, asked, (Draws,)) == (Draws,)
    assert wants_under(circuit, make_query(DOMAIN), None) is None
    network = network_of_circuit(circuit, Control())
    _, counted = constrained(network, make_query(network.domain, NAMES, constraints=ONE))
    assert wants_under(network, counted, None) is None


@pytest.mark.parametrize("solver", ["auto", "frontier", "exhaustive"])
def test_no_answer_is_proved(solver):
    none = [cm.Exactly(1, NAMES, "yes"), cm.Never(a="yes"), cm.Never(b="yes"), cm.Never(c="yes")]
    with pytest.raises(NoAnswer, match="satisfies the constraints"):
        cm.map_query(TABLE, constraints=none, solver=solver, progress=False)


def test_a_run_without_an_answer_of_its_own_finds_one_nearby():
    """No draw is an answer: one is made from draws, and proves nothing."""
    sure = TablePosterior(DOMAIN, [1e-9, 0, 0, 0, 0, 0, 0, 1.0])
    result = cm.map_query(sure, constraints=ONE, solver="budget", max_samples=50, rng=0, progress=False)
    assert set(result.assignment.values()) == {"no"}
    assert result.n_draws == 50
    impossible = TablePosterior(DOMAIN, [0, 0, 0, 0, 0, 0, 0.5, 0.5])
    function = cm.FunctionPosterior(DOMAIN, impossible.sample, impossible.log_prob)
    with pytest.raises(SolverError, match="before it found an assignment that satisfies the constraints"):
        cm.map_query(function, constraints=ONE, solver="pac", max_samples=50, rng=0, progress=False)


def test_results_state_no_entropy():
    circuit = random_circuit(np.random.default_rng(0), DOMAIN)
    result = cm.map_query(circuit, constraints=ONE, progress=False)
    assert result.certified
    assert result.min_entropy_bits is None
    network = network_of_circuit(circuit, Control())
    asked = {"constraints": ONE, "solver": "set_elimination", "progress": False}
    assert cm.map_query(network, NAMES, **asked).min_entropy_bits is None
    with pytest.raises(QueryError, match="evidence"):
        cm.map_query(TABLE, constraints=[cm.Never(d="yes")], progress=False)


def test_constraints_on_two_variables_need_no_counters():
    network = network_of_circuit(random_circuit(np.random.default_rng(0), DOMAIN), Control())
    n = len(network.domain)
    pairs = [cm.Never(a="yes", b="yes"), cm.AllDifferent(["a", "b", "c"])]
    assert len(ConstrainedNetwork(network, pairs).domain) == n
    assert len(ConstrainedNetwork(network, ONE).domain) == n + 2
