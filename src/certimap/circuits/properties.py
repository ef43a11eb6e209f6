"""Structural properties of a circuit, always computed from its arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.circuits.kernels import structure as kernels
from certimap.circuits.kernels.arrays import CircuitArrays, QueriedLeaves
from certimap.core.arrays import Floats, Ints, Ints32
from certimap.core.domain import Domain
from certimap.errors import ModelError


def circuit_arrays(circuit: Circuit) -> CircuitArrays:
    """Return the inner structure of a circuit for the kernels."""
    return CircuitArrays(circuit.kind, circuit.child_ptr, circuit.children, circuit.log_weights, circuit.leaf_var)


def categorical_leaves(
    circuit: Circuit, log_weights: Floats, position: Ints32, log_mass: Floats, log_error: Floats
) -> QueriedLeaves:
    """Return the queried categorical leaves; see `kernels.fill_categorical` for the other arguments."""
    arrays = circuit_arrays(circuit)
    sizes = np.diff(circuit.param_ptr)[(circuit.kind == NodeKind.CATEGORICAL) & (position[circuit.leaf_var] >= 0)]
    (nodes, start), states = np.empty((2, len(sizes)), np.int32), np.empty(len(sizes), np.int64)
    leaves = QueriedLeaves(nodes, start, states, np.empty(int(sizes.sum())))
    numbers = (circuit.param_ptr, circuit.params, circuit.domain.offsets, log_weights, position)
    kernels.fill_categorical(arrays, *numbers, log_mass, log_error, leaves)
    return leaves


def full_state_sets(domain: Domain) -> Ints:
    """Return each variable's set of all states as bits (state modulo 64), int64, shape (n,)."""
    sizes = np.minimum(domain.n_states, 64).astype(np.uint64)
    ones = np.uint64(0xFFFFFFFFFFFFFFFF)
    shift = (np.uint64(64) - np.maximum(sizes, np.uint64(1))) & np.uint64(63)
    return np.where(sizes > 0, ones >> shift, np.uint64(0)).astype(np.uint64).view(np.int64)


@dataclass(frozen=True, eq=False)
class Structure:
    """Properties of a circuit's scopes."""

    parents: Ints32  # (n_nodes,): edges into each node from reachable nodes; 0 for unreachable nodes
    rough_sum: int  # the first reachable sum whose children differ in scope, or -1
    # whether some reachable product has two children that share a variable (valid only if `rough_sum` is -1)
    overlapping: bool
    missing: tuple[int, ...]  # variables, except ignored ones, not reachable from the root


def structure(circuit: Circuit, ignored: Iterable[int] = ()) -> Structure:
    """Check smoothness and decomposability in two passes, leaving out the `ignored` variables.

    Each pass compares scopes by random fingerprints of 63 bits. The cost is thus linear in the edges whatever the
    number of variables. Two different scopes agree by chance in both passes with probability about 2^-126.
    """
    n_nodes = circuit.n_nodes
    parents = np.empty(n_nodes, np.int32)
    arrays = circuit_arrays(circuit)
    kernels.count_parents(arrays, np.zeros(n_nodes), parents)
    counts = np.ones(len(circuit.domain), np.bool_)
    counts[list(ignored)] = False
    used = np.zeros(len(circuit.domain), np.bool_)
    used[circuit.leaf_var[(circuit.leaf_var >= 0) & (parents > 0)]] = True
    generator, scopes = np.random.default_rng(0x5EED), np.empty(n_nodes, np.int64)
    rough, overlapping = -1, False
    for _ in range(2):
        fingerprints = np.where(counts, generator.integers(-(2**62), 2**62, len(counts)), 0)
        rough = max(rough, int(kernels.check_scopes(arrays, parents, fingerprints, scopes)))
        overlapping |= rough < 0 and bool(scopes[-1] != fingerprints[used].sum())
    return Structure(parents, rough, overlapping and rough < 0, tuple(np.flatnonzero(~used & counts).tolist()))


def is_smooth(circuit: Circuit) -> bool:
    """Whether the children of every reachable sum have the same scope; linear in the edges."""
    return structure(circuit).rough_sum < 0


def is_decomposable(circuit: Circuit) -> bool:
    """Whether the children of every reachable product have disjoint scopes.

    Linear in the edges on a smooth circuit; otherwise explicit scopes are built.
    """
    found = structure(circuit)
    return not found.overlapping if found.rough_sum < 0 else overlapping_product(circuit) is None


def decided_variables(circuit: Circuit) -> Ints32:
    """Return the variable decided by each node, int32, shape (n_nodes,), else -1.

    A sum decides a variable if its children allow pairwise disjoint sets of that variable's states; at
    most one child is then nonzero on any point. Linear in the edges: a node tracks a bounded number of
    restricted variables, so that in rare cases a decided variable is overlooked.
    """
    parents = np.empty(circuit.n_nodes, np.int32)
    arrays = circuit_arrays(circuit)
    kernels.count_parents(arrays, np.zeros(circuit.n_nodes), parents)
    domain, (mass, error) = circuit.domain, np.empty((2, circuit.n_nodes))
    everything = np.where(domain.n_states > 0, np.arange(len(domain)), -1).astype(np.int32)
    leaves = categorical_leaves(circuit, np.zeros(domain.total_states), everything, mass, error)
    return find_decided(arrays, parents, everything, leaves, full_state_sets(domain))


