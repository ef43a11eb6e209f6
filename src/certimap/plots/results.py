"""Figures of results, benchmark runs and models: networks with a query's roles, circuits, region trees."""

# matplotlib leaves parts of its signatures untyped
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.core.named import needed
from certimap.core.result import MapResult
from certimap.decisions.policy import Policy
from certimap.errors import QueryError
from certimap.networks.network import Network
from certimap.plots.series import (
    AGAINST,
    DensityGrid,
    OpenCells,
    RegionSeries,
    bound_series,
    circuit_summary,
    moments,
    network_graph,
    pareto_series,
    ranking,
    regret_series,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LOWER, UPPER, MASS, NEUTRAL = "#00A087", "#E64B35", "#3C5488", "#7E6148"
_CYCLE = ("#E64B35", "#4DBBD5", "#00A087", "#3C5488", "#F39B7F", "#8491B4", "#7E6148", "#91D1C2", "#B09C85")
_UNITS = dict(zip(AGAINST, ("seconds", "draws", "boxes probed", "assignments evaluated"), strict=True))
_ROLES = {"evidence": (UPPER, "observed"), "answer": (LOWER, "answer"), "hidden": ("#E5E7EB", "summed out")}


def new_figure(n_columns: int = 1, *, width: float = 6.4, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """Return a figure with `n_columns` axes side by side, without a window; `width` and `height` in inches.

    Raises MissingDependency if matplotlib is not installed.
    """
    needed("matplotlib.figure", "figures need matplotlib; pip install 'certimap[plot]' brings it")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

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
    ax.set(xlabel=x, ylabel=y)
    if has_legend:
        ax.legend(frameon=False, fontsize="small")
    return ax


def plot_history(result: MapResult, ax: Axes | None = None, *, against: str = "seconds") -> Axes:
    """Draw a `result`'s bounds on ln p* over the run, and the mass left open, on `ax` (None makes a figure).

    Unit (`against`) and errors as in `bound_series`.
    """
    series = bound_series(result, against)
    ax = axes_of(ax)
    ax.step(series.x, series.lower, where="post", color=LOWER, label="best found")
    ax.step(series.x, series.upper, where="post", color=UPPER, label="upper bound")
    ax.fill_between(series.x, series.lower, series.upper, step="post", color=NEUTRAL, alpha=0.12, linewidth=0)
    masses = series.open_mass  # sometimes the upper bound itself
    if any(math.isfinite(m) and m < 0.0 for m in masses) and not np.allclose(masses, series.upper, atol=1e-6):
        ax.step(series.x, masses, where="post", color=MASS, linestyle=":", label="open mass")
    ax.set_title(f"{result.solver}: {_earned(result)}", fontsize="medium")
    return labelled(ax, _UNITS[against], _log_of(result))


def _note(
    ax: Axes, text: str, at: tuple[float, float], size: str, offset: tuple[int, int] = (8, 0), **aligned: Any
) -> None:
    """Write beside a place, by default on its right."""
    aligned = {"va": "center"} | aligned
    ax.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=size, **aligned)


def _log_of(result: MapResult) -> str:
    return f"natural log of {'density' if result.is_density else 'probability'}"


def _earned(result: MapResult) -> str:
    c = result.certificate
    if c.kind.value in ("exact", "none"):
        return {"exact": "exact", "none": "not certified"}[c.kind.value]
    return f"within {c.epsilon:.3g}" + (f" with probability {1 - c.delta:.4g}" if c.delta > 0 else ", certain")


def plot_pareto(
    results: MapResult | Mapping[str, MapResult] | Mapping[str, Sequence[tuple[float, float]]],
    ax: Axes | None = None,
) -> Axes:
    """Draw the admissible pairs (epsilon, delta) of one or several runs on `ax` (None makes a figure).

    `results`: a result, or results or fronts by name for the legend.
    """
    ax = axes_of(ax)
    series = pareto_series(results)
    for name, (epsilon, delta) in series.items():
        ax.plot(epsilon, delta, label=name, marker="o" if len(delta) < 3 else None, markersize=5, linewidth=1.8)
    highest = max((float(line.get_ydata()[0]) for line in ax.lines if len(line.get_ydata())), default=1.0)  # pyright: ignore[reportArgumentType,reportIndexIssue,reportUnknownArgumentType]
    top = min(1.0, 1.2 * highest) or 1.0
    ax.set(xlim=(0.0, 1.0), ylim=(-0.02 * top, 1.02 * top))
    return labelled(ax, "tolerance ε", "failure probability δ", has_legend=any(series))


def plot_moments(results: Mapping[str, MapResult], ax: Axes | None = None, *, against: str = "seconds") -> Axes:
    """Draw, one line per run, the times of finding and of certifying the answer; open ends are not certified.

    `results` by name; on `ax` (None makes a figure); unit (`against`) and errors as in `moments`.
    """
    if not results:
        raise QueryError("there are no results to draw")
    ax = axes_of(ax, height=1.2 + 0.4 * len(results))
    found = {name: moments(result, against) for name, result in results.items()}
    for y, m in enumerate(found.values()):
        end = m.found if m.certified is None else m.certified
        ax.plot((m.found, end), (y, y), color=NEUTRAL, linewidth=1.2, zorder=1)
    first = [m.found for m in found.values()]
    ax.scatter(first, range(len(first)), color=LOWER, zorder=3, label="answer found")
    done = [(y, m.certified) for y, m in enumerate(found.values()) if m.certified is not None]
    if done:
        ax.scatter([x for _, x in done], [y for y, _ in done], color=MASS, marker="D", zorder=2, label="certified")
    ax.set_yticks(range(len(found)), list(found))
    ax.set_ylim(len(found) - 0.5, -0.5)
    return labelled(ax, _UNITS[against], "")


def plot_regret(results: Mapping[str, MapResult], ax: Axes | None = None, *, against: str = "n_draws") -> Axes:
    """Draw simple regret, log2(p* / best found) in bits, along runs with answers proved exact.

    `results` by name; on `ax` (None makes a figure); unit (`against`) and errors as in `regret_series`.
    """
    ax = axes_of(ax)
    for name, result in results.items():
        series = regret_series(result, against)
        ax.step(series.x, series.bits, where="post", label=name)
    ax.set_ylim(bottom=0.0)
    return labelled(ax, _UNITS[against], "simple regret in bits")


def plot_top(result: MapResult, ax: Axes | None = None, *, n_shown: int = 3) -> Axes:
    """Draw the k best assignments by ln p, each with up to `n_shown` of its differences from the best.

    `result`: of `map_query(..., top_k=)`, else QueryError is raised. On `ax` (None makes a figure).
    """
    ranks = ranking(result)
    ax = axes_of(ax, width=8.0, height=1.2 + 0.4 * len(ranks))
    values = [r.log_prob for r in ranks]
    ax.scatter(values, range(len(ranks)), color=[LOWER] + [MASS] * (len(ranks) - 1), zorder=3)
    for y, r in enumerate(ranks):
        shown = [f"{name} = {label}" for name, label in list(r.changes.items())[:n_shown]]
        more = [f"and {len(r.changes) - n_shown} more"] if len(r.changes) > n_shown else []
        text = ", ".join([*shown, *more]) or ("the best" if y == 0 else "no difference")
        _note(ax, text, (r.log_prob, y), "small")
    span = (max(values) - min(values)) or 1.0
    ax.set_yticks(range(len(ranks)), [str(k) for k in range(1, len(ranks) + 1)])
    ax.set(xlim=(min(values) - 0.05 * span, max(values) + 0.8 * span), ylim=(len(ranks) - 0.5, -0.5))
    return labelled(ax, _log_of(result), "rank", has_legend=False)


def plot_network(
    network: Network,
    result: MapResult | None = None,
    evidence: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a `network` of up to about 60 variables, with evidence and answer coloured and labelled.

    Layout, `result` and `evidence` as in `network_graph`; on `ax` (None makes a figure).
    """
    graph = network_graph(network, result, evidence)
    widest = max(abs(x) for x, _ in graph.places.values()) * 2.0 + 1.0
    deepest = 1.0 - min(y for _, y in graph.places.values())
    ax = axes_of(ax, width=max(5.0, 1.05 * widest), height=max(3.0, 0.95 * deepest))
    style = {"arrowstyle": "-|>" if graph.directed else "-", "color": NEUTRAL, "linewidth": 0.9}
    style |= {"shrinkA": 9.0, "shrinkB": 9.0}
    for start, end in graph.edges:
        ax.annotate("", graph.places[end], graph.places[start], arrowprops=style)
    for role, (colour, text) in _ROLES.items():
        where = np.array([graph.places[name] for name, r in graph.roles.items() if r == role]).reshape(-1, 2)
        if len(where):
            ax.scatter(*where.T, s=220, color=colour, edgecolor=NEUTRAL, zorder=3, label=text)
    for name, place in graph.places.items():
        label = f"{name}\n= {graph.labels[name]}" if name in graph.labels else name
        _note(ax, label, place, "x-small", offset=(0, -10), ha="center", va="top")
    ax.margins(0.12, 0.18)
    ax.set_axis_off()
    ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(0.0, 1.12), ncols=3)
    return ax


def plot_circuit(circuit: Circuit, ax: Axes | None = None) -> Axes:
    """Draw how many nodes a `circuit` has at each height, and its composition, on `ax` (None makes a figure)."""
    summary = circuit_summary(circuit)
    ax = axes_of(ax)
    ax.bar(range(len(summary.layers)), summary.layers, color=MASS)
    if max(summary.layers) >= 100:
        ax.set_yscale("log")
    ax.locator_params(axis="x", integer=True)
    kinds = ", ".join(f"{n:,} {name}" for name, n in summary.kinds.items())
    sizes = f"{summary.n_variables} variables, {summary.n_nodes:,} nodes, {summary.n_edges:,} edges"
    ax.set_title(f"{sizes}\n{kinds}", fontsize="small")
    return labelled(ax, "height (0: leaves)", "nodes", has_legend=False)


def plot_policy(policy: Policy, decision: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw what each option of a `policy`'s `decision` brings, for what is known, on `ax` (None makes a figure).

    `decision`: None for the first. The first 12 rows of its table are drawn. Raises MissingDependency without
    matplotlib.
    """
    name = next(iter(policy.tables)) if decision is None else decision
    table, ax = policy.tables[name], axes_of(ax)
    rows = list(itertools.islice(table.rows(), 12))
    height = 0.8 / len(table.options)
    for k, option in enumerate(table.options):
        values = [float(row[k]) if np.isfinite(row[k]) else np.nan for _, _, row in rows]
        ax.barh(np.arange(len(rows)) + k * height, values, height, label=str(option))
    texts = [", ".join(f"{v}={label}" for v, label in known.items()) or "always" for known, _, _ in rows]
    ax.set_yticks(np.arange(len(rows)) + 0.4 - height / 2.0, texts)
    ax.invert_yaxis()
    return labelled(ax, "expected utility", name)


def plot_region_tree(series: RegionSeries, ax: Axes | None = None) -> Axes:
    """Draw the tree of a `region_series` on `ax` (None makes a figure).

    Area and number of a region's disc give the size of its largest set; `series` is the result.
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
            ax.scatter(*places[kept].T, s=area[kept], color=colour, edgecolor=NEUTRAL, zorder=2, label=text)
    for name, size, place in zip(series.names, series.set_sizes, series.places, strict=True):
        _note(ax, f"{name} {size:,}".strip(), place, "x-small")
    ax.margins(0.15, 0.1)
    ax.set_axis_off()
    ax.set_title("largest set per region", fontsize="medium")
    ax.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, -0.1), ncols=2)
    return ax


def plot_density(
    grid: DensityGrid, result: MapResult | None = None, ax: Axes | None = None, *, cells: OpenCells | None = None
) -> Axes:
    """Draw a density (a `grid` of `density_grid`) and its certified mode on `ax` (None makes a figure).

    One variable gives a line, with the proved bound above it; two give contours. Boxes of a search (`cells` of
    `open_cells`) are drawn at their bounds over one variable, and as outlines over two. `result`: the answer.
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
