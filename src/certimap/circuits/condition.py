"""Conditioning: from a circuit and a query to the plan of p(q | e)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from certimap.circuits import properties
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves import leaf_kinds
from certimap.circuits.plan import REAL_FIRST, REAL_LOG_NORM, REAL_SIZE, Plan
from certimap.control import Control, Pace
from certimap.domain import Domain, Real
from certimap.errors import ImpossibleEvidence, ModelError
from certimap.logs import log_sum_runs
from certimap.query import Query

if TYPE_CHECKING:
    from certimap.circuits.kernels.arrays import NewNodes, Workspace


SECONDS_PER_EDGE = 2e-7
NEGLIGIBLE = 40.0  # nats below a leaf's mass, under which the rounding of an entry does not show in it


@dataclass(frozen=True, eq=False)
class Leaves:
    """The leaves of a circuit under a query: their masses, and normalised vectors for queried ones."""

    log_mass: NDArray[np.float64]  # (n_nodes,), 0 on inner nodes
    log_error: NDArray[np.float64]  # (n_nodes,), how far that may be off, in units of the last place of 1
    position: NDArray[np.int32]  # (n_nodes,), position of the variable in the query, else -1
    states: NDArray[np.int64]  # (n_nodes,), bits of the states that a categorical leaf allows
    start: NDArray[np.int64]  # (n_nodes,), where the vector of a queried leaf starts in `log_tables`
    log_tables: NDArray[np.float64]


def condition(
    circuit: Circuit, query: Query, *, max_edges: int | None = None, control: Control | None = None
) -> tuple[Plan, float]:
    """Fold evidence and nuisance variables away and normalise.

    Evidence becomes weights, nuisance leaves are summed or integrated, constants move up into the
    weights of sums, children of zero mass disappear, sums over one categorical variable become leaves,
    products inside products and sums inside sums are dissolved where they have no other parent, and
    every node is normalised. Linear in the edges.

    Parameters
    ----------
    circuit
        Smooth and decomposable up to observed variables; where a categorical variable is missing it is
        taken as a constant over its states. May be unnormalised.
    query
        Positions in the circuit's domain.
    max_edges
        Refuse circuits with more edges.
    control
        Its deadline is heeded: rewriting, nearly all of the time, does not begin unless it should end in time.

    Returns
    -------
    The plan over the query variables in the query's order, and the natural log of the circuit's mass
    under the evidence (ln p(e) when the circuit is normalised).

    Raises
    ------
    ImpossibleEvidence
        When that mass is zero.
    ModelError
        When the circuit is not decomposable, cannot be made smooth, or is too large.
    TimeUp
        When `control` leaves too little time.
    """
    control = control or Control()
    pace = Pace(control, f"conditioning a circuit of {circuit.n_edges} edges", SECONDS_PER_EDGE)
    if max_edges is not None and circuit.n_edges > max_edges:
        raise ModelError(
            f"the circuit has {circuit.n_edges} edges; max_edges={max_edges} accepts fewer, and can be raised"
        )
    if circuit.domain != query.domain:
        raise ModelError("the query was made for another domain; make it with the circuit's own")
    circuit = checked(circuit, query)
    leaves = leaves_of(circuit, query)
    from certimap.circuits.kernels import structure as kernels

    arrays, log_mass = properties.circuit_arrays(circuit), leaves.log_mass
    log_evidence = fill_log_mass(circuit, log_mass)
    parents = np.empty(circuit.n_nodes, np.int64)
    kernels.count_parents(arrays, log_mass, parents)
    error = leaves.log_error
    kernels.upward_error(arrays, log_mass, error)
    with pace.piece(circuit.n_edges):
        plan = _simplify(circuit, query, leaves, parents)
    return replace(plan, log_error=float(error[-1]) * float(np.finfo(np.float64).eps)), log_evidence


def fill_log_mass(circuit: Circuit, log_mass: NDArray[np.float64]) -> float:
    """Complete ln of the masses of leaves, shape (n_nodes,), by those of inner nodes; return ln p(e).

    Raises
    ------
    ImpossibleEvidence, ModelError
        When that is -inf, or not finite.
    """
    from certimap.circuits.kernels import structure as kernels

    kernels.upward_log_mass(properties.circuit_arrays(circuit), log_mass)
    log_evidence = float(log_mass[-1])
    if log_evidence == -np.inf:
        raise ImpossibleEvidence("the evidence has probability zero under the circuit")
    if not np.isfinite(log_evidence):
        raise ModelError(f"the circuit's mass under the evidence is {np.exp(log_evidence)}; it must be finite")
    return log_evidence


def checked(circuit: Circuit, query: Query) -> Circuit:
    """Return the circuit, made smooth where needed, or raise ModelError when it does not decompose."""
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


def leaves_of(circuit: Circuit, query: Query) -> Leaves:
    """Return the leaves of a checked circuit under a query."""
    domain, n_nodes = circuit.domain, circuit.n_nodes
    positions = np.full(len(domain) + 1, -1, np.int32)
    positions[query.variables] = np.arange(len(query.variables), dtype=np.int32)
    position = positions[circuit.leaf_var]  # leaf_var is -1 on inner nodes: the last entry
    log_mass, log_error = np.zeros(n_nodes), np.zeros(n_nodes)
    packed = properties.categorical_params(circuit)
    sizes = np.diff(packed.ptr)
    columns = np.repeat(domain.offsets[circuit.leaf_var[packed.nodes]], sizes) + packed.states
    weighted = packed.values + query.log_weights[columns]
    if len(packed.nodes):
        log_mass[packed.nodes] = log_sum_runs(weighted, packed.ptr[:-1])
        counts = weighted > np.repeat(log_mass[packed.nodes], sizes) - NEGLIGIBLE
        reach = np.where(counts, np.abs(packed.values) + np.abs(query.log_weights[columns]), 0.0)
        log_error[packed.nodes] = np.maximum.reduceat(reach, packed.ptr[:-1]) + sizes + 4.0
    start = np.zeros(n_nodes, np.int64)
    start[packed.nodes] = packed.ptr[:-1]
    with np.errstate(invalid="ignore"):
        log_tables = weighted - np.repeat(log_mass[packed.nodes], sizes)
    leaf_sets = properties.CategoricalParams(packed.nodes, packed.ptr, weighted, packed.states)
    real = np.flatnonzero((circuit.kind < NodeKind.PRODUCT) & (circuit.kind != NodeKind.CATEGORICAL))
    if len(real):
        entries = _real_entries(circuit, query, real)
        log_mass[real] = entries[:, REAL_LOG_NORM]
        _refuse_mixed_measures(circuit, real)
        roundings = np.zeros(len(real))
        for code, leaf in leaf_kinds().items():
            roundings[circuit.kind[real] == code] = leaf.roundings
        log_error[real] = roundings + 4.0 * np.abs(entries[:, REAL_LOG_NORM])
        start[real] = len(log_tables) + REAL_SIZE * np.arange(len(real))
        log_tables = np.concatenate([log_tables, entries.ravel()])
    return Leaves(log_mass, log_error, position, properties.leaf_state_sets(n_nodes, leaf_sets), start, log_tables)


def _refuse_mixed_measures(circuit: Circuit, nodes: NDArray[np.int64]) -> None:
    """Raise ModelError where a variable has leaves of whole numbers and others: no measure fits both."""
    whole = np.isin(circuit.kind[nodes], [code for code, leaf in leaf_kinds().items() if leaf.is_whole])
    both = np.intersect1d(circuit.leaf_var[nodes[whole]], circuit.leaf_var[nodes[~whole]])
    if len(both):
        raise ModelError(
            f"variable {circuit.domain.names[int(both[0])]!r} has leaves of counts and leaves with a density; "
            "expected the one kind or the other"
        )


def _real_entries(circuit: Circuit, query: Query, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the vectors of real leaves under the query, shape (n, REAL_SIZE); see `kernels/real.py`.

    The leaf of an observed variable is restricted to a point; its log mass is the log density there.
    """
    from certimap.circuits.kernels.real import fill_log_masses
    from certimap.circuits.leaves.kind import function_table

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
    fill_log_masses(function_table(), entries.ravel(), REAL_SIZE * np.arange(len(nodes)), log_mass)
    entries[:, REAL_LOG_NORM] = log_mass
    return entries


