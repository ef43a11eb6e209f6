"""From structured circuits to trees of regions, and from mixtures of them to a list of trees.

A circuit is *structured* if all products over one scope split it alike, so that its scopes form a tree. It is then
a tree of latent variables, one per scope, whose states are the products over the scope. The chosen product
determines, for every part of the split, the node of the part and thus the row of weights for the part's latent
variable. Leaves are emissions. Summing the latent variables out gives the circuit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.circuits.kernels.structure import join
from certimap.circuits.plan import Plan
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.prober import PlanProber
from certimap.circuits.properties import variables_of
from certimap.core.arrays import Flags, Floats, Ints, Ints32, spans
from certimap.core.box import Answers, Points, SearchBoxes
from certimap.core.control import Control, WorkClock
from certimap.core.domain import Categorical, Domain
from certimap.core.posterior import Tightening
from certimap.core.query import make_query
from certimap.core.rounding import LOG_FLOOR
from certimap.kernels.parallel import for_blocks
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.trees.bucket_tree import MAX_TABLE, BucketTreePosterior
from certimap.trees.tree_sum import TreeSum, is_simple
from certimap.trees.wide import Wide

DOING = "looking for the tree of a structured circuit"
SECONDS_PER_ENTRY = 4e-7
NODES_PER_LOOK = 1024
MAX_SPREAD = 4  # most table entries, of a tree or of all trees, per edge of the circuit
Parts = tuple[tuple[int, ...], tuple[int, ...]]  # children (node ids) and leaves (positions in `leaf_var`)


def tree_of_circuit(
    plan: Plan,
    *,
    log_evidence: float | None = None,
    max_table: int = MAX_TABLE,
    workers: int | None = None,
    control: Control | None = None,
) -> BucketTreePosterior | None:
    """Return the distribution of a structured circuit as a tree of regions, or None.

    Products that split a scope more finely than others are regrouped. None if the circuit is not structured, has a
    real variable, or needs more than `max_table` entries in all tables together. `log_evidence` is ln p(e) for the
    posterior, 0 for None. Cost: linear in the circuit's edges, the bits of its scopes, and the tree's entries.
    Raises TimeUp if the deadline of `control` leaves too little time.
    """
    control = control or Control()
    tree = _grown(plan, max_table, control)
    if tree is None:
        return None
    with WorkClock(control, DOING, SECONDS_PER_ENTRY).piece(tree.n_entries):
        posterior = BucketTreePosterior.from_tree(
            np.array(tree.parent, np.int64),
            [Wide.of_logs(table) for table in tree.transitions],
            {0: np.ones(1)},
            tree.latent_of,
            [Wide.of_logs(table) for table in tree.emissions],
            make_query(plan.domain),
            workers=workers,
            pace=WorkClock(control, DOING, SECONDS_PER_ENTRY),
        )
    found = posterior.region_tree
    log_error = found.log_error + plan.log_error  # includes rounding in the circuit's own conditioning
    return replace(posterior, region_tree=replace(found, log_evidence=log_evidence or 0.0, log_error=log_error))


def network_of_circuit(circuit: Circuit, control: Control) -> BayesianNetwork | None:
    """Return a structured circuit as a network of its variables and hidden latent ones, else None.

    None also where it is not normalised or the tables are large beside the circuit. Cost and TimeUp as in
    `tree_of_circuit`.
    """
    domain = circuit.domain
    if not domain.is_discrete or not circuit.is_normalised:
        return None
    plan = CircuitPosterior.from_circuit(circuit, make_query(domain), control=control).plan
    tree = _grown(plan, MAX_SPREAD * plan.n_edges, control)
    if tree is None:
        return None
    n, shapes = len(domain), [table.shape[1] for table in tree.transitions]
    latent = [Categorical(f"latent {k} of the circuit", tuple(range(size))) for k, size in enumerate(shapes)]
    tables = [Factor((n,), [1.0])]
    pairs = zip(tree.parent[1:], tree.transitions[1:], strict=True)
    tables += [Factor.from_log((n + above, n + k), table) for k, (above, table) in enumerate(pairs, 1)]
    emitted = zip(tree.latent_of.tolist(), tree.emissions, strict=True)
    tables += [Factor.from_log((n + above, i), table) for i, (above, table) in enumerate(emitted)]
    return BayesianNetwork(Domain((*domain, *latent)), tables, [v.name for v in latent])


def _grown(plan: Plan, max_table: int, control: Control) -> _Tree | None:
    """Return the tree of a structured plan over categorical variables; None for other plans and larger tables."""
    if not plan.domain.is_discrete or not _may_be_structured(plan, control):
        return None
    tree = _Tree(_Nodes.of(plan, control), max_table, control)
    return tree if tree.grow() else None


def _may_be_structured(plan: Plan, control: Control) -> bool:
    """Whether the products below the topmost sums leave their scopes in several blocks; a quick first test.

    One of them must have each block as a single part: only this part can split the block further.
    """
    stands_for = _without_links(plan)
    root = int(stands_for[-1])
    cut = np.zeros(plan.n_nodes, np.bool_)
    while plan.is_sum[root] and plan.child_ptr[root + 1] - plan.child_ptr[root] == 1:
        cut[root], root = True, int(stands_for[plan.children[plan.child_ptr[root]]])
    nodes, scope_of = np.array([root]), np.zeros(len(plan.domain), np.int32)
    if not plan.is_sum[root]:
        cut[root] = True
        nodes, scope_of = _below(plan, stands_for, nodes), _components(plan, cut)[plan.n_nodes :]
    while True:
        control.check(DOING)
        cut[nodes] = True
        nodes = nodes[plan.is_sum[nodes]]
        if not len(nodes):
            break
        nodes = _below(plan, stands_for, nodes)
    label = _components(plan, cut)
    block_of, size = label[plan.n_nodes :], len(label)
    n_blocks = np.unique(np.unique(np.int64(size) * scope_of + block_of) // size, return_counts=True)[1]
    if np.any((n_blocks == 1) & (np.unique(scope_of, return_counts=True)[1] > 1)):
        return False
    tops, pairs = np.flatnonzero(cut & ~plan.is_sum), [np.zeros(0, np.int64)]
    for ptr, labels in ((plan.child_ptr, label[plan.children]), (plan.leaf_ptr, block_of[plan.leaf_var])):
        n = ptr[tops + 1] - ptr[tops]
        pairs.append(np.repeat(tops, n) * size + labels[spans(ptr[tops], n)])
    known, n_parts = np.unique(np.concatenate(pairs), return_counts=True)
    blocks, sizes = np.unique(block_of, return_counts=True)
    return bool(np.all(np.isin(blocks[sizes > 1], known[n_parts == 1] % size)))


def _below(plan: Plan, stands_for: Ints, nodes: Ints) -> Ints:
    """Return the representatives of the children of nodes."""
    is_parent = np.zeros(plan.n_nodes, np.bool_)
    is_parent[nodes] = True
    return np.unique(stands_for[plan.children[np.repeat(is_parent, np.diff(plan.child_ptr))]])


def _components(plan: Plan, cut: Flags, with_leaves: bool = True) -> Ints32:
    """Return the first member of the component of each node and variable, edges from `cut` nodes left out."""
    label = np.arange(plan.n_nodes + len(plan.domain), dtype=np.int32)
    join(plan.child_ptr, plan.children, 0, cut, label)
    if with_leaves:
        join(plan.leaf_ptr, plan.leaf_var, plan.n_nodes, cut, label)
    return label


@dataclass(eq=False)
class _Nodes:
    """A plan's nodes, merged: a product of a single node is represented by that node, equal products by one."""

    plan: Plan
    stands_for: Ints  # int64, shape (n_nodes,): the node that represents each node
    height: list[int]  # number of layers of sums above the products of a node's scope; 0 for a product
    scope: list[int]  # the variables of each representing node, as bits
    parts: dict[int, Parts]  # the parts of each representing product; regrouped products follow the plan's nodes
    known: dict[Parts, int]

    @classmethod
    def of(cls, plan: Plan, control: Control) -> _Nodes:
        nodes = cls(plan, _without_links(plan), [0] * plan.n_nodes, [0] * plan.n_nodes, {}, {})
        for count, node in enumerate(np.flatnonzero(nodes.stands_for == np.arange(plan.n_nodes)).tolist()):
            if count % NODES_PER_LOOK == 0:
                control.check(DOING)
            nodes._add(node)
        return nodes

    def _add(self, node: int) -> None:
        if self.plan.is_sum[node]:
            below = self.children(node)
            self.scope[node] = self.scope[int(below[0])]
            self.height[node] = 1 + max(map(self.height.__getitem__, below.tolist()))
            return
        first, last = (int(self.plan.leaf_ptr[node + k]) for k in (0, 1))
        leaves = sorted(range(first, last), key=self.plan.leaf_var.__getitem__)
        parts = (tuple(sorted(self.children(node).tolist())), tuple(leaves))
        self.stands_for[node] = self._known(parts, node)
        self.parts[node] = parts
        self.scope[node] = self._scope_of(parts)

    def children(self, node: int) -> Ints:
        """Return the representatives of a node's children."""
        begin, end = self.plan.child_ptr[node], self.plan.child_ptr[node + 1]
        return self.stands_for[self.stands_for[self.plan.children[begin:end]]]

    def _known(self, parts: Parts, node: int) -> int:
        """Return the first product with these parts; leaves are equal if they share a vector."""
        key = (parts[0], tuple(int(self.plan.leaf_start[leaf]) for leaf in parts[1]))
        return self.known.setdefault(key, node)

    def _scope_of(self, parts: Parts) -> int:
        of_leaves = (1 << int(self.plan.leaf_var[leaf]) for leaf in parts[1])
        return reduce(int.__or__, (*(self.scope[child] for child in parts[0]), *of_leaves), 0)

    def split(self, node: int) -> list[tuple[int, int, bool]]:
        """Return (scope, node or leaf, whether it is a leaf) for each part of a product."""
        children, leaves = self.parts[node]
        found = [(self.scope[child], child, False) for child in children]
        return found + [(1 << int(self.plan.leaf_var[leaf]), leaf, True) for leaf in leaves]

    def product(self, parts: Parts) -> int:
        """Return the product of these parts: the only part itself, a known product, or a new one."""
        if len(parts[0]) == 1 and not parts[1]:
            return parts[0][0]
        node = self._known(parts, len(self.scope))
        if node == len(self.scope):
            self.scope.append(self._scope_of(parts))
            self.height.append(0)
            self.parts[node] = parts
        return node


