"""Probabilistic circuits as immutable arrays in topological order."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np

from certimap.circuits.leaves import leaf_kind, leaf_kinds
from certimap.core.arrays import Flags, Floats, Ints, Ints8, Ints32, spans
from certimap.core.cached import cached_property
from certimap.core.domain import Domain
from certimap.core.model import Model
from certimap.core.query import make_query
from certimap.errors import ImpossibleEvidence, ModelError

TOTAL_TOLERANCE = 1e-3  # as for rows of a table in a Bayesian network


class NodeKind(IntEnum):
    """The kind of a node; real leaves other than Gaussians have negative codes (`certimap.circuits.leaves`)."""

    CATEGORICAL = 0
    GAUSSIAN = 1
    PRODUCT = 2
    SUM = 3


@dataclass(frozen=True, eq=False)
class Circuit(Model):
    """A circuit: nonnegative, possibly unnormalised; children come before parents, the root is last.

    - `domain`: the variables.
    - `kind`: int8, shape (n_nodes,): a `NodeKind`, or the negative code of a kind of leaf (`circuits.leaves`).
    - `child_ptr`, `children`: int64, shapes (n_nodes + 1,) and (n_edges,): the children of node i are
      `children[child_ptr[i]:child_ptr[i + 1]]`; leaves have none.
    - `log_weights`: float64, shape (n_edges,): natural logs of the sum weights; 0 on product edges.
    - `leaf_var`: int32, shape (n_nodes,): the variable of a leaf, -1 for inner nodes.
    - `param_ptr`, `params`: int64 and float64: the parameters of leaf i are `params[param_ptr[i]:param_ptr[i +
      1]]`. A categorical leaf has one natural-log weight per state (-inf is accepted: an indicator is 0 and -inf);
      a Gaussian leaf has mean and standard deviation, others the parameters of their kind.
    """

    domain: Domain
    kind: Ints8
    child_ptr: Ints
    children: Ints
    log_weights: Floats
    leaf_var: Ints32
    param_ptr: Ints
    params: Floats

    def __post_init__(self) -> None:
        for name in ("kind", "child_ptr", "children", "log_weights", "leaf_var", "param_ptr", "params"):
            getattr(self, name).setflags(write=False)

    @property
    def n_nodes(self) -> int:
        return len(self.kind)

    @property
    def n_edges(self) -> int:
        return len(self.children)

    @property
    def root(self) -> int:
        return self.n_nodes - 1

    @property
    def is_normalised(self) -> bool:
        """Whether the values of all assignments add to 1, by one pass over the edges."""
        return self._adds_to_one

    @cached_property
    def _adds_to_one(self) -> bool:
        try:
            _check_total(self)
        except ModelError:
            return False
        return True

    def __repr__(self) -> str:
        return f"Circuit({len(self.domain)} variables, {self.n_nodes} nodes, {self.n_edges} edges)"

    def children_of(self, node: int) -> Ints:
        """Return the numbers of the children of a `node`, in order; empty for a leaf."""
        return self.children[self.child_ptr[node] : self.child_ptr[node + 1]]

    def params_of(self, node: int) -> Floats:
        """Return the parameters of the leaf `node`: log weights per state (nats), or those of its kind."""
        return self.params[self.param_ptr[node] : self.param_ptr[node + 1]]

    def reached(self) -> Flags:
        """Return which nodes the root depends on, bool, shape (n_nodes,)."""
        alive = np.zeros(self.n_nodes, np.bool_)
        alive[-1] = True
        front = np.array([self.root])
        while len(front):
            below = self.children[spans(self.child_ptr[front], self.child_ptr[front + 1] - self.child_ptr[front])]
            below = below[~alive[below]]
            alive[below] = True
            front = np.unique(below)
        return alive

    def part(self, kept: Flags, variables: Ints | None = None) -> Circuit:
        """Return the circuit of `kept` nodes (n_nodes,) and all below, over rising `variables` (None: all)."""
        domain = self.domain if variables is None else self.domain.subset(variables.tolist())
        place = np.full(len(self.domain) + 1, -1, np.int32)  # the last entry maps the -1 of inner nodes to itself
        place[slice(len(self.domain)) if variables is None else variables] = np.arange(len(domain))
        n_children, n_params = np.diff(self.child_ptr), np.diff(self.param_ptr)
        on_edges = np.repeat(kept, n_children)
        child_ptr, param_ptr = (
            np.concatenate([[0], np.cumsum(counts[kept])]).astype(np.int64) for counts in (n_children, n_params)
        )
        edges = (child_ptr, (np.cumsum(kept) - 1)[self.children[on_edges]], self.log_weights[on_edges])
        params = (param_ptr, self.params[np.repeat(kept, n_params)])
        return Circuit(domain, self.kind[kept], *edges, place[self.leaf_var[kept]], *params)


class CircuitBuilder:
    """Builds a circuit bottom-up; each method returns the id of the added node.

    The last node added is the root. Sharing identical indicators and categorical leaves is up to the
    caller. Raises ModelError for an unknown child, a NaN or infinite weight, and an empty circuit.

    `domain`: the circuit's variables.
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._kind = array("b")
        self._child_ptr = array("q", [0])
        self._children = array("q")
        self._log_weights = array("d")
        self._leaf_var = array("i")
        self._param_ptr = array("q", [0])
        self._params = array("d")

    def __len__(self) -> int:
        return len(self._kind)

    def categorical(
        self,
        variable: int,
        logs: Iterable[float] | None = None,
        *,
        probs: Iterable[float] | None = None,
        log_weights: Iterable[float] | None = None,
    ) -> int:
        """Add a leaf on a categorical variable; give one of `probs`, `log_weights` and `logs`, with a number per
        state.

        `variable` is its position. `probs` are probabilities, or weights; 0 is accepted. `log_weights` are natural
        logs; -inf is accepted. `logs` are like `log_weights`, but none above 0: numbers that may be meant as
        probabilities are rejected.
        """
        what = f"a leaf of variable {self.domain.names[variable]!r}"
        values = _logs_of(what, logs, log_weights, "probs", probs)
        expected = int(self.domain.n_states[variable])
        if len(values) != expected:
            raise ModelError(f"{what} has {len(values)} weights; its {expected} states need one each")
        return self.add(NodeKind.CATEGORICAL, variable=variable, params=values)

    def indicator(self, variable: int, state: int) -> int:
        """Add the leaf that is 1 on one `state` (its position) of `variable` and 0 elsewhere."""
        size = int(self.domain.n_states[variable])
        if not 0 <= state < size:
            raise ModelError(
                f"an indicator names state {state} of variable {self.domain.names[variable]!r}; "
                f"expected 0 to {size - 1}"
            )
        return self.categorical(variable, log_weights=(0.0 if s == state else -math.inf for s in range(size)))

    def gaussian(self, variable: int, mean: float, sd: float) -> int:
        """Add a Gaussian leaf on the real variable at position `variable`, with `mean` and deviation `sd` > 0."""
        return self.real("gaussian", variable, mean, sd)

    def real(self, kind: str, variable: int, *params: float) -> int:
        """Add a leaf of a `kind`, such as "gaussian", with its `params`, on the real variable at `variable`."""
        code, leaf = leaf_kind(kind)
        name = self.domain.names[variable]
        values = _numbers(f"a {kind} leaf of variable {name!r}", params)
        fits = len(values) == len(leaf.parameters) and bool(leaf.accepts(*np.array(values)[:, None])[0])
        if self.domain.n_states[variable] or not fits:
            given = ", ".join(str(x) for x in values)
            raise ModelError(
                f"a {kind} leaf of variable {name!r} has the parameters ({given}); expected a real variable, and "
                f"{leaf.expected}"
            )
        return self.add(code, variable=variable, params=values)

    def histogram(
        self,
        variable: int,
        edges: Sequence[float],
        logs: Iterable[float] | None = None,
        *,
        masses: Iterable[float] | None = None,
        log_masses: Iterable[float] | None = None,
    ) -> int:
        """Add a piecewise constant density of a real `variable`: a sum of uniform leaves without common points.

        `edges` are the n + 1 ends of n neighbouring intervals, in rising order; inner ends belong to the interval
        above. Give one of `masses`, of which 0 omits an interval, `log_masses`, of which -inf does, and `logs`,
        which are like `log_masses`, but none above 0. Returns the number of the sum.
        """
        what = f"a histogram of variable {self.domain.names[variable]!r}"
        values = _logs_of(what, logs, log_masses, "masses", masses, "log_masses")
        if len(edges) != len(values) + 1 or not all(a < b for a, b in pairwise(edges)):
            raise ModelError(
                f"{what} has the edges {list(edges)} and {len(values)} masses; expected rising edges, one more "
                "than masses"
            )
        used = [k for k, mass in enumerate(values) if mass != -math.inf]
        # an inner edge belongs to the next bar, so that bars are disjoint
        ends = [math.nextafter(edge, -math.inf) for edge in edges[1:-1]] + list(edges[-1:])
        bars = [self.real("uniform", variable, edges[k], ends[k]) for k in used]
        return self.sum(bars, log_weights=[values[k] for k in used])

    def product(self, children: Sequence[int]) -> int:
        """Add a product of earlier nodes, the `children`."""
        return self.add(NodeKind.PRODUCT, children, [0.0] * len(children))

    def sum(
        self,
        children: Sequence[int],
        logs: Iterable[float] | None = None,
        *,
        weights: Iterable[float] | None = None,
        log_weights: Iterable[float] | None = None,
    ) -> int:
        """Add a weighted sum of earlier nodes, the `children`; give one of `weights`, `log_weights` and `logs`.

        There is one number per child: of `weights`, 0 drops its mass; of `log_weights`, natural logs, -inf does.
        `logs` are like `log_weights`, but none above 0: numbers that may be meant as weights are rejected.
        """
        values = _logs_of(f"sum node {len(self)}", logs, log_weights, "weights", weights)
        if len(children) != len(values):
            raise ModelError(f"a sum has {len(children)} children and {len(values)} weights")
        return self.add(NodeKind.SUM, children, values)

    def add(
        self,
        kind: int,
        children: Sequence[int] = (),
        log_weights: Sequence[float] = (),
        variable: int = -1,
        params: Iterable[float] = (),
    ) -> int:
        """Add a node with the code `kind`, for copies of circuits: parameters of leaves are not checked.

        It has `children` with `log_weights`, or a leaf's `variable` and `params`.
        """
        node = len(self._kind)
        if kind >= NodeKind.PRODUCT:
            if not children:
                raise ModelError(f"node {node} is a {NodeKind(kind).name.lower()} without children")
            if min(children) < 0 or max(children) >= node:
                raise ModelError(f"node {node} has the children {list(children)}; expected 0 to {node - 1}")
        self._kind.append(kind)
        self._children.extend(children)
        self._log_weights.extend(log_weights)
        self._child_ptr.append(len(self._children))
        self._leaf_var.append(variable)
        self._params.extend(params)
        self._param_ptr.append(len(self._params))
        return node

    def build(self, *, normalised: bool = True) -> Circuit:
        """Return the circuit; its root is the last node added.

        If `normalised`, the values of all assignments must add to 1, checked in one pass over the edges. Otherwise
        they may have any total; if it is not 1, results show the total over assignments consistent with the
        evidence instead of p(e). Raises ModelError if no node was added, or the total differs from 1 by more than
        1e-3.
        """
        made = self._circuit(np.array)
        if normalised:
            _check_total(made)
        return made

    def taken(self) -> Circuit:
        """Return the circuit, whatever its total, in the builder's own memory; nothing can be added any more."""
        return self._circuit(np.frombuffer)

    def _circuit(self, of: Callable[[array[Any], type], Any]) -> Circuit:
        if not len(self):
            raise ModelError("a circuit needs at least one node")
        edges = (of(self._child_ptr, np.int64), of(self._children, np.int64), of(self._log_weights, np.float64))
        params = (of(self._param_ptr, np.int64), of(self._params, np.float64))
        return Circuit(self.domain, of(self._kind, np.int8), *edges, of(self._leaf_var, np.int32), *params)


