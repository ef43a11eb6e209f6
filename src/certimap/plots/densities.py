"""Figures of densities of one or two real query variables."""

# matplotlib leaves parts of its signatures untyped
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.arrays import Floats
from certimap.core.control import Control
from certimap.core.domain import Real
from certimap.core.posterior import Posterior, Probes
from certimap.core.result import MapResult
from certimap.errors import QueryError
from certimap.plots.results import LOWER, MASS, NEUTRAL, UPPER, axes_of, labelled
from certimap.solvers.box_search.frontier import Frontier, Pace
from certimap.solvers.registry import resolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class DensityGrid:
    """A density on a grid.

    Attributes
    ----------
    names, axes
        The one or two variables, and the grid values of each, shape (n_points,).
    log_density
        Natural logs, shape (n_points,) or (n_points, n_points), the first variable first.
    """

    names: tuple[str, ...]
    axes: tuple[Floats, ...]
    log_density: Floats


def density_grid(posterior: Posterior, intervals: Sequence[Interval], *, n_points: int = 201) -> DensityGrid:
    """Evaluate a density on a grid.

    `posterior`, `intervals`, `n_points`: a posterior of one or two real variables (`certimap.condition`), (low,
    high) for each, and values per axis. Raises QueryError for other posteriors, and intervals that do not fit.
    """
    domain = posterior.domain
    if len(domain) not in (1, 2) or not all(isinstance(variable, Real) for variable in domain):
        raise QueryError(f"the query variables are {domain.names}; one or two real ones can be drawn")
    if len(intervals) != len(domain) or not all(low < high for low, high in intervals):
        raise QueryError(f"the intervals are {list(intervals)}; expected (low, high) for each of {domain.names}")
    axes = tuple(np.linspace(low, high, n_points) for low, high in intervals)
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    values = posterior.log_prob(points.reshape(-1, len(domain)))
    return DensityGrid(domain.names, axes, values.reshape(points.shape[:-1]))


@dataclass(frozen=True, eq=False)
class OpenCells:
    """The open boxes in a search of a density.

    Attributes
    ----------
    low, high, log_bound
        The ends of each box, shape (batch, n_variables), and upper bounds on ln of the density in each, (batch,).
    """

    low: Floats
    high: Floats
    log_bound: Floats


def open_cells(posterior: Posterior, *, epsilon: float = 0.01, max_nodes: int = 200, rng: int = 0) -> OpenCells:
    """Search a density with a node limit, and return the boxes still open.

    `posterior`, `epsilon`, `max_nodes`, `rng`: a posterior with bounds for a search (`certimap.condition`), its
    target, boxes to probe, and a seed. Empty if the search ends before.
    """
    control = Control.starting_now(None, max_nodes=max_nodes)
    ledger = Ledger(posterior, epsilon=epsilon, delta=0.0, control=control)
    chosen = resolve(Frontier(pace=Pace(step_work=1)), posterior)
    assert isinstance(chosen, Frontier)
    assert isinstance(posterior, Probes)  # otherwise rejected above
    state = chosen.init(posterior, control, np.random.default_rng(rng))
    while not (state.done or ledger.satisfied or control.nodes_left(state.n_nodes) == 0):
        state = chosen.step(state, ledger)
    boxes = state.open.boxes(slice(None))
    return OpenCells(boxes.low, boxes.high, state.open.bounds.copy())


def plot_density(
    grid: DensityGrid, result: MapResult | None = None, ax: Axes | None = None, *, cells: OpenCells | None = None
) -> Axes:
    """Draw a density and its certified mode.

    One variable gives a line, with the proved bound above it; two give contours. Boxes of a search are drawn at
    their bounds over one variable, and as outlines over two. `grid`, `result`, `ax`, `cells`: a result of
    `density_grid`; an answer about its variables, if any; where to draw (None makes a figure); and a result of
    `open_cells`, if any.
    """
    ax = axes_of(ax)
    density = np.exp(grid.log_density)
    mode = None if result is None else [float(str(result.assignment[name])) for name in grid.names]
    if len(grid.axes) == 1:
        ax.plot(grid.axes[0], density, color=MASS)
        if result is not None and mode is not None and result.log_prob is not None:
            ax.plot(mode, [np.exp(result.log_prob)], "o", color=LOWER, label="mode")
            if result.log_upper_bound is not None:
                ax.axhline(float(np.exp(result.log_upper_bound)), color=UPPER, label="upper bound")
    else:
        ax.contour(grid.axes[0], grid.axes[1], density.T, levels=12, cmap="viridis")
        if mode is not None:
            ax.plot(*([x] for x in mode), "o", color=UPPER, label="mode")
    if cells is not None:
        _draw_cells(ax, grid, cells)
    y = "density" if len(grid.axes) == 1 else grid.names[1]
    return labelled(ax, grid.names[0], y, has_legend=mode is not None)


def _draw_cells(ax: Axes, grid: DensityGrid, cells: OpenCells) -> None:
    """Draw the open boxes, clipped to the picture."""
    low = np.stack([np.maximum(cells.low[:, i], axis[0]) for i, axis in enumerate(grid.axes)], axis=1)
    high = np.stack([np.minimum(cells.high[:, i], axis[-1]) for i, axis in enumerate(grid.axes)], axis=1)
    seen = np.all(low <= high, axis=1)
    low, high, heights = low[seen], high[seen], np.exp(cells.log_bound[seen])
    if len(grid.axes) == 1:
        ax.hlines(heights, low[:, 0], high[:, 0], color=NEUTRAL, label="boxes still open")
        return
    corners = np.stack([low, high], axis=1)  # (batch, 2, 2)
    xs, ys = corners[:, [0, 1, 1, 0, 0], 0], corners[:, [0, 0, 1, 1, 0], 1]
    for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
        ax.plot(x, y, color=NEUTRAL, linewidth=0.8, label="boxes still open" if k == 0 else None)
