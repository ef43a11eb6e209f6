"""Densities whose highest point is known, with full covariances and on the shell: what answers must be."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.cli.main import main


def round_mixture(weights, means, sds, turn=None) -> cm.GaussianMixture:
    """Round components, turned and stretched by a matrix where one is given."""
    means = np.asarray(means, np.float64)
    turn = np.eye(means.shape[1]) if turn is None else np.asarray(turn)
    covariances = [sd**2 * turn @ turn.T for sd in sds]
    return cm.GaussianMixture(weights, means @ turn.T, covariances)


def test_the_mode_between_two_means() -> None:
    result = cm.map_query(round_mixture([0.5, 0.5], [[-0.9], [0.9]], [1.0, 1.0]), epsilon=1e-6, rng=0)
    assert result.certified
    assert result.assignment["0"] == pytest.approx(0.0, abs=1e-3)
    assert math.exp(result.log_prob) == pytest.approx(0.2661, abs=5e-5)


def test_a_spike_is_found_and_nowhere_called_a_probability(tmp_path, capsys) -> None:
    model = round_mixture([0.5, 0.5], [[0.0], [5.0]], [1e-8, 1.0])
    result = cm.map_query(model, epsilon=0.01, rng=0)
    assert result.certified
    assert result.assignment["0"] == pytest.approx(0.0, abs=1e-9)
    assert result.log_prob == pytest.approx(16.81, abs=0.01)
    model.write(tmp_path / "spike.npz")
    assert main(["solve", str(tmp_path / "spike.npz"), "--epsilon", "0.01", "--rng", "0"]) == 0
    out = capsys.readouterr().out
    assert "16.808" in out
    assert "density" in out
    assert "probab" not in out


def test_two_equal_modes_are_a_tie() -> None:
    model = round_mixture([0.5, 0.5], [[-2.0, 0.0], [2.0, 0.0]], [1.0, 1.0], [[1.0, 0.3], [-0.5, 1.0]])
    result = cm.map_query(model, epsilon=1e-4, solver="frontier", width=0.01, rng=0)
    assert result.certified
    (other,) = result.ties
    np.testing.assert_allclose([other[v] for v in "01"], [-result.assignment[v] for v in "01"], atol=1e-6)


@pytest.mark.parametrize("turn", [np.eye(2), [[1.3, 0.4], [-0.9, 0.6]]])
def test_the_extra_mode_of_three_components_in_the_plane(turn) -> None:
    """Equal covariances on a triangle: the fourth mode, in its middle and at no mean, is the highest."""
    corners = [(math.cos(a), math.sin(a)) for a in (math.pi / 2, math.pi * 7 / 6, math.pi * 11 / 6)]
    model = round_mixture([1 / 3] * 3, corners, [0.737] * 3, turn)
    result = cm.map_query(model, epsilon=1e-4, rng=0)
    assert result.certified
    np.testing.assert_allclose([result.assignment[v] for v in "01"], [0.0, 0.0], atol=0.1)
    # The other modes, near the corners, are climbed to from the means, and are lower.
    climbed = cm.condition(model).prober().climb(np.asarray(model.means))
    heights = model.log_density(climbed)
    assert np.linalg.norm(climbed @ np.linalg.inv(turn).T, axis=1).min() > 0.2
    assert heights.max() < result.log_prob - 1e-6


def test_an_interval_that_excludes_every_mean() -> None:
    model = round_mixture([0.6, 0.4], [[0.0, 0.0], [1.0, 1.0]], [1.0, 0.5], [[1.0, 0.2], [0.5, 1.0]])
    result = cm.map_query(model, None, {"0": (3.0, math.inf)}, epsilon=1e-4, rng=0)
    assert result.certified
    assert result.assignment["0"] == 3.0
    line = np.column_stack([np.full(20001, 3.0), np.linspace(-6.0, 8.0, 20001)])
    assert result.log_joint >= model.log_density(line).max() - 1e-4
