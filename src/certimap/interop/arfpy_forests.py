"""Adversarial random forests of arfpy: mixtures over tree leaves of truncated Gaussians and categories."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from certimap.circuits.circuit import CircuitBuilder
from certimap.core.domain import Categorical, Domain, Real, Variable
from certimap.core.logs import log_of
from certimap.errors import ModelError
from certimap.interop.reading import Reading, Wishes, attribute, kind_of, labels_of, named, numbers, refuse


def convert(x: Any, wishes: Wishes) -> Reading:
    """Read a forest after its `forde()`: one product per nonempty leaf, weighted by its share of rows."""
    if type(x).__name__ != "arf":
        raise refuse(x, "expected an arf, after its forde()")
    if "bnds" not in vars(x):
        raise ModelError(f"this {kind_of(x)} has no density yet; call its forde() first")
    columns = [str(name) for name in attribute(x, "orig_colnames")]
    is_factor = dict(zip(columns, np.asarray(attribute(x, "factor_cols"), np.bool_).tolist(), strict=True))
    levels: dict[str, tuple[Any, ...]] = {str(k): labels_of(v) for k, v in attribute(x, "levels").items()}
    names = named(wishes, columns, x)
    variables: list[Variable] = [
        Categorical(name, levels[column]) if is_factor[column] else Real(name)
        for name, column in zip(names, columns, strict=True)
    ]
    builder = CircuitBuilder(Domain(variables))
    covers = _covers(x)
    leaves = {
        **_real_leaves(x, builder, {c: i for i, c in enumerate(columns) if not is_factor[c]}),
        **_factor_leaves(x, builder, {c: (i, len(levels[c])) for i, c in enumerate(columns) if is_factor[c]}),
    }
    products: list[int] = []
    for tree, node in covers:
        parts = [leaves.get((tree, node, column)) for column in columns]
        if None in parts:
            text = f"leaf {node} of tree {tree} has no distribution for column {columns[parts.index(None)]!r}"
            raise ModelError(f"{text}; this version of arfpy keeps them elsewhere, and nothing is guessed")
        found = [part for part in parts if part is not None]
        products.append(builder.product(found) if len(found) > 1 else found[0])
    shares = np.array(list(covers.values()))
    builder.sum(products, log_weights=log_of(shares / shares.sum()).tolist())
    return Reading(builder.build(normalised=False))


def _covers(x: Any) -> dict[tuple[int, int], float]:
    """Return the share of rows of each leaf, by tree and node."""
    bounds = attribute(x, "bnds")
    keys = zip(bounds["tree"].tolist(), bounds["nodeid"].tolist(), numbers(bounds["cvg"]).tolist(), strict=True)
    return {(int(tree), int(node)): share for tree, node, share in keys if share > 0.0}


def _real_leaves(x: Any, builder: CircuitBuilder, places: dict[str, int]) -> dict[tuple[int, int, str], int]:
    """Add the truncated Gaussians of nonempty leaves."""
    table = attribute(x, "params")
    if not places:
        return {}
    covers = _covers(x)
    columns = (table[name].tolist() for name in ("tree", "nodeid", "variable", "mean", "sd", "min", "max"))
    leaves: dict[tuple[int, int, str], int] = {}
    for tree, node, named_by, mean, sd, low, high in zip(*columns, strict=True):
        column = str(named_by)
        if (tree, node) not in covers:
            continue
        if not sd > 0.0:
            raise ModelError(
                f"column {column!r} has the one value {mean:g} in leaf {node} of tree {tree}, which has no "
                "density; declare columns of few values as categories, or fit with a larger min_node_size"
            )
        if low == -math.inf and high == math.inf:
            leaf = builder.gaussian(places[column], mean, sd)
        else:
            leaf = builder.real("truncated_gaussian", places[column], mean, sd, low, high)
        leaves[int(tree), int(node), column] = leaf
    return leaves


def _factor_leaves(
    x: Any, builder: CircuitBuilder, places: dict[str, tuple[int, int]]
) -> dict[tuple[int, int, str], int]:
    """Add the categories' probabilities in every leaf."""
    if not places:
        return {}
    table = attribute(x, "class_probs")
    rows: dict[tuple[int, int, str], list[float]] = {}
    columns = (table[name].tolist() for name in ("tree", "nodeid", "variable", "value", "prob"))
    for tree, node, column, value, p in zip(*columns, strict=True):
        row = rows.setdefault((int(tree), int(node), str(column)), [0.0] * places[str(column)][1])
        row[int(value)] = float(p)
    found = {key: log_of(np.array(row) / np.sum(row)).tolist() for key, row in rows.items()}
    return {key: builder.categorical(places[key[2]][0], log_weights=row) for key, row in found.items()}