def _numbers(what: str, given: Iterable[float]) -> list[float]:
    """Return numbers as floats; ModelError for anything else."""
    values = list(given)
    try:
        return [float(x) for x in values]
    except (TypeError, ValueError):
        raise ModelError(f"{what} was given {values!r}; expected numbers") from None


def _logs_of(
    what: str,
    logs: Iterable[float] | None,
    log_weights: Iterable[float] | None,
    name: str,
    weights: Iterable[float] | None,
    log_name: str = "log_weights",
) -> list[float]:
    """Return the natural logs of weights given in one of three ways; ModelError for anything else."""
    ways = [way for way in (logs, log_weights, weights) if way is not None]
    if len(ways) != 1:
        raise ModelError(f"{what} was given {len(ways)} lists of weights; expected one, {name}= or {log_name}=")
    values = _numbers(what, ways[0])
    if any(math.isnan(w) or w == math.inf for w in values):
        raise ModelError(f"{what} has the weights {values}; expected finite numbers, or -inf as a log")
    if weights is not None:
        if min(values, default=0.0) < 0.0:
            raise ModelError(
                f"{what} has the {name} {values}; none below 0 is expected, or natural logs as {log_name}="
            )
        return [math.log(w) if w > 0.0 else -math.inf for w in values]
    if logs is not None and max(values, default=0.0) > 0.0:
        raise ModelError(
            f"{what} was given {values}, which may be meant as weights or as their logs; write {name}= or "
            f"{log_name}="
        )
    return values