def _without_links(plan: Plan) -> Ints:
    """Return, for each node, the first node from it downward that is not a product of a single node."""
    target = np.arange(plan.n_nodes, dtype=np.int64)
    n_children, n_leaves = np.diff(plan.child_ptr), np.diff(plan.leaf_ptr)
    links = np.flatnonzero(~plan.is_sum & (n_children == 1) & (n_leaves == 0))
    target[links] = plan.children[plan.child_ptr[links]]
    while True:
        further = target[target]
        if np.array_equal(further, target):
            return target
        target = further


@dataclass(eq=False)
class _Tree:
    """The growing tree of latent variables, scope by scope from the root's; tables are logs."""

    nodes: _Nodes
    max_table: int
    control: Control
    parent: list[int] = field(default_factory=list[int])
    transitions: list[Floats] = field(default_factory=list[Floats])
    n_entries: int = 0

    def __post_init__(self) -> None:
        n_vars = len(self.nodes.plan.domain)
        self.latent_of = np.full(n_vars, -1, np.int64)
        self.emissions: list[Floats] = [np.empty((0, 0))] * n_vars

    def grow(self) -> bool:
        """Add every scope; False if a scope is not structured or the tables grow too large."""
        root = int(self.nodes.stands_for[self.nodes.stands_for[-1]])
        self._latent(-1, np.zeros((1, 1)))
        stack: list[tuple[int, list[int]]] = [(0, [root])]
        while stack:
            self.control.check(DOING)
            latent, states = stack.pop()
            grown = self._layers(latent, states)
            below = None if grown is None else self._split(*grown)
            if below is None:
                return False
            stack.extend(below)
        return True

    def _latent(self, parent: int, transition: Floats) -> int:
        self.parent.append(parent)
        self.transitions.append(transition)
        return len(self.parent) - 1

    def _reserve(self, n_rows: int, n_columns: int) -> bool:
        self.n_entries += n_rows * n_columns
        return self.n_entries <= self.max_table

    def _layers(self, latent: int, states: list[int]) -> tuple[int, list[int]] | None:
        """Add a latent variable per layer of sums; return the one whose states are products."""
        nodes, plan = self.nodes, self.nodes.plan
        for layer in range(max(nodes.height[s] for s in states), 0, -1):
            place: dict[int, int] = {}
            rows: list[tuple[Ints, Floats | float]] = []
            for s in states:
                is_open = nodes.height[s] == layer
                below = nodes.children(s).tolist() if is_open else [s]
                weights = plan.log_weights[plan.child_ptr[s] : plan.child_ptr[s + 1]] if is_open else 0.0
                rows.append((np.array([place.setdefault(c, len(place)) for c in below]), weights))
            if not self._reserve(len(states), len(place)):
                return None
            transition = np.full((len(states), len(place)), -np.inf)
            for row, (columns, weights) in enumerate(rows):
                np.logaddexp.at(transition[row], columns, weights)
            latent, states = self._latent(latent, transition), list(place)
        return latent, states

    def _split(self, latent: int, products: list[int]) -> list[tuple[int, list[int]]] | None:
        """Emit the leaves of products over one scope; return (latent variable, nodes) for each other part."""
        parts = [self.nodes.split(p) for p in products]
        block_of = _common_blocks(self.nodes.scope[products[0]], [[part[0] for part in split] for split in parts])
        if block_of is None:
            return None
        sizes = Counter(block_of.values())
        if len(sizes) == 1 and len(block_of) > 1:
            return None
        chosen: dict[int, list[int]] = {}
        for split in parts:
            grouped: dict[int, tuple[list[int], list[int]]] = {}
            for scope, item, is_leaf in split:
                block = block_of[(scope & -scope).bit_length() - 1]
                grouped.setdefault(block, ([], []))[is_leaf].append(item)
            for block, (children, leaves) in grouped.items():
                is_single = not children and len(leaves) == 1
                item = leaves[0] if is_single else self.nodes.product((tuple(children), tuple(leaves)))
                chosen.setdefault(block, []).append(item)
        below: list[tuple[int, list[int]]] = []
        for block, items in chosen.items():
            if sizes[block] == 1:
                if not self._emit(latent, items):
                    return None
                continue
            place = {s: i for i, s in enumerate(dict.fromkeys(items))}
            if not self._reserve(len(items), len(place)):
                return None
            choice = np.full((len(items), len(place)), -np.inf)
            choice[np.arange(len(items)), [place[s] for s in items]] = 0.0
            below.append((self._latent(latent, choice), list(place)))
        return below

    def _emit(self, latent: int, leaves: Sequence[int]) -> bool:
        plan = self.nodes.plan
        variable = int(plan.leaf_var[leaves[0]])
        size = int(plan.domain.n_states[variable])
        if not self._reserve(len(leaves), size):
            return False
        self.latent_of[variable] = latent
        self.emissions[variable] = plan.log_tables[plan.leaf_start[leaves][:, None] + np.arange(size)]
        return True