def _simplify(circuit: Circuit, query: Query, leaves: Leaves, parents: NDArray[np.int64]) -> Plan:
    """Rewrite the live part of a circuit as a plan."""
    from certimap.circuits.kernels import simplify, structure
    from certimap.circuits.kernels.arrays import NewNodes

    domain, arrays = query.query_domain, properties.circuit_arrays(circuit)
    full = properties.full_state_sets(domain)
    decides = properties.find_decided(arrays, parents, leaves.position, leaves.states, full)
    single = np.empty(circuit.n_nodes, np.int32)
    structure.single_variables(arrays, parents, leaves.position, single)
    if not domain.is_discrete:
        _decide_histograms(circuit, parents, single, decides)
    n_states = domain.n_states
    merged = single[(circuit.kind == NodeKind.SUM) & (single >= 0)]
    n_table = len(leaves.log_tables)
    log_tables = np.concatenate([leaves.log_tables, np.empty(int(n_states[merged].sum()))])
    n_live = int(np.count_nonzero((parents > 0) & (single != -1)))
    new = NewNodes(
        kind=np.empty(n_live, np.int8),
        ptr=np.empty(n_live + 1, np.int64),
        leaf_var=np.empty(n_live, np.int32),
        leaf_start=np.empty(n_live, np.int64),
        decides=np.empty(n_live, np.int32),
        inlined=np.empty(n_live, np.bool_),
        n_parents=np.zeros(n_live, np.int64),
        pool_child=np.empty(circuit.n_edges + 1, np.int64),
        pool_weight=np.empty(circuit.n_edges + 1),
    )
    seen_by, seen_at = np.full(n_live, -1, np.int64), np.empty(n_live, np.int64)
    alias = np.empty(circuit.n_nodes, np.int64)
    inputs = (leaves.log_mass, parents, single, n_states, leaves.start, decides)
    simplify.fold(arrays, *inputs, n_table, log_tables, seen_by, seen_at, new, alias)
    sums = np.flatnonzero(circuit.kind == NodeKind.SUM)
    return _laid_out(domain, int(alias[-1]), new, log_tables, alias[sums])


