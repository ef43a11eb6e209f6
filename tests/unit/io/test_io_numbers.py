"""Numbers beyond the range of doubles on their way in and out of files."""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certimap import io
from certimap.core.domain import Domain
from certimap.errors import ParseError
from certimap.io.words import log_of_text, read_numbers, written
from certimap.networks import BayesianNetwork, Factor, MarkovNetwork

TWO_FACTORS = "MARKOV\n1\n2\n2\n1 0\n1 0\n2\n1 1e-400\n2\n1e-250 1e200\n"


@pytest.mark.parametrize("word", ["1_0", "0.2_5", "\u0661", "\uff11", "nan", "inf", "-1", ""])
def test_what_float_takes_beyond_numbers_of_files_is_refused(word, tmp_path):
    assert read_numbers(["1", word]) is None
    assert read_numbers([word]) is None
    if word:
        path = tmp_path / "odd.uai"
        path.write_text(TWO_FACTORS.replace("1e200", word), encoding="utf-8")
        with pytest.raises(ParseError):
            io.read(path)


@pytest.mark.parametrize(
    ("word", "log"),
    [
        ("1e-400", -400 * math.log(10)),
        (".1E-399", -400 * math.log(10)),
        ("1e400", 400 * math.log(10)),
        ("4.9e-324", math.log(4.9) - 324 * math.log(10)),
        ("1e-99999999999", -99999999999 * math.log(10)),
        ("0", -math.inf),
        ("0e-900", -math.inf),
        ("0.00e900", -math.inf),
    ],
)
def test_text_of_any_size_has_a_log(word, log):
    assert log_of_text(word) == pytest.approx(log, rel=1e-15)
    numbers = read_numbers(["1", word])
    assert numbers is not None
    assert numbers.all_logs == pytest.approx([0.0, log], rel=1e-15)


@pytest.mark.parametrize("word", ["-1e-400", "-1", "nan", "inf", "Infinity", "1e", "x", "1e400x", "0x1p3", ""])
def test_what_is_no_finite_number_is_refused(word):
    assert read_numbers([word]) is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-5e4, 5e4) | st.just(-math.inf), min_size=1, max_size=4))
def test_written_logs_read_back(logs):
    words = written(Factor.from_log((0,), np.array(logs)))
    numbers = read_numbers(words)
    assert numbers is not None
    assert numbers.all_logs == pytest.approx(np.array(logs), rel=2.3e-16, abs=2.3e-16)
    for word, log in zip(words, logs, strict=True):
        exact = Decimal(log).exp(Context(prec=40)) if log > -math.inf else Decimal(0)
        assert abs(Decimal(word) - exact) <= exact * Decimal("3e-16")


@pytest.mark.parametrize("suffix", ["npz", "uai"])
@pytest.mark.parametrize("logs", [[0.0, -800.0], [-700.0, 300.0], [800.0, 801.0], [-math.inf, -1e5]])
def test_a_network_of_logs_survives_a_file(tmp_path, suffix, logs):
    network = MarkovNetwork(
        Domain.of_sizes([2]), [Factor.from_log((0,), np.array(logs)), Factor((0,), [0.3, 0.7])]
    )
    path = tmp_path / f"m.{suffix}"
    io.write(network, path)
    again = io.read(path)
    points = np.array([[0], [1]])
    assert again.log_joint(points) == pytest.approx(network.log_joint(points), rel=1e-15)
    assert np.array_equal(again.factors[1].table, [0.3, 0.7])
    io.write(again, tmp_path / "again.npz")
    assert np.array_equal(io.read(tmp_path / "again.npz").log_joint(points), again.log_joint(points))


def test_factors_beyond_doubles_in_a_markov_file(tmp_path):
    path = tmp_path / "m.uai"
    path.write_text(TWO_FACTORS)
    network = io.read(path)
    expected = [-250 * math.log(10), -200 * math.log(10)]
    assert network.log_joint(np.array([[0], [1]])) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("suffix", ["bif", "uai", "npz"])
def test_a_tiny_conditional_probability_survives(tmp_path, suffix):
    rows = np.array([[0.0, -1000.0], [-900.0, 0.0]])
    network = BayesianNetwork(Domain.of_sizes([2, 2]), [Factor((0,), [0.5, 0.5]), Factor.from_log((0, 1), rows)])
    path = tmp_path / f"m.{suffix}"
    io.write(network, path)
    again = io.read(path)
    points = np.array([[a, b] for a in range(2) for b in range(2)])
    assert again.log_joint(points) == pytest.approx(network.log_joint(points), rel=1e-14)


def test_tiny_entries_of_a_renormalised_row_keep_their_ratio(tmp_path):
    path = tmp_path / "m.uai"
    path.write_text("BAYES 1 2 1 1 0 2 0.9995 1e-400")
    with pytest.warns(UserWarning, match="renormalised"):
        network = io.read(path)
    ratio = network.factors[0].log_table[1] - network.factors[0].log_table[0]
    assert ratio == pytest.approx(-400 * math.log(10) - math.log(0.9995), rel=1e-15)


def test_a_number_too_large_for_a_probability_is_refused(tmp_path):
    path = tmp_path / "m.uai"
    path.write_text("BAYES 1 2 1 1 0 2 1e400 1")
    with pytest.raises(ParseError, match=r"adds to inf, .* expected 1 within 0\.001"):
        io.read(path)


def test_a_file_of_the_first_version_reads_as_before(tmp_path):
    network = MarkovNetwork(Domain.of_sizes([2]), [Factor((0,), [1.0, 2.0])])
    io.write(network, tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as file:
        assert '"version": 1' in str(file["meta"])
        assert "in_logs" not in file.files