def _common_blocks(scope: int, splits: Sequence[Sequence[int]]) -> dict[int, int] | None:
    """Number each variable by its finest block that no product cuts; None where parts do not cover the scope."""
    block_of = {v: v for v in variables_of(scope)}
    members = {v: [v] for v in block_of}
    for split in {tuple(sorted(split)) for split in splits}:
        if sum(split) != scope:
            return None
        for part in split:
            blocks = {block_of[v] for v in variables_of(part)}
            first, *others = sorted(blocks, key=lambda b: -len(members[b]))
            for other in others:
                for v in members.pop(other):
                    block_of[v] = first
                    members[first].append(v)
    return block_of


MAX_TREES = 64
MIN_DENSITY = 8  # edges per tree and variable; where they are fewer, the circuit's own bounds are cheaper
N_ROWS = 64  # rows per set
EDGES_PER_ENTRY = 6  # cost in edge visits of a set's row per table entry
BLOCK = 8  # boxes a thread takes at a time


def trees_of_circuit(plan: Plan, control: Control | None = None) -> TreeSum | None:
    """Return a circuit as a sum of trees if its root is a sum of structured circuits, else None.

    Terms of the root's sum that share nodes belong to one tree. None also where `MAX_TREES`, `MIN_DENSITY` or
    `MAX_SPREAD` is not kept. Cost: linear in the circuit's edges until the first part without a tree. Raises
    TimeUp if the deadline of `control` leaves too little time.
    """
    root = plan.n_nodes - 1
    parts = plan.children[plan.child_ptr[root] : plan.child_ptr[root + 1]]
    if not plan.domain.is_discrete or not plan.is_sum[root] or len(parts) < 2 or np.any(plan.decides >= 0):
        return None
    label = _components(plan, np.arange(plan.n_nodes) == root, with_leaves=False)[: plan.n_nodes]
    labels = np.unique(label[parts])
    is_dense = plan.n_edges >= MIN_DENSITY * len(labels) * len(plan.domain)
    if not 2 <= len(labels) <= MAX_TREES or not is_dense:
        return None
    weights = plan.log_weights[plan.child_ptr[root] : plan.child_ptr[root + 1]]
    trees: list[BucketTreePosterior] = []
    log_weights, room = np.empty(len(labels)), MAX_SPREAD * plan.n_edges
    for i, number in enumerate(labels):
        here = label[parts] == number
        log_weights[i] = np.logaddexp.reduce(weights[here])
        part = _mixed(plan, label == number, parts[here], weights[here] - log_weights[i])
        tree = tree_of_circuit(part, max_table=room, control=control)
        if tree is None or not is_simple(tree):
            return None
        room -= tree.region_tree.n_entries
        trees.append(tree)
    return TreeSum(trees, log_weights)


