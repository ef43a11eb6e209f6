"""A network is a circuit or a tree of regions, whichever the solver works on and the limits allow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import certimap as cm
from certimap.circuits.posterior import CircuitPosterior
from certimap.conversions import condition
from certimap.core.query import make_query
from certimap.learn import HiddenChowLiuTree, learnspn
from certimap.networks.mpe_posterior import MpePosterior
from certimap.solvers.registry import wants_of
from certimap.trees.bucket_tree import BucketTreePosterior

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def alarm():
    return cm.read(EXAMPLES / "alarm.bif")


@pytest.mark.parametrize(
    ("solver", "expected"), [("set_elimination", True), ("frontier", False), ("argmax_product", False)]
)
def test_every_solver_gets_the_view_it_needs(alarm, solver, expected):
    posterior = condition(alarm, make_query(alarm.domain, ["HISTORY", "CVP"]), wants=wants_of(solver))
    assert isinstance(posterior, BucketTreePosterior) == expected


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
    small = cm.Limits(max_edges=2000)
    assert isinstance(condition(alarm, query, wants=(), limits=small), BucketTreePosterior)
    with pytest.raises(cm.ModelError, match="max_edges=2000"):
        condition(alarm, query, wants=(CircuitPosterior,), limits=small)
    assert isinstance(condition(alarm, query, limits=cm.Limits(max_edges=5)), MpePosterior)


def test_every_door_leads_to_the_same_representation_and_solver(alarm, tmp_path):
    data = np.random.default_rng(0).integers(0, 2, (400, 6))
    circuit = learnspn(data, rng=0)
    hidden = HiddenChowLiuTree(3, random_state=0, max_steps=3).fit(data).model_
    models = (alarm, circuit, hidden, hidden.to_circuit(), hidden.to_network())
    for model, names in [(m, list(m.domain.names)[:4]) for m in models] + [(alarm, None)]:
        direct = cm.map_query(model, names, rng=0, progress=False)
        posterior = cm.condition(model, names)
        again = cm.map_query(posterior, rng=0, progress=False)
        assert type(posterior) is type(model.condition(make_query(model.domain, names)))
        assert (direct.solver, direct.assignment, direct.n_draws) == (
            again.solver,
            again.assignment,
            again.n_draws,
        )


def test_a_model_of_ones_own_conditions_itself(alarm):
    class Renamed(cm.Model):
        domain = alarm.domain

        def condition(self, query, limits=None):
            return condition(alarm, query, limits=limits)

    assert cm.map_query(Renamed(), ["HISTORY"], progress=False).certificate.kind == "exact"

    class Unknown(cm.Model):
        domain = alarm.domain

    with pytest.raises(cm.ModelError, match="Unknown is no model"):
        cm.map_query(Unknown(), ["HISTORY"])
