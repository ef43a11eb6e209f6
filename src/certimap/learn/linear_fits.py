"""Linear-Gaussian distributions from rows: least squares for each configuration of the discrete parents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.densities.gaussian_mixture import LOG_2PI
from certimap.densities.linear_gaussian import LinearGaussian
from certimap.errors import DataError
from certimap.learn.table import DataTable

LEAST_SD = 1e-3  # of a variable given its parents, in standard deviations of its column


def linear_nodes(
    parents: Mapping[str, Sequence[str]], rows: DataTable, weights: Floats, strength: float, shared: bool
) -> tuple[list[LinearGaussian], float]:
    """Return the real variables of a structure, parents first there, and ln of their density and prior.

    `strength`: pseudo-rows per configuration; if `shared`, of all together. A cell may be missing if everything
    that depends on it is missing too.
    """
    lacks = dict(zip(rows.domain.names, rows.missing.T, strict=True))
    reals = [name for name in parents if name in rows.domain and not rows.domain[name].n_states]
    barren = {name: lacks[name].copy() for name in reals}
    for name in reversed(reals):
        for parent in parents[name]:
            if parent in barren:
                barren[parent] &= barren[name]
    nodes, total = list[LinearGaussian](), 0.0
    for name in reals:
        used, above = np.flatnonzero(~barren[name] & (weights > 0.0)), parents[name]
        for column in (*above, name):
            gone = used[lacks[column][used]] if column in lacks else used
            if len(gone) or not len(used):
                where = f"row {gone[0]} lacks {column!r}" if len(gone) else "all its weights are 0"
                raise DataError(f"the real variable {name!r} and its parents need all cells, but {where}")
        places = [rows.domain.index(p) for p in (*above, name)]
        discrete = [i for i in places if rows.domain.n_states[i]]
        shape = tuple(rows.domain.n_states[discrete].tolist())
        at = np.zeros(len(used), np.int64)
        for i in discrete:
            at = at * rows.domain.n_states[i] + rows.points[used, i].astype(np.int64)
        values: Floats = rows.points[used][:, [i for i in places if i not in discrete]].astype(np.float64)
        n = math.prod(shape)
        lines, sds, value = linear_fits(values, at, n, weights[used], strength / n if shared else strength)
        slopes = lines[:, 1:].reshape(*shape, -1)
        nodes.append(LinearGaussian(name, tuple(above), lines[:, 0].reshape(shape), slopes, sds.reshape(shape)))
        total += value
    return nodes, total


def linear_fits(
    values: Floats, at: Ints, n_configurations: int, weights: Floats, prior: float
) -> tuple[Floats, Floats, float]:
    """Return intercept and slopes per configuration, standard deviations, and ln of density and prior.

    `values`: the real parents and then the variable, shape (n, d). `at`: the configuration of each row. `prior`:
    pseudo-rows per configuration, with the line of all rows together and its deviation.
    """
    shares, d = weights / weights.sum(), values.shape[1]
    means: Floats = shares @ values
    sds: Floats = np.sqrt(shares @ (values - means) ** 2)
    sds = np.where(sds > 1e-12 * np.abs(means), sds, 1.0)
    units = np.concatenate([np.ones((len(values), 1)), (values - means) / sds], axis=1)
    units *= np.sqrt(weights)[:, None]
    line = np.linalg.lstsq(units[:, :-1], units[:, -1])[0].astype(np.float64)
    units[:, -1] -= units[:, :-1] @ line  # what the line of all rows leaves
    wide = max(math.sqrt(float(units[:, -1] @ units[:, -1] / weights.sum())), LEAST_SD)
    found, spread, total = np.tile(line, (n_configurations, 1)), np.full(n_configurations, wide), 0.0
    pseudo = math.sqrt(prior) * np.eye(d, d + 1)
    for k in np.unique(at).tolist():
        z, n = np.concatenate([units[at == k], pseudo]), float(weights[at == k].sum()) + prior
        gain = np.linalg.lstsq(z[:, :-1], z[:, -1])[0].astype(np.float64)
        square = float(np.sum((z[:, -1] - z[:, :-1] @ gain) ** 2)) + prior * wide**2
        spread[k] = max(math.sqrt(square / n), LEAST_SD)
        total -= 0.5 * (n * (LOG_2PI + 2.0 * math.log(spread[k])) + square / spread[k] ** 2)
        found[k] += gain
    found[:, 1:] *= sds[-1] / sds[:-1]
    found[:, 0] = means[-1] + sds[-1] * found[:, 0] - found[:, 1:] @ means[:-1]
    return found, spread * sds[-1], float(total - weights.sum() * math.log(float(sds[-1])))
