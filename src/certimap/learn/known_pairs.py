"""G-tests of all pairs of variables where cells are missing, each on the rows that know both."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def components_of_known(
    indicators: NDArray[np.float32],
    n_states: NDArray[np.int64],
    known: NDArray[np.bool_],
    critical: Floats,
) -> tuple[NDArray[np.int64], int]:
    """Return the connected component of each variable in the graph of dependent pairs, and their number.

    `indicators`: shape (n_rows, columns): per variable, one column per state except the first; 0 where it is
    missing. `n_states`: states of each variable, at least 1. `known`: known cells, shape (n_rows, n_variables).
    `critical`: G values above which a pair is dependent, by degrees of freedom; the last entry serves all higher
    ones. Degrees of freedom count only states that occur in the pair's rows. Cost: rows times squared columns.
    """
    every = np.repeat(np.arange(len(n_states)), n_states)
    first = np.cumsum(n_states) - n_states
    columns = np.empty((len(indicators), len(every)), np.float32)
    own = np.ones(len(every), np.bool_)
    own[first] = False
    columns[:, own] = indicators
    for i, start in enumerate(first.tolist()):
        columns[:, start] = known[:, i] - columns[:, start + 1 : start + int(n_states[i])].sum(axis=1)
    joint = (columns.T @ columns).astype(np.float64)
    left = np.add.reduceat(joint, first, axis=1)  # occurrences of each state in rows that know the other variable
    totals = np.add.reduceat(left, first, axis=0)
    terms = np.add.reduceat(np.add.reduceat(_x_log_x(joint), first, axis=0), first, axis=1)
    margins = np.add.reduceat(_x_log_x(left), first, axis=0)
    g = 2.0 * (terms - margins - margins.T + _x_log_x(totals))
    seen = np.add.reduceat((left > 0.0).astype(np.int64), first, axis=0)
    dof = np.minimum(np.maximum(seen - 1, 0) * np.maximum(seen.T - 1, 0), len(critical) - 1)
    csgraph: Any = import_module("scipy.sparse.csgraph")
    count, labels = csgraph.connected_components((g > critical[dof]) & (dof > 0), directed=False)
    return np.asarray(labels, np.int64), int(count)


def _x_log_x(x: Floats) -> Floats:
    return x * np.log(np.maximum(x, 1.0))
