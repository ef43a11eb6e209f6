"""Pairwise counts of discrete variables, mutual information, and maximum spanning trees."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from certimap.core.arrays import Floats, Floats32, Ints
from certimap.core.box import Points
from certimap.core.domain import Domain

BATCH = 8192


def one_hot(domain: Domain, points: Points) -> Floats32:
    """Return the indicators of all states, float32, shape (n_rows, total_states); all 0 for a missing value."""
    out = np.zeros((len(points), domain.total_states), np.float32)
    for i in range(len(domain)):
        rows = np.flatnonzero(points[:, i] >= 0)
        out[rows, domain.offsets[i] + points[rows, i]] = 1.0
    return out


def pair_counts(indicators: Floats32, weights: Floats | None = None) -> Floats:
    """Return (weighted) joint counts of all pairs of states, shape (total_states, total_states).

    Cost: rows times the square of the number of states, as matrix products over batches of rows whose
    float32 sums are exact for whole counts.
    """
    size = indicators.shape[1]
    total = np.zeros((size, size))
    for start in range(0, len(indicators), BATCH):
        part = indicators[start : start + BATCH]
        left = part if weights is None else part * weights[start : start + BATCH, None].astype(np.float32)
        total += left.T @ part
    return total


def smoothed_joint(counts: Floats, domain: Domain, smoothing: float) -> Floats:
    """Return joint probabilities of all pairs of states, each pair's table summing to 1.

    `smoothing` pseudo-counts per state are spread over every table, so that all tables agree on their
    margins. Diagonal blocks hold the margins on the diagonal.
    """
    sizes = domain.n_states.astype(np.float64)
    per_state = np.repeat(smoothing / sizes, domain.n_states)
    pseudo = np.outer(per_state, 1.0 / np.repeat(sizes, domain.n_states))
    for i in range(len(domain)):
        block = slice(domain.offsets[i], domain.offsets[i + 1])
        pseudo[block, block] = np.diag(per_state[block])
    totals = _block_sums(counts, domain)
    spread = np.repeat(np.repeat(totals + smoothing, domain.n_states, axis=0), domain.n_states, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, (counts + pseudo) / spread, 0.0)


def mutual_information(joint: Floats, domain: Domain) -> Floats:
    """Return the mutual information in nats of all pairs, shape (n, n), 0 on the diagonal.

    Each pair uses the margins of its own table: with missing values, pairs rest on different rows.
    """
    row_sums = np.add.reduceat(joint, domain.offsets[:-1], axis=1)  # P(state) in the table of each pair
    margin = np.repeat(row_sums, domain.n_states, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = joint * (np.log(joint) - np.log(margin) - np.log(margin.T))
    terms[~(joint > 0)] = 0.0
    information = np.maximum(_block_sums(terms, domain), 0.0)
    np.fill_diagonal(information, 0.0)
    return information


def spanning_tree(information: Floats) -> tuple[Ints, Ints]:
    """Return the maximum spanning tree as (order, parent).

    `order` lists the variables from the root, parents first; `parent` is -1 at the root. The root is a
    centre of the tree, so that the tree is shallow. Pairs without information may be joined: it is one tree.
    """
    csgraph: Any = import_module("scipy.sparse.csgraph")  # no types there
    n = len(information)
    if n == 1:
        return np.zeros(1, np.int64), np.full(1, -1, np.int64)
    cost = information.max() + 1.0 - information  # positive: zeros would mean 'no edge'
    np.fill_diagonal(cost, 0.0)
    tree = csgraph.minimum_spanning_tree(cost)
    links = tree + tree.T
    far = int(csgraph.breadth_first_order(links, 0, directed=False)[0][-1])
    walk, before = csgraph.breadth_first_order(links, far, directed=False)
    path = [int(walk[-1])]
    while before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    centre = path[len(path) // 2]
    order, before = csgraph.breadth_first_order(links, centre, directed=False)
    parent = np.array(before, np.int64)
    parent[centre] = -1
    return np.array(order, np.int64), parent


def _block_sums(values: Floats, domain: Domain) -> Floats:
    starts = domain.offsets[:-1]
    return np.add.reduceat(np.add.reduceat(values, starts, axis=0), starts, axis=1)
