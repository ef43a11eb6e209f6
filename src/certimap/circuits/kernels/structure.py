"""Kernels over a circuit before it is conditioned: reachability, scopes, masses, decided variables, paths.

Every kernel is one pass over the edges.
"""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.kernels.arrays import CircuitArrays, QueriedLeaves
from certimap.core.arrays import Flags, Floats, Ints, Ints8, Ints32
from certimap.kernels.jit import jit

_NEG_INF = -math.inf
MAX_TRACKED = 16  # limit on restricted variables per node; dropping some only loosens bounds


@jit()
def count_parents(circuit: CircuitArrays, log_mass: Floats, out: Ints32) -> None:
    """Count the edges into each node from nodes reachable from the root; the root itself counts one.

    Edges of zero weight, and edges into nodes of zero mass, do not count.
    """
    n_nodes = circuit.kind.shape[0]
    out[:] = 0
    out[n_nodes - 1] = 1
    for node in range(n_nodes - 1, -1, -1):
        if out[node] == 0:
            continue
        for edge in range(circuit.child_ptr[node], circuit.child_ptr[node + 1]):
            child = circuit.children[edge]
            if circuit.log_weights[edge] > _NEG_INF and log_mass[child] > _NEG_INF:
                out[child] += 1


@jit()
def check_scopes(circuit: CircuitArrays, parents: Ints32, fingerprints: Ints, scopes: Ints) -> int:
    """Fill in the scopes of nodes as fingerprints of multisets; return the first sum that is not smooth.

    `fingerprints` (n_vars,) holds a random word for each variable (0 for ignored ones); `scopes` is (n_nodes,). A
    product adds its children's fingerprints, so a variable that occurs twice below a product counts twice up to
    the root. Returns -1 if every reachable sum is smooth.
    """
    for node in range(circuit.kind.shape[0]):
        if parents[node] == 0:
            continue
        if circuit.kind[node] < 2:
            scopes[node] = fingerprints[circuit.leaf_var[node]]
            continue
        first = True
        scope = np.int64(0)
        for edge in range(circuit.child_ptr[node], circuit.child_ptr[node + 1]):
            child = circuit.children[edge]
            if circuit.kind[node] == 2:
                scope += scopes[child]
            elif circuit.log_weights[edge] > _NEG_INF:
                if not first and scopes[child] != scope:
                    return node
                scope = scopes[child]
                first = False
        scopes[node] = scope
    return -1


@jit()
def upward_log_mass(circuit: CircuitArrays, is_max: bool, out: Floats) -> None:
    """Fill in the log masses of inner nodes, if `is_max` with sums' largest terms; `out` holds those of leaves."""
    for node in range(circuit.kind.shape[0]):
        start, stop = circuit.child_ptr[node], circuit.child_ptr[node + 1]
        if circuit.kind[node] == 2:
            total, lost = 0.0, 0.0  # compensated, since thousands of observed leaves may be multiplied here
            for edge in range(start, stop):
                term = out[circuit.children[edge]]
                if term == _NEG_INF:
                    total, lost = _NEG_INF, 0.0
                    break
                larger = total + term
                lost += (total - larger) + term if abs(total) >= abs(term) else (term - larger) + total
                total = larger
            out[node] = total + lost
        elif circuit.kind[node] == 3:
            largest = _NEG_INF
            for edge in range(start, stop):
                largest = max(largest, circuit.log_weights[edge] + out[circuit.children[edge]])
            if is_max or largest == _NEG_INF:
                out[node] = largest
                continue
            total = 0.0
            for edge in range(start, stop):
                total += math.exp(circuit.log_weights[edge] + out[circuit.children[edge]] - largest)
            out[node] = largest + math.log(total)


@jit()
def upward_error(circuit: CircuitArrays, log_mass: Floats, out: Floats) -> None:
    """Fill in bounds on the errors of inner nodes' log masses, in units of the last place of 1.

    Each sum of logs has an error relative to its size, each log-sum-exp slightly more. Errors of a product's
    children add up; errors of a sum's children do not. `out` holds the leaves' errors on entry.
    """
    for node in range(circuit.kind.shape[0]):
        start, stop = circuit.child_ptr[node], circuit.child_ptr[node + 1]
        if circuit.kind[node] < 2 or log_mass[node] == _NEG_INF:
            continue
        error = abs(log_mass[node])
        worst = 0.0
        for edge in range(start, stop):
            child, weight = circuit.children[edge], circuit.log_weights[edge]
            if log_mass[child] == _NEG_INF or weight == _NEG_INF:
                continue
            if circuit.kind[node] == 2:
                error += out[child] + abs(log_mass[child])
            else:
                worst = max(worst, out[child] + abs(weight) + abs(weight + log_mass[child]) + abs(log_mass[child]))
                error += 1.0
        out[node] = error + worst + 4.0


