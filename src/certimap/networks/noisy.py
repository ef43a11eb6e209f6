"""Conditional distributions with a structure: noisy-or, noisy-max, and functions of the parents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Label
from certimap.errors import ModelError, QueryError

MAX_TABLE = 4096  # a table up to this size is written out; a larger one becomes a chain of small tables
MAX_FUNCTION_TABLE = 2**24


@dataclass(frozen=True)
class NoisyMax:
    """A node that takes the largest of independent contributions of its parents.

    In the order of the node's states, parent i in state s contributes state k with a probability; the
    contributions are independent, and the node is their maximum (Diez, 'Parameter adjustment in Bayes networks:
    the generalized noisy OR-gate', 1993). A large table is kept as a chain of small ones over hidden helpers,
    which queries sum out.

    `contributions`: for each parent a mapping from its labels to a row of probabilities, one per state of the
    node; a missing label contributes the first state for certain.
    `leak`: the row of probabilities without any parent; None: the first state for certain.
    """

    contributions: Mapping[str, Mapping[Any, Sequence[float]]]
    leak: Sequence[float] | None = None


@dataclass(frozen=True)
class NoisyOr:
    """A node with two states; each active parent causes the second state with its own probability.

    P(first state | parents) = (1 - leak) times the product of (1 - p) over the active parents.

    `causes`: for each parent either the probability p of its last state (the others are inactive), or a mapping
    from labels to probabilities.
    `leak`: the probability of the second state without any active parent.
    """

    causes: Mapping[str, float | Mapping[Any, float]]
    leak: float = 0.0


class Piece(NamedTuple):
    """One small conditional table of an expanded node: names of its parents, its own name, its rows."""

    parents: tuple[str, ...]
    name: str
    table: Floats


def expand(node: NoisyMax | NoisyOr, child: Categorical, parents: Sequence[Categorical]) -> list[Piece]:
    """Return a noisy node as conditional tables: one, or a chain over hidden helpers where one would be large.

    Helper i is the maximum of the leak and the first i contributions; its name is "NAME:max:i". The last piece is
    the node itself.

    Raises ModelError for a parent that is not declared or has no contribution, an unknown label, or a row that is
    no distribution. Cost: one table of (parent's states) x (node's states)^2 per parent. No probability is
    subtracted from another.
    """
    named = {v.name: v for v in parents}
    for name in node.causes if isinstance(node, NoisyOr) else node.contributions:
        if name not in named:
            raise ModelError(
                f"the noisy node {child.name!r} has a contribution of {name!r}, which is no parent of it; its "
                f"parents are {tuple(named)}"
            )
    if isinstance(node, NoisyOr):
        if child.n_states != 2:
            raise ModelError(
                f"variable {child.name!r} is a noisy-or with {child.n_states} states; two are expected, or a "
                "NoisyMax"
            )
        contributions: dict[str, dict[Any, tuple[float, float]]] = {}
        for name, cause in node.causes.items():
            given = cause if isinstance(cause, Mapping) else {named[name].states[-1]: cause}
            contributions[name] = {label: (1.0 - p, float(p)) for label, p in given.items()}
        node = NoisyMax(contributions, (1.0 - node.leak, node.leak))
    rows = [_contribution(node, child, parent) for parent in parents]
    first = np.eye(child.n_states)[0]
    leak = first if node.leak is None else _distribution(node.leak, child, "its leak")
    if child.n_states * math.prod(v.n_states for v in parents) <= MAX_TABLE:
        table = leak  # one axis per parent, and the node last
        for row in rows:
            table = np.einsum("...b,bpk->...pk", table, _maximum(row))
        return [Piece(tuple(named), child.name, table)]
    pieces = [Piece((), f"{child.name}:max:0", leak)]
    for i, (parent, row) in enumerate(zip(parents, rows, strict=True), 1):
        name = child.name if i == len(parents) else f"{child.name}:max:{i}"
        pieces.append(Piece((pieces[-1].name, parent.name), name, _maximum(row)))
    return pieces


def table_of_function(
    function: Callable[..., Label], child: Categorical, parents: Sequence[Categorical]
) -> Floats:
    """Return the table of a node that is a function of its parents' labels.

    Raises ModelError where the function returns no state of the node, or the table would be too large.
    """
    shape = [v.n_states for v in (*parents, child)]
    if math.prod(shape) > MAX_FUNCTION_TABLE:
        raise ModelError(
            f"the table of {child.name!r}, a function of {len(parents)} variables, would have "
            f"{math.prod(shape):,} entries; at most {MAX_FUNCTION_TABLE:,} are expected"
        )
    table = np.zeros(shape)
    for index in np.ndindex(*shape[:-1]):
        labels = [v.states[i] for v, i in zip(parents, index, strict=True)]
        value = function(*labels)
        try:
            table[(*index, child.index(value))] = 1.0
        except QueryError as error:
            raise ModelError(f"the function of {child.name!r} returned {value!r} for {labels}: {error}") from None
    return table


def _contribution(node: NoisyMax, child: Categorical, parent: Categorical) -> Floats:
    """Return each parent state's contribution, shape (parent's states, child's states)."""
    if parent.name not in node.contributions:
        raise ModelError(
            f"parent {parent.name!r} of the noisy node {child.name!r} contributes nothing; a mapping from its "
            "labels to rows is expected"
        )
    out = np.zeros((parent.n_states, child.n_states))
    out[:, 0] = 1.0
    for label, row in node.contributions[parent.name].items():
        try:
            place = parent.index(label)
        except QueryError as error:
            raise ModelError(f"in the noisy node {child.name!r}: {error}") from None
        out[place] = _distribution(row, child, f"what {parent.name}={label!r} contributes")
    return out


def _distribution(row: Sequence[float], child: Categorical, what: str) -> Floats:
    values = np.asarray(row, np.float64)
    if values.shape != (child.n_states,) or not np.all(values >= 0) or not abs(values.sum() - 1.0) <= 1e-6:
        raise ModelError(
            f"in the noisy node {child.name!r}, {what} is {values}; {child.n_states} probabilities that add to 1 "
            "are expected"
        )
    return values / values.sum()


def _maximum(row: Floats) -> Floats:
    """Return P(max(before, contribution) = k | before, parent), shape (child, parent, child)."""
    n_parent, n_child = row.shape
    table = np.zeros((n_child, n_parent, n_child))
    below = np.cumsum(row, axis=1)
    for before in range(n_child):
        table[before, :, before] = np.minimum(below[:, before], 1.0)
        table[before, :, before + 1 :] = row[:, before + 1 :]
    return table
