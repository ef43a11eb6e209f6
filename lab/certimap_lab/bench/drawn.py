"""Figures of benchmarks, drawn with matplotlib: warm starts, certificates over time, gaps, the schematic run."""

# matplotlib leaves parts of its signatures untyped
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from certimap.plots.results import LOWER, MASS, NEUTRAL, UPPER, axes_of, labelled, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_warm_start(
    names: Sequence[str], means: Sequence[float], errors: Sequence[float | None], ax: Axes | None = None
) -> Axes:
    """Draw the mean log2 ratio of two methods' probabilities per dataset, with standard errors as whiskers.

    `names`, `means`, `errors`, `ax`: per dataset its name, mean log2 ratio, and standard error or None; and where
    to draw (None makes a figure).
    """
    ax = axes_of(ax, width=8.0)
    order = sorted(range(len(names)), key=lambda i: -means[i])
    whiskers = [errors[i] or 0.0 for i in order]
    ax.bar(range(len(order)), [means[i] for i in order], yerr=whiskers, color=LOWER, capsize=3, ecolor=NEUTRAL)
    ax.set_xticks(range(len(order)), [names[i] for i in order], rotation=45, ha="right")
    ax.set_ylabel("mean log2 ratio of probabilities")
    if not any(means):
        ax.set_ylim(0.0, 1.0)
    elif min(means) >= 0.0:
        ax.set_ylim(bottom=0.0)
    return ax


def plot_certified_over_time(
    seconds: Mapping[str, Sequence[float]], n_trials: Mapping[str, int], ax: Axes | None = None
) -> Axes:
    """Draw each method's share of trials certified within a time.

    `seconds`, `n_trials`, `ax`: per method the times of certified trials and the number of all; and where to draw
    (None makes a figure).
    """
    ax = axes_of(ax)
    latest = max((max(times) for times in seconds.values() if len(times)), default=1.0)
    for name, times in seconds.items():
        x = np.sort(np.asarray(times, np.float64))
        y = np.arange(1, len(x) + 1) / max(n_trials[name], 1)
        last = y[-1] if len(y) else 0.0
        ax.step([*x, latest * 1.5], [*y, last], where="post", label=name)
    ax.set_xscale("log")
    ax.set_ylim(-0.02, 1.02)
    return labelled(ax, "seconds (conditioning and solving)", "share of trials certified")


def plot_gaps(series: Mapping[str, Sequence[tuple[float, float]]], ax: Axes | None = None) -> Axes:
    """Draw the gap between upper bound and answer over a run, one line per method.

    The gap's axis is logarithmic down to the smallest positive gap; a gap of 0 is drawn below that. `series`,
    `ax`: (seconds, gap in nats) in order of time, by method; and where to draw (None makes a figure).
    """
    ax = axes_of(ax)
    for name, points in series.items():
        x = [max(seconds, 1e-3) for seconds, _ in points]
        ax.step(x, [gap for _, gap in points], where="post", label=name, marker="." if len(points) < 12 else None)
    gaps = [gap for points in series.values() for _, gap in points]
    smallest = min((gap for gap in gaps if gap > 0.0), default=1.0)
    ax.set_xscale("log")
    if gaps and min(gaps) > 0.0:
        ax.set_yscale("log")
    else:
        ax.set_yscale("symlog", linthresh=smallest)
        ax.set_ylim(bottom=0.0)
    return labelled(ax, "seconds", "gap in nats")


def plot_schematic(trace: Mapping[str, Any], axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw bounds (A) and failure probability (B) against draws for one run of the purely random method.

    Parameters
    ----------
    trace
        `n_draws`, `lower`, `upper`, `delta` as sequences (probabilities, not logs), `p_star`, the level
        `requested_delta`, and the numbers of draws at which the mode was found (`discovered_at`) and the
        answer was certified (`certified_at`).
    axes
        Two axes; None makes a figure.

    Returns
    -------
    sequence of Axes
    """
    axes = axes or new_figure(2, width=9.0, height=3.6)[1]
    bounds, failure = axes
    x = trace["n_draws"]
    bounds.step(x, trace["upper"], where="post", color=UPPER, label="upper bound (mass not seen)")
    bounds.step(x, trace["lower"], where="post", color=LOWER, label="lower bound (best seen)")
    bounds.axhline(trace["p_star"], color=NEUTRAL, linestyle="--", linewidth=1, label="p*")
    bounds.set_ylabel("probability")
    bounds.set_title("A  bounds on p*", loc="left", fontsize="medium")
    failure.step(x, trace["delta"], where="post", color=MASS, label="failure probability")
    failure.axhline(trace["requested_delta"], color=NEUTRAL, linestyle="--", linewidth=1, label="δ asked for")
    failure.set_yscale("log")
    failure.set_ylabel("failure probability")
    failure.set_title("B  failure probability", loc="left", fontsize="medium")
    for ax in axes:
        ax.set_xlabel("draws")
        ax.axvline(trace["discovered_at"], color=LOWER, linewidth=1, linestyle=":")
        ax.axvline(trace["certified_at"], color=MASS, linewidth=1, linestyle=":")
    bounds.legend(fontsize="small", loc="upper right", framealpha=1.0, edgecolor="none")
    failure.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 0.12))
    top = bounds.get_ylim()[1]
    for key, word, side in (("discovered_at", "mode found", "left"), ("certified_at", "certified", "right")):
        bounds.annotate(
            f"{word}\n{trace[key]}", (trace[key], top * 0.66), ha=side, va="top", fontsize="x-small",
            xytext=(3 if side == "left" else -3, 0), textcoords="offset points",
        )  # fmt: skip
    return axes
