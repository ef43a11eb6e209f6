"""Leaves of the real columns of hidden trees: families fitted to rows, chosen by held-out rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.logs import log_sum
from certimap.learn.bars import Bars
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap.learn.leaf_choice import densest, families_of
from certimap.learn.leaf_families import LeafFamily
from certimap.learn.table import DataTable

Floats = NDArray[np.float64]
BLOCK = 1024  # rows at a time


@dataclass(frozen=True, eq=False)
class ColumnLeaves:
    """Leaves of one real column: a family, and its parameters under each latent state."""

    family: LeafFamily
    params: Floats


def chosen_leaves(
    model: HiddenChowLiuModel, bars: Bars, rows: DataTable, held_out: DataTable | None, smoothing: float
) -> dict[int, ColumnLeaves]:
    """Return the leaves of each real column.

    The bars used for learning stay unless held-out cells, given the rest of their rows, are denser under another
    family by more than the standard error of the difference. Counts are never bars.

    Parameters
    ----------
    model
        A model learned over bars.
    bars
        The bars of the columns.
    rows, held_out
        Tables with values instead of bars; nothing is chosen without `held_out`.
    smoothing
        Pseudo-counts.
    """
    wanted = list(bars.histograms)
    if not wanted:
        return {}
    within = _contexts(model, bars.coded(rows), wanted)
    outside = None if held_out is None else _contexts(model, bars.coded(held_out), wanted)
    found: dict[int, ColumnLeaves] = {}
    for i in wanted:
        options = [f for f in families_of(rows, i, None) if f.name != "histogram"]
        known = ~np.isnan(rows.points[:, i].astype(np.float64))
        values = rows.points[known, i].astype(np.float64)
        own = bars.coded(rows).points[known, i].astype(np.int64)
        shares = within[i][known] * model.emission[i].T[own]
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        trials = [ColumnLeaves(family, family.fit(values, shares, smoothing)) for family in options]
        if rows.whole.get(i) != "count":  # integers are counts unless another family is clearly better
            trials.insert(
                len(trials) if i in rows.whole else 0, ColumnLeaves(bars.histograms[i], model.emission[i])
            )
        best = 0
        if held_out is not None and outside is not None:
            tried = held_out.points[:, i].astype(np.float64)
            there = ~np.isnan(tried)
            with np.errstate(divide="ignore"):
                context = np.log(outside[i][there])
            logs = [log_sum(context + t.family.log_density(tried[there], t.params), 1) for t in trials]
            best = densest(logs) if there.any() else 0
        found[i] = trials[best]
    return found


def circuit_with(model: HiddenChowLiuModel, bars: Bars, leaves: dict[int, ColumnLeaves]) -> Circuit:
    """Return the circuit over values."""
    builder = CircuitBuilder(bars.domain)
    with np.errstate(divide="ignore"):
        logs = {i: np.log(e) for i, e in enumerate(model.emission) if i not in leaves}

    def leaf(i: int, z: int) -> int:
        if i in leaves:
            return leaves[i].family.add(builder, i, leaves[i].params[z])
        return builder.categorical(i, log_weights=logs[i][z].tolist())

    model.add_to(builder, leaf)
    return builder.build(normalised=False)


def _contexts(model: HiddenChowLiuModel, table: DataTable, wanted: list[int]) -> dict[int, Floats]:
    """Return P(latent state of a variable | the other cells of the row), shape (n_rows, K), for some variables."""
    points = table.points.astype(np.int64)
    parts = [_block(model, points[a : a + BLOCK], wanted) for a in range(0, len(points), BLOCK)]
    return {i: np.concatenate([part[i] for part in parts]) for i in wanted}


def _block(model: HiddenChowLiuModel, points: NDArray[np.int64], wanted: list[int]) -> dict[int, Floats]:
    """Pass messages up and down the tree, each scaled row by row."""
    k = model.n_hidden
    order: list[int] = model.order.tolist()
    emitted = [
        np.where(points[:, i : i + 1] < 0, 1.0, table.T[np.maximum(points[:, i], 0)])
        for i, table in enumerate(model.emission)
    ]
    below = [np.ones((len(points), k)) for _ in order]  # of all children
    messages: dict[int, Floats] = {}
    for i in order[::-1]:
        up = int(model.parent[i])
        if up >= 0:
            messages[i] = _scaled(emitted[i] * below[i]) @ model.transition[i].T
            below[up] = _scaled(below[up] * messages[i])
    above: dict[int, Floats] = {order[0]: np.tile(model.root_prior, (len(points), 1))}
    found: dict[int, Floats] = {}
    for i in order:
        up = int(model.parent[i])
        if up >= 0:
            whole = above[up] * below[up] * emitted[up]
            without = np.divide(whole, messages[i], out=np.zeros_like(whole), where=messages[i] > 0.0)
            above[i] = _scaled(without) @ model.transition[i]
        if i in wanted:
            found[i] = _scaled(above[i] * below[i])
    return found


def _scaled(rows: Floats) -> Floats:
    """Scale rows to sum 1; rows of zeros become uniform."""
    totals = rows.sum(axis=1, keepdims=True)
    return np.where(totals > 0.0, rows / np.where(totals > 0.0, totals, 1.0), 1.0 / rows.shape[1])
