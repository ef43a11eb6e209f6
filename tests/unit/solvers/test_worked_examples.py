"""Small queries with answers worked out by hand, asked through the public interface."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import certimap as cm


@pytest.fixture
def weather(tmp_path: Path) -> object:
    path = tmp_path / "weather.bif"
    path.write_text(
        """network weather { }
variable W { type discrete [ 2 ] { dry, wet }; }
variable T { type discrete [ 3 ] { lo, mid, hi }; }
probability ( W ) { table .55, .45; }
probability ( T | W ) { (dry) .4, .3, .3; (wet) .9, .05, .05; }
"""
    )
    return cm.read(path)


def test_map_of_one_variable_is_not_the_projection_of_the_joint(weather):
    alone = cm.map_query(weather, ["W"], epsilon=0, rng=0)
    assert alone.assignment == {"W": "dry"}
    assert alone.log_prob == pytest.approx(math.log(0.55), abs=1e-12)
    joint = cm.map_query(weather, ["W", "T"], epsilon=0, rng=0)
    assert joint.assignment == {"W": "wet", "T": "lo"}
    assert joint.log_prob == pytest.approx(math.log(0.405), abs=1e-12)
    assert joint.certificate.kind == "exact"


def test_evidence_of_probability_zero_is_refused(tmp_path):
    path = tmp_path / "zero.bif"
    path.write_text(
        """network zero { }
variable X { type discrete [ 2 ] { 0, 1 }; }
variable Y { type discrete [ 2 ] { 0, 1 }; }
probability ( X ) { table 1, 0; }
probability ( Y | X ) { (0) 1, 0; (1) .2, .8; }
"""
    )
    with pytest.raises(cm.ImpossibleEvidence):
        cm.map_query(cm.read(path), ["X"], {"Y": "1"})


def chain_text(n: int) -> str:
    """A binary Markov chain as UAI text."""
    lines = ["BAYES", str(n), " ".join(["2"] * n), str(n), "1 0"]
    lines += [f"2 {i - 1} {i}" for i in range(1, n)]
    lines += ["2 .6 .4"] + ["4 .7 .3 .4 .6"] * (n - 1)
    return "\n".join(lines)


def test_mpe_of_a_chain_is_exact_and_looks_at_few_points(tmp_path):
    path = tmp_path / "chain.uai"
    path.write_text(chain_text(40))
    model = cm.read(path)
    result = cm.map_query(model, epsilon=0, delta=0, rng=0)
    assert set(result.assignment.values()) == {0}
    assert result.log_prob == pytest.approx(math.log(0.6) + 39 * math.log(0.7), abs=1e-9)
    assert result.log_prob == pytest.approx(-14.4211, abs=5e-5)
    assert result.certificate.kind == "exact"
    assert result.n_evaluations <= 2


@pytest.mark.parametrize("rows", ["(hi) .2, .8; (lo) .9, .1;", "default .2, .8; (lo) .9, .1;"])
def test_rows_are_matched_by_label_not_by_order(tmp_path, rows):
    path = tmp_path / "rows.bif"
    path.write_text(
        f"""network rows {{ }}
variable A {{ type discrete [ 2 ] {{ lo, hi }}; }}
variable B {{ type discrete [ 2 ] {{ x, y }}; }}
probability ( A ) {{ table .3, .7; }}
probability ( B | A ) {{ {rows} }}
"""
    )
    result = cm.map_query(cm.read(path), ["A", "B"], epsilon=0, rng=0)
    assert result.assignment == {"A": "hi", "B": "y"}
    assert result.log_prob == pytest.approx(math.log(0.56), abs=1e-12)


def test_last_variable_of_a_uai_scope_varies_fastest(tmp_path):
    path = tmp_path / "two.uai"
    path.write_text("BAYES 2 2 3 2 1 0 2 0 1  2 .3 .7  6 .7 .2 .1 .1 .3 .6")
    result = cm.map_query(cm.read(path), epsilon=0, rng=0)
    assert result.assignment == {"0": 1, "1": 2}
    assert result.log_prob == pytest.approx(math.log(0.42), abs=1e-12)


def mixture() -> cm.Circuit:
    build = cm.CircuitBuilder(cm.Domain.of_sizes([2, 2]))
    products = []
    for first, second in ((0.1, 0.1), (0.9, 0.9), (0.8, 0.9)):
        leaves = [build.categorical(v, np.log([1 - p, p])) for v, p in ((0, first), (1, second))]
        products.append(build.product(leaves))
    build.sum(products, np.log([0.4, 0.35, 0.25]))
    return build.build()


def test_a_mixture_fools_max_product_but_not_the_certificate():
    exact = cm.map_query(mixture(), epsilon=0, rng=0)
    assert exact.assignment == {"0": 1, "1": 1}
    assert exact.log_prob == pytest.approx(math.log(0.4675), abs=1e-12)
    heuristic = cm.map_query(mixture(), solver="max_product", rng=0)
    assert heuristic.assignment == {"0": 0, "1": 0}
    assert heuristic.log_prob == pytest.approx(math.log(0.3325), abs=1e-12)
    assert heuristic.log_upper_bound is not None
    assert heuristic.log_upper_bound >= math.log(0.4675) - 1e-12


def test_labels_are_compared_as_keys_and_positions_never_count():
    circuit = mixture()
    answers = {
        json.dumps(cm.map_query(circuit, ["1"], {"0": label}, rng=0).assignment)
        for label in (True, 1, np.int64(1), 1.0)
    }
    assert len(answers) == 1
    build = cm.CircuitBuilder(cm.Domain([cm.Categorical("x", ("a", "b")), cm.Categorical("y", (5, 7))]))
    build.product([build.categorical(0, np.log([0.5, 0.5])), build.categorical(1, np.log([0.5, 0.5]))])
    with pytest.raises(cm.QueryError, match="'y'"):
        cm.map_query(build.build(), ["x"], {"y": 1})
