"""Writing `.spn` text; see `certimap.io.spn` for the format."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from certimap.circuits import properties
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves import leaf_kinds
from certimap.core.domain import Real
from certimap.core.rounding import SMALLEST_NORMAL
from certimap.errors import ModelError
from certimap.io.files import AnyPath, replacing

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NODES_TOGETHER = 2**14  # nodes written at a time


def write_spn(model: Circuit, path: AnyPath) -> None:
    """Write a circuit; a categorical leaf other than an indicator becomes a sum.

    Names, state labels and variables without leaves are lost. ModelError for a real variable with limits.
    """
    used = set[int](model.leaf_var.tolist())
    for v, variable in enumerate(model.domain):
        if (
            v in used
            and isinstance(variable, Real)
            and (math.isfinite(variable.low) or math.isfinite(variable.high))
        ):
            raise ModelError(
                f"variable {variable.name!r} lies in [{variable.low:g}, {variable.high:g}], which a .spn file "
                "cannot say; expected real variables without limits, or a .npz file"
            )
    with replacing(path) as file:
        for part in _Writer(model).parts():
            file.write(part)


class _Writer:
    """The text of a circuit, some thousand nodes at a time.

    Indicators come first. A node's id is its line number. A categorical leaf that is an indicator has no line of
    its own and uses the indicator's id.
    """

    def __init__(self, model: Circuit) -> None:
        self._model = model
        sizes = model.domain.n_states.astype(np.int64)
        packed = properties.categorical_params(model)
        starts = packed.ptr[:-1]
        self._used = np.unique(model.leaf_var[packed.nodes]).astype(np.int64)
        self._first = np.zeros(len(sizes), np.int64)  # the id of the indicator of each variable's first state
        self._first[self._used] = np.cumsum(sizes[self._used]) - sizes[self._used]
        self._n_indicators = int(sizes[self._used].sum())
        self._has_line = np.ones(model.n_nodes, np.bool_)
        of_indicators = np.zeros(0, np.int64)
        if len(starts):
            possible = packed.values > -np.inf
            is_indicator = (np.add.reduceat(possible, starts, dtype=np.int64) == 1) & (
                np.maximum.reduceat(packed.values, starts) == 0.0
            )
            self._has_line[packed.nodes[is_indicator]] = False
            of_indicators = packed.states[possible & np.repeat(is_indicator, np.diff(packed.ptr))]
        self._ids = self._n_indicators - 1 + np.cumsum(self._has_line)
        self._n_lines = int(self._ids[-1]) + 1
        nodes = np.flatnonzero(~self._has_line)
        self._ids[nodes] = self._first[model.leaf_var[nodes]] + of_indicators

    def parts(self) -> Iterator[bytes]:
        """Yield the text."""
        model = self._model
        for v in self._used.tolist():
            first, n_states = int(self._first[v]), int(model.domain.n_states[v])
            yield "".join(f"indicator {first + s} {v} {s}\n" for s in range(n_states)).encode()
        for start in range(0, model.n_nodes, NODES_TOGETHER):
            yield self._lines(start, min(start + NODES_TOGETHER, model.n_nodes)).encode()
        if self._ids[-1] != self._n_lines - 1:  # the last line must be the root, which may be an indicator
            yield f"* {self._n_lines} {self._ids[-1]}\n".encode()

    def _lines(self, start: int, stop: int) -> str:
        """Return the lines of some nodes."""
        model, kinds = self._model, leaf_kinds()
        children, log_weights, counts = self._edges(start, stop)
        weights = iter(_weights(log_weights))
        below: Iterator[int] = iter(children.tolist())
        lines: list[str] = []
        nodes = start + np.flatnonzero(self._has_line[start:stop])
        of_nodes = (nodes, model.kind[nodes], self._ids[nodes], counts[nodes - start])
        for node, kind, own, count in zip(*(values.tolist() for values in of_nodes), strict=True):
            if kind == NodeKind.PRODUCT:
                lines.append(f"* {own} {' '.join(map(str, islice(below, count)))}\n")
            elif kind == NodeKind.SUM or kind == NodeKind.CATEGORICAL:
                pairs = zip(islice(below, count), islice(weights, count), strict=True)
                lines.append(f"+ {own} {' '.join([f'{child} {weight}' for child, weight in pairs])}\n")
            else:
                given = " ".join(repr(float(x)) for x in model.params_of(node))
                lines.append(f"{kinds[kind].name} {own} {model.leaf_var[node]} {given}\n")
        return "".join(lines)

    def _edges(self, start: int, stop: int) -> tuple[Ints, Floats, Ints]:
        """Return the edges of some nodes with lines: ids of children, log weights (none for products), counts.

        A categorical leaf with a line of its own is a sum of its variable's indicators.
        """
        model = self._model
        kind, has_line = model.kind[start:stop], self._has_line[start:stop]
        is_leaf = (kind == NodeKind.CATEGORICAL) & has_line
        n_states = np.where(is_leaf, np.diff(model.param_ptr[start : stop + 1]), 0)
        counts = np.where(is_leaf, n_states, np.diff(model.child_ptr[start : stop + 1]))
        owner = np.repeat(np.arange(stop - start), counts)
        column = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
        of_leaf, of_sum = is_leaf[owner], (kind == NodeKind.SUM)[owner]
        children, log_weights = np.empty(len(owner), np.int64), np.zeros(len(owner))
        inner = slice(model.child_ptr[start], model.child_ptr[stop])
        children[~of_leaf] = self._ids[model.children[inner]]
        log_weights[~of_leaf] = model.log_weights[inner]
        at = start + owner[of_leaf]
        children[of_leaf] = self._first[model.leaf_var[at]] + column[of_leaf]
        log_weights[of_leaf] = model.params[model.param_ptr[at] + column[of_leaf]]
        return children, log_weights[of_leaf | of_sum], counts


def _weights(log_weights: Floats) -> list[str]:
    """Write weights from their logs; weights beyond float64 get a mantissa and an exponent."""
    with np.errstate(over="ignore"):
        weights = np.exp(log_weights)
    words = list(map(repr, weights.tolist()))
    for k in np.flatnonzero((weights < SMALLEST_NORMAL) | np.isinf(weights)).tolist():
        words[k] = _weight_beyond(float(log_weights[k]))
    return words


def _weight_beyond(log_weight: float) -> str:
    if log_weight == -math.inf:
        return "0"
    exponent = math.floor(log_weight / math.log(10.0))
    return f"{math.exp(log_weight - exponent * math.log(10.0))!r}e{exponent}"
