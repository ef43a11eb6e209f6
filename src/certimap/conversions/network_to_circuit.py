"""Networks become circuits: variable elimination whose messages carry circuit nodes.

Every message is a table over a separator. An entry holds a natural-log weight and, after elimination of
a query variable below it, the circuit node multiplied by the weight. Eliminating a variable turns the
entries of its clique into products, and each row of the clique into one sum; rows that are equal up to a
factor share their sum. Parts without query variables stay plain arithmetic.

Source: variable elimination with a recorded trace, after Darwiche, 'A differential approach to inference
in Bayesian networks', 2003, and Chavira and Darwiche, 'Compiling Bayesian networks using variable
elimination', 2007.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.core.arrays import Floats, Ints, Ints8, Ints32, Words, spans, spread
from certimap.core.control import Control, WorkClock
from certimap.core.domain import Domain
from certimap.core.logs import log_of, log_sum, log_sum_runs
from certimap.core.query import Query
from certimap.errors import ImpossibleEvidence, ModelError
from certimap.networks.elimination import Elimination
from certimap.networks.factor import add_logs
from certimap.networks.orders import plan_elimination
from certimap.networks.reduction import Reduced, reduce_network

if TYPE_CHECKING:
    from certimap.networks.network import Network

# Log weights closer than this are equal in comparisons of nodes: rows of a table that differ only by rounding
# then share their circuits. The resulting error is below the error of summing in float64.
LOG_WEIGHT_GRAIN = 2.0**-42
_FINE = 1e6


class NodeStore:
    """Nodes of a circuit under construction, children before parents."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.n_nodes = 0
        self._nodes: list[tuple[Ints8, Ints, Ints32, Ints]] = []  # kinds, numbers of children, variables, sizes
        self._children: list[Ints] = []
        self._log_weights: list[Floats] = []
        self._params: list[Floats] = []

    def leaves(self, variable: int, log_weights: Floats) -> Ints:
        """Add a categorical leaf per row of `log_weights`, shape (n, n_states); return their ids."""
        n, size = int(log_weights.shape[0]), int(log_weights.shape[1])
        self._params.append(log_weights.reshape(-1))
        return self._add(NodeKind.CATEGORICAL, np.zeros(n, np.int64), variable, size)

    def products(self, children: Ints) -> Ints:
        """Add a product per row of `children`, shape (n, n_children); return their ids."""
        n, size = int(children.shape[0]), int(children.shape[1])
        self._children.append(children.reshape(-1))
        self._log_weights.append(np.zeros(n * size))
        return self._add(NodeKind.PRODUCT, np.full(n, size, np.int64))

    def sums(self, n_children: Ints, children: Ints, log_weights: Floats) -> Ints:
        """Add sums with `n_children` children each, listed one after the other; return their ids."""
        self._children.append(children)
        self._log_weights.append(log_weights)
        return self._add(NodeKind.SUM, n_children)

    def tree(
        self, order: Ints, parent: Ints, tables: Sequence[Floats], states: Sequence[Ints], *, is_seen: bool
    ) -> Ints:
        """Add a tree of variables, each with a node per state, and return its root, shape (1,).

        `order`, `parent`: the variables, parents first, and the parent of each, -1 for the root. `tables`: of each
        given its parent, a row per state of that. `is_seen`: nodes are indicators; the last have a leaf per row.
        """
        below: list[list[Ints]] = [[] for _ in range(len(tables) + 1)]  # the last one above the root
        backwards: list[int] = order[::-1].tolist()
        for i in backwards:
            rows, nodes, up = log_of(tables[i]), states[i], int(parent[i])
            if below[i]:
                nodes = self.products(np.stack([nodes, *below[i]], axis=1))
            elif is_seen:
                below[up].append(self.leaves(i, rows))
                continue
            sizes = np.full(len(rows), len(nodes), np.int64)
            below[up].append(self.sums(sizes, np.tile(nodes, len(rows)), rows.ravel()))
        return below[-1][0]

    def _add(self, kind: NodeKind, n_children: Ints, variable: int = -1, n_params: int = 0) -> Ints:
        n = len(n_children)
        kinds, variables = np.full(n, kind, np.int8), np.full(n, variable, np.int32)
        self._nodes.append((kinds, n_children, variables, np.full(n, n_params, np.int64)))
        self.n_nodes += n
        return np.arange(self.n_nodes - n, self.n_nodes, dtype=np.int64)

    def circuit(self) -> Circuit:
        """Return the circuit whose root is the last node added, without unreachable nodes."""
        kinds, n_children, variables, n_params = map(np.concatenate, zip(*self._nodes, strict=True))
        children = np.concatenate([*self._children, np.zeros(0, np.int64)])
        log_weights, params = (np.concatenate([*p, np.zeros(0)]) for p in (self._log_weights, self._params))
        child_ptr, param_ptr = (np.append(0, np.cumsum(counts)) for counts in (n_children, n_params))
        made = Circuit(self.domain, kinds, child_ptr, children, log_weights, variables, param_ptr, params)
        alive = made.reached()
        return made if alive.all() else made.part(alive)


