"""Values of a circuit at points, node by node in plain Python: slow, and independent of plans and kernels.

Circuits and files of circuits are given as their nodes, so that the one can be compared with the other.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves.kind import LOG_SQRT_2PI, MAX_PARAMETERS, leaf_kinds
from certimap.core.arrays import Floats

Leaf = Sequence[float] | Callable[[float], float]  # logs of states, or the log density at a number
Point = Mapping[int, float]  # by variable: the position of a state, or a number; NaN sums it out
NODES_TOGETHER = 2**14  # nodes whose arrays become lists at a time


class OwnNode(NamedTuple):
    """A node: a leaf if `leaf` is given, a product without `log_weights`, else a sum."""

    key: Hashable
    children: Sequence[Hashable] = ()
    log_weights: Sequence[float] | None = None
    variable: int = -1
    leaf: Leaf | None = None


def log_values(nodes: Iterable[OwnNode], points: Sequence[Point]) -> list[float]:
    """Return ln of the last node's value at points, which hold variables by number; NaN where one is lacking."""
    places, n = NodePlaces(), len(points)
    known, found = array("d"), [0.0] * n
    for key, children, log_weights, variable, leaf in nodes:
        if leaf is not None:
            found = [_leaf_value(leaf, point.get(variable)) for point in points]
        else:
            at = [places[child] * n for child in children]
            if log_weights is None:
                found = [sum([known[i + k] for i in at], 0.0) for k in range(n)]
            else:
                terms = list(zip(at, log_weights, strict=True))
                found = [_log_sum([known[i + k] + w for i, w in terms]) for k in range(n)]
        places.add(key)
        known.extend(found)
    return found


class NodePlaces:
    """The positions of nodes by their keys, which take no memory as long as each key is its node's position."""

    def __init__(self) -> None:
        self._n: int = 0
        self._n_alike: int = 0
        self._others: dict[Hashable, int] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._others or (isinstance(key, int) and 0 <= key < self._n_alike)

    def __getitem__(self, key: Hashable) -> int:
        return key if isinstance(key, int) and 0 <= key < self._n_alike else self._others[key]

    def add(self, key: Hashable) -> None:
        """Give the key the next position."""
        if self._n_alike == self._n and key == self._n:
            self._n_alike += 1
        else:
            self._others[key] = self._n
        self._n += 1


def _log_sum(terms: list[float]) -> float:
    top = max(terms, default=-math.inf)
    if not -math.inf < top < math.inf:
        return sum(terms, top)  # NaN stays NaN
    return top + math.log(sum([math.exp(term - top) for term in terms]))


def _leaf_value(leaf: Leaf, at: float | None) -> float:
    if at is None:
        return math.nan
    if callable(leaf):
        return leaf(at) if at == at else 0.0
    if at != at:
        return _log_sum(list(leaf))
    return leaf[int(at)] if int(at) < len(leaf) else -math.inf


def log_normal(mean: float, sd: float) -> Callable[[float], float]:
    """Return the log density of a normal distribution."""
    return lambda x: -0.5 * ((x - mean) / sd) * ((x - mean) / sd) - math.log(sd) - LOG_SQRT_2PI


def nodes_of(circuit: Circuit) -> Iterator[OwnNode]:
    """Yield the nodes of a circuit."""
    for first in range(0, circuit.n_nodes, NODES_TOGETHER):
        ptr = circuit.child_ptr[first : first + NODES_TOGETHER + 1]
        children = circuit.children[ptr[0] : ptr[-1]].tolist()
        log_weights = circuit.log_weights[ptr[0] : ptr[-1]].tolist()
        ends = (ptr - ptr[0]).tolist()
        for k, kind in enumerate(circuit.kind[first : first + NODES_TOGETHER].tolist()):
            node, span = first + k, slice(ends[k], ends[k + 1])
            if kind == NodeKind.PRODUCT:
                yield OwnNode(node, children[span])
            elif kind == NodeKind.SUM:
                yield OwnNode(node, children[span], log_weights[span])
            else:
                leaf = leaf_of(kind, circuit.params_of(node).tolist())
                yield OwnNode(node, variable=int(circuit.leaf_var[node]), leaf=leaf)


def leaf_of(kind: int, params: list[float]) -> Leaf:
    """Return a leaf by the code of its kind and its parameters."""
    if kind == NodeKind.CATEGORICAL:
        return params
    if kind == NodeKind.GAUSSIAN:
        return log_normal(*params)
    density, padded = leaf_kinds()[kind].loaded().log_density, _padded(params)
    return lambda x: density(*padded, x, x)


def circuit_values(circuit: Circuit, points: Floats) -> Floats:
    """Return ln of a circuit's value at points: positions or numbers, shape (n, n_variables); NaN sums out."""
    rows: list[list[float]] = points.tolist()
    return np.array(log_values(nodes_of(circuit), [dict(enumerate(row)) for row in rows]))


def free_variables(circuit: Circuit) -> list[str]:
    """Return the names of the variables that no leaf below the root has; all their states weigh 1."""
    own = set[int](circuit.leaf_var[circuit.reached()].tolist())
    return [name for v, name in enumerate(circuit.domain.names) if v not in own]


def drawn_point(circuit: Circuit, rng: np.random.Generator) -> Floats:
    """Draw a point by a walk down a circuit that chooses children of sums by weight."""
    point = np.zeros(len(circuit.domain))
    waiting = [circuit.root]
    while waiting:
        node = waiting.pop()
        kind = int(circuit.kind[node])
        if kind == NodeKind.PRODUCT:
            waiting += circuit.children_of(node).tolist()
            continue
        span = slice(circuit.child_ptr[node], circuit.child_ptr[node + 1])
        if kind == NodeKind.SUM:
            waiting.append(int(circuit.children[span][chosen(circuit.log_weights[span], rng)]))
            continue
        params = circuit.params_of(node)
        if kind == NodeKind.CATEGORICAL:
            point[circuit.leaf_var[node]] = chosen(params, rng)
        elif kind == NodeKind.GAUSSIAN:
            point[circuit.leaf_var[node]] = rng.normal(float(params[0]), float(params[1]))
        else:  # near the middle
            leaf, padded = leaf_kinds()[kind], _padded(params.tolist())
            low, high = (
                (-np.inf, np.inf) if leaf.support is None else (float(end) for end in leaf.support(*params))
            )
            middle, scale = leaf.loaded().peak(*padded, low, high), leaf.loaded().scale(*padded, 0.0, 0.0)
            value = min(max(middle + scale * rng.normal(), low), high)
            point[circuit.leaf_var[node]] = round(value) if leaf.is_whole else value
    return point


def _padded(params: list[float]) -> list[float]:
    return [*params, 0.0, 0.0, 0.0, 0.0][:MAX_PARAMETERS]


def chosen(log_weights: Floats, rng: np.random.Generator) -> int:
    """Draw a position by weights, given as logs; any position where all are impossible."""
    top = log_weights.max()
    if not top > -math.inf:
        return int(rng.integers(len(log_weights)))
    weights = np.exp(log_weights - top)
    return int(rng.choice(len(weights), p=weights / weights.sum()))