def find_decided(
    arrays: CircuitArrays, parents: Ints32, position: Ints32, leaves: QueriedLeaves, full_sets: Ints
) -> Ints32:
    """Return the variable decided by each live sum, numbered by `position`, given restricted leaves."""
    n_nodes = len(arrays.kind)
    out, start, count = np.empty(n_nodes, np.int32), np.empty(n_nodes, np.int64), np.empty(n_nodes, np.int8)
    variables, states = np.empty(1024, np.int32), np.empty(1024, np.int64)
    node, used = 0, 0
    while True:
        pools = (start, count, variables, states, used)
        before = int(np.searchsorted(leaves.nodes, node))
        sets = (position, leaves.states, full_sets)
        node = kernels.decided_variables(arrays, parents, *sets, node, before, *pools, out)
        if node == n_nodes:
            return out
        used = int(start[node])
        variables, states = np.resize(variables, 2 * len(variables)), np.resize(states, 2 * len(states))


def is_deterministic(circuit: Circuit) -> bool:
    """Whether every reachable sum with several children decides a variable (sufficient, not necessary)."""
    decided = decided_variables(circuit)
    parents = structure(circuit).parents
    starts = circuit.child_ptr[:-1]
    live = np.concatenate([[0], np.cumsum(circuit.log_weights > -np.inf)])
    several = live[circuit.child_ptr[1:]] - live[starts] > 1
    return bool(np.all(decided[(circuit.kind == NodeKind.SUM) & (parents > 0) & several] >= 0))


def _explicit_scopes(circuit: Circuit, parents: Ints32) -> list[int]:
    """Return each reachable node's scope as the bits of an int; only for errors and for smoothing."""
    scopes = [0] * circuit.n_nodes
    for node in np.flatnonzero(parents):
        if circuit.leaf_var[node] >= 0:
            scopes[node] = 1 << int(circuit.leaf_var[node])
        else:
            for child in circuit.children_of(int(node)):
                scopes[node] |= scopes[child]
    return scopes


def variables_of(scope: int) -> list[int]:
    """Return the variables of a scope, which is held as bits."""
    return [i for i, bit in enumerate(reversed(f"{scope:b}")) if bit == "1"]


def overlapping_product(circuit: Circuit, ignored: Iterable[int] = ()) -> tuple[int, int] | None:
    """Return a reachable product and a variable shared by two of its children, or None."""
    skipped = sum(1 << i for i in ignored)
    parents = structure(circuit).parents
    scopes = _explicit_scopes(circuit, parents)
    products: list[int] = np.flatnonzero((circuit.kind == NodeKind.PRODUCT) & (parents > 0)).tolist()
    for node in products:
        union = 0
        children: list[int] = circuit.children_of(node).tolist()
        for child in children:
            shared = union & scopes[child] & ~skipped
            if shared:
                return node, variables_of(shared)[0]
            union |= scopes[child]
    return None


def smoothed(circuit: Circuit, ignored: Iterable[int] = ()) -> Circuit:
    """Return an equal circuit in which every sum is smooth and the root has every variable in scope.

    If a child of a sum (or the root) lacks a categorical variable, it is multiplied by a leaf with weight 1 on
    every state: the function does not change. `ignored` variables may stay missing. Raises ModelError if a real
    variable is missing: a constant over it has no finite mass.
    """
    skipped = sum(1 << i for i in ignored)
    parents = structure(circuit).parents
    scopes = [scope & ~skipped for scope in _explicit_scopes(circuit, parents)]
    builder, domain = CircuitBuilder(circuit.domain), circuit.domain
    live: list[int] = np.flatnonzero((circuit.kind == NodeKind.SUM) & (parents > 0)).tolist()
    edges = [(scopes[node], edge) for node in live for edge in range(*circuit.child_ptr[node : node + 2].tolist())]
    lacks: dict[int, int] = {}  # edge -> what its child lacks
    for scope, edge in edges:
        if circuit.log_weights[edge] > -np.inf and (lack := scope & ~scopes[int(circuit.children[edge])]):
            lacks[edge] = lack
    at_root = ((1 << len(domain)) - 1) & ~skipped & ~scopes[circuit.root]
    constants: dict[int, int] = {}  # variable -> its constant leaf
    for i in (i for lack in (*lacks.values(), at_root) for i in variables_of(lack)):
        if not domain.n_states[i]:
            raise ModelError(
                f"the circuit leaves the real variable {domain.names[i]!r} free in places; "
                "expected a leaf for it in every term"
            )
        if i not in constants:
            constants[i] = builder.categorical(i, log_weights=np.zeros(int(domain.n_states[i])))
    wider: dict[tuple[int, int], int] = {}  # (child, what it lacks) -> their product, which follows the child
    wanted: dict[int, dict[int, None]] = {}
    for edge, lack in lacks.items():
        wanted.setdefault(int(circuit.children[edge]), {})[lack] = None
    made: list[int] = []
    for node in range(circuit.n_nodes):
        first, last = circuit.child_ptr[node : node + 2].tolist()
        below: list[int] = circuit.children[first:last].tolist()
        members = [wider.get((c, lacks.get(first + k, 0)), made[c]) for k, c in enumerate(below)]
        weights = circuit.log_weights[first:last].tolist()
        own = (int(circuit.leaf_var[node]), circuit.params_of(node))
        made.append(builder.add(int(circuit.kind[node]), members, weights, *own))
        for lack in wanted.get(node, ()):
            wider[node, lack] = builder.product([made[node], *(constants[i] for i in variables_of(lack))])
    if at_root:
        builder.product([len(builder) - 1, *(constants[i] for i in variables_of(at_root))])
    return builder.build(normalised=False)