def _mixed(plan: Plan, keep: Flags, parts: Ints32, log_weights: Floats) -> Plan:
    """Return a plan of some nodes, under a root that is a weighted sum of some of them."""
    nodes = np.flatnonzero(keep)
    place = np.full(plan.n_nodes, -1, np.int32)
    place[nodes] = np.arange(len(nodes), dtype=np.int32)
    edges, leaves = (np.repeat(keep, np.diff(ptr)) for ptr in (plan.child_ptr, plan.leaf_ptr))
    n_children = np.append(np.diff(plan.child_ptr)[nodes], len(parts))
    n_leaves = np.append(np.diff(plan.leaf_ptr)[nodes], 0)
    return replace(
        plan,
        is_sum=np.append(plan.is_sum[nodes], True),
        child_ptr=np.append(0, np.cumsum(n_children)),
        children=np.concatenate([place[plan.children[edges]], place[parts]]),
        weights=np.concatenate([plan.weights[edges], np.exp(log_weights)]),
        log_weights=np.concatenate([plan.log_weights[edges], log_weights]),
        leaf_ptr=np.append(0, np.cumsum(n_leaves)),
        leaf_var=plan.leaf_var[leaves],
        leaf_start=plan.leaf_start[leaves],
        decides=np.append(plan.decides[nodes], -1).astype(np.int32),
    )


