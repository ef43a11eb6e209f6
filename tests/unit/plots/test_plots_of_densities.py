"""Figures of densities."""

from __future__ import annotations

import numpy as np
import pytest

import certimap as cm
from certimap.errors import QueryError
from certimap.plots import density_grid, open_cells, plot_density

MODEL = cm.GaussianMixture(
    [0.6, 0.4], [[0.0, 0.0], [2.0, 1.0]], [[[1.0, 0.6], [0.6, 1.0]], [[0.3, 0.0], [0.0, 0.3]]], ["x", "y"]
)


@pytest.mark.parametrize("names", [["x"], ["x", "y"]])
def test_a_density_and_its_mode(names: list[str], tmp_path) -> None:
    pytest.importorskip("matplotlib")
    grid = density_grid(cm.condition(MODEL, names), [(-3.0, 4.0)] * len(names), n_points=41)
    assert grid.log_density.shape == (41,) * len(names)
    points = np.array([[grid.axes[0][5], *(axis[9] for axis in grid.axes[1:])]])
    expected = MODEL.marginal(names).log_density(points)[0]
    assert grid.log_density[(5, 9)[: len(names)]] == pytest.approx(expected)
    result = cm.map_query(MODEL, names, epsilon=0.01, rng=0)
    ax = plot_density(grid, result)
    assert ax.get_xlabel() == "x"
    shown = ax.lines[-1 if len(names) == 2 else 1]
    assert float(np.asarray(shown.get_xdata())[0]) == pytest.approx(result.assignment["x"])
    ax.figure.savefig(tmp_path / "density.png")


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(QueryError, match="intervals"):
        density_grid(cm.condition(MODEL, ["x"]), [(1.0, 0.0)])


@pytest.mark.parametrize("names", [["x"], ["x", "y"]])
def test_boxes_that_are_still_open(names: list[str]) -> None:
    pytest.importorskip("matplotlib")
    posterior = cm.condition(MODEL, names)
    cells = open_cells(posterior, epsilon=1e-6, max_nodes=4)
    assert 0 < len(cells.log_bound) <= 40
    result = cm.map_query(MODEL, names, epsilon=1e-6, rng=0)
    mode = np.array(list(result.assignment.values()))
    holds = np.all((cells.low <= mode) & (mode <= cells.high), axis=1)
    assert np.all(cells.log_bound[holds] >= result.log_prob)
    grid = density_grid(posterior, [(-3.0, 4.0)] * len(names), n_points=21)
    ax = plot_density(grid, result, cells=cells)
    assert "boxes still open" in [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(open_cells(posterior, epsilon=0.5, max_nodes=100_000).log_bound) < 40