def distinct(columns: Sequence[Ints | Words]) -> tuple[Ints, Ints]:
    """Return the first of each distinct row of some columns, in sorted order, and each row's index among them."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), np.bool_)
    new[:1] = True
    for column in columns:
        placed = column[order]
        new[1:] |= placed[1:] != placed[:-1]
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(new) - 1
    return order[new], which


def scrambled(values: Ints | Words, seed: int) -> Words:
    """Return a 64-bit hash of each integer (the finaliser of splitmix64)."""
    z = values.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def grains(log_weights: Floats) -> Ints:
    """Round log weights to integers, equal for nearly equal weights (for equal ones beyond `_FINE`)."""
    size = np.abs(log_weights)
    fine = np.rint(np.minimum(size, _FINE) / LOG_WEIGHT_GRAIN).astype(np.int64)
    beyond = np.maximum(size, _FINE).view(np.int64) - np.float64(_FINE).view(np.int64)
    return np.where(log_weights < 0.0, -1, 1) * (fine + beyond)


def hashed_rows(parts: Sequence[Ints], starts: Ints) -> list[Words]:
    """Return two 64-bit hashes of each run of entries, whatever their order; an entry has one integer per part."""
    hashes: list[Words] = []
    for seed in (1, 2):
        entry = np.zeros(len(parts[0]), np.uint64)
        for k, part in enumerate(parts):
            entry = scrambled(entry ^ scrambled(part, seed), seed + 2 * (k + 1))
        hashes.append(np.add.reduceat(entry, starts) if len(starts) else entry[:0])
    return hashes


SECONDS_PER_ENTRY = 2e-7  # per clique entry with nodes; the first large clique corrects it
TABLE_FACTOR = 4.0  # table entries allowed for each edge allowed: arithmetic is cheaper than nodes
FAR = 32.0  # nats from 0: scales of messages beyond it are set aside


@dataclass(frozen=True)
class Message:
    """A table over a separator, with axes in elimination order."""

    scope: tuple[int, ...]  # the variables
    log_weight: Floats  # natural logs, one axis per variable; -inf for zero entries
    node: Ints | None = None  # the circuit node multiplied by each entry (-1 for zero entries), or None: no nodes


def compile_query(model: Network, query: Query | None, *, max_edges: int) -> Circuit:
    """Compile the network `model` to a circuit over the variables of `query` (None: all), whose value is p(q, e).

    Cost: linear in the table entries of all cliques, except for sorting. Raises ModelError, before allocation, if
    the estimated edges, before zeros and sharing, exceed `max_edges`, and ImpossibleEvidence if p(e) = 0.
    """
    reduced = reduce_network(model, query)
    elimination = plan_elimination([f.scope for f in reduced.factors], reduced.sizes, reduced.query)
    if is_large(elimination, max_edges):
        raise ModelError(
            f"compiling this network has {elimination.describe()}; expected at most max_edges={max_edges} edges "
            f"and {TABLE_FACTOR:g} times as many table entries"
        )
    domain = model.domain if query is None else query.query_domain
    return Compiler(reduced, elimination, domain).circuit()


def is_large(elimination: Elimination, max_edges: int) -> bool:
    """Whether a compilation exceeds a limit on edges, or the corresponding limit on table entries."""
    entries = 2.0 ** min(elimination.log2_size, 1000.0)
    return elimination.n_edges > max_edges or entries > TABLE_FACTOR * max_edges


class Compiler:
    """One run of the elimination, over the query variables `domain`; `control` may raise TimeUp."""

    def __init__(
        self, reduced: Reduced, elimination: Elimination, domain: Domain, control: Control | None = None
    ) -> None:
        doing = f"compiling a circuit of {elimination.describe()}"
        self.pace = WorkClock(control or Control(), doing, SECONDS_PER_ENTRY)
        self.reduced, self.elimination, self.store = reduced, elimination, NodeStore(domain)
        self.position = {v: i for i, v in enumerate(reduced.query)}

    def circuit(self) -> Circuit:
        """Return the circuit; a constant factor becomes the weight of a sum with one child."""
        log_constant, nodes = self.eliminate()
        for v in self.reduced.query:
            if v not in self.reduced.sizes:
                nodes.append(int(self.leaves(v, np.zeros((1, 1)))[0]))
        root = np.array(nodes, np.int64)
        if len(root) > 1:
            root = self.store.products(root[None, :])
        if log_constant != 0.0 or int(root[0]) != self.store.n_nodes - 1:
            self.store.sums(np.array([1], np.int64), root, np.array([log_constant]))
        return self.store.circuit()

    def eliminate(self) -> tuple[float, list[int]]:
        """Eliminate all variables; return the log of the constant factor and the roots."""
        order = self.elimination.order
        place = {v: i for i, v in enumerate(order)}
        waiting: list[list[Message]] = [[] for _ in order]
        for factor in self.reduced.factors:
            scope = tuple(sorted(factor.scope, key=place.__getitem__))
            waiting[place[scope[0]]].append(Message(scope, spread(factor.log_table, factor.scope, scope)))
        log_constants = [self.reduced.log_constant]
        roots: list[int] = []
        for i, v in enumerate(order):
            separator = self.elimination.separators[i]
            with self.pace.piece(math.prod(self.reduced.sizes[u] for u in (v, *separator))):
                message = self.message(v, separator, waiting[i])
            waiting[i] = []
            if message.scope:
                # Factor out the scale of accumulated evidence: small logs keep their last digits.
                top = float(message.log_weight.max())
                if FAR < abs(top) < np.inf:
                    message = replace(message, log_weight=message.log_weight - top)
                    log_constants.append(top)
                waiting[place[message.scope[0]]].append(message)
                continue
            log_constants.append(float(message.log_weight))
            if message.node is not None:
                roots.append(int(message.node))
            if log_constants[-1] == -np.inf:
                text = "the evidence has probability zero under the network; expected possible evidence"
                raise ImpossibleEvidence(text)
        return math.fsum(log_constants), roots

    def message(self, variable: int, separator: tuple[int, ...], incoming: list[Message]) -> Message:
        """Eliminate one variable: combine all tables over it, and sum over its states."""
        clique = (*separator, variable)
        sizes = [self.reduced.sizes[v] for v in clique]
        log_weight = add_logs([spread(m.log_weight, m.scope, clique) for m in incoming], tuple(sizes))
        columns = self.columns(incoming, clique, log_weight.size)
        queried = variable in self.position
        if not queried and not columns:
            return Message(separator, log_sum(log_weight, -1))
        flat = log_weight.reshape(-1)
        live = np.flatnonzero(flat > -np.inf)
        rows, states = np.divmod(live, sizes[-1])
        keys, combos = _combined([np.broadcast_to(c, sizes).reshape(-1)[live] for c in columns], len(live))
        groups = _Groups(rows, states, keys, flat[live])
        nodes = self.with_leaves(variable, groups, combos) if queried else self.joined(combos)[groups.key]
        weights, found = self.sums(groups, nodes, log_weight.size // sizes[-1])
        return Message(separator, weights.reshape(sizes[:-1]), found.reshape(sizes[:-1]))

    def columns(self, incoming: list[Message], clique: tuple[int, ...], size: int) -> list[Ints]:
        """Return node tables, broadcast to the clique, whose entries are to be multiplied.

        A message inside another one that is smaller than the clique is multiplied into it first: entries of the
        clique then share the products.
        """
        by_scope: dict[tuple[int, ...], list[Ints]] = {}
        for message in incoming:
            if message.node is not None:
                by_scope.setdefault(message.scope, []).append(message.node)
        small = sorted((s for s in by_scope if by_scope[s][0].size < size), key=lambda s: by_scope[s][0].size)
        large = (s for s in by_scope if by_scope[s][0].size == size)
        out = [spread(node, s, clique) for s in large for node in by_scope[s]]
        for k, scope in enumerate(small):
            product = self.product_table(by_scope[scope])
            host = next((t for t in small[k + 1 :] if set(scope) <= set(t)), None)
            if host is None:
                out.append(spread(product, scope, clique))
            else:
                by_scope[host].append(spread(product, scope, host))
        return out

    def product_table(self, nodes: list[Ints]) -> Ints:
        """Multiply node tables entry by entry; the first has the shape of the product."""
        if len(nodes) == 1:
            return nodes[0]
        shape = nodes[0].shape
        flat = [np.broadcast_to(n, shape).reshape(-1) for n in nodes]
        live = np.flatnonzero(np.logical_and.reduce([f >= 0 for f in flat]))
        keys, combos = _combined([f[live] for f in flat], len(live))
        out = np.full(nodes[0].size, -1, np.int64)
        out[live] = self.store.products(combos)[keys]
        return out.reshape(shape)

    def joined(self, combos: Ints) -> Ints:
        return combos[:, 0] if combos.shape[1] == 1 else self.store.products(combos)

    def leaves(self, variable: int, log_weights: Floats) -> Ints:
        """Add leaves over all states of a query variable from weights of its surviving states."""
        full = np.full((len(log_weights), int(self.reduced.domain.n_states[variable])), -np.inf)
        full[:, self.reduced.states[variable]] = log_weights
        return self.store.leaves(self.position[variable], full)

    def with_leaves(self, variable: int, groups: _Groups, combos: Ints) -> Ints:
        """Return the node of each group: the group's nodes times a leaf over its states."""
        leaf = np.empty(len(groups.row), np.int64)
        single = groups.size == 1
        if single.any():
            size = self.reduced.sizes[variable]
            states = groups.state[groups.start[single]]
            used = np.unique(states)
            indicators = np.full((size, size), -np.inf)
            np.fill_diagonal(indicators, 0.0)
            ids = np.full(size, -1, np.int64)
            ids[used] = self.leaves(variable, indicators[used])
            leaf[single] = ids[states]
        several = np.flatnonzero(~single)
        if len(several):
            vectors, which = groups.vectors(several, self.reduced.sizes[variable])
            leaf[several] = self.leaves(variable, vectors)[which]
        if combos.shape[1] == 0:
            return leaf
        first, which = distinct([groups.key, leaf])
        pairs = len(first)
        if combos.shape[1] > 1 and pairs * (combos.shape[1] - 1) > combos.size:
            combos = self.joined(combos)[:, None]  # enough leaves share it to justify its own node
        return self.store.products(np.column_stack([combos[groups.key[first]], leaf[first]]))[which]

    def sums(self, groups: _Groups, nodes: Ints, n_rows: int) -> tuple[Floats, Ints]:
        """Sum the groups of each row; rows that are equal up to their total share a node."""
        totals = np.full(n_rows, -np.inf)
        found = np.full(n_rows, -1, np.int64)
        starts = np.flatnonzero(np.diff(groups.row, prepend=-1))
        if not len(starts):
            return totals, found
        row = groups.row[starts]
        lengths = np.diff(starts, append=len(groups.row))
        total = log_sum_runs(groups.log_weight, starts)
        totals[row] = total
        lone = lengths == 1
        found[row[lone]] = nodes[starts[lone]]
        many = np.flatnonzero(~lone)
        if len(many):
            inside = spans(starts[many], lengths[many])
            weights = groups.log_weight[inside] - np.repeat(total[many], lengths[many])
            begins = np.cumsum(lengths[many]) - lengths[many]
            first, which = distinct(hashed_rows([nodes[inside], grains(weights)], begins))
            kept = spans(begins[first], lengths[many][first])
            ids = self.store.sums(lengths[many][first], nodes[inside][kept], weights[kept])
            found[row[many]] = ids[which]
        return totals, found


