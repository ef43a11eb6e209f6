"""`.spn` text: circuits."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from tests.reference.enumeration_networks import all_points, circuit_value

from certimap import io
from certimap.circuits.circuit import CircuitBuilder, NodeKind
from certimap.core.domain import Categorical, Domain, Real
from certimap.errors import ModelError, ParseError

PAIR = """indicator 0 0 0
l 1 0 1
indicator 2 1 0
indicator 3 1 1
+ 4 0 0.9 1 0.1
+ 5 2 .25 3 7.5e-1
* 6 4 5
"""


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "m.spn"
        path.write_text(text)
        return io.read(path)

    return read_text


def test_a_small_circuit(read):
    circuit = read(PAIR)
    assert circuit.domain == Domain.of_sizes([2, 2])
    values = [circuit_value(circuit, p) for p in all_points([2, 2])]
    assert values == pytest.approx([0.9 * 0.25, 0.9 * 0.75, 0.1 * 0.25, 0.1 * 0.75])


def test_ids_are_any_distinct_integers_and_variables_any_numbers(read):
    text = "l 70 9 2\n\n  l -3 9 0\r\n# a comment + 1 2\n+\t5   70 .5 -3 .5\n\n"
    circuit = read(text)
    assert circuit.domain.names == ("9",)
    assert circuit.domain["9"].states == (0, 1, 2)
    assert [circuit_value(circuit, [s]) for s in range(3)] == pytest.approx([0.5, 0.0, 0.5])


def test_gaussians_and_weights_beyond_float64(read):
    circuit = read("gaussian 0 1 -1.5 2\nl 1 0 0\nl 2 0 1\n+ 3 1 2.5e-400 2 0\n* 4 3 0\n")
    assert circuit.domain["1"] == Real("1")
    assert circuit.params_of(0).tolist() == [-1.5, 2.0]
    assert circuit.log_weights[0] == pytest.approx(math.log(2.5) - 400 * math.log(10))
    assert circuit.log_weights[1] == -math.inf


@pytest.mark.parametrize(
    ("old", "new", "line", "part"),
    [
        ("l 1 0 1", "leaf 1 0 1", 2, "'leaf'"),
        ("l 1 0 1", "l 1 0", 2, "an indicator has"),
        ("l 1 0 1", "l 1 0 x", 2, "'x'"),
        ("l 1 0 1", "l 1 0 1.5", 2, "state"),
        ("l 1 0 1", "l 1 0 -1", 2, "state"),
        ("l 1 0 1", "l 0 0 1", 2, "twice"),
        ("l 1 0 1", "gaussian 1 0 0 1", 2, "indicators too"),
        ("l 1 0 1", "gaussian 1 2 0 -1", 2, "an sd from 1e-290"),
        ("+ 4 0 0.9 1 0.1", "+ 4 0 0.9 1", 5, "a sum has"),
        ("+ 4 0 0.9 1 0.1", "+ 4 0 0.9 1 -0.1", 5, "weight"),
        ("+ 4 0 0.9 1 0.1", "+ 4 0 0.9 1 nan", 5, "weight"),
        ("+ 4 0 0.9 1 0.1", "+ 4 0 0.9 5 0.1", 5, "child 5"),
        ("+ 4 0 0.9 1 0.1", "+ 4 0 0.9 77 0.1", 5, "child 77"),
        ("* 6 4 5", "* 6", 7, "a product has"),
        ("* 6 4 5", "* 6 4 6", 7, "child 6"),
    ],
)
def test_errors_name_the_line(read, old, new, line, part):
    with pytest.raises(ParseError) as caught:
        read(PAIR.replace(old, new))
    assert caught.value.line == line
    assert part in str(caught.value)


def test_a_file_without_nodes_or_leaves_is_refused(read):
    for text in ("", "\n# only this\n"):
        with pytest.raises(ParseError):
            read(text)


def build_mixed():
    builder = CircuitBuilder(Domain([Categorical("c", ("a", "b", "z")), Real("x"), Categorical("d", (1, 0))]))
    parts = []
    for k in range(2):
        leaf = builder.categorical(0, log_weights=[math.log(0.3 + k / 7), -math.inf, -3.0])
        parts.append(builder.product([leaf, builder.gaussian(1, k + 0.1, 1 / 3), builder.indicator(2, k)]))
    builder.sum(parts, log_weights=[math.log(0.3), -800.0])
    return builder.build(normalised=False)


@pytest.mark.parametrize("name", ["m.spn", "m.spn.gz"])
def test_written_circuits_mean_the_same(tmp_path, name):
    circuit = build_mixed()
    circuit.write(tmp_path / name)
    again = io.read(tmp_path / name)
    assert again.domain.n_states.tolist() == [3, 0, 2]
    gaussians = [again.params_of(i).tolist() for i in np.flatnonzero(again.kind == NodeKind.GAUSSIAN)]
    assert gaussians == [[0.1, 1 / 3], [1.1, 1 / 3]]
    assert again.log_weights[-2:] == pytest.approx([math.log(0.3), -800.0], rel=1e-14)


@pytest.mark.parametrize("together", [1, 3, 100_000])
def test_any_number_of_nodes_is_written_together(tmp_path, monkeypatch, together):
    monkeypatch.setattr("certimap.io.spn.NODES_TOGETHER", together)
    circuit = build_mixed()
    circuit.write(tmp_path / "m.spn")
    again = io.read(tmp_path / "m.spn")
    for x in (-0.4, 0.2):
        for point in ([0, x, 0], [2, x, 1], [1, x, 0]):
            assert circuit_value(again, point) == pytest.approx(circuit_value(circuit, point), rel=1e-14)


def test_a_root_that_is_an_indicator_gets_the_last_line(tmp_path):
    build = CircuitBuilder(Domain.of_sizes([3]))
    build.indicator(0, 1)
    build.build(normalised=False).write(tmp_path / "m.spn")
    again = io.read(tmp_path / "m.spn")
    assert [circuit_value(again, [s]) for s in range(3)] == [0.0, 1.0, 0.0]


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_survives_and_large_files_are_quick(tmp_path, examples):
    circuit = io.read(examples / "asia.bif").compile()
    circuit.write(tmp_path / "asia.spn")
    again = io.read(tmp_path / "asia.spn")
    points = all_points(again.domain.n_states)
    assert [circuit_value(again, p) for p in points] == pytest.approx(
        [circuit_value(circuit, p) for p in points], rel=1e-12
    )
    n = 60_000
    lines = ["l 0 0 0", "l 1 0 1"] + [f"+ {i} {i - 1} 0.25 {i - 2} 0.75" for i in range(2, n)]
    (tmp_path / "long.spn").write_text("\n".join(lines))
    start = time.process_time()
    assert io.read(tmp_path / "long.spn").n_edges == 2 * (n - 2)
    assert time.process_time() - start < 60.0  # some .3 s; quadratic, it would take an hour


def test_a_network_is_no_circuit(tmp_path, examples):
    network = io.read(examples / "asia.bif")
    with pytest.raises(ModelError, match=r"\.spn holds circuits"):
        network.write(tmp_path / "m.spn")
    with pytest.raises(ModelError, match=r"\.bif holds Bayesian networks"):
        build_mixed().write(tmp_path / "m.bif")
    assert not list(tmp_path.iterdir())


def test_limits_of_a_real_variable_are_refused(tmp_path):
    build = CircuitBuilder(Domain([Real("x", -1.0, 60.0)]))
    build.gaussian(0, 0.0, 1.0)
    path = tmp_path / "model.spn"
    with pytest.raises(ModelError, match=r"variable 'x' lies in \[-1, 60\]"):
        io.write(build.build(normalised=False), path)
    assert not path.exists()
