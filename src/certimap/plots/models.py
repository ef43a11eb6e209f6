"""Figures of models: networks with a query's roles, circuits, region trees."""

# matplotlib leaves parts of its signatures untyped
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.core.result import MapResult
from certimap.networks.network import Network
from certimap.plots.figure import LOWER, MASS, NEUTRAL, UPPER, axes_of, labelled
from certimap.plots.model_series import RegionSeries, circuit_summary, network_graph

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROLES = {"evidence": (UPPER, "observed"), "answer": (LOWER, "answer"), "hidden": ("#E5E7EB", "summed out")}


def plot_network(
    network: Network,
    result: MapResult | None = None,
    evidence: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a network, with the evidence and the answer of a query coloured and labelled.

    Suitable for networks of up to about 60 variables; see `network_graph` for the layout.

    Parameters
    ----------
    network, result, evidence, ax
        As in `network_graph`, and where to draw (None makes a figure).

    Returns
    -------
    Axes
    """
    graph = network_graph(network, result, evidence)
    widest = max(abs(x) for x, _ in graph.places.values()) * 2.0 + 1.0
    deepest = 1.0 - min(y for _, y in graph.places.values())
    ax = axes_of(ax, width=max(5.0, 1.05 * widest), height=max(3.0, 0.95 * deepest))
    for start, end in graph.edges:
        style = {"arrowstyle": "-|>" if graph.directed else "-", "color": NEUTRAL, "linewidth": 0.9}
        ax.annotate(
            "", graph.places[end], graph.places[start], arrowprops={**style, "shrinkA": 9.0, "shrinkB": 9.0}
        )
    for role, (colour, text) in _ROLES.items():
        where = np.array([graph.places[name] for name, r in graph.roles.items() if r == role]).reshape(-1, 2)
        if len(where):
            ax.scatter(where[:, 0], where[:, 1], s=220, color=colour, edgecolor=NEUTRAL, zorder=3, label=text)
    for name, (x, y) in graph.places.items():
        label = f"{name}\n= {graph.labels[name]}" if name in graph.labels else name
        ax.annotate(
            label, (x, y), xytext=(0, -10), textcoords="offset points", ha="center", va="top", fontsize="x-small"
        )
    ax.margins(0.12, 0.18)
    ax.set_axis_off()
    ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(0.0, 1.12), ncols=3)
    return ax


def plot_circuit(circuit: Circuit, ax: Axes | None = None) -> Axes:
    """Draw the number of nodes of a circuit at each height, with a summary of its composition.

    Parameters
    ----------
    circuit, ax
        Any circuit, and where to draw (None makes a figure).

    Returns
    -------
    Axes
    """
    summary = circuit_summary(circuit)
    ax = axes_of(ax)
    ax.bar(range(len(summary.layers)), summary.layers, color=MASS)
    if max(summary.layers) >= 100:
        ax.set_yscale("log")
    ax.locator_params(axis="x", integer=True)
    kinds = ", ".join(f"{n:,} {name}" for name, n in summary.kinds.items())
    ax.set_title(
        f"{summary.n_variables} variables, {summary.n_nodes:,} nodes, {summary.n_edges:,} edges\n{kinds}",
        fontsize="small",
    )
    return labelled(ax, "height (0: leaves)", "nodes", has_legend=False)


def plot_region_tree(series: RegionSeries, ax: Axes | None = None) -> Axes:
    """Draw a region tree with a disc per region, whose area and number give the size of its largest set.

    Parameters
    ----------
    series, ax
        A result of `region_series`, and where to draw (None makes a figure).

    Returns
    -------
    Axes
    """
    widest = max(x for x, _ in series.places) + 1.0
    deepest = 1.0 - min(y for _, y in series.places)
    ax = axes_of(ax, width=min(20.0, max(5.0, 0.8 * widest)), height=min(30.0, max(3.0, 0.6 * deepest)))
    for r, p in enumerate(series.parent):
        if p >= 0:
            (x, y), (above_x, above_y) = series.places[r], series.places[p]
            ax.plot((x, above_x), (y, above_y), color=NEUTRAL, linewidth=0.9, zorder=1)
    is_query = np.array([bool(name) for name in series.names])
    places = np.array(series.places)
    area = 30.0 + 60.0 * np.log10(1.0 + np.array(series.set_sizes, np.float64))
    for kept, colour, text in ((is_query, LOWER, "query variable"), (~is_query, "#E5E7EB", "summed out")):
        if kept.any():
            ax.scatter(
                places[kept, 0],
                places[kept, 1],
                s=area[kept],
                color=colour,
                edgecolor=NEUTRAL,
                zorder=2,
                label=text,
            )
    for name, size, (x, y) in zip(series.names, series.set_sizes, series.places, strict=True):
        ax.annotate(
            f"{name} {size:,}".strip(),
            (x, y),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize="x-small",
        )
    ax.margins(0.15, 0.1)
    ax.set_axis_off()
    ax.set_title("largest set per region", fontsize="medium")
    ax.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, -0.1), ncols=2)
    return ax
