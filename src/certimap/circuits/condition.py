"""Conditioning: from a circuit and a query to the plan of p(q | e)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from certimap.circuits import properties
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.kernels import simplify, structure
from certimap.circuits.kernels.arrays import LeafLayout, NewNodes, QueriedLeaves, Workspace
from certimap.circuits.kernels.real import fill_log_masses, fill_touching
from certimap.circuits.leaves import leaf_kinds
from certimap.circuits.leaves.kind import function_table
from certimap.circuits.plan import REAL_FIRST, REAL_LOG_NORM, REAL_SIZE, Plan
from certimap.core.arrays import Flags, Floats, Ints, Ints32
from certimap.core.control import Control, WorkClock
from certimap.core.domain import Domain, Real
from certimap.core.query import Query
from certimap.core.rounding import LOG_OF_NO_MASS
from certimap.errors import ImpossibleEvidence, ModelError

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
        folded = _folded(circuit, query)
        plan = _laid_out(query.query_domain, folded)
    return replace(plan, log_error=folded.error * float(np.finfo(np.float64).eps)), folded.log_evidence


def fill_log_mass(circuit: Circuit, log_mass: Floats) -> float:
    """Add ln of the masses of inner nodes to those of leaves, shape (n_nodes,); return ln p(e).

    Raises ImpossibleEvidence if ln p(e) is -inf, and ModelError if it is otherwise not finite.
    """
    structure.upward_log_mass(properties.circuit_arrays(circuit), log_mass)
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
    if not domain.is_discrete:
        queried = _with_real_leaves(circuit, query, position, log_mass, log_error, queried)
    return ConditionedLeaves(position, log_mass, queried), log_error


def _with_real_leaves(
    circuit: Circuit,
    query: Query,
    position: Ints32,
    log_mass: Floats,
    log_error: Floats,
    categorical: QueriedLeaves,
) -> QueriedLeaves:
    """Return the queried leaves, real ones included, and fill in the masses of all real leaves."""
    real = np.flatnonzero((circuit.kind < NodeKind.PRODUCT) & (circuit.kind != NodeKind.CATEGORICAL))
    if not len(real):
        return categorical
    entries = _real_entries(circuit, query, real)
    log_mass[real] = entries[:, REAL_LOG_NORM]
    _refuse_mixed_measures(circuit, real)
    roundings = np.zeros(len(real))
    for code, leaf in leaf_kinds().items():
        roundings[circuit.kind[real] == code] = leaf.roundings
    log_error[real] = roundings + 4.0 * np.abs(entries[:, REAL_LOG_NORM])
    asked = position[circuit.leaf_var[real]] >= 0
    nodes = np.concatenate([categorical.nodes, real[asked].astype(np.int32)])
    order = np.argsort(nodes, kind="stable")
    n_asked, n_entries = int(np.count_nonzero(asked)), len(categorical.log_tables)
    start = np.concatenate([categorical.start, n_entries + REAL_SIZE * np.arange(n_asked, dtype=np.int32)])
    states = np.concatenate([categorical.states, np.zeros(n_asked, np.int64)])
    log_tables = np.concatenate([categorical.log_tables, entries[asked].ravel()])
    return QueriedLeaves(nodes[order], start[order], states[order], log_tables)


def _refuse_mixed_measures(circuit: Circuit, nodes: Ints) -> None:
    """Raise ModelError if a variable has leaves on whole numbers and on real numbers: no measure fits both."""
    whole = np.isin(circuit.kind[nodes], [code for code, leaf in leaf_kinds().items() if leaf.is_whole])
    both = np.intersect1d(circuit.leaf_var[nodes[whole]], circuit.leaf_var[nodes[~whole]])
    if len(both):
        raise ModelError(
            f"variable {circuit.domain.names[int(both[0])]!r} has leaves of counts and leaves with a density; "
            "expected the one kind or the other"
        )


def _real_entries(circuit: Circuit, query: Query, nodes: Ints) -> Floats:
    """Return the vectors of real leaves under the query, shape (n, REAL_SIZE); see `kernels/real.py`.

    The leaf of an observed variable is restricted to a point; its log mass is the log density there.
    """
    entries = np.zeros((len(nodes), REAL_SIZE))
    entries[:, 0] = circuit.kind[nodes]
    low, high = np.full(len(circuit.domain), -np.inf), np.full(len(circuit.domain), np.inf)
    for i, variable in enumerate(circuit.domain):
        if isinstance(variable, Real):
            value = query.values.get(i)
            interval = (variable.low, variable.high) if value is None else (value, value)
            low[i], high[i] = query.intervals.get(i, interval)
    variables = circuit.leaf_var[nodes]
    entries[:, 1], entries[:, 2] = low[variables], high[variables]
    sizes = np.diff(circuit.param_ptr)[nodes]
    for k in range(int(sizes.max())):
        has = sizes > k
        entries[has, REAL_FIRST + k] = circuit.params[circuit.param_ptr[nodes[has]] + k]
    log_mass = np.empty(len(nodes))
    functions = function_table(np.unique(circuit.kind[nodes]))
    fill_log_masses(functions, entries.ravel(), REAL_SIZE * np.arange(len(nodes)), log_mass)
    entries[:, REAL_LOG_NORM] = log_mass
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
    touches = np.zeros(len(starts), np.bool_)
    if len(starts):
        fill_touching(function_table(np.unique(queried.log_tables[starts])), queried.log_tables, starts, touches)
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


class _Folded(NamedTuple):
    """The live part of a circuit, rewritten: new nodes up to a root, and the vectors of the leaves.

    `sums` gives the new node of each sum of the circuit (-1: none), `error` a bound on the error of ln p(e) in
    units of the last place of 1.
    """

    new: NewNodes
    root: int
    log_tables: Floats
    sums: Ints32
    log_evidence: float
    error: float


def _folded(circuit: Circuit, query: Query) -> _Folded:
    """Rewrite the live part of a circuit; temporary arrays are freed at the end."""
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
    decides = properties.find_decided(arrays, parents, position, queried, properties.full_state_sets(domain))
    structure.single_variables(arrays, parents, position, single)
    if not domain.is_discrete:
        _decide_histograms(circuit, parents, single, decides)
    is_sum = circuit.kind == NodeKind.SUM
    merged = single[is_sum & (single >= 0)]
    n_table, log_tables = len(queried.log_tables), queried.log_tables
    log_tables.resize(n_table + int(domain.n_states[merged].sum()), refcheck=False)
    n_live = int(np.count_nonzero((parents > 0) & (single != -1)))
    new = NewNodes(
        kind=np.empty(n_live, np.int8),
        ptr=np.empty(n_live + 1, np.int32),
        leaf_var=np.empty(n_live, np.int32),
        leaf_start=np.empty(n_live, np.int32),
        decides=np.empty(n_live, np.int32),
        inlined=np.empty(n_live, np.bool_),
        n_parents=np.zeros(n_live, np.int32),
        pool_child=np.empty(circuit.n_edges + 1, np.int32),
        pool_weight=np.empty(circuit.n_edges + 1),
    )
    seen_by, seen_at = np.full(n_live, -1, np.int32), np.empty(n_live, np.int32)
    alias = np.empty(n_nodes, np.int32)
    inputs = (log_mass, parents, single, domain.n_states, position, queried.start, decides)
    simplify.fold(arrays, *inputs, n_table, log_tables, seen_by, seen_at, new, alias)
    return _Folded(new, int(alias[-1]), log_tables, alias[is_sum], log_evidence, error)


def _decide_histograms(circuit: Circuit, parents: Ints32, single: Ints32, decides: Ints32) -> None:
    """Mark sums of leaves of one real variable with disjoint supports: at most one leaf is nonzero."""
    low, high = np.full(circuit.n_nodes, -np.inf), np.full(circuit.n_nodes, np.inf)
    for code, leaf in leaf_kinds().items():
        nodes = np.flatnonzero(circuit.kind == code)
        if leaf.support is not None and len(nodes):
            first = circuit.param_ptr[nodes]
            low[nodes], high[nodes] = leaf.support(
                *(circuit.params[first + k] for k in range(len(leaf.parameters)))
            )
    for node in np.flatnonzero((circuit.kind == NodeKind.SUM) & (parents > 0) & (single >= 0) & (decides < 0)):
        children = circuit.children_of(int(node))
        order = np.argsort(low[children], kind="stable")
        if np.all(circuit.leaf_var[children] >= 0) and np.all(
            high[children][order[:-1]] < low[children][order[1:]]
        ):
            decides[node] = single[node]


def _laid_out(domain: Domain, folded: _Folded) -> Plan:
    """Lay the rewritten nodes out in depth-first postorder."""
    new, root, log_tables = folded.new, folded.root, folded.log_tables
    n_nodes, n_inner, n_leaves = (int(x) for x in simplify.count_parts(root, new))
    out = LeafLayout(
        is_sum=np.empty(n_nodes, np.bool_),
        child_ptr=np.empty(n_nodes + 1, np.int64),
        children=np.empty(n_inner, np.int32),
        log_weights=np.empty(n_inner),
        leaf_ptr=np.empty(n_nodes + 1, np.int64),
        leaf_var=np.empty(n_leaves, np.int32),
        leaf_start=np.empty(n_leaves, np.int64),
        decides=np.empty(n_nodes, np.int32),
        sizes=np.empty(3, np.int64),
    )
    work = _workspace(root + 1, int(new.ptr[root + 1]))
    simplify.lay_out(root, new, work, out)
    n_nodes, n_inner, n_leaves = (int(x) for x in out.sizes)
    for array in (out.is_sum, out.decides):
        array.resize(n_nodes, refcheck=False)  # in place: no other references exist
    for array in (out.child_ptr, out.leaf_ptr):
        array.resize(n_nodes + 1, refcheck=False)
    for array in (out.children, out.log_weights):
        array.resize(n_inner, refcheck=False)
    for array in (out.leaf_var, out.leaf_start):
        array.resize(n_leaves, refcheck=False)
    sum_numbers = _sum_numbers(folded.sums, work.final, out.is_sum)
    sizes = np.where(domain.n_states > 0, domain.n_states, REAL_SIZE)
    place = np.zeros(len(log_tables), np.int32)
    n_entries = int(simplify.compact_tables(out.leaf_var, out.leaf_start, sizes, place, log_tables))
    log_tables.resize(n_entries, refcheck=False)
    return Plan(
        domain,
        out.is_sum,
        out.child_ptr,
        out.children,
        np.exp(out.log_weights),
        out.log_weights,
        out.leaf_ptr,
        out.leaf_var,
        out.leaf_start,
        _probabilities(domain, out.leaf_var, out.leaf_start, log_tables),
        log_tables,
        out.decides,
        sum_numbers,
    )


def _sum_numbers(sums: Ints32, final: Ints32, is_sum: Flags) -> Ints:
    """Return the circuit's sum from which each node of the plan was made, else -1."""
    found = np.flatnonzero((sums >= 0) & (sums < len(final)))[::-1]  # the first wins if several became one
    places = final[sums[found]]
    numbers = np.full(len(is_sum), -1, np.int64)
    numbers[places[places >= 0]] = found[places >= 0]
    numbers[~is_sum] = -1
    return numbers


def _workspace(n_nodes: int, n_pool: int) -> Workspace:
    return Workspace(
        stack=np.empty(n_nodes + 1, np.int32),
        cursor=np.empty(n_nodes + 1, np.int32),
        inner_stack=np.empty(n_nodes + 1, np.int32),
        inner_weight=np.empty(n_nodes + 1),
        flat_begin=np.empty(n_nodes + 1, np.int32),
        flat_end=np.empty(n_nodes + 1, np.int32),
        flat_child=np.empty(n_pool, np.int32),
        flat_weight=np.empty(n_pool),
        final=np.full(n_nodes, -1, np.int32),
    )


def _probabilities(domain: Domain, leaf_var: Ints32, leaf_start: Ints, log_tables: Floats) -> Floats:
    """Return the entries of categorical leaves as probabilities; entries of real leaves stay unchanged."""
    with np.errstate(over="ignore"):
        tables = np.exp(log_tables)
    if not domain.is_discrete:
        starts = np.unique(leaf_start[domain.n_states[leaf_var] == 0])
        entries = starts[:, None] + np.arange(REAL_SIZE)
        tables[entries] = log_tables[entries]
    return tables
