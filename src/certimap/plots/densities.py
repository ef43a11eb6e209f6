"""Figures of densities of one or two real query variables."""

# matplotlib leaves parts of its signatures untyped
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from certimap.domain import Real
from certimap.errors import QueryError
from certimap.plots.figure import LOWER, MASS, UPPER, new_figure
from certimap.posterior import Posterior
from certimap.result import MapResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class DensityGrid:
    """A density on a grid.

    Attributes
    ----------
    names
        The one or two variables.
    axes
        The places on each, shape (n_points,) each.
    log_density
        Natural logs, shape (n_points,) or (n_points, n_points), the first variable first.
    """

    names: tuple[str, ...]
    axes: tuple[NDArray[np.float64], ...]
    log_density: NDArray[np.float64]


def density_grid(posterior: Posterior, intervals: Sequence[Interval], *, n_points: int = 201) -> DensityGrid:
    """Evaluate a density on a grid.

    Parameters
    ----------
    posterior
        One of one or two real variables (`certimap.condition`).
    intervals
        (low, high) for each of them.
    n_points
        Places on each axis.

    Returns
    -------
    DensityGrid

    Raises
    ------
    QueryError
        For other posteriors, and where intervals do not fit.
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


def plot_density(grid: DensityGrid, result: MapResult | None = None, ax: Axes | None = None) -> Axes:
    """Draw a density, and where its certified mode is.

    A line over one variable, with the proved bound above it; lines of equal density over two.

    Parameters
    ----------
    grid
        What `density_grid` returns.
    result
        An answer about the same variables; None draws the density alone.
    ax
        Where to draw; None makes a figure.

    Returns
    -------
    Axes
    """
    ax = ax or new_figure()[1][0]
    density = np.exp(grid.log_density)
    mode = None if result is None else [float(str(result.assignment[name])) for name in grid.names]
    ax.set_xlabel(grid.names[0])
    if len(grid.axes) == 1:
        ax.plot(grid.axes[0], density, color=MASS)
        ax.set_ylabel("density")
        if result is not None and mode is not None and result.log_prob is not None:
            ax.plot(mode, [np.exp(result.log_prob)], "o", color=LOWER, label="mode")
            if result.log_upper_bound is not None:
                ax.axhline(float(np.exp(result.log_upper_bound)), color=UPPER, label="upper bound")
    else:
        ax.contour(grid.axes[0], grid.axes[1], density.T, levels=12, cmap="viridis")
        ax.set_ylabel(grid.names[1])
        if mode is not None:
            ax.plot(*([x] for x in mode), "o", color=UPPER, label="mode")
    if mode is not None:
        ax.legend(frameon=False, fontsize="small")
    return ax
