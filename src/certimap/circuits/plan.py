"""Conditioning: from a circuit and a query to the plan of p(q | e), the arrays for all kernels of the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from certimap.circuits import properties
from certimap.circuits.circuit import Circuit, NodeKind, supports
from certimap.circuits.kernels import simplify, structure
from certimap.circuits.kernels.arrays import LeafLayout, NewNodes, QueriedLeaves, Workspace
from certimap.circuits.kernels.real import DENSITY, MASS, answers
from certimap.circuits.leaves import leaf_kinds
from certimap.circuits.leaves.kind import function_table
from certimap.core.arrays import Flags, Floats, Ints, Ints32
from certimap.core.cached import cached_property
from certimap.core.control import Control, WorkClock
from certimap.core.domain import Domain, Real
from certimap.core.query import Query
from certimap.core.rounding import LOG_OF_NO_MASS
from certimap.errors import ImpossibleEvidence, ModelError

REAL_SIZE = 8  # size of a real leaf's vector; `kernels/real.py` describes its layout
REAL_LOW, REAL_HIGH, REAL_LOG_NORM, REAL_FIRST = 1, 2, 3, 4


@dataclass(frozen=True, eq=False)
class Plan:
    """A circuit over the query variables in which every node is a distribution over its own scope.

    Nodes are products and sums in depth-first postorder, the root last; leaves are folded into the products. Each
    child of a sum is a product. A shared node appears once.
    """

    domain: Domain  # the query variables
    is_sum: Flags  # (n_nodes,)
    # child_ptr, children: (n_nodes + 1,), and (n_edges,): inner children of node i are
    # `children[child_ptr[i]:child_ptr[i + 1]]`
    child_ptr: Ints
    children: Ints32
    # weights, log_weights: (n_edges,): weights of the sums (each sum's weights add to 1) and their natural logs; 1
    # and 0 on the edges of products. A weight may underflow to 0 though its log is finite
    weights: Floats
    log_weights: Floats
    # leaf_ptr, leaf_var, leaf_start: (n_nodes + 1,), int32 and (n_leaves,): the leaves of product i are
    # `leaf_ptr[i]:leaf_ptr[i + 1]`; a leaf's variable (position in `domain`) and the start of its vector in
    # `tables`. Leaves may share a vector
    leaf_ptr: Ints
    leaf_var: Ints32
    leaf_start: Ints
    # tables, log_tables: float64: for a categorical leaf one probability per state (they add to 1), and their
    # natural logs. For a real leaf (in both arrays) its vector of `REAL_SIZE` numbers, see `kernels/real.py`: the
    # leaf is restricted to an interval, and normalised there
    tables: Floats
    log_tables: Floats
    # (n_nodes,): the query variable that a sum decides (its children allow disjoint sets of that variable's
    # states), else -1
    decides: Ints32
    # (n_nodes,): for each sum, its source's index among the original circuit's sums; else -1
    sum_numbers: Ints
    # a bound (nats) on the error of log-probabilities from conditioning: weights and leaves are rounded
    log_error: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("domain", "log_error"):
                getattr(self, field.name).setflags(write=False)

    @property
    def n_nodes(self) -> int:
        return len(self.is_sum)

    @property
    def n_leaves(self) -> int:
        return len(self.leaf_var)

    @property
    def n_edges(self) -> int:
        """Number of edges, including edges to leaves."""
        return len(self.children) + len(self.leaf_var)

    @cached_property
    def is_whole(self) -> Flags:
        """Which real variables take whole numbers only, bool, shape (n,)."""
        marks = np.zeros(len(self.domain), np.bool_)
        real = self.domain.n_states[self.leaf_var] == 0
        codes = self.log_tables[self.leaf_start[real]].astype(np.int64)
        whole = [code for code, kind in leaf_kinds().items() if kind.is_whole]
        marks[self.leaf_var[real][np.isin(codes, whole)]] = True
        return marks

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """The interval of each variable left by the evidence and the domain, shape (n,) each."""
        low, high = np.full(len(self.domain), np.inf), np.full(len(self.domain), -np.inf)
        real = self.domain.n_states[self.leaf_var] == 0
        starts, variables = self.leaf_start[real], self.leaf_var[real]
        np.minimum.at(low, variables, self.log_tables[starts + REAL_LOW])
        np.maximum.at(high, variables, self.log_tables[starts + REAL_HIGH])
        low[self.domain.n_states > 0], high[self.domain.n_states > 0] = -np.inf, np.inf
        return low, high

    def __repr__(self) -> str:
        return f"Plan({len(self.domain)} variables, {self.n_nodes} nodes, {self.n_edges} edges)"

    def to_circuit(self) -> Circuit:
        """Return the same distribution as a `Circuit`; leaves that share a vector become one node.

        Raises ModelError if real leaves are restricted to intervals, which a `Circuit` cannot express.
        """
        is_real = self.domain.n_states[self.leaf_var] == 0
        restricted = self.log_tables[self.leaf_start[is_real] + REAL_LOG_NORM] != 0.0
        if np.any(restricted):
            variable = self.domain.names[int(self.leaf_var[is_real][restricted][0])]
            raise ModelError(
                f"variable {variable!r} is restricted to an interval; expected whole leaves of real variables"
            )
        starts, first, leaf_of = np.unique(self.leaf_start, return_index=True, return_inverse=True)
        n_leaf_nodes = len(starts)
        variables = self.leaf_var[first]
        real = is_real[first]
        leaf_code = np.where(real, self.log_tables[starts], NodeKind.CATEGORICAL).astype(np.int8)
        sizes = self.domain.n_states[variables].astype(np.int64)
        for code, leaf in leaf_kinds().items():
            sizes[leaf_code == code] = len(leaf.parameters)
        param_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        within = np.arange(int(param_ptr[-1])) - np.repeat(param_ptr[:-1], sizes)
        params = self.log_tables[np.repeat(starts + np.where(real, REAL_FIRST, 0), sizes) + within]
        counts = np.diff(self.child_ptr) + np.diff(self.leaf_ptr)
        child_ptr = np.concatenate([np.zeros(n_leaf_nodes + 1, np.int64), np.cumsum(counts)])
        # the edges of each node, those to leaves first
        owners = [np.repeat(np.arange(self.n_nodes), np.diff(ptr)) for ptr in (self.leaf_ptr, self.child_ptr)]
        order = np.argsort(np.concatenate(owners), kind="stable")
        children = np.concatenate([leaf_of, self.children.astype(np.int64) + n_leaf_nodes])[order]
        log_weights = np.concatenate([np.zeros(self.n_leaves), self.log_weights])[order]
        kind = np.concatenate([leaf_code, np.where(self.is_sum, NodeKind.SUM, NodeKind.PRODUCT)]).astype(np.int8)
        leaf_var = np.concatenate([variables, np.full(self.n_nodes, -1)]).astype(np.int32)
        param_ptr = np.concatenate([param_ptr, np.full(self.n_nodes, param_ptr[-1])]).astype(np.int64)
        of_leaves = (leaf_var, param_ptr, np.ascontiguousarray(params))
        return Circuit(self.domain, kind, child_ptr, children, log_weights, *of_leaves)


SECONDS_PER_EDGE = 2e-7
MOST = 2**31 - 2**8  # limit on nodes, edges and parameters, numbered in 32 bits


@dataclass(frozen=True, eq=False)
class ConditionedLeaves:
    """The leaves of a circuit under a query."""

    position: Ints32  # (n_vars,): the position of each variable in the query, else -1
    log_mass: Floats  # (n_nodes,): natural logs of the masses of leaves, 0 on inner nodes
    queried: QueriedLeaves  # the queried leaves and their normalised vectors


def condition(
    circuit: Circuit, query: Query, *, max_edges: int | None = None, control: Control | None = None
) -> tuple[Plan, float]:
    """Fold evidence and nuisance variables away and normalise; linear in the edges.

    Evidence becomes weights; nuisance leaves are summed or integrated; constants move up into the weights of sums;
    children of zero mass disappear; sums over one categorical variable become leaves; products inside products and
    sums inside sums dissolve if they have no other parent; every node is normalised. The circuit is smooth and
    decomposable up to observed variables; a missing categorical variable counts as a constant over its states. It
    may be unnormalised.

    Returns the plan over the query variables in the query's order, and the natural log of the circuit's mass under
    the evidence (ln p(e) if the circuit is normalised). Raises ImpossibleEvidence if that mass is zero; ModelError
    if the circuit is not decomposable, cannot be made smooth, is too large, or has more than `max_edges` edges;
    TimeUp before rewriting, the slowest step, if that would miss the deadline of `control`.
    """
    control = control or Control()
    pace = WorkClock(control, f"conditioning a circuit of {circuit.n_edges} edges", SECONDS_PER_EDGE)
    if max_edges is not None and circuit.n_edges > max_edges:
        raise ModelError(
            f"the circuit has {circuit.n_edges} edges; max_edges={max_edges} accepts fewer, and can be raised"
        )
    if circuit.domain != query.domain:
        raise ModelError("the query was made for another domain; make it with the circuit's own")
    if max(circuit.n_nodes, circuit.n_edges, len(circuit.params)) > MOST:
        raise ModelError(
            f"the circuit has {circuit.n_nodes} nodes and {circuit.n_edges} edges; expected up to {MOST}"
        )
    circuit = checked(circuit, query)
    with pace.piece(circuit.n_edges):
        return _laid_out(circuit, query)


def fill_log_mass(circuit: Circuit, log_mass: Floats) -> float:
    """Add ln of the masses of inner nodes to those of leaves, shape (n_nodes,); return ln p(e).

    Raises ImpossibleEvidence if ln p(e) is -inf, and ModelError if it is otherwise not finite.
    """
    structure.upward_log_mass(properties.circuit_arrays(circuit), False, log_mass)
    log_evidence = float(log_mass[-1])
    if log_evidence == -np.inf:
        raise ImpossibleEvidence("the evidence has probability zero under the circuit")
    if not np.isfinite(log_evidence):
        raise ModelError(f"the circuit's mass under the evidence is {np.exp(log_evidence)}; it must be finite")
    return log_evidence


def checked(circuit: Circuit, query: Query) -> Circuit:
    """Return the circuit, made smooth if necessary, or raise ModelError if it is not decomposable."""
    ignored = query.observed
    found = properties.structure(circuit, ignored)
    if found.rough_sum >= 0 or found.missing:
        circuit = properties.smoothed(circuit, ignored)
        found = properties.structure(circuit, ignored)
    if found.overlapping:
        node, variable = properties.overlapping_product(circuit, ignored) or (circuit.root, 0)
        raise ModelError(
            f"product node {node} multiplies two children over variable {circuit.domain.names[variable]!r}; "
            "expected a decomposable circuit, whose products have children over disjoint variables"
        )
    return circuit


def leaves_of(circuit: Circuit, query: Query) -> tuple[ConditionedLeaves, Floats]:
    """Return the leaves of a checked circuit under a query, and bounds on the errors of their log masses.

    The bounds, shape (n_nodes,), are in units of the last place of 1, and 0 on inner nodes.
    """
    n_nodes, domain = circuit.n_nodes, circuit.domain
    log_mass, log_error = np.empty(n_nodes), np.empty(n_nodes)
    position = np.full(len(domain), -1, np.int32)
    position[query.variables] = np.arange(len(query.variables), dtype=np.int32)
    queried = properties.categorical_leaves(circuit, query.log_weights, position, log_mass, log_error)
    is_real = (circuit.kind < NodeKind.PRODUCT) & (circuit.kind != NodeKind.CATEGORICAL)
    if not domain.is_discrete and len(real := np.flatnonzero(is_real)):
        entries = _real_entries(circuit, query, real)
        whole = np.isin(circuit.kind[real], [code for code, leaf in leaf_kinds().items() if leaf.is_whole])
        if len(both := np.intersect1d(circuit.leaf_var[real[whole]], circuit.leaf_var[real[~whole]])):
            raise ModelError(
                f"variable {domain.names[int(both[0])]!r} has leaves of counts and leaves with a density; "
                "expected the one kind or the other"
            )
        log_mass[real] = entries[:, REAL_LOG_NORM]
        for code, leaf in leaf_kinds().items():
            log_error[circuit.kind == code] = leaf.roundings
        log_error[real] += 4.0 * np.abs(log_mass[real])
        asked = position[circuit.leaf_var[real]] >= 0
        nodes = np.concatenate([queried.nodes, real[asked].astype(np.int32)])
        order, n = np.argsort(nodes, kind="stable"), int(asked.sum())
        real_start = len(queried.log_tables) + REAL_SIZE * np.arange(n, dtype=np.int32)
        start = np.concatenate([queried.start, real_start])[order]
        states = np.concatenate([queried.states, np.zeros(n, np.int64)])[order]
        log_tables = np.concatenate([queried.log_tables, entries[asked].ravel()])
        queried = QueriedLeaves(nodes[order], start, states, log_tables)
    return ConditionedLeaves(position, log_mass, queried), log_error


def _real_entries(circuit: Circuit, query: Query, nodes: Ints) -> Floats:
    """Return the vectors of real leaves under the query (`kernels/real.py`); observed ones are points."""
    entries = np.zeros((len(nodes), REAL_SIZE))
    entries[:, 0] = circuit.kind[nodes]
    low, high = np.full(len(circuit.domain), -np.inf), np.full(len(circuit.domain), np.inf)
    for i, variable in enumerate(circuit.domain):
        if isinstance(variable, Real):
            value = query.values.get(i)
            interval = (variable.low, variable.high) if value is None else (value, value)
            low[i], high[i] = query.intervals.get(i, interval)
    variables, sizes = circuit.leaf_var[nodes], np.diff(circuit.param_ptr)[nodes]
    entries[:, 1], entries[:, 2] = low[variables], high[variables]
    for k in range(int(sizes.max())):
        has = sizes > k
        entries[has, REAL_FIRST + k] = circuit.params[circuit.param_ptr[nodes[has]] + k]
    low, high = low[variables], high[variables]
    functions, questions = function_table(np.unique(circuit.kind[nodes])), np.where(low == high, DENSITY, MASS)
    starts = REAL_SIZE * np.arange(len(nodes))
    entries[:, REAL_LOG_NORM] = answers(functions, questions, entries.ravel(), starts, low, high)
    return entries


def _keep_touching(
    circuit: Circuit, leaves: ConditionedLeaves, leaf_mass: Floats, log_error: Floats, log_total: float
) -> None:
    """Keep queried leaves whose support meets the evidence in a single number, an end of both.

    Intervals are closed: the density there counts, though the leaf has no mass. To survive conditioning it gets a
    mass below e^-800 of the whole, and its density is divided by this mass.
    """
    queried = leaves.queried
    empty = (circuit.kind[queried.nodes] != NodeKind.CATEGORICAL) & (leaf_mass[queried.nodes] == -np.inf)
    starts = queried.start[empty].astype(np.int64)
    touches, logs = np.zeros(len(starts), np.bool_), queried.log_tables
    for end in (REAL_LOW, REAL_HIGH) if len(starts) else ():
        some = np.flatnonzero(np.isfinite(logs[starts + end]))
        at, functions = logs[starts[some] + end], function_table(np.unique(logs[starts]))
        touches[some] |= answers(functions, DENSITY, logs, starts[some], at, at) > -np.inf
    nodes, starts = queried.nodes[empty][touches], starts[touches]
    if not len(nodes):
        return
    leaves.log_mass[:] = leaf_mass
    leaves.log_mass[nodes] = 0.0
    log_tiny = math.floor(log_total - fill_log_mass(circuit, leaves.log_mass)) + LOG_OF_NO_MASS
    leaves.log_mass[:] = leaf_mass
    leaves.log_mass[nodes], log_error[nodes] = log_tiny, 4.0 * abs(log_tiny)
    queried.log_tables[starts + REAL_LOG_NORM] = log_tiny
    fill_log_mass(circuit, leaves.log_mass)


def _folded(circuit: Circuit, query: Query) -> tuple[NewNodes, int, Floats, Ints32, float, float]:
    """Return a circuit's live part, rewritten: new nodes up to a root, the vectors of leaves, the new node of each
    sum of the circuit (-1: none), ln p(e), and a bound on its error in units of the last place of 1."""
    domain, arrays, n_nodes = query.query_domain, properties.circuit_arrays(circuit), circuit.n_nodes
    leaves, log_error = leaves_of(circuit, query)
    log_mass, position, queried = leaves.log_mass, leaves.position, leaves.queried
    leaf_mass = None if domain.is_discrete else log_mass.copy()
    log_evidence = fill_log_mass(circuit, log_mass)
    if leaf_mass is not None:
        _keep_touching(circuit, leaves, leaf_mass, log_error, log_evidence)
    structure.upward_error(arrays, log_mass, log_error)
    error = float(log_error[-1])
    del log_error
    parents, single = np.empty(n_nodes, np.int32), np.empty(n_nodes, np.int32)
    structure.count_parents(arrays, log_mass, parents)
    alias = properties.find_decided(arrays, parents, position, queried, properties.full_state_sets(domain))
    structure.single_variables(arrays, parents, position, single)
    is_sum = circuit.kind == NodeKind.SUM
    if not domain.is_discrete:  # of leaves of one variable with disjoint supports at most one is nonzero
        low, high = supports(circuit)
        for node in np.flatnonzero(is_sum & (parents > 0) & (single >= 0) & (alias < 0)):
            children = circuit.children_of(int(node))
            order = children[np.argsort(low[children], kind="stable")]
            if np.all(circuit.leaf_var[children] >= 0) and np.all(high[order[:-1]] < low[order[1:]]):
                alias[node] = single[node]
    merged = single[is_sum & (single >= 0)]
    start, log_tables, n_table = queried.start, queried.log_tables, len(queried.log_tables)
    del leaves, queried, is_sum
    log_tables.resize(n_table + int(domain.n_states[merged].sum()), refcheck=False)
    n_live = int(np.count_nonzero((parents > 0) & (single != -1)))
    nodes = (np.empty(n_live, np.int8), np.empty(n_live + 1, np.int32), single, np.empty(n_live, np.int32))
    pool = (np.empty(circuit.n_edges + 1, np.int32), np.empty(circuit.n_edges + 1))
    new = NewNodes(*nodes, np.empty(n_live, np.bool_), parents, *pool)
    inputs = (log_mass, parents, single, domain.n_states, position, start, n_table, log_tables)
    simplify.fold(arrays, *inputs, np.zeros(n_live, np.int32), new, alias)
    return new, int(alias[-1]), log_tables, alias[circuit.kind == NodeKind.SUM], log_evidence, error


def _laid_out(circuit: Circuit, query: Query) -> tuple[Plan, float]:
    """Fold a circuit, and lay the new nodes out in depth-first postorder; return the plan, and ln p(e)."""
    new, root, log_tables, sums, log_evidence, error = _folded(circuit, query)
    domain = query.query_domain
    kinds, members = new.kind[: root + 1], new.kind[new.pool_child[: new.ptr[root + 1]]]
    of_sums = np.repeat(kinds == simplify.SUM, np.diff(new.ptr[: root + 2]))
    n_own = np.count_nonzero(of_sums & (members != simplify.PRODUCT))  # members with products of their own
    n_nodes, n_inner = 1 + np.count_nonzero(kinds) + n_own, np.count_nonzero(members) + 2 * n_own  # at most
    n_leaves = 1 + np.count_nonzero(members == simplify.LEAF)
    del kinds, members, of_sums
    child_ptr, leaf_ptr = np.empty(n_nodes + 1, np.int64), np.empty(n_nodes + 1, np.int64)
    edges = (np.empty(n_nodes, np.bool_), child_ptr, np.empty(n_inner, np.int32), np.empty(n_inner))
    leaves = (leaf_ptr, np.empty(n_leaves, np.int32), np.empty(n_leaves, np.int64))
    out = LeafLayout(*edges, *leaves, np.empty(n_nodes, np.int32), np.empty(3, np.int64))
    stack, cursor, inner, begin, end = (np.empty(root + 2, np.int32) for _ in range(5))
    flat = (begin, end, np.empty(new.ptr[root + 1], np.int32), np.empty(new.ptr[root + 1]))
    work = Workspace(stack, cursor, inner, np.empty(root + 2), *flat, np.full(root + 1, -1, np.int32))
    simplify.lay_out(root, new, work, out)
    n_nodes, n_inner, n_leaves = (int(x) for x in out.sizes)
    sizes = (n_nodes, n_nodes + 1, n_inner, n_inner, n_nodes + 1, n_leaves, n_leaves, n_nodes)
    for array, size in zip(out, sizes, strict=False):
        array.resize(size, refcheck=False)  # in place: no other references exist
    live = np.flatnonzero((sums >= 0) & (sums <= root))[::-1]  # the first wins if several became one
    places, sum_numbers = work.final[sums[live]], np.full(n_nodes, -1, np.int64)
    del new, work, flat
    sum_numbers[places[places >= 0]] = live[places >= 0]
    sum_numbers[~out.is_sum] = -1
    lengths, place = np.where(domain.n_states > 0, domain.n_states, REAL_SIZE), np.zeros(len(log_tables), np.int32)
    n_entries = int(simplify.compact_tables(out.leaf_var, out.leaf_start, lengths, place, log_tables))
    log_tables.resize(n_entries, refcheck=False)
    with np.errstate(over="ignore"):
        tables = np.exp(log_tables)
    if not domain.is_discrete:  # entries of real leaves are no logs
        entries = np.unique(out.leaf_start[domain.n_states[out.leaf_var] == 0])[:, None] + np.arange(REAL_SIZE)
        tables[entries] = log_tables[entries]
    edges = (out.is_sum, out.child_ptr, out.children, np.exp(out.log_weights), out.log_weights)
    leaves = (out.leaf_ptr, out.leaf_var, out.leaf_start, tables, log_tables)
    plan = Plan(domain, *edges, *leaves, out.decides, sum_numbers, error * float(np.finfo(np.float64).eps))
    return plan, log_evidence