@jit()
def upward_reach(circuit: CircuitArrays, out: Floats) -> None:
    """Fill in bounds on |ln| of each inner node's value at any possible point.

    `out` holds the leaves' bounds on entry.
    """
    for node in range(circuit.kind.shape[0]):
        start, stop = circuit.child_ptr[node], circuit.child_ptr[node + 1]
        if circuit.kind[node] < 2:
            continue
        total, largest = 0.0, 0.0
        for edge in range(start, stop):
            child, weight = circuit.children[edge], circuit.log_weights[edge]
            if circuit.kind[node] == 2:
                total += out[child]
            elif weight != _NEG_INF:
                largest = max(largest, abs(weight) + out[child])
        out[node] = total if circuit.kind[node] == 2 else largest + math.log(stop - start)


@jit()
def single_variables(circuit: CircuitArrays, parents: Ints32, position: Ints32, out: Ints32) -> None:
    """Write a live node's query variables: -1 for none, v for v alone, -2 for more than one.

    `position` (n_vars,) is the position of each variable in the query, -1 if it is not queried.
    """
    for node in range(circuit.kind.shape[0]):
        if parents[node] == 0:
            out[node] = -1
        elif circuit.kind[node] < 2:
            out[node] = position[circuit.leaf_var[node]]
        else:
            found = -1
            for edge in range(circuit.child_ptr[node], circuit.child_ptr[node + 1]):
                child = circuit.children[edge]
                if parents[child] == 0 or out[child] == -1:
                    continue
                if found == -1:
                    found = out[child]
                elif found != out[child]:
                    found = -2
            out[node] = found


@jit()
def _restrict_product(
    circuit: CircuitArrays, node: int, start: Ints, count: Ints8, variables: Ints32, states: Ints, used: int
) -> int:
    """Collect the state sets of a product's children, leaves first: the nearest is the likeliest to decide."""
    kept = 0
    for near in range(2):
        for edge in range(circuit.child_ptr[node], circuit.child_ptr[node + 1]):
            child = circuit.children[edge]
            if (circuit.kind[child] < 2) != (near == 0):
                continue
            for k in range(start[child], start[child] + count[child]):
                if kept < MAX_TRACKED:
                    variables[used + kept] = variables[k]
                    states[used + kept] = states[k]
                    kept += 1
    return kept


@jit()
def _restrict_sum(
    circuit: CircuitArrays, node: int, parents: Ints32, all_states: Ints, start: Ints, count: Ints8,
    variables: Ints32, states: Ints, used: int, out: Ints32,
) -> int:  # fmt: skip
    """Unite the state sets of a sum's live children; record the variable with disjoint sets, if any."""
    first, stop = circuit.child_ptr[node], circuit.child_ptr[node + 1]
    while first < stop and (circuit.log_weights[first] == _NEG_INF or parents[circuit.children[first]] == 0):
        first += 1
    if first == stop:
        return 0
    kept = 0
    child = circuit.children[first]
    for k in range(start[child], start[child] + count[child]):
        variable = variables[k]
        union = states[k]
        disjoint = True
        n_children = 1
        for edge in range(first + 1, stop):
            other = circuit.children[edge]
            if circuit.log_weights[edge] == _NEG_INF or parents[other] == 0:
                continue
            more = all_states[variable]
            for place in range(start[other], start[other] + count[other]):
                if variables[place] == variable:
                    more = states[place]
            n_children += 1
            if union & more != 0:
                disjoint = False
            union |= more
            if union == all_states[variable] and not disjoint:
                break
        if disjoint and n_children > 1 and out[node] < 0:
            out[node] = variable
        if union != all_states[variable]:
            variables[used + kept] = variable
            states[used + kept] = union
            kept += 1
    return kept