class TreeMixturePosterior(CircuitPosterior):
    """p(q | e) of a circuit that is a mixture of trees: a circuit with sharper bounds for searches."""

    def __init__(self, posterior: CircuitPosterior, trees: TreeSum, control: Control) -> None:
        super().__init__(posterior.plan, posterior.log_evidence, posterior.workers, posterior.origin)
        self.trees, self.control = trees, control

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "trees": self.trees, "control": self.control}

    def prober(self) -> TreeMixtureProber:
        """Return a new prober, with nothing tightened yet."""
        return TreeMixtureProber(self.plan, self.workers, self.trees, self.control)


class TreeMixtureProber(PlanProber):
    """Probes a plan; after `tighten` has given a target, its trees also bound boxes."""

    def __init__(self, plan: Plan, workers: int, trees: TreeSum, control: Control) -> None:
        super().__init__(plan, workers)
        self.trees, self.control = trees, control
        self.log_target = -np.inf
        self.found: Points | None = None
        self._elimination_work = EDGES_PER_ENTRY * N_ROWS * trees.n_entries
        self.work += self._elimination_work

    @property
    def _is_ready(self) -> bool:
        return self.log_target > LOG_FLOOR

    def probe(self, boxes: SearchBoxes) -> Answers:
        answers = super().probe(boxes)
        if not self._is_ready:
            return answers
        inside = boxes.mask > 0
        rows = np.flatnonzero(answers.log_bound > self.log_target)
        log_bound, each = answers.log_bound.copy(), answers.each_bound.copy()
        points = np.full((len(boxes), len(self.layout.domain)), np.nan)

        def task(start: int, stop: int) -> None:
            room = self.trees.room(N_ROWS)
            for row in rows[start:stop].tolist():
                found = self.trees.bound(inside[row], self.log_target, room, self.control)
                log_bound[row] = min(log_bound[row], found.log_bound)
                np.minimum(each[row], found.log_states, out=each[row])
                points[row] = found.points[found.largest]

        for_blocks(task, len(rows), BLOCK, self.workers)
        return replace(answers, log_bound=log_bound, each_bound=each, middles=points)

    def starts(self) -> Points:
        """Return max-product's point at first; later the points reached by climbing from the trees' maximisers."""
        return super().starts() if self.found is None else self.climb(self.found)

    def climb(self, points: Points) -> Points:
        return super().climb(np.ascontiguousarray(points))

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Bound all open boxes, and all later ones, by the trees; one call completes the tightening."""
        is_first = not self._is_ready
        self.log_target = log_threshold
        if not (is_first and self._is_ready and len(within)):
            return Tightening(0, True, True)
        room = self.trees.room(N_ROWS)
        bound = self.trees.bound(within.mask[0] > 0, log_threshold, room, self.control)
        self.found = bound.points
        return Tightening(self._elimination_work, True, True, True, bound.log_bound)