class _Groups:
    """Entries of a clique, sorted, and grouped by row and by the nodes they multiply."""

    def __init__(self, rows: Ints, states: Ints, keys: Ints, log_weights: Floats) -> None:
        order = np.lexsort((keys, rows))
        rows, keys = rows[order], keys[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (rows[1:] != rows[:-1]) | (keys[1:] != keys[:-1])
        # per entry: the state of the eliminated variable, and the log weight
        self.state, self.weight = states[order], log_weights[order]
        # per group: its first entry, their number, its row, its combination of nodes, and its total
        self.start = np.flatnonzero(new)
        self.size = np.diff(self.start, append=len(order))
        self.row, self.key = rows[self.start], keys[self.start]
        self.log_weight = log_sum_runs(self.weight, self.start)

    def vectors(self, which: Ints, n_states: int) -> tuple[Floats, Ints]:
        """Return the distinct normalised weight vectors of some groups, and the vector index of each group."""
        lengths = self.size[which]
        inside = spans(self.start[which], lengths)
        weights = self.weight[inside] - np.repeat(self.log_weight[which], lengths)
        begins = np.cumsum(lengths) - lengths
        first, of = distinct(hashed_rows([self.state[inside], grains(weights)], begins))
        kept = spans(begins[first], lengths[first])
        vectors = np.full((len(first), n_states), -np.inf)
        vectors[np.repeat(np.arange(len(first)), lengths[first]), self.state[inside][kept]] = weights[kept]
        return vectors, of


def _combined(columns: list[Ints], n_entries: int) -> tuple[Ints, Ints]:
    """Number the distinct combinations: (number of each entry, combinations of shape (n, n_columns))."""
    if not columns:
        return np.zeros(n_entries, np.int64), np.zeros((1, 0), np.int64)
    first, which = distinct(columns)
    return which, np.column_stack([c[first] for c in columns])