def _decide_histograms(
    circuit: Circuit, parents: NDArray[np.int64], single: NDArray[np.int32], decides: NDArray[np.int32]
) -> None:
    """Mark the sums of leaves of one real variable whose supports are disjoint: at most one of them is not 0."""
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


def _laid_out(
    domain: Domain, root: int, new: NewNodes, log_tables: NDArray[np.float64], sums: NDArray[np.int64]
) -> Plan:
    """Lay the rewritten nodes out in depth-first postorder; `sums` are what the circuit's sums became, or -1."""
    from certimap.circuits.kernels import simplify
    from certimap.circuits.kernels.arrays import Layout

    n_pool, kinds = int(new.ptr[root + 1]), new.kind[: root + 1]
    owner_is_sum = np.repeat(kinds == simplify.SUM, np.diff(new.ptr[: root + 2]))
    member_kinds = kinds[new.pool_child[:n_pool]]
    n_wrapped = int(np.count_nonzero(owner_is_sum & (member_kinds != simplify.PRODUCT)))
    n_inner = int(np.count_nonzero(member_kinds != simplify.LEAF)) + 2 * n_wrapped
    n_leaves = int(np.count_nonzero(member_kinds == simplify.LEAF)) + 1
    n_nodes = int(np.count_nonzero(kinds != simplify.LEAF)) + n_wrapped + 1
    out = Layout(
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
    pools = {"pool_child": new.pool_child[:n_pool], "pool_weight": new.pool_weight[:n_pool]}
    work = _workspace(root + 1, n_pool)
    simplify.lay_out(root, new._replace(**pools), work, out)
    n_nodes, n_inner, n_leaves = (int(x) for x in out.sizes)
    leaf_var = out.leaf_var[:n_leaves].copy()
    tables, log_tables, leaf_start = _used_tables(domain, leaf_var, out.leaf_start[:n_leaves], log_tables)
    log_weights = out.log_weights[:n_inner].copy()
    numbers = np.flatnonzero((sums >= 0) & (sums <= root))[
        ::-1
    ]  # of several that became one node, the first counts
    places = work.final[sums[numbers]]
    sum_numbers = np.full(n_nodes, -1, np.int64)
    sum_numbers[places[places >= 0]] = numbers[places >= 0]
    sum_numbers[~out.is_sum[:n_nodes]] = -1
    return Plan(
        domain,
        out.is_sum[:n_nodes].copy(),
        out.child_ptr[: n_nodes + 1].copy(),
        out.children[:n_inner].copy(),
        np.exp(log_weights),
        log_weights,
        out.leaf_ptr[: n_nodes + 1].copy(),
        leaf_var,
        leaf_start,
        tables,
        log_tables,
        out.decides[:n_nodes].copy(),
        sum_numbers,
    )


def _workspace(n_nodes: int, n_pool: int) -> Workspace:
    from certimap.circuits.kernels.arrays import Workspace

    return Workspace(
        stack=np.empty(n_nodes + 1, np.int64),
        cursor=np.empty(n_nodes + 1, np.int64),
        inner_stack=np.empty(n_nodes + 1, np.int64),
        inner_weight=np.empty(n_nodes + 1),
        flat_begin=np.empty(n_nodes, np.int64),
        flat_end=np.empty(n_nodes, np.int64),
        flat_child=np.empty(n_pool, np.int64),
        flat_weight=np.empty(n_pool),
        final=np.full(n_nodes, -1, np.int64),
    )


def _used_tables(
    domain: Domain, leaf_var: NDArray[np.int32], leaf_start: NDArray[np.int64], log_tables: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Keep only the vectors that leaves point to; return them as probabilities and logs, and new starts."""
    sizes_of_var = np.where(domain.n_states > 0, domain.n_states, REAL_SIZE)
    used = np.zeros(len(log_tables), np.int64)  # at each start, the vector's length
    used[leaf_start] = sizes_of_var[leaf_var]
    starts = np.flatnonzero(used)
    sizes = used[starts]
    new_starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    within = np.arange(int(sizes.sum())) - np.repeat(new_starts, sizes)
    kept = log_tables[np.repeat(starts, sizes) + within]
    used[starts] = new_starts
    is_real = np.zeros(len(log_tables), np.bool_)
    is_real[leaf_start] = domain.n_states[leaf_var] == 0
    real_entry = np.repeat(is_real[starts], sizes)
    with np.errstate(over="ignore"):
        return np.where(real_entry, kept, np.exp(kept)), kept, used[leaf_start]
