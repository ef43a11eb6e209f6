"""Upper bounds that a user brings from another program."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.certify.ledger import ExternalBound, Ledger
from certimap.core.posterior import Facts
from certimap.errors import SolverError
from certimap.testing import TablePosterior, random_circuit

TABLE = TablePosterior([11], [0.1] + [0.09] * 10)


def asked(solver="budget", **more):
    start = {"warm_start": np.array([[0]])}
    return cm.map_query(TABLE, solver=solver, delta=0, epsilon=0, rng=0, max_samples=3, **start, **more)


def test_a_bound_certifies_and_its_source_is_an_assumption():
    plain = asked()
    assert plain.certificate.kind == "none"
    helped = asked(upper_bound={"source": "daoopt", "log_prob": math.log(0.1)})
    assert helped.certificate.kind == "exact"
    assert helped.certificate.rule == "external"
    assert helped.certificate.assumptions == ("the upper bound from daoopt holds",)
    assert helped.log_upper_bound == pytest.approx(math.log(0.1))


def test_a_bound_that_an_answer_refutes_certifies_nothing():
    with pytest.warns(UserWarning, match="upper bound of daoopt is refuted"):
        result = asked(upper_bound={"source": "daoopt", "log_prob": math.log(0.095)})
    assert result.certificate.kind == "none"
    assert not result.certificate.assumptions


def test_a_bound_that_comes_after_its_refutation_is_not_taken_either():
    ledger = Ledger(TABLE)
    ledger.candidates(np.array([[0]], np.int16))
    with pytest.warns(UserWarning, match="refuted"):
        ledger.upper_bound(math.log(0.05), "an oracle")
    assert ledger.external is None


def test_joint_bounds_are_turned_by_the_evidence_and_rounded_up():
    circuit = random_circuit(np.random.default_rng(0), cm.Domain.of_sizes([2, 2, 2]))
    exact = cm.map_query(circuit, ["0", "1"], {"2": 1}, epsilon=0, delta=0)
    for of in ("log_prob", "log_joint"):
        given = {"source": "a friend", of: {"log_prob": exact.log_prob, "log_joint": exact.log_joint}[of]}
        result = cm.map_query(circuit, ["0", "1"], {"2": 1}, solver="hill_climb", upper_bound=given)
        assert result.certificate.rule in ("external", "residual")
        assert result.log_upper_bound >= exact.log_prob
        assert result.log_upper_bound == pytest.approx(exact.log_prob, abs=1e-9)


@pytest.mark.parametrize(
    "given",
    [
        -3.0,
        {"log_prob": -3.0},
        {"source": "x"},
        {"source": "", "log_prob": -3.0},
        {"source": "x", "log_prob": math.inf},
        {"source": "x", "log_prob": "low"},
        {"source": "x", "value": -3.0},
    ],
)
def test_other_forms_are_refused(given):
    with pytest.raises(SolverError, match="expected"):
        ExternalBound.read(given)


def test_without_the_evidence_the_other_form_is_asked_for():
    facts = Facts.of(TABLE.domain, is_normalised=False)
    with pytest.raises(SolverError, match="give it of log_joint"):
        ExternalBound("x", "log_prob", -1.0).on(facts)


def test_a_bound_of_one_query_is_refused_for_many():
    pandas = pytest.importorskip("pandas")
    circuit = random_circuit(np.random.default_rng(0), cm.Domain.of_sizes([2, 2, 2]))
    rows = pandas.DataFrame({"2": [0, 1]})
    with pytest.raises(SolverError, match="one query"):
        cm.map_query(circuit, ["0"], rows, upper_bound={"source": "x", "log_prob": -0.1})