@jit()
def decided_variables(
    circuit: CircuitArrays, parents: Ints32, position: Ints32, leaf_states: Ints, all_states: Ints,
    first_node: int, first_leaf: int, start: Ints, count: Ints8, variables: Ints32, states: Ints, used: int,
    out: Ints32,
) -> int:  # fmt: skip
    """Find for each live sum a variable of which its children allow disjoint sets of states, else -1.

    `position` (n_vars,) is the position of each variable in the query, or -1. `leaf_states` holds each queried
    leaf's set of allowed states, as bits (state modulo 64); `all_states` the full sets of the query's variables. A
    node keeps the sets of at most `MAX_TRACKED` restricted variables, so that the cost stays linear; dropped sets
    can hide a decided variable but never invent one. Node i keeps `count[i]` sets from `start[i]` on in the pools
    `variables` and `states`, of which `used` entries are in use. Starts at `first_node`, preceded by `first_leaf`
    queried leaves. Returns the node at which the pools are full, or the number of nodes.
    """
    leaf = first_leaf
    for node in range(first_node, circuit.kind.shape[0]):
        start[node] = used
        if used + MAX_TRACKED > variables.shape[0]:
            return node
        place = position[circuit.leaf_var[node]] if circuit.kind[node] < 2 else np.int32(-1)
        if place >= 0:
            leaf += 1
        out[node] = -1
        count[node] = 0
        if parents[node] == 0:
            continue
        kept = 0
        if circuit.kind[node] < 2:
            if circuit.kind[node] == 0 and place >= 0 and leaf_states[leaf - 1] != all_states[place]:
                variables[used] = place
                states[used] = leaf_states[leaf - 1]
                kept = 1
        elif circuit.kind[node] == 2:
            kept = _restrict_product(circuit, node, start, count, variables, states, used)
        else:
            kept = _restrict_sum(circuit, node, parents, all_states, start, count, variables, states, used, out)
        count[node] = kept
        used += kept
    return circuit.kind.shape[0]


@jit()
def join(first: Ints, members: Ints32, shift: int, cut: Flags, label: Ints32) -> None:
    """Join nodes that are not cut with their members, shifted; `label` is the least one of each component."""
    for node in range(cut.shape[0]):
        for at in range(first[node], first[node] if cut[node] else first[node + 1]):
            a, b = label[node], label[members[at] + shift]
            while label[a] != a or label[b] != b:
                label[a], label[b] = label[label[a]], label[label[b]]
                a, b = label[a], label[b]
            label[max(a, b)] = min(a, b)
    for member in range(label.shape[0]):  # in rising order: the label of the label is final
        label[member] = label[label[member]]


NEGLIGIBLE = 40.0  # nats below a leaf's mass at which the rounding of an entry becomes negligible


@jit()
def fill_categorical(
    circuit: CircuitArrays, param_ptr: Ints, params: Floats, offsets: Ints, log_weights: Floats, position: Ints32,
    log_mass: Floats, log_error: Floats, queried: QueriedLeaves,
) -> None:  # fmt: skip
    """Fill in ln of the mass of each categorical leaf, its error, and the queried ones in rising order.

    `log_weights` (total_states,) are the query's, `position` (n_vars,) the position of each variable in it. All
    other nodes get log mass 0 and error 0. Errors are in units of the last place of 1.
    """
    k, used = 0, 0
    for node in range(circuit.kind.shape[0]):
        log_mass[node], log_error[node] = 0.0, 0.0
        if circuit.kind[node] != 0:
            continue
        variable = circuit.leaf_var[node]
        first, size, column = param_ptr[node], param_ptr[node + 1] - param_ptr[node], offsets[variable]
        mass = _NEG_INF
        for s in range(size):
            mass = max(mass, params[first + s] + log_weights[column + s])
        if mass > _NEG_INF:
            total = 0.0
            for s in range(size):
                entry = params[first + s] + log_weights[column + s]
                if entry > _NEG_INF:
                    total += math.exp(entry - mass)
            mass += math.log(total)
        reach = 0.0
        for s in range(size):
            if params[first + s] + log_weights[column + s] > mass - NEGLIGIBLE:
                reach = max(reach, abs(params[first + s]) + abs(log_weights[column + s]))
        log_mass[node] = mass
        log_error[node] = reach + size + 4.0
        if position[variable] < 0:
            continue
        queried.nodes[k], queried.start[k] = node, used
        states = np.int64(0)
        for s in range(size):
            entry = params[first + s] + log_weights[column + s]
            queried.log_tables[used + s] = entry - mass
            if entry > _NEG_INF:
                states |= np.int64(1) << np.int64(s & 63)
        queried.states[k] = states
        k += 1
        used += size
