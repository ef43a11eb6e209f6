"""The benchmark of the engine, on sizes that take no time: circuits as large as asked for, and its tables."""

from __future__ import annotations

import numpy as np
import pytest

from certimap.circuits import properties
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.query import make_query
from certimap_lab.bench import engine
from certimap_lab.bench.random_circuits import random_learnspn


def test_random_circuits_have_the_size_asked_for() -> None:
    circuit = random_learnspn(70, 6_000)
    assert abs(circuit.n_edges - 6_000) < 300
    assert properties.is_smooth(circuit)
    assert properties.is_decomposable(circuit)
    again = random_learnspn(70, 6_000)
    assert np.array_equal(circuit.params, again.params)
    assert CircuitPosterior.from_circuit(circuit, make_query(circuit.domain)).log_evidence == pytest.approx(
        0.0, abs=1e-10
    )


def test_the_other_library_evaluates_the_same_circuit() -> None:
    pytest.importorskip("sparc")
    circuit = random_learnspn(20, 300)
    posterior = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))
    points = posterior.sample(100, np.random.default_rng(0))
    other = engine.sparc_log_likelihood(circuit, 1)
    assert other is not None
    np.testing.assert_allclose(posterior.log_prob(points), other(points.astype(np.int64)), atol=1e-10)


def test_tables() -> None:
    table = engine.full_run_table(1, 2_000)
    assert table.title.startswith("0.002 million draws")
    assert len(table.rows) == 1
    assert 0 < int(str(table.rows[0][2])) <= 2_000
    results = engine.EngineResults({"processor": "x"}, 1, [table])
    assert "| edges |" in str(results)
