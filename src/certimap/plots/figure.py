"""An empty figure, and the colours of all figures."""

# matplotlib leaves parts of its signatures untyped
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import TYPE_CHECKING

from certimap.errors import MissingDependency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOWER, UPPER, MASS, NEUTRAL = "#00A087", "#E64B35", "#3C5488", "#7E6148"
_CYCLE = ("#E64B35", "#4DBBD5", "#00A087", "#3C5488", "#F39B7F", "#8491B4", "#7E6148", "#91D1C2", "#B09C85")


def new_figure(n_columns: int = 1, *, width: float = 6.4, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes side by side, without a window.

    `n_columns`, `width`, `height`: the number of axes, and the size of the figure in inches. Raises
    MissingDependency if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency(
            "figures need matplotlib, which is not installed; pip install 'certimap[plot]' brings it"
        ) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, n_columns, i + 1) for i in range(n_columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_prop_cycle(color=_CYCLE)
    return figure, axes


def axes_of(ax: Axes | None, *, width: float = 6.4, height: float = 4.0) -> Axes:
    """Return the given axes, or those of a new figure."""
    return ax or new_figure(width=width, height=height)[1][0]


def labelled(ax: Axes, x: str, y: str, *, has_legend: bool = True) -> Axes:
    """Label both axes, and explain the colours."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if has_legend:
        ax.legend(frameon=False, fontsize="small")
    return ax
