"""A network is a circuit or a tree of regions, whichever the solver works on and the limits allow."""

from __future__ import annotations

from pathlib import Path

import pytest

import certimap as cm
from certimap.conversions.choose import posterior_of
from certimap.query import make_query

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def alarm():
    return cm.read(EXAMPLES / "alarm.bif")


@pytest.mark.parametrize(
    ("solver", "expected"), [("set_elimination", True), ("frontier", False), ("argmax_product", False)]
)
def test_every_solver_gets_the_view_it_needs(alarm, solver, expected):
    from certimap.solvers.registry import view_of

    posterior = posterior_of(alarm, make_query(alarm.domain, ["HISTORY", "CVP"]), view=view_of(solver))
    assert (type(posterior).__name__ == "BucketTreePosterior") == expected


def test_both_views_answer_alike(alarm):
    names, evidence = ["HISTORY", "CVP", "CO", "PRESS", "SAO2"], {"HRBP": "HIGH"}
    answers = [
        cm.map_query(alarm, names, evidence, epsilon=0, delta=0, solver=solver, rng=0)
        for solver in ("set_elimination", "frontier")
    ]
    assert all(a.certificate.kind == "exact" for a in answers)
    assert answers[0].log_prob == pytest.approx(answers[1].log_prob, abs=1e-9)
    assert answers[0].log_evidence == pytest.approx(answers[1].log_evidence, abs=1e-9)


def test_a_network_too_large_for_a_circuit_becomes_a_tree_of_regions(alarm):
    query = make_query(alarm.domain)
    assert type(posterior_of(alarm, query, max_edges=2000)).__name__ == "BucketTreePosterior"
    with pytest.raises(cm.ModelError, match="max_edges"):
        posterior_of(alarm, query, max_edges=2000, view="circuit")
    with pytest.raises(cm.ModelError):
        posterior_of(alarm, query, max_edges=5)