def _check_total(circuit: Circuit) -> None:
    """Reject a circuit whose values do not add to 1; queries reject circuits that are invalid otherwise."""
    try:
        total = circuit.condition(make_query(circuit.domain)).facts.log_evidence
    except ImpossibleEvidence:
        total = -math.inf
    except ModelError:
        return
    if total is None:
        return
    if not abs(total) <= TOTAL_TOLERANCE:
        shown = f"{math.exp(total):.6g}" if abs(total) < 300.0 else f"e^{total:.6g}"
        raise ModelError(
            f"the values of the circuit add to {shown}; expected 1 within {TOTAL_TOLERANCE}. Give probabilities "
            "as probs= and weights=, natural logs as log_weights=; build(normalised=False) accepts any total"
        )


def supports(circuit: Circuit) -> tuple[Floats, Floats]:
    """Return where the density of each leaf begins and ends, shape (n_nodes,); infinite elsewhere."""
    low, high = np.full(circuit.n_nodes, -np.inf), np.full(circuit.n_nodes, np.inf)
    for code, leaf in leaf_kinds().items():
        nodes = np.flatnonzero(circuit.kind == code)
        if leaf.support is not None and len(nodes):
            params = (circuit.params[circuit.param_ptr[nodes] + k] for k in range(len(leaf.parameters)))
            low[nodes], high[nodes] = leaf.support(*params)
    return low, high
