"""Figures of results, models and benchmark runs; drawing needs matplotlib, the extra `plot`.

Each figure has a function that computes its data (without matplotlib) and one that draws it on `ax` (a new figure
if None) and returns the axes. Nothing here opens a window: `ax.figure.savefig(path)` writes the picture.
"""

from certimap.plots.results import (
    new_figure,
    plot_circuit,
    plot_density,
    plot_history,
    plot_moments,
    plot_network,
    plot_pareto,
    plot_region_tree,
    plot_regret,
    plot_top,
)
from certimap.plots.series import (
    DensityGrid,
    OpenCells,
    bound_series,
    circuit_summary,
    density_grid,
    moments,
    network_graph,
    open_cells,
    pareto_series,
    ranking,
    region_series,
    regret_series,
)

__all__ = [
    "DensityGrid",
    "OpenCells",
    "bound_series",
    "circuit_summary",
    "density_grid",
    "moments",
    "network_graph",
    "new_figure",
    "open_cells",
    "pareto_series",
    "plot_circuit",
    "plot_density",
    "plot_history",
    "plot_moments",
    "plot_network",
    "plot_pareto",
    "plot_region_tree",
    "plot_regret",
    "plot_top",
    "ranking",
    "region_series",
    "regret_series",
]
